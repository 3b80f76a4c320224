"""The keeper of a private etcd: a small process that runs the server while anybody is connected to its socket.

Law: etcd lives only while the keeper does (its parent-death signal is set in the child, which the keeper's only thread
started), and the keeper only while it has users, plus a moment.  Start and end happen under the folder's lock.
It runs as a plain script with nothing but the standard library, so that it starts in a blink and drags nothing in.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

LOCK, SOCKET, LOG, DATA = "lock", "keeper.sock", "etcd.log", "data"
LINGER_S = 0.5  # a user may follow at once
READY_TIMEOUT_S = 30.0
TERM_GRACE_S = 5.0
LOG_LIMIT_BYTES = 16 * 1024 * 1024
QUOTA_BYTES = 2 * 1024**3
RESTARTS, RESTARTS_PERIOD_S = 5, 60.0
_FLAGS = ("--auto-compaction-mode=periodic", "--auto-compaction-retention=1h", f"--quota-backend-bytes={QUOTA_BYTES}", "--logger=zap")
_PORT_TAKEN = "address already in use"
# A server that ends with one of these says nothing about its data.
_NOT_THE_DATA = ("permission denied", "no space left", "flag provided but not defined", "cannot be downgraded", "read-only file system")
# Run in the child before etcd: die with the parent, unless it is gone already.
_DIE_WITH_PARENT = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None,use_errno=True).prctl(1,9,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)


def _short(folder: str) -> tuple[int, str]:
    """A path for the socket that fits into 107 bytes however long the folder's is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return fd, f"/proc/self/fd/{fd}/{SOCKET}"


def listen(folder: str) -> socket.socket:
    """Listen on the folder's socket, in place of a stale one.  The caller holds the lock."""
    fd, path = _short(folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(fd)
    return listener


def connect(folder: str) -> socket.socket | None:
    """Connect to the folder's keeper; None if none is alive."""
    fd, path = _short(folder)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
        return connection
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    finally:
        os.close(fd)


class Failed(Exception):
    """etcd did not start."""


class Server:
    """The etcd process and its data folder."""

    def __init__(self, folder: str, binary: str) -> None:
        self.folder, self.binary = folder, binary
        self.port = 0
        self.notes: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers; set damaged data aside and begin afresh.

        Raises:
            Failed: with the end of its log.
        """
        kept_port = self.port
        for attempt in range(4):
            data = os.path.join(self.folder, DATA)
            had_data = os.path.exists(data)
            self._spawn(kept_port if attempt == 0 and kept_port else _free_port())
            if self._await_ready():
                return
            tail = self._log_tail()
            if _PORT_TAKEN in tail:
                continue
            if not had_data or any(text in tail for text in _NOT_THE_DATA) or "set aside" in " ".join(self.notes):
                raise Failed(f"etcd ended while starting: …{tail[-600:].strip()}")
            aside = f"{data}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
            os.rename(data, aside)
            self.notes.append(f"etcd could not read its data: set aside as {aside}; baselines and quarantine start empty")
        raise Failed("no free port for etcd on loopback")

    def _spawn(self, port: int) -> None:
        self.port = port
        client, peer = f"http://127.0.0.1:{port}", "http://127.0.0.1:0"
        command = [self.binary, "--name=private", f"--data-dir={os.path.join(self.folder, DATA)}", *_FLAGS]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
        # a single member dials no peer; the port only has to be the same each time
        command += ["--initial-advertise-peer-urls=http://127.0.0.1:1", "--initial-cluster=private=http://127.0.0.1:1"]
        path = os.path.join(self.folder, LOG)
        if os.path.exists(path) and os.path.getsize(path) > LOG_LIMIT_BYTES:
            os.replace(path, path + ".1")
        with open(path, "ab") as log:
            self._log_start = log.tell()
            guard = [sys.executable, "-S", "-E", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
            environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
            self.process = subprocess.Popen(guard, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _await_ready(self) -> bool:
        """True once it answers, False if it ended.

        Raises:
            Failed: it does neither in time.
        """
        deadline, pause_s = time.monotonic() + READY_TIMEOUT_S, 0.02
        assert self.process is not None
        while time.monotonic() < deadline:
            if _healthy(self.port):
                return True
            try:
                self.process.wait(pause_s)
                return False
            except subprocess.TimeoutExpired:
                pause_s = min(2 * pause_s, 0.2)
        self.stop()
        raise Failed(f"etcd did not answer within {READY_TIMEOUT_S:g} s: …{self._log_tail()[-600:].strip()}")

    def _log_tail(self) -> str:
        with open(os.path.join(self.folder, LOG), "rb") as log:
            log.seek(max(self._log_start, os.fstat(log.fileno()).st_size - 8192))
            return log.read().decode("utf-8", "replace")

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        """SIGTERM, a grace, SIGKILL."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Keeper:
    """Users, their greetings, and the decision to end."""

    def __init__(self, folder: str, binary: str, listener: socket.socket) -> None:
        self.folder, self.listener = folder, listener
        self.server = Server(folder, binary)
        self.users: list[socket.socket] = []
        self.leaving: list[socket.socket] = []  # said bye; told by the end of the connection
        self.told_to_end = False
        self.restarts: list[float] = []
        self.selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ)
        self.wake, wake_end = socket.socketpair()
        wake_end.setblocking(False)
        signal.set_wakeup_fd(wake_end.fileno())
        self._wake_end = wake_end  # kept open for the signal handler
        self.selector.register(self.wake, selectors.EVENT_READ)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end_asked)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the loop

    def _end_asked(self, *_: object) -> None:
        self.told_to_end = True

    def run(self) -> None:
        try:
            self.server.start()
        except (Failed, OSError) as failure:
            self._accept()
            self.listener.close()  # whoever comes now starts another keeper
            for user in self.users:
                _say(user, {"error": str(failure)})
            return
        lonely_since = None if self.users else time.monotonic()
        while not self.told_to_end:
            wait_s = None if lonely_since is None else max(0.0, lonely_since + LINGER_S - time.monotonic())
            self._turn(wait_s)
            if self.server.ended() and not self._restart():
                break
            if self.users:
                lonely_since = None
            elif lonely_since is None:
                lonely_since = time.monotonic()
            if lonely_since is not None and (self.leaving or time.monotonic() >= lonely_since + LINGER_S) and self._may_end():
                break
        self.listener.close()
        self.server.stop()

    def _turn(self, wait_s: float | None) -> None:
        for key, _ in self.selector.select(wait_s):
            if key.fileobj is self.listener:
                self._accept()
            elif key.fileobj is self.wake:
                self.wake.recv(4096)
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)

    def _accept(self) -> None:
        while True:
            try:
                user, _ = self.listener.accept()
            except BlockingIOError:
                return
            self.users.append(user)
            self.selector.register(user, selectors.EVENT_READ)
            if self.server.process is not None and not self.server.ended():
                self._greet(user)

    def _greet(self, user: socket.socket) -> None:
        assert self.server.process is not None
        endpoint = f"127.0.0.1:{self.server.port}"
        pids = {"etcd_pid": self.server.process.pid, "keeper_pid": os.getpid()}
        _say(user, {"endpoint": endpoint, "notes": self.server.notes, **pids})

    def _hear(self, user: socket.socket) -> None:
        try:
            said = user.recv(64)
        except OSError:
            said = b""
        self.users.remove(user)
        self.selector.unregister(user)
        if said and not self.users:
            self.leaving.append(user)
            return
        if said:
            _say(user, {"stays": len(self.users)})
        user.close()

    def _may_end(self) -> bool:
        """Take the lock for good, unless somebody is just joining."""
        self.lock = open(os.path.join(self.folder, LOCK), "ab")  # held until the process ends
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.lock.close()
            time.sleep(0.02)  # its holder is about to connect
            return False
        self._accept()
        if self.users:
            self.lock.close()
            return False
        os.unlink(os.path.join(self.folder, SOCKET))
        return True

    def _restart(self) -> bool:
        """Start a server that died under its users again, at the same port, a bounded number of times."""
        now = time.monotonic()
        self.restarts = [t for t in self.restarts if now - t < RESTARTS_PERIOD_S] + [now]
        if not self.users or len(self.restarts) > RESTARTS:
            return False
        try:
            self.server.start()
        except Failed:
            return False
        return True


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _say(user: socket.socket, what: dict[str, object]) -> None:
    try:
        user.sendall(json.dumps(what).encode() + b"\n")
    except OSError:
        return


def main() -> None:
    folder, binary, fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
    Keeper(folder, binary, socket.socket(fileno=fd)).run()


if __name__ == "__main__":
    main()
