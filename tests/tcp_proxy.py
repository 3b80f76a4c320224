"""A TCP proxy on loopback whose faults are switched while it runs: cut, stall, drop replies, refuse."""

from __future__ import annotations

import socket
import struct
import threading

_PIECE = 65536


class TcpProxy:
    """Forwards `endpoint` to `target` (both `host:port`).

    `replies_wait_for_cut`: requests go through, replies are thrown away, and `cut()` then ends the connections.
    """

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._flow = threading.Event()
        self._flow.set()
        self._drop = False
        self._cut_on_reply = False
        self.requests_bytes = 0
        self.replies_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._start_accepting()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _start_accepting(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=2)
                server.settimeout(None)
            except OSError:
                _reset(client)
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for source, sink, replies in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(pair, source, sink, replies), daemon=True).start()

    def _pump(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket, replies: bool) -> None:
        try:
            while piece := source.recv(_PIECE):
                self._flow.wait()
                if replies and self._drop:
                    if self._cut_on_reply:
                        break
                    continue
                sink.sendall(piece)
                with self._lock:
                    if replies:
                        self.replies_bytes += len(piece)
                    else:
                        self.requests_bytes += len(piece)
        except OSError:
            pass
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for s in pair:
            _reset(s)

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._pairs)

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)

    def stall(self) -> None:
        """Deliver nothing more, in either direction, and keep the connections open."""
        self._flow.clear()

    def flow(self) -> None:
        """End a stall."""
        self._flow.set()

    def drop_replies(self, *, cut: bool = False) -> None:
        """Let requests through and throw replies away; with `cut`, reset the connection at the first reply."""
        self._cut_on_reply, self._drop = cut, True

    def pass_replies(self) -> None:
        self._drop = self._cut_on_reply = False

    def refuse(self) -> None:
        """Stop listening, and reset what is open."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def accept_again(self) -> None:
        """Listen again, on the same port."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._start_accepting()

    def close(self) -> None:
        self._flow.set()
        try:
            self.refuse()
        except OSError:
            pass


def _reset(s: socket.socket) -> None:
    """Close with a reset, and wake a thread that reads from it."""
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    s.close()
