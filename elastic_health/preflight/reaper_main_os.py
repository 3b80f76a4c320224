"""Runs one command and ends everything that came of it: the program that stands between an agent and an external tool.

Law: when it has reported with nothing stuck, no process that descends from the command is alive, whatever sessions and
process groups they had moved to: as a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) this process inherits every orphan of
its tree, so that having no child any more proves that the tree is gone.

Runs as `python -I -S <this file> REPORT_FD LIMIT_S GRACE_S KILL_S LOCALE PROGRAM ARGV0 ARG…`: standard library only, a session
of its own.  The end of stdin, or of the parent process, is the order to end.  One line of JSON on REPORT_FD when all is done,
after a first one that tells the command's pid; stdout and stderr are the command's.  LOCALE is "0" where its environment
has no LC_CTYPE: Python adds one to its own in the C locale (PEP 538), and so to that of its children.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from typing import NamedTuple

AGAIN_S = 0.02
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NAME_CHARS = 64


class Proc(NamedTuple):
    """One process as /proc/<pid>/stat shows it; `started`, in clock ticks since boot, is with the pid its identity."""

    pid: int
    ppid: int
    state: str
    threads: int
    started: int
    name: str

    @property
    def alive(self) -> bool:
        """Not a mere zombie.  A dead main thread with living others shows Z too, and can still be killed."""
        return self.state not in "ZX" or self.threads > 1


def parse_stat(text: str) -> Proc:
    """The name may hold spaces and parentheses: only the last `)` ends it."""
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    return Proc(int(pid), int(fields[1]), fields[0], int(fields[17]), int(fields[19]), name)


def read_proc(pid: int) -> Proc | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def below(root: int) -> list[Proc]:
    """All living processes that descend from `root`, zombies left out."""
    children: dict[int, list[Proc]] = {}
    for entry in os.listdir("/proc"):
        proc = read_proc(int(entry)) if entry.isdigit() else None
        if proc is not None:
            children.setdefault(proc.ppid, []).append(proc)
    found, todo = [], [root]
    while todo:
        born = children.pop(todo.pop(), [])
        found += [p for p in born if p.alive]
        todo += [p.pid for p in born]
    return found


def send(proc: Proc, number: int) -> None:
    """Signal exactly this process: never one that has its pid by now."""
    try:
        fd = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return
    except OSError:  # no pidfds here (old kernel, seccomp): check, then signal
        fd = -1
    try:
        now = read_proc(proc.pid)
        if now is None or now.started != proc.started:
            return
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(proc.pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or another user's: it will be reported as stuck
        return
    finally:
        if fd >= 0:
            os.close(fd)


class Tree:
    """The command and what descends from it."""

    def __init__(self, root: int, wake: int) -> None:
        self.root, self.status, self.empty = root, -1, False
        self._wake = wake

    @property
    def ended(self) -> bool:
        """The command itself has ended."""
        return self.status >= 0

    def reap(self) -> None:
        """Take in all that have ended; `status` is the command's wait status, `empty` the proof that nothing is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            if pid == 0:
                return
            if pid == self.root:
                self.status = status

    def wait(self, fds: list[int], timeout_s: float) -> bool:
        """Until a child ends, one of `fds` becomes readable (True), or the time is over."""
        ready, _, _ = select.select([self._wake, *fds], [], [], max(0.0, timeout_s))
        if self._wake in ready:
            os.read(self._wake, 4096)
        self.reap()
        return any(fd in ready for fd in fds)

    def run(self, deadline: float, orders: list[int]) -> str:
        """Until the command has ended, the time is over, or the order to end comes: says which."""
        while not self.ended:
            now = time.monotonic()
            if now >= deadline:
                return "time_limit"
            if self.wait(orders, deadline - now) and not self.ended:
                return "cancelled"
        return "by_itself"

    def end(self, grace_s: float, kill_s: float) -> tuple[int, list[Proc]]:
        """SIGTERM, grace, SIGKILL until nothing is left: (how many other processes were found, which could not be ended)."""
        others: dict[tuple[int, int], None] = {}
        self.reap()
        self._signal(signal.SIGTERM, others)
        self._until(time.monotonic() + grace_s)
        deadline, left = time.monotonic() + kill_s, [] if self.empty else below(os.getpid())
        while not self.empty and time.monotonic() < deadline:
            left = self._signal(signal.SIGKILL, others)
            self.wait([], AGAIN_S)
        return len(others), [] if self.empty else left

    def _signal(self, number: int, others: dict[tuple[int, int], None]) -> list[Proc]:
        found = [] if self.empty else below(os.getpid())
        others.update(dict.fromkeys((p.pid, p.started) for p in found if p.pid != self.root))
        for proc in found:
            send(proc, number)
            if number == signal.SIGTERM and proc.state in "Tt":  # a stopped process gets nothing but SIGKILL and SIGCONT
                send(proc, signal.SIGCONT)
        return found

    def _until(self, deadline: float) -> None:
        while not self.empty and time.monotonic() < deadline:
            self.wait([], deadline - time.monotonic())


def start(program: str, argv: list[str], report: int) -> int:
    """Start the command in a session of its own; it dies with this process.  Its own failure to start goes to `report`."""
    me = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(127)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execv(program, argv)
    except OSError as error:
        _tell(report, {"failed": error.errno or errno.EIO, "detail": error.strerror or "unknown error"})
    os._exit(127)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _tell(report: int, said: dict[str, object]) -> None:
    try:
        os.write(report, (json.dumps(said) + "\n").encode())
    except OSError:  # nobody listens any more
        return


def _stuck(proc: Proc) -> dict[str, object]:
    try:
        with open(f"/proc/{proc.pid}/wchan", encoding="utf-8") as file:
            wchan = file.read(_NAME_CHARS).strip("0\n ")
    except OSError:
        wchan = ""
    return {"pid": proc.pid, "name": proc.name[:_NAME_CHARS], "state": proc.state, "wchan": wchan}


def _wakeup() -> int:
    """A descriptor that becomes readable whenever a child ends."""
    wake, written = os.pipe()
    for fd in (wake, written):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    return wake


def _parent() -> list[int]:
    try:
        return [os.pidfd_open(os.getppid())]
    except OSError:  # no pidfds: the end of stdin tells
        return []


def main(report: int, limit_s: float, grace_s: float, kill_s: float, program: str, argv: list[str]) -> None:
    started = time.monotonic()
    os.set_inheritable(report, False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    orders, wake = [0, *_parent()], _wakeup()
    tree = Tree(start(program, argv, report), wake)
    _tell(report, {"pid": tree.root})
    why = tree.run(started + limit_s, orders)
    seconds = time.monotonic() - started
    strays, stuck = tree.end(grace_s, kill_s)
    said = {"why": why, "status": tree.status, "seconds": seconds, "strays": strays, "stuck": [_stuck(p) for p in stuck]}
    _tell(report, said)


if __name__ == "__main__":
    if sys.argv[5] == "0":
        os.environ.pop("LC_CTYPE", None)
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), sys.argv[6], sys.argv[7:])
