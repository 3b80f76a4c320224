"""The teardown's plan: bounded from every state, never early, and it kills what it should."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from elastic_health.agents.teardown import SIGKILL, SIGTERM, Do, Seen, Stage, Step, TeardownPlan, Why, begin, first_signal, step

SECONDS = st.floats(0.0, 5.0)
PLANS = st.builds(TeardownPlan, grace_s=SECONDS, hold_s=SECONDS, orphan_grace_s=SECONDS, kill_s=SECONDS)


def run(plan: TeardownPlan, sights: list[tuple[float, Seen]]) -> list[Step]:
    """Steps at the given times; the last sight is repeated as the plan asks until it finishes."""
    state, taken, now = begin(0.0), [], 0.0
    while state.do is not Do.FINISH:
        last = len(sights) == 1
        at, seen = sights[0] if last else sights.pop(0)
        now = max(now, at)
        state = step(plan, state, seen, now)
        taken.append(state)
        now = max(now, state.look_at) if last else now
        assert len(taken) < 10_000
    return taken


def dos(steps: list[Step]) -> list[tuple[Do, Why]]:
    return list(dict.fromkeys((s.do, s.why) for s in steps))


def test_workers_that_end_on_the_signal_are_not_killed() -> None:
    steps = run(TeardownPlan(), [(0.0, Seen(2)), (0.1, Seen(1)), (0.2, Seen(0, 0))])
    assert [s.do for s in steps] == [Do.SIGNAL, Do.WAIT, Do.FINISH]
    assert steps[-1].why is Why.ALL_GONE


def test_a_worker_that_stays_costs_the_grace_and_no_more() -> None:
    steps = run(TeardownPlan(grace_s=1.0), [(0.0, Seen(1)), (1.0, Seen(1)), (1.1, Seen(0, 0))])
    assert [(s.do, s.why) for s in steps] == [
        (Do.SIGNAL, Why.NOTHING_HELD),
        (Do.KILL, Why.GRACE_SPENT),
        (Do.FINISH, Why.ALL_GONE),
    ]


@pytest.mark.spec("R12")
def test_a_hold_puts_the_signal_off_but_not_for_ever() -> None:
    plan = TeardownPlan(hold_s=2.0)
    steps = run(plan, [(0.0, Seen(1, holding="rename")), (2.0, Seen(1, holding="rename")), (2.1, Seen(0, 0))])
    assert dos(steps)[:2] == [(Do.WAIT, Why.HOLDING), (Do.SIGNAL, Why.HOLD_SPENT)]
    steps = run(plan, [(0.0, Seen(1, holding="rename")), (0.5, Seen(1)), (0.6, Seen(0, 0))])
    assert dos(steps)[:2] == [(Do.WAIT, Why.HOLDING), (Do.SIGNAL, Why.NOTHING_HELD)]


def test_no_hold_for_workers_that_have_ended() -> None:
    assert run(TeardownPlan(hold_s=9.0), [(0.0, Seen(0, 0, holding="rename"))])[-1].since == 0.0


def test_what_workers_leave_behind_is_killed_at_once_or_after_its_own_grace() -> None:
    now = run(TeardownPlan(), [(0.0, Seen(0, 3)), (0.1, Seen(0, 0))])
    assert [s.do for s in now] == [Do.KILL, Do.FINISH]
    later = run(TeardownPlan(orphan_grace_s=1.0), [(0.0, Seen(0, 3)), (0.5, Seen(0, 3)), (1.0, Seen(0, 1)), (1.1, Seen(0, 0))])
    assert [s.do for s in later] == [Do.SIGNAL_ORPHANS, Do.WAIT, Do.KILL, Do.FINISH], later


def test_killing_goes_on_while_something_forks_and_ends_with_a_report() -> None:
    steps = run(TeardownPlan(grace_s=0.0, kill_s=1.0), [(0.0, Seen(1, 1))])
    assert all(s.do is Do.KILL for s in steps[:-1])
    assert len(steps) > 10
    assert (steps[-1].why, steps[-1].since) == (Why.KILL_SPENT, pytest.approx(1.0, abs=0.05))


def test_a_stopped_worker_is_not_asked() -> None:
    assert first_signal(TeardownPlan(), "T") == SIGKILL
    assert first_signal(TeardownPlan(), "S") == SIGTERM
    assert first_signal(TeardownPlan(signal=2), "D") == 2


SEEN = st.builds(Seen, workers=st.integers(0, 2), members=st.integers(0, 2), holding=st.sampled_from(["", "x"]))


@given(PLANS, st.lists(SEEN, min_size=1, max_size=30))
def test_bounded_whatever_is_seen_and_never_finished_early(plan: TeardownPlan, sights: list[Seen]) -> None:
    state, now = begin(0.0), 0.0
    for seen in sights * 800:
        state = step(plan, state, seen, now)
        if state.do is Do.FINISH:
            assert (state.why is Why.ALL_GONE) == (not seen.workers and not seen.members)
            break
        assert state.look_at >= now
        now = max(now + 0.005, state.look_at)
    else:
        raise AssertionError("it never ended")
    assert now <= plan.hold_s + plan.grace_s + plan.orphan_grace_s + plan.kill_s + 0.1


@given(PLANS, st.lists(SEEN, min_size=1, max_size=10))
def test_stages_only_go_forward(plan: TeardownPlan, sights: list[Seen]) -> None:
    order = list(Stage)
    state, now = begin(0.0), 0.0
    for seen in sights * 20:
        following = step(plan, state, seen, now)
        assert order.index(following.stage) >= order.index(state.stage)
        state, now = following, now + 0.1
