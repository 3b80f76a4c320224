"""How a worker group is ended, as a plan that is stepped: hold, signal, grace, orphans, kill.

Law: each stage is bounded, so `step` reaches FINISH after at most hold + grace + orphan grace + kill seconds; and it
finishes earlier only when it has seen that nothing of the trees is left.

This module decides; `teardown_proc` looks and acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elastic_health.liveness.facts import ExitFacts

SIGKILL = 9
SIGTERM = 15
LOOK_AGAIN_S = 0.02
"""How soon to look again at what tells no event: a hold's predicate, processes that still fork."""


@dataclass(frozen=True)
class TeardownPlan:
    """Times in seconds.

    Attributes:
        signal: what the workers get first, so that their own handlers run.
        grace_s: how long they may take over it.  A worker blocked in native code (a collective) whose script has
            installed a Python handler can't run it, and costs the whole grace.  0: kill at once.
        hold_s: how long to put off the signal while the caller says that something should finish first (a dump being
            written, a commit in progress).
        orphan_grace_s: once all workers have ended, how long what they left behind may live on after a signal.
        kill_s: how long to go on killing before what is left is reported instead.
    """

    signal: int = SIGTERM
    grace_s: float = 1.0
    hold_s: float = 0.0
    orphan_grace_s: float = 0.0
    kill_s: float = 5.0


class Stage(Enum):
    HOLD = "hold"
    GRACE = "grace"
    ORPHANS = "orphans"
    KILL = "kill"
    DONE = "done"


class Do(Enum):
    """What to do now; after each, look again by `Step.look_at` or at an event."""

    WAIT = "wait"
    SIGNAL = "signal"
    SIGNAL_ORPHANS = "signal_orphans"
    KILL = "kill"
    FINISH = "finish"


class Why(Enum):
    """Why the stage was left, or why it is not left yet."""

    HOLDING = "holding"
    NOTHING_HELD = "nothing_held"
    HOLD_SPENT = "hold_spent"
    WORKERS_ENDING = "workers_ending"
    GRACE_SPENT = "grace_spent"
    ORPHANS_LEFT = "orphans_left"
    ORPHAN_GRACE_SPENT = "orphan_grace_spent"
    KILLING = "killing"
    ALL_GONE = "all_gone"
    KILL_SPENT = "kill_spent"


@dataclass(frozen=True)
class Seen:
    """What was found.

    Attributes:
        workers: how many workers' ends have not been told yet.
        members: how many living processes the trees have; None while nobody has looked.
        holding: what should finish first, "" for nothing.
    """

    workers: int
    members: int | None = None
    holding: str = ""


@dataclass(frozen=True)
class Step:
    """Where the teardown stands and what to do.  `since` and `look_at` are in the caller's clock."""

    stage: Stage
    since: float
    do: Do
    why: Why
    look_at: float

    @property
    def needs_members(self) -> bool:
        """The next `Seen` must carry `members` even while workers live."""
        return self.stage in (Stage.ORPHANS, Stage.KILL)


def begin(now: float) -> Step:
    """The first state; step it at once."""
    return Step(Stage.HOLD, now, Do.WAIT, Why.HOLDING, now)


def step(plan: TeardownPlan, last: Step, seen: Seen, now: float) -> Step:
    """What to do now, given what was done last and what is seen."""
    if last.stage is Stage.HOLD:
        return _hold(plan, last, seen, now)
    if last.stage is Stage.GRACE:
        return _grace(plan, last, seen, now)
    if last.stage is Stage.ORPHANS:
        return _orphans(plan, last, seen, now)
    if last.stage is Stage.KILL:
        return _kill(plan, last, seen, now)
    return last


def first_signal(plan: TeardownPlan, state: str) -> int:
    """What a worker in this kernel state gets first: a stopped one can't run a handler, so it isn't waited for."""
    return SIGKILL if state in ("T", "t") else plan.signal


def _hold(plan: TeardownPlan, last: Step, seen: Seen, now: float) -> Step:
    end = last.since + plan.hold_s
    if seen.workers and seen.holding and now < end:
        return Step(Stage.HOLD, last.since, Do.WAIT, Why.HOLDING, min(end, now + LOOK_AGAIN_S))
    why = Why.HOLD_SPENT if seen.workers and seen.holding else Why.NOTHING_HELD
    if not seen.workers:
        return _after_workers(plan, seen, now)
    if plan.grace_s <= 0:
        return _start_kill(why, now)
    return Step(Stage.GRACE, now, Do.SIGNAL, why, now + plan.grace_s)


def _grace(plan: TeardownPlan, last: Step, seen: Seen, now: float) -> Step:
    if not seen.workers:
        return _after_workers(plan, seen, now)
    end = last.since + plan.grace_s
    if now < end:
        return Step(Stage.GRACE, last.since, Do.WAIT, Why.WORKERS_ENDING, end)
    return _start_kill(Why.GRACE_SPENT, now)


def _after_workers(plan: TeardownPlan, seen: Seen, now: float) -> Step:
    if seen.members == 0:
        return _finish(Why.ALL_GONE, now)
    if plan.orphan_grace_s > 0:
        return Step(Stage.ORPHANS, now, Do.SIGNAL_ORPHANS, Why.ORPHANS_LEFT, now + LOOK_AGAIN_S)
    return _start_kill(Why.ORPHANS_LEFT, now)


def _orphans(plan: TeardownPlan, last: Step, seen: Seen, now: float) -> Step:
    if seen.members == 0 and not seen.workers:
        return _finish(Why.ALL_GONE, now)
    end = last.since + plan.orphan_grace_s
    if now < end:
        return Step(Stage.ORPHANS, last.since, Do.WAIT, Why.ORPHANS_LEFT, min(end, now + LOOK_AGAIN_S))
    return _start_kill(Why.ORPHAN_GRACE_SPENT, now)


def _start_kill(why: Why, now: float) -> Step:
    return Step(Stage.KILL, now, Do.KILL, why, now + LOOK_AGAIN_S)


def _kill(plan: TeardownPlan, last: Step, seen: Seen, now: float) -> Step:
    if seen.members == 0 and not seen.workers:
        return _finish(Why.ALL_GONE, now)
    if now >= last.since + plan.kill_s:
        return _finish(Why.KILL_SPENT, now)
    # Again, not just wait: what forks while it is being killed leaves new processes.
    return Step(Stage.KILL, last.since, Do.KILL, Why.KILLING, now + LOOK_AGAIN_S)


def _finish(why: Why, now: float) -> Step:
    return Step(Stage.DONE, now, Do.FINISH, why, now)


@dataclass(frozen=True)
class Leftover:
    """A process that could not be removed: usually uninterruptible (`D`) inside a driver, which bars the node.

    Attributes:
        wchan: the kernel function it sleeps in, "" if unknown.
        refused: why it could not be signalled, "" if it was.
    """

    pid: int
    name: str
    state: str
    wchan: str = ""
    refused: str = ""


@dataclass(frozen=True)
class TeardownReport:
    """What a teardown did.

    Attributes:
        ended: all workers' ends, in the order in which they came.
        killed: pids that got SIGKILL.
        held: what was waited for before the signal, and `held_s` for how long.
        why: ALL_GONE, or KILL_SPENT with `leftovers`.
    """

    why: Why
    ended: tuple[ExitFacts, ...]
    killed: tuple[int, ...]
    leftovers: tuple[Leftover, ...]
    held: str
    held_s: float
    took_s: float

    @property
    def clean(self) -> bool:
        return self.why is Why.ALL_GONE
