"""Asks torch's worker server, which answers over a Unix socket from a C++ thread, also while the GIL is held.

Law: an answer is bounded in bytes and in time, and whatever comes is only bytes: the caller judges them.

In torch 2.13 (found by asking): `GET /handler/` lists the handlers; `POST /handler/<name>` runs one.  `fr_trace_json`
and `ping` need no GIL; `dump_traceback` waits for it, which holds up one of the server's threads and nothing else; a
stopped process accepts the connection and says nothing; an unknown handler is a 404.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from enum import Enum

MAX_HEAD_BYTES = 16 * 1024


class ServerTrouble(Enum):
    """`absent`: no socket there, or nobody behind it; `silent`: no whole answer in time; `refused`: not status 200."""

    ABSENT = "absent"
    SILENT = "silent"
    REFUSED = "refused"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"


@dataclass(frozen=True)
class ServerAnswer:
    """`body` of an answer with status 200, or the trouble with a `note` about it."""

    body: bytes = b""
    trouble: ServerTrouble | None = None
    note: str = ""


def ask(path: str, handler: str, *, timeout_s: float, max_bytes: int) -> ServerAnswer:
    """Run one handler of the worker server that listens at `path`.

    Args:
        handler: its name, with a query if need be (`fr_trace_json`).
        timeout_s: for the whole exchange.
        max_bytes: the longest body that is taken.
    """
    deadline = time.monotonic() + timeout_s
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(path)
        except TimeoutError:
            return ServerAnswer(trouble=ServerTrouble.SILENT, note="connecting took too long")
        except OSError as e:
            return ServerAnswer(trouble=ServerTrouble.ABSENT, note=e.strerror or str(e))
        try:
            sock.sendall(request.encode())
            return _read_answer(sock, deadline, max_bytes)
        except TimeoutError:
            return ServerAnswer(trouble=ServerTrouble.SILENT, note=f"no answer within {timeout_s:g} s")
        except OSError as e:
            return ServerAnswer(trouble=ServerTrouble.ABSENT, note=e.strerror or str(e))


def _receive(sock: socket.socket, deadline: float) -> bytes:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    sock.settimeout(left_s)
    return sock.recv(1 << 20)


def _read_answer(sock: socket.socket, deadline: float, max_bytes: int) -> ServerAnswer:
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        piece = _receive(sock, deadline)
        data += piece
        if not piece or len(data) > MAX_HEAD_BYTES + (1 << 20):
            return ServerAnswer(trouble=ServerTrouble.MALFORMED, note="no HTTP head")
    head, body = bytes(data[:end]), data[end + 4 :]
    length = _length(head)
    if length is None or not head.startswith(b"HTTP/1."):
        return ServerAnswer(trouble=ServerTrouble.MALFORMED, note="an HTTP head without a length")
    if length > max_bytes:
        return ServerAnswer(trouble=ServerTrouble.TOO_LARGE, note=f"{length} bytes, at most {max_bytes} are taken")
    while len(body) < length:
        piece = _receive(sock, deadline)
        if not piece:
            return ServerAnswer(trouble=ServerTrouble.MALFORMED, note=f"{len(body)} of {length} bytes came")
        body += piece
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        said = bytes(body[:200]).decode("utf-8", "replace").strip()
        return ServerAnswer(trouble=ServerTrouble.REFUSED, note=f"status {b''.join(status).decode('ascii', 'replace')}: {said}")
    return ServerAnswer(bytes(body[:length]))


def _length(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            digits = value.strip()
            return int(digits) if digits.isdigit() and len(digits) < 15 else None
    return None
