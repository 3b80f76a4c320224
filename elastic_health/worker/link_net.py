"""The worker's end of the worker link: asks its agent over a Unix socket, JSON lines, one request at a time.

Law: every call ends, with a reply or a LinkError, within its time; a broken connection is made anew once.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from elastic_health import messages
from elastic_health.errors import LinkError
from elastic_health.worker.wire import HELLO_ID, decode_reply, encode

DEFAULT_TIMEOUT_S = 60.0


class WorkerLink:
    """Thread-safe.  Connects at the first call.

    Args:
        path: the agent's socket.
        hello: sent first on each connection.
    """

    def __init__(self, path: str, hello: messages.Hello) -> None:
        self._path, self._hello = path, hello
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._socket: socket.socket | None = None
        self._rest = b""
        self._n = 0

    def call(self, message: messages.WorkerMessage, timeout_s: float = DEFAULT_TIMEOUT_S) -> messages.AgentReply:
        """Ask and wait.

        Raises:
            LinkError: no answer in time, the agent is gone, or it refused the request (then with its own words).
        """
        if os.getpid() != self._pid:
            raise LinkError("a call from the worker itself", f"pid {os.getpid()}, a child of it", "call it in the worker's main process")
        deadline = time.monotonic() + timeout_s
        with self._lock:
            try:
                reply = self._ask(message, deadline)
            except (ConnectionError, EOFError):
                self._drop()
                try:
                    reply = self._ask(message, deadline)
                except (OSError, EOFError) as e:
                    self._drop()
                    raise _gone(e) from e
            except OSError as e:
                self._drop()
                raise _gone(e) from e
        if isinstance(reply, messages.Refused):
            raise LinkError(reply.expected, reply.found, reply.do)
        return reply

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _ask(self, message: messages.WorkerMessage, deadline: float) -> messages.AgentReply:
        if self._socket is None:
            self._connect(deadline)
        self._n += 1
        self._send(message, self._n, deadline)
        while True:
            n, reply = self._receive(deadline)
            if n == self._n:
                return reply

    def _connect(self, deadline: float) -> None:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        s.settimeout(max(0.01, deadline - time.monotonic()))
        s.connect(self._path)
        self._socket, self._rest = s, b""
        self._send(self._hello, HELLO_ID, deadline)

    def _send(self, message: object, n: int, deadline: float) -> None:
        assert self._socket is not None
        line = encode(message, n)
        self._socket.settimeout(max(0.01, deadline - time.monotonic()))
        self._socket.sendall(line)

    def _receive(self, deadline: float) -> tuple[int, messages.AgentReply]:
        assert self._socket is not None
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(left)
            more = self._socket.recv(65536)
            if not more:
                raise EOFError("the agent closed the link")
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return decode_reply(line)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _gone(e: BaseException) -> LinkError:
    return LinkError("an answer from this node's agent", f"{type(e).__name__}: {e}", "see the agent's log; the worker should end")
