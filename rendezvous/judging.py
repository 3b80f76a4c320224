"""From an incident to a verdict: asks `decide` what to do, and writes it down as a verdict with its record. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

from elastic_health.checkpoints.line import ancestors, committed
from elastic_health.exits import ExitStatus
from elastic_health.generations import CandidateState
from elastic_health.ids import ulid
from elastic_health.incidents import Incident, Record
from elastic_health.recovery.budget import NODE_CAUSES, as_seen, newest_of
from elastic_health.recovery.decide import Action, ActionKind, MembershipFacts, decide
from elastic_health.rendezvous import fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.state import Purpose, State
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause, Verdict, VerdictKind

_TARGET_WAIT_S = 2.0
_BUDGET_WAIT_S = 2.0
_KINDS: Mapping[ActionKind, VerdictKind] = {
    ActionKind.RESTART: VerdictKind.RESTART,
    ActionKind.ROLLBACK: VerdictKind.ROLLBACK,
    ActionKind.SCALE: VerdictKind.SCALE,
    ActionKind.STOP: VerdictKind.STOP,
    ActionKind.FINISH: VerdictKind.FINISH,
    ActionKind.ABORT: VerdictKind.ABORT,
}


def make_id(state: State, wall: float, n: int) -> str:
    """A ULID whose random part comes from who this agent is and a counter: unique, and the same in a replayed run."""
    node, incarnation = state.who
    digest = hashlib.sha256(f"{state.settings.keys.run}/{node}.{incarnation}#{n}".encode()).digest()
    return ulid(wall, digest[:10])


def incident(
    d: Draft, cause: Cause, reason: str, *, nodes: tuple[str, ...] = (), ranks: tuple[int, ...] = (), generation: int = 0
) -> Incident:
    """An incident that membership itself observed."""
    g = generation or d.s.generation or d.s.view.current
    return Incident(make_id(d.s, d.wall, d.s.next_id), g, cause, cause.value, reason, d.wall, ranks, nodes)


def _budget_is_late(d: Draft) -> bool:
    """The budget comes over a watch of its own to most agents, and is written with every generation: an older one would
    let the run have one restart more than its caps allow.  Not waited for for ever: it may have been deleted by hand."""
    s = d.s
    if s.view.complete or s.view.budget_mod >= s.view.current_mod or d.now >= s.since + _BUDGET_WAIT_S:
        return False
    d.wake(s.since + _BUDGET_WAIT_S)
    return True


def _candidates_are_late(d: Draft) -> bool:
    """Asked for, and not here yet."""
    s, until = d.s, d.s.attended_at + _BUDGET_WAIT_S
    if s.view.complete or d.now >= until:
        return False
    d.wake(until)
    return True


def judge(d: Draft, what: Incident, dead: tuple[Who, ...] = (), gone: tuple[Who, ...] = ()) -> bool:
    """Send the verdict on `what` (create-only); False if it can't be sent now, or nothing is to be done."""
    if not d.s.fresh(d.now) or d.s.judged >= what.generation or not d.can_send(Purpose.VERDICT):
        return False
    if _budget_is_late(d) or (what.cause is Cause.DRAIN and _candidates_are_late(d)):
        return False
    if what.target is not None and what.target not in d.s.view.checkpoints and d.now < d.s.incident_at + _TARGET_WAIT_S:
        d.wake(d.s.incident_at + _TARGET_WAIT_S)  # committed just now, and not yet read here
        return False
    what = _with_live_target(d.s, _meant(d.s, what))
    budget = as_seen(d.s.view.budget, d.s.verdict_seen, d.s.found_ended, d.now, d.wall)
    action, reason = decide(what, _rollbacks(d.s), budget, _facts(d.s, d.wall), d.s.settings.policies.recovery, d.wall)
    record = _record(d, what, action, reason.text())
    if action.kind is ActionKind.NOTHING or not action.done:
        d.say("not_acted", f"{what.cause.value}: {reason.text()}", warn=True)
        return False
    verdict = _verdict(d, what, action, reason.text())
    txn = fence.verdict(d.s.settings.keys, verdict, record, d.stamp(), d.s.view, dead, gone)
    d.say("verdict", f"generation {what.generation}: {what.cause.value}: {what.reason}; {reason.text()}", warn=True)
    d.send(Purpose.VERDICT, txn, verdict=verdict)
    return True


def _meant(s: State, what: Incident) -> Incident:
    """What befalls only nodes that have said that they leave is their leaving: it is no fault, and charged to nobody."""
    leaving = {node for node, _ in s.leaving}
    if what.cause not in NODE_CAUSES | {Cause.WORKER_EXIT} or not what.nodes or not leaving.issuperset(what.nodes):
        return what
    reason = f"{', '.join(what.nodes)} leaves: {what.reason}"
    return dataclasses.replace(what, cause=Cause.DRAIN, signature=Cause.DRAIN.value, reason=reason)


def _with_live_target(s: State, what: Incident) -> Incident:
    """A rollback's target as it stands now: when it is not committed any more, the next older one (rule 3)."""
    if what.target is None:
        return what
    known, record = s.view.checkpoints, s.view.generation
    start = what.target if what.target in known or record is None else record.plan.checkpoint
    line = committed(known, ancestors(known, start))
    return dataclasses.replace(what, target=next(iter(line), None))


def _rollbacks(s: State) -> tuple[Record, ...]:
    """The rollbacks of this run so far, as its verdicts tell them: is it the same spike again?"""
    done = (v for _, v in sorted(s.view.verdicts.items()) if v.kind is VerdictKind.ROLLBACK)
    return tuple(Record(v.incident, ActionKind.ROLLBACK.value, v.reason, v.cause.value, v.signature, v.generation, v.step) for v in done)


def _facts(s: State, wall: float) -> MembershipFacts:
    ready = tuple(e.candidate.node for e in s.view.candidates.values())
    record = s.view.generation
    return MembershipFacts(
        s.settings.me.spec.min_nodes,
        s.settings.me.spec.max_nodes,
        ready,
        tuple(m.node for m in record.members) if record else (),
        newest_of(s.view.checkpoints),
        record.plan.step if record and record.plan.checkpoint else -1,
        staying=_staying(s, wall),
    )


def _staying(s: State, wall: float) -> int:
    """How many fit nodes, members and spares, are left when those that leave have gone."""
    fit = (CandidateState.READY, CandidateState.MEMBER)
    gone = s.leaving | ({s.who} if s.stopping is not None or s.drain is not None else set())
    if not s.view.complete:
        members = s.record.members if s.record else ()
        return sum(not s.view.lost(m.who) and m.who not in gone and s.view.barred(m.node, wall) is None for m in members)
    here = (e for e in s.view.candidates.values() if e.candidate.state in fit and not e.candidate.leaving and e.who not in gone)
    return sum(s.view.barred(e.candidate.node, wall) is None for e in here)


def _verdict(d: Draft, what: Incident, action: Action, reason: str) -> Verdict:
    node, incarnation = d.s.who
    return Verdict(
        kind=_KINDS[action.kind],
        cause=what.cause,
        generation=what.generation,
        signature=what.signature,
        reason=f"{reason} (last cause: {what.reason})" if action.kind in (ActionKind.ABORT, ActionKind.STOP) else what.reason,
        ranks=what.ranks,
        nodes=what.nodes,
        incident=what.id,
        exit_status=int(action.exit_status or ExitStatus.OK),
        target=action.target,
        windows=action.windows,
        torn=action.set_aside,
        early=action.early,
        step=what.step,
        backoff_s=action.backoff_s,
        writer=f"{node}.{incarnation}#{d.s.next_id}",
    )


def _record(d: Draft, what: Incident, action: Action, reason: str) -> Record:
    plan = d.s.view.generation.plan if d.s.view.generation else None
    return Record(
        id=make_id(d.s, d.wall, d.s.next_id),
        action=action.kind.value,
        reason=what.reason,
        cause=what.cause.value,
        signature=what.signature,
        generation=what.generation,
        step=what.step,
        ranks=what.ranks,
        nodes=what.nodes,
        position=plan.position if plan else 0,
        checkpoint=plan.checkpoint if plan else None,
        decision=reason,
        who=".".join(d.s.who),
        at=d.wall,
        done=action.done and action.kind is not ActionKind.NOTHING,
        incident=what.id,
    )
