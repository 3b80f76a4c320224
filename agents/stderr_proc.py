"""The end of each worker's stderr, taken without changing what the user sees.

Law: every byte that a worker wrote reaches the agent's own stderr, in the worker's order; and when a worker's exit is
reported, all that it had written before has been read.

Where the stream already goes to a file (`--redirects`, `--tee`) nothing is put in between: the file's end is read.
Otherwise a tap carries it: a pipe where the agent's stderr is none either, a pseudo-terminal where it is a terminal, so
that `isatty` and progress bars stay as they are.  Whatever is in the pipe is read at once and forwarded in one write,
so that lines of several workers mix no more than they do when they share one descriptor.  A full pipe makes the worker
wait, as a slow terminal does; nothing is dropped.  One thread a tap: a blocked terminal holds up nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import termios
import threading
import tty

TAIL_BYTES = 64 * 1024
PIPE_BYTES = 256 * 1024
"""Asked of the kernel (default 64 KiB): what a worker may write while the agent can't run."""
_CHUNK_BYTES = 64 * 1024


def file_tail(path: str, limit_bytes: int = TAIL_BYTES) -> str:
    """The end of a regular file, "" if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # of a pipe, opening would wait for a writer
        with open(fd, "rb") as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                return ""
            f.seek(max(0, os.fstat(f.fileno()).st_size - limit_bytes))
            return f.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


class StderrTap:
    """A place for one worker to write its stderr to, copied to `target` by a thread of its own.

    Args:
        target: descriptor that the bytes go to; None keeps only the tail (the user filtered this rank out).
    """

    def __init__(self, target: int | None = 2, name: str = "") -> None:
        self._target = target
        self._terminal = target is not None and os.isatty(target)
        self._read, self.write_fd = _open_pty(target) if self._terminal and target is not None else _open_pipe()
        os.set_blocking(self._read, False)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._ring = bytearray()
        self._pending = bytearray()
        self._flushed = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._pump, name=f"eh-stderr-{name}", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """A path through which a child that can't inherit descriptors opens the same stream for writing."""
        return f"/proc/{os.getpid()}/fd/{self.write_fd}"

    def handed_over(self) -> None:
        """The worker has its own copy: close ours, so that a worker whose agent died is told by EPIPE or EIO."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def mute(self) -> None:
        """Forward nothing from now on; only the tail is kept."""
        with self._lock:
            self._target = None

    @property
    def muted(self) -> bool:
        return self._target is None

    def drain(self, flush_s: float = 0.5) -> str:
        """Read all that is there now, wait at most `flush_s` until it is forwarded, and return the tail."""
        with self._flushed:
            if self._closed:
                return self._ring[-TAIL_BYTES:].decode("utf-8", "replace")
            left = 4 * PIPE_BYTES  # a bound: a daemon of the worker may go on writing
            while left > 0 and (got := self._read_some()) > 0:
                left -= got
            _wake(self._stop)
            self._flushed.wait_for(lambda: not self._pending, timeout=flush_s)
            return self._ring[-TAIL_BYTES:].decode("utf-8", "replace")

    def tail(self) -> str:
        """The last 64 KiB so far."""
        with self._lock:
            return self._ring[-TAIL_BYTES:].decode("utf-8", "replace")

    def close(self, timeout_s: float = 1.0) -> None:
        """Drain, then stop.  A thread that a blocked terminal holds is left behind with its descriptors."""
        if self._closed:
            return
        self.drain(timeout_s)
        self.handed_over()
        self._closed = True
        _wake(self._stop)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            os.close(self._read)
            os.close(self._stop)

    # ---- the thread

    def _pump(self) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        ended = False
        while not (self._closed and not self._pending):
            if not self._pending:
                ended = self._wait(poll, ended)
            with self._lock:
                if not self._pending and not ended:
                    ended = self._read_some() < 0
                chunk = bytes(self._pending)
            if chunk:
                self._forward(chunk)
            with self._flushed:
                del self._pending[: len(chunk)]
                self._flushed.notify_all()

    def _wait(self, poll: select.poll, ended: bool) -> bool:
        """Until there is something to do.  At the stream's end it is taken out of the poll, or it would spin."""
        for fd, _ in poll.poll():
            if fd == self._stop:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._stop)
        if ended:
            with contextlib.suppress(KeyError):
                poll.unregister(self._read)
        return ended

    def _read_some(self) -> int:
        """Read once into ring and queue, lock held.  Bytes read; 0: nothing there now; -1: no writer any more."""
        try:
            data = os.read(self._read, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno == errno.EIO:  # a pseudo-terminal that nobody has open for writing
                return -1
            raise
        if not data:
            return -1
        self._ring += data
        if len(self._ring) > 2 * TAIL_BYTES:
            del self._ring[:-TAIL_BYTES]
        if self._target is not None:
            self._pending += data
        return len(data)

    def _forward(self, chunk: bytes) -> None:
        target = self._target
        if target is None:
            return
        if self._terminal:
            _copy_window_size(target, self._read)
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:  # someone made our stderr non-blocking
                select.select([], [target], [], 1.0)
            except OSError:
                return  # our stderr is gone (closed pipe, terminal hung up); the worker must not stop for that


def _wake(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):  # the counter is full: awake already
        os.eventfd_write(fd, 1)


def _open_pipe() -> tuple[int, int]:
    read, write = os.pipe()
    with contextlib.suppress(OSError):  # over this user's limit for pipes: the default size does
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read, write


def _open_pty(terminal: int) -> tuple[int, int]:
    """A pseudo-terminal like `terminal`, but passing bytes through unchanged: the real one does the translating."""
    master, slave = os.openpty()
    with contextlib.suppress(termios.error):
        termios.tcsetattr(slave, termios.TCSANOW, termios.tcgetattr(terminal))
    mode = termios.tcgetattr(slave)
    mode[tty.OFLAG] &= ~termios.OPOST
    mode[tty.LFLAG] &= ~(termios.ECHO | termios.TOSTOP)
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    _copy_window_size(terminal, slave)
    return master, slave


def _copy_window_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        if size != fcntl.ioctl(target, termios.TIOCGWINSZ, b"\0" * 8):
            fcntl.ioctl(target, termios.TIOCSWINSZ, size)
