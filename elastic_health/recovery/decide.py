"""What to do about an incident: one pure function over one table, with the reason.

Laws:
 - every `Cause` has exactly one row (checked on import);
 - a restart or rollback is answered only while every cap lets it through;
 - the answer depends on nothing but the arguments: the same facts decide alike on every node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from elastic_health.exits import ExitStatus
from elastic_health.generations import Budget
from elastic_health.incidents import Incident, Record
from elastic_health.policies import Automatic, RecoveryPolicy, ScaleUp
from elastic_health.recovery import caps
from elastic_health.recovery.budget import noted
from elastic_health.recovery.caps import Cap, CapHit, Fault
from elastic_health.verdicts import Cause
from elastic_health.windows import Window


class ActionKind(Enum):
    RESTART = "restart"
    ROLLBACK = "rollback"
    SCALE = "scale"
    STOP = "stop"
    FINISH = "finish"
    ABORT = "abort"
    NOTHING = "nothing"


class Stage(Enum):
    """Which preflight checks a blamed node runs before it is ready again."""

    RESTART = "restart"
    JOIN = "join"


class Why(Enum):
    """Why this action; the fields of `Reason` that each one fills are named in its sentence."""

    TABLE = "table"
    CAP = "cap"
    SPIKE_REPEATED = "spike_repeated"
    OBSERVE_ONLY = "observe_only"
    SCALE_UP_OFF = "scale_up_off"
    GROUP_FULL = "group_full"
    AWAITS_CHECKPOINT = "awaits_checkpoint"
    WORKED_BEFORE = "worked_before"
    TOO_FEW_STAY = "too_few_stay"


@dataclass(frozen=True)
class MembershipFacts:
    """What `decide` needs to know of the group.

    Attributes:
        ready: nodes with a live candidate, members or not.
        members: nodes of the generation that the incident belongs to.
        newest_checkpoint: name of the newest committed checkpoint (see `budget.newest_of`); it ends a row of restarts
            without one.
        start_step: the step that the generation started from, -1 for the very beginning.
        at_checkpoint: a checkpoint was committed since the newcomer was ready, or this run commits none.
        staying: fit nodes, members and spares, that are left when the nodes of a drain have gone.
    """

    min_nodes: int
    max_nodes: int
    ready: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    newest_checkpoint: str | None = None
    start_step: int = -1
    at_checkpoint: bool = True
    staying: int = 0


@dataclass(frozen=True)
class Action:
    """What to do.

    Attributes:
        exit_status: for `stop`, `abort` and `finish`.
        backoff_s: the next formation waits this long.
        blamed: nodes whose own hardware gave evidence; they run the checks of `run_stage`, all others `restart`.
        page: call a person (the caller does so once a run).
        set_aside, target, windows: carried into the verdict: a torn checkpoint; a rollback's target and windows.
        early: this was a worker's early exit; goes into the verdict, so that the budget counts it.
        done: False when `observe_only` holds the action back: record it, and do nothing.
    """

    kind: ActionKind
    exit_status: ExitStatus = ExitStatus.OK
    backoff_s: float = 0.0
    run_stage: Stage = Stage.RESTART
    blamed: tuple[str, ...] = ()
    page: bool = False
    set_aside: str | None = None
    target: str | None = None
    windows: tuple[Window, ...] = ()
    early: bool = False
    done: bool = True


@dataclass(frozen=True)
class Reason:
    """Why: `cap`, `spent`, `limit` and `of` for `Why.CAP`; `repeats` and `backoff_s` for a restart that waits."""

    why: Why
    cause: Cause
    cap: Cap | None = None
    spent: int = 0
    limit: int = 0
    of: str = ""
    repeats: int = 0
    backoff_s: float = 0.0
    meaning: str = ""

    def text(self) -> str:
        """One sentence for people."""
        if self.why is Why.CAP and self.cap is not None:
            return _CAP_TEXT[self.cap].format(spent=self.spent, limit=self.limit, of=self.of)
        if self.why is not Why.TABLE:
            return _WHY_TEXT[self.why]
        again = f"; seen {self.repeats} time(s) lately, so it waits {self.backoff_s:g} s first" if self.backoff_s else ""
        return self.meaning + again


_CAP_TEXT: Mapping[Cap, str] = {
    Cap.FORBIDDEN: "restarts are forbidden (restarts.total: 0)",
    Cap.MAX_RESTARTS: "cap reached: {spent} of --max-restarts={limit} restarts of the whole run are spent",
    Cap.TOTAL: "cap reached: {spent} of restarts.total={limit} restarts of the whole run are spent",
    Cap.PER_HOUR: "cap reached: {spent} restarts within the last hour, restarts.per_hour={limit}",
    Cap.PER_NODE: "cap reached: node {of} was named in {spent} restarts, restarts.per_node={limit}",
    Cap.PER_SIGNATURE: "cap reached: {spent} restarts with signature {of}, restarts.per_signature={limit}",
    Cap.WITHOUT_COMMIT: "cap reached: {spent} restarts in a row without a new committed checkpoint, restarts.without_commit={limit}",
    Cap.EARLY_EXITS: "a worker ended in its first seconds, with no step done, {spent} times in a row (restarts.early_exits={limit}): "
    "look at its own output, a restart will not help",
    Cap.MISMATCHES: "ranks called different collectives again after {spent} restart(s) (restarts.mismatches={limit}): correct the program",
    Cap.ROLLBACKS_PER_DAY: "cap reached: {spent} rollbacks within the last day, restarts.rollbacks_per_day={limit}",
}
_WHY_TEXT: Mapping[Why, str] = {
    Why.SPIKE_REPEATED: "the same spike came again after a rollback had skipped the data: an optimisation problem, not the data's",
    Why.OBSERVE_ONLY: "decided and recorded, not done: observe_only names this action",
    Why.SCALE_UP_OFF: "membership.scale_up is off",
    Why.GROUP_FULL: "the group is full; the newcomer waits as a spare",
    Why.WORKED_BEFORE: "this set-up has served the run before, so it is taken for a fault of the moment: the whole group restarts",
    Why.AWAITS_CHECKPOINT: "a newcomer is taken in at the next committed checkpoint (membership.scale_up)",
    Why.TOO_FEW_STAY: "fewer than MIN nodes would be left, so all stop; the run goes on when it is started again",
}


@dataclass(frozen=True)
class Row:
    """One row of the table: the action while nothing stands against it, and what it means for people."""

    kind: ActionKind
    meaning: str
    exit_status: ExitStatus = ExitStatus.OK
    page: bool = False


TABLE: Mapping[Cause, Row] = {
    Cause.WORKER_EXIT: Row(ActionKind.RESTART, "a worker ended with an error: the whole group restarts"),
    Cause.WORKER_KILLED: Row(ActionKind.RESTART, "a worker was killed by a signal: the whole group restarts"),
    Cause.OUT_OF_MEMORY: Row(ActionKind.RESTART, "a worker ran out of memory: the whole group restarts"),
    Cause.WATCHDOG_TIMEOUT: Row(ActionKind.RESTART, "a collective timed out: the communicator is lost, the whole group restarts"),
    Cause.STALL: Row(ActionKind.RESTART, "no progress past the bound: the whole group restarts"),
    Cause.LOST_MEMBER: Row(ActionKind.RESTART, "a member is gone: the group restarts with those left, or with a spare"),
    Cause.NOT_STARTED: Row(ActionKind.RESTART, "a member did not start in time: the group forms anew"),
    Cause.MISMATCHED_COLLECTIVES: Row(ActionKind.RESTART, "ranks called different collectives, a program error: one restart, no more"),
    Cause.NUMERIC_HALT: Row(ActionKind.ROLLBACK, "numbers went bad: back to the checkpoint before, and past the data that it met"),
    Cause.CHECKPOINT_UNUSABLE: Row(ActionKind.RESTART, "a checkpoint is torn: it is set aside, the one before is used"),
    Cause.BAD_SETUP: Row(
        ActionKind.ABORT, "the set-up is wrong, a restart would meet it again: correct it and start again", ExitStatus.BAD_CONFIG
    ),
    Cause.SCALE_UP: Row(ActionKind.SCALE, "a fit node is waiting and the group is not full: a larger group forms"),
    Cause.DRAIN: Row(ActionKind.SCALE, "a node leaves on request: the group forms without it; with fewer than MIN left all stop (84)"),
    Cause.FINISHED: Row(ActionKind.FINISH, "training finished on all nodes"),
    Cause.STOP_SIGNAL: Row(ActionKind.ABORT, "stopped on request", ExitStatus.STOPPED),
    Cause.CAP_REACHED: Row(ActionKind.ABORT, "a cap was reached: a person must look", ExitStatus.CAPPED, page=True),
    Cause.NO_CHECKPOINT: Row(ActionKind.ABORT, "no usable checkpoint and no leave to start over", ExitStatus.NO_CHECKPOINT, page=True),
    Cause.REQUESTED: Row(ActionKind.RESTART, "a person asked for a restart; it is not counted"),
}
if set(TABLE) != set(Cause):
    raise AssertionError(f"causes without a row: {sorted(c.value for c in set(Cause) - set(TABLE))}")

# After these nothing is left to keep running, so holding the restart back ends the run instead.
_ENDED = caps.ENDINGS | {Cause.LOST_MEMBER, Cause.NOT_STARTED, Cause.WATCHDOG_TIMEOUT, Cause.CHECKPOINT_UNUSABLE}


def decide(
    incident: Incident, history: tuple[Record, ...], budget: Budget, membership: MembershipFacts, policy: RecoveryPolicy, now: float
) -> tuple[Action, Reason]:
    """The one action that an incident calls for, and why.

    Args:
        history: records of the run, oldest first; only rollbacks matter here (is it the same spike again?).
        budget: as it stands in the store.
        now: seconds since the epoch, on the same clock as the budget's entries.
    """
    row = TABLE[incident.cause]
    budget = noted(budget, membership.newest_checkpoint)
    if incident.cause is Cause.BAD_SETUP and membership.newest_checkpoint is not None:
        action, reason = _restart(incident, budget, membership, policy, now)
        found = action, replace(reason, why=Why.WORKED_BEFORE) if reason.why is Why.TABLE else reason
    elif row.kind is ActionKind.RESTART:
        found = _restart(incident, budget, membership, policy, now)
    elif row.kind is ActionKind.ROLLBACK:
        found = _rollback(incident, history, budget, policy, now)
    elif incident.cause is Cause.SCALE_UP:
        found = _scale_up(incident, membership, policy)
    elif incident.cause is Cause.DRAIN and membership.staying < membership.min_nodes:
        found = Action(ActionKind.STOP, ExitStatus.STOPPED), Reason(Why.TOO_FEW_STAY, incident.cause)
    else:
        found = Action(row.kind, row.exit_status, page=row.page), _by_table(incident)
    return _observed(incident, *found, policy)


def _by_table(incident: Incident, repeats: int = 0, backoff_s: float = 0.0) -> Reason:
    return Reason(Why.TABLE, incident.cause, repeats=repeats, backoff_s=backoff_s, meaning=TABLE[incident.cause].meaning)


def _capped(incident: Incident, hit: CapHit, early: bool = False) -> tuple[Action, Reason]:
    # With restarts forbidden the run behaves as stock torchrun does at its first failure.
    status = ExitStatus.WORKERS_FAILED if hit.cap is Cap.FORBIDDEN else ExitStatus.CAPPED
    return Action(ActionKind.ABORT, status, page=True, early=early), Reason(Why.CAP, incident.cause, hit.cap, hit.spent, hit.limit, hit.of)


def _restart(incident: Incident, budget: Budget, membership: MembershipFacts, policy: RecoveryPolicy, now: float) -> tuple[Action, Reason]:
    early = caps.is_early(incident.cause, incident.ran_s, incident.step, membership.start_step, policy.caps)
    fault = fault_of(incident, early)
    hit = caps.restart_cap(budget, fault, policy.caps, now)
    if hit is not None:
        return _capped(incident, hit, early)
    wait_s, repeats = caps.backoff_s(budget, fault, policy.caps, now)
    blamed = blamed_nodes(incident)
    action = Action(
        ActionKind.RESTART,
        backoff_s=wait_s,
        run_stage=Stage.JOIN if blamed else Stage.RESTART,
        blamed=blamed,
        set_aside=incident.torn,
        early=early,
    )
    return action, _by_table(incident, repeats, wait_s)


def fault_of(incident: Incident, early: bool) -> Fault:
    """What the caps count of an incident.  A mere consequence of a peer's failure names no node."""
    nodes = () if incident.secondary else incident.nodes
    return Fault(incident.cause, incident.signature or incident.cause.value, nodes, early)


def blamed_nodes(incident: Incident) -> tuple[str, ...]:
    """Nodes named by the first finding in time, if that one speaks of a device; consequences blame nobody."""
    if incident.secondary or not incident.findings or not incident.findings[0].gpus:
        return ()
    return incident.findings[0].nodes


def _rollback(incident: Incident, history: tuple[Record, ...], budget: Budget, policy: RecoveryPolicy, now: float) -> tuple[Action, Reason]:
    if any(r.action == ActionKind.ROLLBACK.value and r.done and r.signature == incident.signature for r in history):
        return Action(ActionKind.ABORT, ExitStatus.CAPPED, page=True), Reason(Why.SPIKE_REPEATED, incident.cause)
    hit = caps.rollback_cap(budget, policy.caps, now)
    if hit is not None:
        return _capped(incident, hit)
    if incident.target is None and not policy.start_over:
        row = TABLE[Cause.NO_CHECKPOINT]
        reason = Reason(Why.TABLE, incident.cause, meaning=row.meaning)
        return Action(ActionKind.ABORT, row.exit_status, page=row.page), reason
    action = Action(ActionKind.ROLLBACK, target=incident.target, windows=incident.windows, set_aside=incident.torn)
    return action, _by_table(incident)


def _scale_up(incident: Incident, membership: MembershipFacts, policy: RecoveryPolicy) -> tuple[Action, Reason]:
    nothing = Action(ActionKind.NOTHING)
    if policy.scale_up is ScaleUp.OFF:
        return nothing, Reason(Why.SCALE_UP_OFF, incident.cause)
    if len(membership.members) >= membership.max_nodes:
        return nothing, Reason(Why.GROUP_FULL, incident.cause)
    if policy.scale_up is ScaleUp.AT_CHECKPOINT and not membership.at_checkpoint:
        return nothing, Reason(Why.AWAITS_CHECKPOINT, incident.cause)
    return Action(ActionKind.SCALE), _by_table(incident)


def _observed(incident: Incident, action: Action, reason: Reason, policy: RecoveryPolicy) -> tuple[Action, Reason]:
    """`observe_only`: the action is kept as decided, marked as not to be done."""
    if action.set_aside is not None and Automatic.SET_ASIDE in policy.observe_only:
        action = replace(action, set_aside=None)
    name = _automatic(incident, action)
    if name is None or name not in policy.observe_only:
        return action, reason
    observed = Reason(Why.OBSERVE_ONLY, incident.cause)
    if incident.cause in _ENDED:
        return Action(ActionKind.ABORT, ExitStatus.WORKERS_FAILED, page=True, early=action.early), observed
    return replace(action, done=False), observed


def _automatic(incident: Incident, action: Action) -> Automatic | None:
    if incident.cause is Cause.REQUESTED or incident.cause is Cause.DRAIN:
        return None
    kinds = {ActionKind.RESTART: Automatic.RESTART, ActionKind.ROLLBACK: Automatic.ROLLBACK, ActionKind.SCALE: Automatic.SCALE_UP}
    return kinds.get(action.kind)
