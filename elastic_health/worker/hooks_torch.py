"""What looks at torch inside a worker, once the *script* has imported it: optimizer count, worker server, flight recorder.

Law: nothing here imports anything: a script may set variables first that torch reads while it is imported.  Modules are
taken from `sys.modules`, and what this torch doesn't have is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from elastic_health.liveness.facts import GroupFrontier
from elastic_health.liveness.frontier import groups, nameless, read_dump

RECORDERS: Mapping[str, str] = MappingProxyType({"_dump_fr_trace_json": "", "_dump_nccl_trace_json": ":nccl"})
"""torch's flight recorders, and what is appended to the group names of each: a group with both a gloo and an NCCL
backend counts its operations in each of the two."""
_LOG_ERRORS_ONLY = 2


class Activity:
    """Counts optimizer steps of this process: also those that `found_inf` skipped, and each optimizer of a GAN."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        return self.count

    def install(self) -> None:
        """Hook every optimizer there will be."""
        register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        if register is not None:
            register(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.count += 1


def open_server(path: str) -> bool:
    """Start torch's worker server (a C++ thread on a Unix socket), for as long as the process lives.

    Returns False where this torch has none, or the path can't be used.
    """
    server = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    if server is None or not path:
        return False
    with _quiet():  # it would announce itself on the script's stderr
        try:
            opened = server(path, -1)
        except RuntimeError:  # evidence will lack what only this server tells; the script has nothing to do with it
            return False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened))  # never destroyed: that, too, would be announced
    return True


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """For the moment, torch's C++ side logs errors only (the script's own output is left alone)."""
    folder = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", "") or "")
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(f"{folder}/lib/libc10.so"), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # a torch that is built otherwise: one more line on stderr
        yield
        return
    before, level.value = level.value, max(level.value, _LOG_ERRORS_ONLY)
    try:
        yield
    finally:
        level.value = before


class Recorder:
    """Polls the flight recorders: 10 µs a poll; a full dump (65 ms at 2,000 entries) only to learn a name or an operation."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {suffix: {} for suffix in RECORDERS.values()}
        self._retired: dict[str, dict[str, int]] = {suffix: {} for suffix in RECORDERS.values()}
        self._asked: set[tuple[str, str, int]] = set()
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._counted = -1

    def poll(self, stuck: bool = False) -> tuple[GroupFrontier, ...]:
        """The frontier of each group; () before torch.distributed has one.

        Args:
            stuck: the frontier has stood still for a while: look up which operations are waited for.
        """
        dist, c10d = sys.modules.get("torch.distributed"), sys.modules.get("torch._C._distributed_c10d")
        ready = getattr(dist, "is_initialized", None)
        if c10d is None or ready is None or not ready():
            return ()
        self._look_up_ranks()
        found: list[GroupFrontier] = []
        for function, suffix in RECORDERS.items():
            dump = getattr(c10d, function, None)
            if dump is not None:
                found += self._read(dump, suffix, stuck)
        return tuple(found)

    def _read(self, dump: Callable[[bool, bool], bytes], suffix: str, stuck: bool) -> list[GroupFrontier]:
        said, names, retired = read_dump(dump(False, False)), self._names[suffix], self._retired[suffix]
        asks = {(suffix, key, 0) for key in nameless(said, names)}
        if stuck:
            asks |= {(suffix, key, enqueued) for key, (enqueued, completed) in said.status.items() if enqueued > completed}
        if asks - self._asked:
            self._asked |= asks
            said = read_dump(dump(True, False))
            names.update(said.names)
            retired.update(said.retired)
        return [_renamed(g, suffix) for g in groups(said, names, self._ranks, retired)]

    def _look_up_ranks(self) -> None:
        """Which global ranks each group has, from the names that torch's Python side keeps."""
        world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
        members, names = getattr(world, "pg_group_ranks", None), getattr(world, "pg_names", None)
        if members is None or names is None or len(members) == self._counted:
            return
        self._counted = len(members)
        known = tuple((names.get(group), ranks) for group, ranks in tuple(members.items()))
        self._ranks = {name: tuple(sorted(ranks)) for name, ranks in known if isinstance(name, str)}


def _renamed(group: GroupFrontier, suffix: str) -> GroupFrontier:
    return GroupFrontier(group.group + suffix, group.enqueued, group.completed, group.op, group.ranks)
