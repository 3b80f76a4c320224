"""Whatever the sequence of faults, the caps hold: decide() and charge() against a twin that recounts everything."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.generations import Budget, checkpoint_name
from elastic_health.incidents import Incident
from elastic_health.policies import Caps, RecoveryPolicy
from elastic_health.recovery.budget import charge, opened
from elastic_health.recovery.decide import Action, ActionKind, MembershipFacts, decide
from elastic_health.verdicts import Cause, Verdict, VerdictKind

pytestmark = [pytest.mark.spec("R6")]
NODES = ("n1", "n2", "n3")
EARLY = {"worker_exit", "worker_killed", "out_of_memory", "bad_setup"}
OF_NODES = {"worker_killed", "out_of_memory", "watchdog_timeout", "stall", "lost_member", "not_started"}
FREE = {"requested", "scale_up", "drain"}


@dataclasses.dataclass(frozen=True)
class Fault:
    cause: Cause
    signature: str
    node: str
    ran_s: float
    after_s: float
    commits: bool


FAULTS = st.builds(
    Fault,
    cause=st.sampled_from([c for c in Cause if c not in (Cause.FINISHED, Cause.CAP_REACHED, Cause.STOP_SIGNAL, Cause.NO_CHECKPOINT)]),
    signature=st.sampled_from(["a", "b"]),
    node=st.sampled_from(NODES),
    ran_s=st.sampled_from([-1.0, 0.5, 100.0]),
    after_s=st.sampled_from([1.0, 1200.0, 4000.0, 50000.0]),
    commits=st.booleans(),
)
LIMIT = st.none() | st.integers(0, 4)
CAPS = st.builds(
    Caps,
    total=st.none() | st.integers(0, 8),
    per_hour=LIMIT,
    per_node=LIMIT,
    per_signature=LIMIT,
    without_commit=LIMIT,
    early_exits=LIMIT,
    mismatches=LIMIT,
    rollbacks_per_day=LIMIT,
)


@dataclasses.dataclass(frozen=True)
class Past:
    """One carried-out restart or rollback, as the twin remembers it."""

    fault: Fault
    at: float
    commits_before: int
    rollback: bool

    @property
    def early(self) -> bool:
        return self.fault.cause.value in EARLY and 0 <= self.fault.ran_s < 10


def over(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit


def twin_allows(fault: Fault, past: list[Past], commits: int, caps: Caps, torch_max: int, now: float) -> bool:
    """The rules in the plainest words: recount the whole past for each cap."""
    if fault.cause.value in FREE:
        return True
    if fault.cause is Cause.BAD_SETUP and not commits:
        return False  # never worked: a restart would meet it again
    if fault.cause is Cause.NUMERIC_HALT:
        return not over(sum(p.rollback and now - p.at < 86400 for p in past), caps.rollbacks_per_day)
    restarts = [p for p in past if not p.rollback]
    row = []
    for p in reversed(restarts):
        if not p.early:
            break
        row.append(p)
    early = Past(fault, now, commits, False).early
    named = [p for p in restarts if p.fault.cause.value in OF_NODES and p.fault.node == fault.node]
    if torch_max:
        plain = over(len(restarts), torch_max)
    else:
        plain = over(len(restarts), caps.total) or over(sum(now - p.at < 3600 for p in restarts), caps.per_hour)
    return not (
        plain
        or caps.total == 0
        or (fault.cause.value in OF_NODES and over(len(named), caps.per_node))
        or over(sum(p.fault.signature == fault.signature for p in restarts), caps.per_signature)
        or over(sum(p.commits_before == commits for p in restarts), caps.without_commit)
        or (early and over(len(row) + 1, caps.early_exits))
        or (
            fault.cause is Cause.MISMATCHED_COLLECTIVES
            and over(sum(p.fault.cause is Cause.MISMATCHED_COLLECTIVES for p in restarts), caps.mismatches)
        )
    )


def step(fault: Fault, generation: int, commits: int, budget: Budget, caps: Caps, now: float) -> tuple[Action, Budget]:
    newest = checkpoint_name(commits, commits) if commits else None
    target = checkpoint_name(1, 1)
    what = Incident("i", generation, fault.cause, fault.signature, "", now, nodes=(fault.node,), ran_s=fault.ran_s, target=target)
    group = MembershipFacts(1, 5, NODES, NODES, newest_checkpoint=newest)
    action, _ = decide(what, (), budget, group, RecoveryPolicy(caps), now)
    verdict = Verdict(VerdictKind(action.kind.value), fault.cause, generation, fault.signature, nodes=(fault.node,), early=action.early)
    return action, charge(budget, verdict, now, newest)


@settings(max_examples=300, deadline=None)
@given(st.lists(FAULTS, max_size=25), CAPS, st.sampled_from([0, 0, 1, 3]))
def test_decide_and_charge_agree_with_the_twin(faults: list[Fault], caps: Caps, torch_max: int) -> None:
    budget, past, now, commits = opened(torch_max), [], 1000.0, 0
    for generation, fault in enumerate(faults, start=1):
        now += fault.after_s
        commits += fault.commits
        expected = twin_allows(fault, past, commits, caps, torch_max, now)
        action, budget = step(fault, generation, commits, budget, caps, now)
        assert (action.kind is not ActionKind.ABORT) == expected
        if action.kind in (ActionKind.RESTART, ActionKind.ROLLBACK) and fault.cause.value not in FREE:
            past.append(Past(fault, now, commits, action.kind is ActionKind.ROLLBACK))
        restarts = [p for p in past if not p.rollback]
        assert (budget.restarts, budget.rollbacks) == (len(restarts), len(past) - len(restarts))
        assert budget.restarts <= (torch_max or (len(faults) if caps.total is None else caps.total))


@settings(max_examples=200, deadline=None)
@given(st.lists(FAULTS, max_size=20), CAPS)
def test_backoff_is_one_of_the_listed_and_grows_with_repeats(faults: list[Fault], caps: Caps) -> None:
    budget, now, last = Budget(), 1000.0, {}
    for generation, fault in enumerate(faults, start=1):
        now += 1.0
        action, budget = step(fault, generation, 0, budget, caps, now)
        assert action.backoff_s in caps.backoff_s
        if action.kind is ActionKind.RESTART and fault.cause is Cause.WORKER_EXIT:
            assert action.backoff_s >= last.get(fault.signature, 0.0)
            last[fault.signature] = action.backoff_s
