"""Ends a group's process trees by the plan of `teardown`: looks, signals, kills, and reports what is left.

Law: when the report says ALL_GONE, no process that could be seen carried a token of the group, sat in a session of
one of its workers, or descended from one.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from elastic_health.agents import tree_os
from elastic_health.agents.teardown import (
    SIGKILL,
    Do,
    Leftover,
    Seen,
    Stage,
    TeardownPlan,
    TeardownReport,
    begin,
    first_signal,
    step,
)
from elastic_health.liveness.facts import ExitFacts

TURN_S = 0.1


class Workers(Protocol):
    """What a teardown needs of a group; `WorkerGroupProcesses` has it."""

    roots: dict[int, tree_os.Root]

    def tokens(self) -> frozenset[str]: ...

    def alive(self) -> frozenset[int]: ...

    def exits(self) -> tuple[ExitFacts, ...]: ...

    def wait_change(self, ended: int, timeout_s: float) -> int: ...

    def ending(self) -> None: ...


def teardown(
    workers: Workers,
    plan: TeardownPlan,
    holding: Callable[[], str] | None = None,
    on_turn: Callable[[], None] | None = None,
) -> TeardownReport:
    """End everything of `workers`; blocks for the plan's bounds at most, all workers side by side.

    Args:
        workers: the group; its ends go on being told while this runs.
        plan: signal and times.
        holding: says what should finish before the signal, "" for nothing.
        on_turn: called at least every 0.1 s, for a caller whose lease needs its loop to turn.
    """
    return _Teardown(workers, plan, holding, on_turn).run()


def signal_workers(workers: Workers, number: int) -> None:
    """A signal to each living worker, and no more; their ends are from now on our doing."""
    workers.ending()
    for rank in workers.alive():
        proc = tree_os.read_proc(workers.roots[rank].pid)
        if proc is not None and proc.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or what the teardown will report
                _send(proc, number)


def _send(proc: tree_os.Proc, number: int) -> None:
    """The worker's process group, as torch does it; a worker that is not a leader yet alone."""
    if proc.session == proc.pid:
        os.killpg(proc.pid, number)
    else:
        tree_os.send(proc, number)


class _Teardown:
    def __init__(
        self,
        workers: Workers,
        plan: TeardownPlan,
        holding: Callable[[], str] | None,
        on_turn: Callable[[], None] | None,
    ) -> None:
        self._workers, self._plan = workers, plan
        self._holding, self._on_turn = holding, on_turn
        self._known = dict.fromkeys(workers.roots.values())
        self._killed: dict[int, None] = {}
        self._refused: dict[int, str] = {}
        self._held = ""

    def run(self) -> TeardownReport:
        started = time.monotonic()
        self._workers.ending()
        state, signalled_at = begin(started), started
        members: dict[int, tree_os.Proc] = {}
        while state.do is not Do.FINISH:
            alive = len(self._workers.alive())
            if state.needs_members or not alive:
                members = self._look()
            seen = Seen(alive, len(members) if state.needs_members or not alive else None, self._ask())
            held, state = state.stage is Stage.HOLD, step(self._plan, state, seen, time.monotonic())
            if held and state.stage is not Stage.HOLD:
                signalled_at = time.monotonic()
            self._act(state.do, members)
            if state.do is not Do.FINISH:
                self._wait(alive, members, state.look_at)
        return TeardownReport(
            why=state.why,
            ended=self._workers.exits(),
            killed=tuple(self._killed),
            leftovers=self._leftovers(members),
            held=self._held,
            held_s=signalled_at - started if self._held else 0.0,
            took_s=time.monotonic() - started,
        )

    # ---- looking

    def _look(self) -> dict[int, tree_os.Proc]:
        """All living members; whoever was one once stays known, also when its parent is gone."""
        found = tree_os.surely(self._workers.tokens(), self._known)
        self._known.update(dict.fromkeys(tree_os.Root(p.pid, p.started) for p in found.values()))
        return found

    def _ask(self) -> str:
        said = self._holding() if self._holding else ""
        self._held = self._held or said
        return said

    # ---- acting

    def _act(self, do: Do, members: Mapping[int, tree_os.Proc]) -> None:
        if do is Do.SIGNAL:
            self._look()  # who descends from the workers can only be seen while they live
            self._signal_workers()
        elif do is Do.SIGNAL_ORPHANS:
            self._refused |= tree_os.kill_all(members, self._plan.signal)
        elif do is Do.KILL:
            found = self._look()
            self._killed.update(dict.fromkeys(found))
            self._refused |= tree_os.kill_all(found)

    def _signal_workers(self) -> None:
        for rank in self._workers.alive():
            proc = tree_os.read_proc(self._workers.roots[rank].pid)
            if proc is None or not proc.alive:
                continue
            number = first_signal(self._plan, proc.state)
            if number == SIGKILL:
                self._killed[proc.pid] = None
            try:
                _send(proc, number)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                self._refused[proc.pid] = str(error)

    # ---- waiting

    def _wait(self, alive: int, members: Mapping[int, tree_os.Proc], until: float) -> None:
        """Until `until`, or until something has changed; never past a turn."""
        now = time.monotonic()
        timeout_s = max(0.0, min(until - now, TURN_S))
        if alive:
            self._workers.wait_change(len(self._workers.roots) - alive, timeout_s)
        else:
            _wait_gone(members, timeout_s)
        if self._on_turn:
            self._on_turn()

    def _leftovers(self, members: Mapping[int, tree_os.Proc]) -> tuple[Leftover, ...]:
        return tuple(Leftover(p.pid, p.name, p.state, tree_os.wchan(p.pid), self._refused.get(p.pid, "")) for p in members.values())


def _wait_gone(members: Mapping[int, tree_os.Proc], timeout_s: float) -> None:
    """Until all of these have ended, at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        poll, left = select.poll(), 0
        for pid in members:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            except OSError:  # no pidfds here
                time.sleep(timeout_s)
                return
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
            left += 1
        while left and time.monotonic() < deadline:
            for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                poll.unregister(fd)
                left -= 1
