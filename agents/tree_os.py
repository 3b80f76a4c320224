"""Who belongs to a worker tree, read from /proc, and how to signal exactly those.

Law: a process is only signalled through a pidfd opened on it and after its start time was read again behind that
pidfd, so that a recycled pid is never hit.  A process belongs if it carries one of the tokens in the environment that
it was started with, is in a worker's session, or descends from a worker.  Those three cover each other: a double
fork loses the parent but keeps the token, `env -i` loses the token but keeps the parent or session, `setsid` keeps
token and parent.  What loses all three at once (a daemon that also overwrites its environment block) is found only
while its parent lives.

Standard library only, and few modules of it: the guardian loads this file by its path under `python -I -S`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

TOKEN_VARIABLE = "ELASTIC_HEALTH_WORKER_TOKEN"
"""Same word as `elastic_health.variables.WORKER_TOKEN`, which can't be imported from here; a test compares them."""


class Proc(NamedTuple):
    """One process as the kernel shows it.  `started` is in clock ticks since boot and, with the pid, its identity."""

    pid: int
    ppid: int
    session: int
    state: str
    threads: int
    started: int
    name: str

    @property
    def alive(self) -> bool:
        """Not a mere zombie.  A dead main thread with living others shows Z too, and can still be killed."""
        return self.state not in "ZX" or self.threads > 1


class Root(NamedTuple):
    """A worker: pid and start time.  `started` 0 means unknown: it was gone before anyone could read it."""

    pid: int
    started: int


def parse_stat(text: str) -> Proc:
    """Parse /proc/<pid>/stat.  The name may hold spaces and parentheses: only the last `)` ends it."""
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    f = rest.split()
    return Proc(int(pid), int(f[1]), int(f[3]), f[0], int(f[17]), int(f[19]), name)


def read_proc(pid: int) -> Proc | None:
    """One process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return parse_stat(f.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def root(pid: int) -> Root:
    """The identity of a process that the caller has not yet reaped (or has just started)."""
    proc = read_proc(pid)
    return Root(pid, proc.started if proc else 0)


def snapshot() -> dict[int, Proc]:
    """All processes that can be seen, by pid."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            proc = read_proc(int(entry))
            if proc:
                found[proc.pid] = proc
    return found


def carries(pid: int, entries: Collection[bytes]) -> bool:
    """Does the environment that `pid` was started with hold one of `entries` (`NAME=value`)?"""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            block = f.read()
    except OSError:  # gone, or another user's
        return False
    # The quick test first: splitting every environment of a busy host would be most of the cost.
    return any(entry in block for entry in entries) and not set(block.split(b"\0")).isdisjoint(entries)


def descendants(procs: Mapping[int, Proc], roots: Iterable[int]) -> set[int]:
    """Pids of `roots` and of all below them."""
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    todo = [pid for pid in roots if pid in procs]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def members(
    tokens: Collection[str],
    roots: Collection[Root],
    spare: Collection[int] = (),
    procs: Mapping[int, Proc] | None = None,
    has_token: Callable[[int, Collection[bytes]], bool] = carries,
) -> dict[int, Proc]:
    """All living processes of the trees, by pid; never this process, nor `spare`.

    Args:
        tokens: values of the token variable.
        roots: the workers, dead or alive.
        spare: pids that are left out whatever they carry.
        procs: what `snapshot()` found (default: take one).
        has_token: how to look for the tokens (tests replace it).
    """
    procs = snapshot() if procs is None else procs
    known = {r.pid for r in roots if _same(procs.get(r.pid), r)}
    below = descendants(procs, known)
    sessions = {r.pid for r in roots if r.pid not in procs or r.pid in known}
    entries = {f"{TOKEN_VARIABLE}={token}".encode() for token in tokens}
    left_out = {os.getpid(), *spare}
    return {
        p.pid: p
        for p in procs.values()
        if p.alive and p.pid not in left_out and (p.pid in below or p.session in sessions or (entries and has_token(p.pid, entries)))
    }


LOOKS = 3
"""One reading of /proc takes milliseconds: a process that forks and exits during it may be seen neither before nor after."""


def surely(tokens: Collection[str], roots: Collection[Root], looks: int = LOOKS) -> dict[int, Proc]:
    """As `members`, but empty only if several readings in a row found nothing."""
    found: dict[int, Proc] = {}
    for _ in range(looks):
        found = members(tokens, roots)
        if found:
            break
    return found


def _same(proc: Proc | None, wanted: Root) -> bool:
    return proc is not None and wanted.started in (0, proc.started)


def send(proc: Proc, number: int) -> bool:
    """Signal exactly `proc`; False if it is gone (or its pid is another's by now).

    Raises:
        PermissionError: it runs as another user.
    """
    try:
        fd = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    except OSError:  # no pidfd here (old kernel, seccomp): check, then signal
        fd = -1
    try:
        now = read_proc(proc.pid)
        if now is None or now.started != proc.started:
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(proc.pid, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def kill_all(found: Mapping[int, Proc], number: int = signal.SIGKILL) -> dict[int, str]:
    """Signal each; returns why for those that could not be signalled although they are there."""
    refused = {}
    for proc in found.values():
        try:
            send(proc, number)
        except PermissionError as error:
            refused[proc.pid] = str(error)
    return refused


def wchan(pid: int) -> str:
    """The kernel function that a process sleeps in, or "" where the kernel doesn't say."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as f:
            said = f.read().strip()
    except OSError:
        return ""
    return "" if said == "0" else said
