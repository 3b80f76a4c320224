"""The agent's end of the worker link: a Unix socket on which this node's workers ask, and one thread that serves it.

Law: only a process of the same user that belongs to the tree of the worker it names is heard; every request is answered
once, or its connection is closed; nothing that one worker sends (or fails to read) delays another or the agent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable

from elastic_health import messages as m
from elastic_health.errors import BadValue, LinkError
from elastic_health.worker.wire import HELLO_ID, decode_request, encode, request_id

log = logging.getLogger("elastic_health")
Reply = Callable[[m.AgentReply], None]
Handler = Callable[[m.Hello, object, Reply], None]
"""Called on the link's thread: answer at once, or keep the reply function and call it later from any thread."""

MAX_CONNECTIONS = 256
MAX_OPEN_REQUESTS = 64
KNOWN_WITHIN_S = 5.0
"""A worker may say hello before the agent has noted its pid: so long it is looked up again."""
_RETRY_S = 0.1
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: what Linux tells about the peer of a Unix socket


class _Caller:
    """One connection.  `hello` is None until it was checked; `refusal` is what all its requests get if it failed."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pid, self.uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        self.hello: m.Hello | None = None
        self.refusal: m.Refused | None = None
        self.unproven: m.Hello | None = None
        self.give_up_at = 0.0
        self.inbox, self.outbox = bytearray(), bytearray()
        self.open: set[int] = set()
        self.last, self.closed = False, False

    @property
    def checking(self) -> bool:
        return self.hello is None and self.refusal is None and self.unproven is not None


class WorkerLinkServer:
    """Listens from construction to `close`.

    Args:
        path: where to listen; made with mode 0600; at most 107 bytes.
        handle: gets (hello, message, reply).
        belongs: (pid, local rank) -> is that process in the tree of that worker?

    Raises:
        LinkError: the path is taken or can't be made.
    """

    def __init__(self, path: str, handle: Handler, belongs: Callable[[int, int], bool]) -> None:
        self.path, self._handle, self._belongs = path, handle, belongs
        self._listener = _listen(path)
        self._wake_in, self._wake_out = socket.socketpair()
        for s in (self._listener, self._wake_in, self._wake_out):
            s.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._callers: set[_Caller] = set()
        self._dirty: set[_Caller] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="eh-worker-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections and remove the socket."""
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    # ---- the thread
    def _serve(self) -> None:
        try:
            while not self._closing:
                waits = any(c.checking for c in self._callers)
                for key, events in self._selector.select(_RETRY_S if waits else None):
                    self._turn(key, events)
                if waits:
                    self._look_again()
                self._flush_dirty()
        finally:
            for caller in tuple(self._callers):
                self._drop(caller)
            for s in (self._listener, self._wake_in, self._wake_out):
                s.close()
            self._selector.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def _turn(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fileobj is self._wake_in:
            with contextlib.suppress(BlockingIOError):
                self._wake_in.recv(4096)
        elif isinstance(key.data, _Caller) and not key.data.closed:
            if events & selectors.EVENT_READ:
                self._read(key.data)
            if events & selectors.EVENT_WRITE and not key.data.closed:
                self._write(key.data)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as e:  # out of descriptors, or the peer has gone again: the next one may fare better
            log.warning("worker link: not accepted: %s", e)
            time.sleep(0.05)
            return
        sock.setblocking(False)
        caller = _Caller(sock)
        if caller.uid != os.geteuid() or len(self._callers) >= MAX_CONNECTIONS:
            log.warning("worker link: pid %d of user %d turned away", caller.pid, caller.uid)
            sock.close()
            return
        self._callers.add(caller)
        self._selector.register(sock, selectors.EVENT_READ, caller)

    def _read(self, caller: _Caller) -> None:
        try:
            more = caller.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self._drop(caller)
            return
        caller.inbox += more
        self._take_lines(caller)
        if not caller.closed and len(caller.inbox) > m.MAX_LINE_BYTES and b"\n" not in caller.inbox:
            log.warning("worker link: pid %d sent a line without end", caller.pid)
            self._drop(caller)

    def _take_lines(self, caller: _Caller) -> None:
        while not caller.closed and not caller.checking and not caller.last:
            end = caller.inbox.find(b"\n")
            if end < 0:
                return
            line = bytes(caller.inbox[:end])
            del caller.inbox[: end + 1]
            self._line(caller, line)

    def _line(self, caller: _Caller, line: bytes) -> None:
        try:
            n, message = decode_request(line)
        except BadValue as e:
            self._refuse(caller, request_id(line), m.Refused(e.expected, e.found, e.do))
            return
        if isinstance(message, m.Hello):
            caller.unproven, caller.hello, caller.refusal = message, None, None
            caller.give_up_at = time.monotonic() + KNOWN_WITHIN_S
            self._check(caller)
        elif caller.refusal is not None:
            self._refuse(caller, n, caller.refusal)
        elif caller.hello is None:
            self._refuse(caller, n, m.Refused("Hello first", type(message).__name__, "use one version of elastic-health on a node"))
        elif n in caller.open or n <= HELLO_ID or len(caller.open) >= MAX_OPEN_REQUESTS:
            self._refuse(caller, n, m.Refused("a new id, and an answer before the next request", f"id {n}", "ask one thing at a time"))
        else:
            caller.open.add(n)
            self._handle(caller.hello, message, lambda reply: self._answer(caller, n, reply))

    def _check(self, caller: _Caller) -> None:
        said = caller.unproven
        if said is None:
            return
        if self._belongs(caller.pid, said.local_rank):
            caller.hello = said
        elif time.monotonic() >= caller.give_up_at:
            found = f"pid {caller.pid} as local rank {said.local_rank}"
            caller.refusal = m.Refused("a process of this agent's workers", found, "only workers may use this socket")

    def _look_again(self) -> None:
        for caller in tuple(self._callers):
            if caller.checking:
                self._check(caller)
                self._take_lines(caller)

    # ---- answers
    def _refuse(self, caller: _Caller, n: int, refused: m.Refused) -> None:
        """Answer, then hang up: the caller broke the protocol or may not ask."""
        log.warning("worker link: pid %d refused: expected %s, found %s", caller.pid, refused.expected, refused.found)
        caller.last = True
        caller.open.add(n)
        self._answer(caller, n, refused)

    def _answer(self, caller: _Caller, n: int, reply: m.AgentReply) -> None:
        """From any thread; a second answer to a request, or one to a caller that has gone, changes nothing."""
        try:
            line = encode(reply, n)
        except BadValue as e:
            line = encode(m.Refused(e.expected, e.found, e.do), n)
        with self._lock:
            if caller.closed or n not in caller.open:
                return
            caller.open.discard(n)
            caller.outbox += line
            self._dirty.add(caller)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already; closed: it has ended
            self._wake_out.send(b"\0")

    def _flush_dirty(self) -> None:
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        for caller in dirty:
            if not caller.closed:
                self._write(caller)

    def _write(self, caller: _Caller) -> None:
        with self._lock:
            try:
                sent = caller.sock.send(caller.outbox) if caller.outbox else 0
            except BlockingIOError:
                sent = 0
            except OSError:
                caller.last, sent = True, len(caller.outbox)
            del caller.outbox[:sent]
            left = bool(caller.outbox)
        if caller.last and not left:
            self._drop(caller)
            return
        self._selector.modify(caller.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0), caller)

    def _drop(self, caller: _Caller) -> None:
        with self._lock:
            if caller.closed:
                return
            caller.closed = True
        self._callers.discard(caller)
        self._selector.unregister(caller.sock)
        caller.sock.close()


def _listen(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(64)
    except OSError as e:
        sock.close()
        raise LinkError("a free path of at most 107 bytes", f"{path}: {e}", "check that folder and its permissions") from e
    return sock
