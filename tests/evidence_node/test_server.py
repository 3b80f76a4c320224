"""The client of the worker server, against servers that answer as no server should."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_health.evidence.server_net import ServerTrouble, ask

pytestmark = pytest.mark.spec("E4")


@contextmanager
def server(path: Path, act: Callable[[socket.socket], None]) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(4096)
                try:
                    act(taken)
                except OSError:  # the client had enough
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield str(path)
        thread.join(10)


def reply(*pieces: bytes) -> Callable[[socket.socket], None]:
    def act(sock: socket.socket) -> None:
        for piece in pieces:
            sock.sendall(piece)

    return act


@pytest.mark.parametrize(
    ("pieces", "trouble", "body"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong",), None, b"pong"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length:4\r\n", b"X: y\r\n\r", b"\npo", b"ng"), None, b"pong"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",), None, b""),
        ((b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope",), ServerTrouble.REFUSED, b""),
        ((b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n",), ServerTrouble.REFUSED, b""),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", b"x" * 1001), ServerTrouble.TOO_LARGE, b""),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",), ServerTrouble.MALFORMED, b""),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",), ServerTrouble.MALFORMED, b""),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",), ServerTrouble.MALFORMED, b""),
        ((b"SSH-2.0-x\r\n",), ServerTrouble.MALFORMED, b""),
        ((b"",), ServerTrouble.MALFORMED, b""),
        ((b"a" * (1 << 20), b"a" * 100_000), ServerTrouble.MALFORMED, b""),
    ],
)
def test_answers(tmp_path: Path, pieces: tuple[bytes, ...], trouble: ServerTrouble | None, body: bytes) -> None:
    with server(tmp_path / "s", reply(*pieces)) as path:
        answer = ask(path, "ping", timeout_s=10, max_bytes=1000)
    assert (answer.trouble, answer.body) == (trouble, body)
    assert (answer.note == "") == (trouble is None)


def test_a_dribbling_answer_ends_with_the_limit(tmp_path: Path) -> None:
    def dribble(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        for _ in range(500):
            sock.sendall(b"x")
            time.sleep(0.02)

    with server(tmp_path / "s", dribble) as path:
        assert ask(path, "ping", timeout_s=0.3, max_bytes=1000).trouble is ServerTrouble.SILENT


def test_nobody_there(tmp_path: Path) -> None:
    assert ask(str(tmp_path / "none"), "ping", timeout_s=1, max_bytes=10).trouble is ServerTrouble.ABSENT
    assert ask("/" + "x" * 200, "ping", timeout_s=1, max_bytes=10).trouble is ServerTrouble.ABSENT
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "dead"))
    assert ask(str(tmp_path / "dead"), "ping", timeout_s=1, max_bytes=10).trouble is ServerTrouble.ABSENT
