"""decide(): the table row by row, then what stands against it."""

from __future__ import annotations

import dataclasses

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.findings import Finding, FindingKind
from elastic_health.generations import Budget, checkpoint_name
from elastic_health.incidents import Incident, Record
from elastic_health.policies import Automatic, Caps, RecoveryPolicy, ScaleUp
from elastic_health.recovery.budget import charge
from elastic_health.recovery.caps import Cap
from elastic_health.recovery.decide import TABLE, Action, ActionKind, MembershipFacts, Reason, Stage, Why, decide
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from elastic_health.windows import Window

pytestmark = pytest.mark.spec("R6")
NOW = 1_000_000.0
GROUP = MembershipFacts(2, 4, ready=("n1", "n2", "n3"), members=("n1", "n2", "n3"), staying=2)


def incident(cause: Cause, generation: int = 1, **more: object) -> Incident:
    base = Incident("i1", generation, cause, cause.value, "as it was seen", NOW, ranks=(3,), nodes=("n2",), step=50)
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def ask(
    what: Incident, budget: Budget = Budget(), group: MembershipFacts = GROUP, now: float = NOW, **policy: object
) -> tuple[Action, Reason]:
    return decide(what, (), budget, group, RecoveryPolicy(**policy), now)  # type: ignore[arg-type]


def spend(budget: Budget, what: Incident, action: Action, now: float, newest: str | None = None) -> Budget:
    kind = VerdictKind(action.kind.value)
    v = Verdict(kind, what.cause, what.generation, what.signature, nodes=what.nodes, early=action.early)
    return charge(budget, v, now, newest)


def after(count: int, cause: Cause, caps: Caps, every_s: float = 7200.0) -> tuple[Budget, Action, Reason, float]:
    """`count` restarts for `cause`, each one allowed, then one more question."""
    budget, now = Budget(), NOW
    for g in range(1, count + 1):
        what = incident(cause, g)
        action, reason = ask(what, budget, now=now, caps=caps)
        assert action.kind is ActionKind.RESTART, reason.text()
        budget, now = spend(budget, what, action, now), now + every_s
    action, reason = ask(incident(cause, count + 1), budget, now=now, caps=caps)
    return budget, action, reason, now


def test_every_cause_has_a_row_and_an_answer() -> None:
    assert set(TABLE) == set(Cause)
    for cause in Cause:
        action, reason = ask(incident(cause, target=checkpoint_name(10, 1)))
        assert action.kind is TABLE[cause].kind and action.exit_status is TABLE[cause].exit_status, cause
        assert reason.why is Why.TABLE and reason.text()


@pytest.mark.spec("R1", "R2")
def test_a_drain_that_leaves_too_few_stops_the_run_and_calls_nobody() -> None:
    action, reason = ask(incident(Cause.DRAIN), group=dataclasses.replace(GROUP, staying=1))
    assert (action.kind, action.exit_status, action.page) == (ActionKind.STOP, ExitStatus.STOPPED, False)
    assert reason.why is Why.TOO_FEW_STAY and "started again" in reason.text()
    assert spend(Budget(), incident(Cause.DRAIN), action, NOW) == Budget(), "not charged"


def test_first_restart_is_at_once_and_unpaged() -> None:
    action, _ = ask(incident(Cause.WORKER_KILLED))
    assert action == Action(ActionKind.RESTART)


ONLY = Caps(None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("caps", "cause", "cap"),
    [
        (dataclasses.replace(ONLY, total=4), Cause.WORKER_EXIT, Cap.TOTAL),
        (dataclasses.replace(ONLY, per_node=4), Cause.LOST_MEMBER, Cap.PER_NODE),
        (dataclasses.replace(ONLY, per_signature=4), Cause.STALL, Cap.PER_SIGNATURE),
        (dataclasses.replace(ONLY, without_commit=4), Cause.STALL, Cap.WITHOUT_COMMIT),
        (dataclasses.replace(ONLY, mismatches=4), Cause.MISMATCHED_COLLECTIVES, Cap.MISMATCHES),
    ],
)
def test_a_cap_lets_exactly_its_number_through(caps: Caps, cause: Cause, cap: Cap) -> None:
    _, action, reason, _ = after(4, cause, caps)
    assert (action.kind, action.exit_status, action.page) == (ActionKind.ABORT, ExitStatus.CAPPED, True)
    assert (reason.why, reason.cap, reason.spent, reason.limit) == (Why.CAP, cap, 4, 4)
    assert "4" in reason.text()


def test_per_hour_opens_again_when_the_hour_has_passed() -> None:
    caps = dataclasses.replace(ONLY, per_hour=3)
    budget, action, reason, _ = after(3, Cause.STALL, caps, every_s=60.0)
    assert reason.cap is Cap.PER_HOUR and action.kind is ActionKind.ABORT
    assert ask(incident(Cause.STALL, 4), budget, now=NOW + 3600.0, caps=caps)[0].kind is ActionKind.RESTART
    assert ask(incident(Cause.STALL, 4), budget, now=NOW + 3599.0, caps=caps)[0].kind is ActionKind.ABORT


def test_defaults_stop_the_fourth_restart_within_an_hour() -> None:
    _, action, reason, _ = after(3, Cause.STALL, Caps(), every_s=60.0)
    assert action.kind is ActionKind.ABORT and reason.cap is Cap.PER_HOUR


def test_max_restarts_takes_the_place_of_the_plain_counts() -> None:
    budget = Budget(restarts=3, torch_max_restarts=4)
    caps = dataclasses.replace(ONLY, total=1, per_hour=1)
    assert ask(incident(Cause.STALL), budget, caps=caps)[0].kind is ActionKind.RESTART
    action, reason = ask(incident(Cause.STALL), dataclasses.replace(budget, restarts=4), caps=caps)
    assert (action.exit_status, reason.cap, reason.limit) == (ExitStatus.CAPPED, Cap.MAX_RESTARTS, 4)
    assert "--max-restarts=4" in reason.text()


def test_zero_forbids_whatever_torchrun_says() -> None:
    action, reason = ask(incident(Cause.WORKER_EXIT), Budget(torch_max_restarts=5), caps=Caps(total=0))
    assert (action.kind, action.exit_status, reason.cap) == (ActionKind.ABORT, ExitStatus.WORKERS_FAILED, Cap.FORBIDDEN)


def test_zero_does_not_forbid_what_is_no_restart() -> None:
    group = dataclasses.replace(GROUP, members=("n1", "n2"))
    assert ask(incident(Cause.SCALE_UP), group=group, caps=Caps(total=0))[0].kind is ActionKind.SCALE
    assert ask(incident(Cause.REQUESTED), caps=Caps(total=0))[0].kind is ActionKind.RESTART
    assert ask(incident(Cause.NUMERIC_HALT, target="000000000010.000001"), caps=Caps(total=0))[0].kind is ActionKind.ROLLBACK


def test_mismatched_collectives_restart_once_then_stop_with_the_reason() -> None:
    _, action, reason, _ = after(1, Cause.MISMATCHED_COLLECTIVES, Caps())
    assert action.exit_status is ExitStatus.CAPPED and reason.cap is Cap.MISMATCHES and "program" in reason.text()


def test_a_worker_that_ends_in_its_first_second_each_time() -> None:
    """Three early exits in a row: two restarts, then a stop that points at the worker's own output."""
    budget, now, kinds = Budget(), NOW, []
    for g in (1, 2, 3):
        what = incident(Cause.WORKER_EXIT, g, ran_s=0.4, step=-1)
        action, reason = ask(what, budget, now=now)
        kinds.append(action.kind)
        if action.kind is ActionKind.RESTART:
            budget = spend(budget, what, action, now)
        now += 30.0
    assert kinds == [ActionKind.RESTART, ActionKind.RESTART, ActionKind.ABORT]
    assert (reason.cap, reason.spent) == (Cap.EARLY_EXITS, 3) and "output" in reason.text()


@pytest.mark.parametrize("more", [{"ran_s": 60.0, "step": -1}, {"ran_s": 1.0, "step": 5}, {"ran_s": -1.0, "step": -1}])
def test_not_every_exit_is_an_early_one(more: dict[str, object]) -> None:
    assert not ask(incident(Cause.WORKER_EXIT, **more))[0].early


def test_early_is_measured_from_where_the_group_started() -> None:
    what = incident(Cause.WORKER_EXIT, ran_s=1.0, step=50)
    assert ask(what, group=dataclasses.replace(GROUP, start_step=50))[0].early
    assert not ask(what, group=dataclasses.replace(GROUP, start_step=49))[0].early


def test_a_later_exit_breaks_the_row_of_early_ones() -> None:
    budget = Budget()
    for g, ran_s in enumerate((1.0, 1.0, 99.0, 1.0), start=1):
        what = incident(Cause.WORKER_EXIT, g, ran_s=ran_s, step=-1)
        budget = spend(budget, what, ask(what, budget, caps=dataclasses.replace(ONLY, early_exits=3))[0], NOW)
    assert budget.restarts == 4


def test_a_repeat_on_the_same_placement_waits_longer_each_time() -> None:
    budget, waits = Budget(), []
    for g in range(1, 8):
        what = incident(Cause.LOST_MEMBER, g)
        action, _ = ask(what, budget, now=NOW + g, caps=ONLY)
        waits.append(action.backoff_s)
        budget = spend(budget, what, action, NOW + g)
    assert waits == [0.0, 5.0, 15.0, 60.0, 300.0, 300.0, 300.0]
    later = ask(incident(Cause.LOST_MEMBER, 9), budget, now=NOW + 3700.0, caps=ONLY)[0]
    assert later.backoff_s == 0.0
    elsewhere = ask(incident(Cause.LOST_MEMBER, 9, nodes=("n9",)), budget, now=NOW + 9, caps=ONLY)[0]
    assert elsewhere.backoff_s == 0.0


def test_a_commit_that_decide_is_told_of_ends_the_row() -> None:
    budget = Budget(restarts=5, since_commit=5, last_checkpoint=checkpoint_name(10, 1))
    assert ask(incident(Cause.STALL), budget)[1].cap is Cap.WITHOUT_COMMIT
    group = dataclasses.replace(GROUP, newest_checkpoint=checkpoint_name(20, 2))
    assert ask(incident(Cause.STALL), budget, group)[0].kind is ActionKind.RESTART


@pytest.mark.spec("R3")
def test_torn_checkpoint_is_set_aside_and_the_loop_ends() -> None:
    """llnl/scr#174: restarted again and again from the same bad checkpoint.

    The one that was found torn is set aside by the restart; a run that then still makes no new one is stopped.
    """
    torn = checkpoint_name(40, 2)
    action, _ = ask(incident(Cause.CHECKPOINT_UNUSABLE, torn=torn))
    assert (action.kind, action.set_aside) == (ActionKind.RESTART, torn)
    _, action, reason, _ = after(5, Cause.CHECKPOINT_UNUSABLE, Caps())
    assert (action.kind, reason.cap) == (ActionKind.ABORT, Cap.WITHOUT_COMMIT)


def test_the_whole_job_ends_with_a_status_that_a_scheduler_sees() -> None:
    """pytorch/pytorch#76287: one node failed for good and the job lived on in limbo.

    Whatever ends a run for good names one non-zero exit status for every agent; nothing is left to wait for.
    """
    for cause in Cause:
        action, _ = ask(incident(cause, target=None), caps=Caps(total=0, rollbacks_per_day=0))
        if action.kind is ActionKind.ABORT:
            assert action.exit_status is not ExitStatus.OK, cause
        else:
            assert cause in (Cause.SCALE_UP, Cause.DRAIN, Cause.FINISHED, Cause.REQUESTED), cause


@pytest.mark.spec("S5")
def test_rollback_carries_target_and_windows_and_is_capped_a_day() -> None:
    windows = (Window(100, 200, "spike"),)
    what = incident(Cause.NUMERIC_HALT, target=checkpoint_name(10, 1), windows=windows)
    action, _ = ask(what)
    assert (action.kind, action.target, action.windows) == (ActionKind.ROLLBACK, what.target, windows)
    budget = Budget()
    for g in (1, 2, 3):
        budget = spend(budget, dataclasses.replace(what, generation=g), action, NOW)
    assert ask(what, budget)[1].cap is Cap.ROLLBACKS_PER_DAY
    assert ask(what, budget, now=NOW + 86400.0)[0].kind is ActionKind.ROLLBACK


@pytest.mark.spec("S5")
def test_the_same_spike_again_is_not_skipped_twice() -> None:
    record = Record("r", "rollback", "", "numeric_halt", "spike:loss", 1)
    what = incident(Cause.NUMERIC_HALT, signature="spike:loss", target=checkpoint_name(10, 1))
    action, reason = decide(what, (record,), Budget(), GROUP, RecoveryPolicy(), NOW)
    assert (action.kind, action.page, reason.why) == (ActionKind.ABORT, True, Why.SPIKE_REPEATED)
    held_back = dataclasses.replace(record, done=False)
    assert decide(what, (held_back,), Budget(), GROUP, RecoveryPolicy(), NOW)[0].kind is ActionKind.ROLLBACK


@pytest.mark.spec("S5")
def test_no_checkpoint_old_enough() -> None:
    what = incident(Cause.NUMERIC_HALT, target=None)
    assert ask(what)[0].kind is ActionKind.ROLLBACK
    action, _ = ask(what, start_over=False)
    assert (action.kind, action.exit_status, action.page) == (ActionKind.ABORT, ExitStatus.NO_CHECKPOINT, True)


def test_consequences_blame_nobody() -> None:
    gpu = Finding(FindingKind.WORKER_EXIT, "Xid 79", ranks=(3,), nodes=("n2",), gpus=("GPU-1",))
    blamed = ask(incident(Cause.LOST_MEMBER, findings=(gpu,)))[0]
    assert (blamed.blamed, blamed.run_stage) == (("n2",), Stage.JOIN)
    victim = ask(incident(Cause.LOST_MEMBER, findings=(gpu,), secondary=True))[0]
    assert (victim.blamed, victim.run_stage) == ((), Stage.RESTART)
    later = ask(incident(Cause.LOST_MEMBER, findings=(dataclasses.replace(gpu, gpus=()), gpu)))[0]
    assert later.blamed == ()


def test_spares_and_newcomers() -> None:
    assert ask(incident(Cause.SCALE_UP), group=dataclasses.replace(GROUP, max_nodes=3))[1].why is Why.GROUP_FULL
    assert ask(incident(Cause.SCALE_UP), scale_up=ScaleUp.OFF)[1].why is Why.SCALE_UP_OFF
    waits = dataclasses.replace(GROUP, at_checkpoint=False)
    assert ask(incident(Cause.SCALE_UP), group=waits)[1].why is Why.AWAITS_CHECKPOINT
    assert ask(incident(Cause.SCALE_UP), group=waits, scale_up=ScaleUp.AT_ONCE)[0].kind is ActionKind.SCALE


@pytest.mark.spec("R11")
def test_observe_only_decides_and_does_not_do() -> None:
    only = frozenset({Automatic.RESTART, Automatic.ROLLBACK, Automatic.SCALE_UP})
    for cause in (Cause.STALL, Cause.NUMERIC_HALT, Cause.SCALE_UP):
        action, reason = ask(incident(cause, target=checkpoint_name(1, 1)), observe_only=only)
        assert (action.done, reason.why, action.kind) == (False, Why.OBSERVE_ONLY, TABLE[cause].kind)
    ended, _ = ask(incident(Cause.WORKER_EXIT), observe_only=only)
    assert (ended.kind, ended.exit_status, ended.done) == (ActionKind.ABORT, ExitStatus.WORKERS_FAILED, True)
    assert ask(incident(Cause.REQUESTED), observe_only=only)[0].done
    torn = ask(incident(Cause.CHECKPOINT_UNUSABLE, torn="x"), observe_only=frozenset({Automatic.SET_ASIDE}))[0]
    assert (torn.kind, torn.set_aside) == (ActionKind.RESTART, None)
