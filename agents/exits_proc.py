"""Tells at once when a child has ended: one thread that sleeps on pidfds, or on `waitid` where there are none.

Law: the callback runs once a child, after the child has ended and before anyone but `reap` has reaped it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable


class ExitWatch:
    """Watches children of this process.

    Args:
        on_end: called with the key of a child that has ended, on the watch's own thread; it reaps the child.
        children: key -> pid; they must not be reaped by others while watched.
    """

    def __init__(self, children: dict[int, int], on_end: Callable[[int], None]) -> None:
        self._on_end = on_end
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        opened = _open(children)
        self._by_fd = opened is not None
        self.pidfds = opened or {}
        self._gone = children.keys() - self.pidfds.keys()
        body = self._by_pidfd if self._by_fd else self._by_wait(children)
        self._thread = threading.Thread(target=body, name="eh-exits", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; pidfds are closed."""
        if self._stop < 0:
            return
        if self._by_fd and threading.current_thread() is not self._thread:
            os.eventfd_write(self._stop, 1)
            self._thread.join(5.0)
        os.close(self._stop)
        self._stop = -1
        for fd in self.pidfds.values():
            os.close(fd)
        self.pidfds = {}

    def _by_pidfd(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        keys = {fd: key for key, fd in self.pidfds.items()}
        for key in self._gone:
            self._on_end(key)
        for fd in keys:
            poll.register(fd, select.POLLIN)
        while keys:
            for fd, _ in poll.poll():
                if fd == self._stop:
                    return
                poll.unregister(fd)
                self._on_end(keys.pop(fd))

    def _by_wait(self, children: dict[int, int]) -> Callable[[], None]:
        """Old kernels and strict seccomp filters have no pidfd: a sleeping thread a child instead."""
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()

        def wait(key: int, pid: int) -> None:
            with contextlib.suppress(ChildProcessError):  # a fork server's child, gone already
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            ended.put(key)

        def body() -> None:
            for key, pid in children.items():
                threading.Thread(target=wait, args=(key, pid), name="eh-exit", daemon=True).start()
            for _ in children:
                self._on_end(ended.get())

        return body


def _open(children: dict[int, int]) -> dict[int, int] | None:
    """Pidfds of the children that still exist, or None where the kernel gives none."""
    opened: dict[int, int] = {}
    for key, pid in children.items():
        try:
            opened[key] = os.pidfd_open(pid)
        except ProcessLookupError:  # a fork server has reaped it already
            continue
        except OSError:
            for fd in opened.values():
                os.close(fd)
            return None
    return opened
