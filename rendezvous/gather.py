"""Forming: the transaction that makes the next generation, by whoever's turn it is.  Pure."""

from __future__ import annotations

from elastic_health.checkpoints.line import Choice, choose
from elastic_health.exits import ExitStatus
from elastic_health.generations import Budget, CandidateState, Generation, GenerationKind, Member
from elastic_health.recovery.budget import charge, newest_of, opened
from elastic_health.rendezvous import fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.forming import Chosen, Knowledge, Wait, consider, ready, turn
from elastic_health.rendezvous.listing import shards
from elastic_health.rendezvous.loss import proven
from elastic_health.rendezvous.order import moved, ranked
from elastic_health.rendezvous.state import Peer, Purpose
from elastic_health.rendezvous.store import Compare, Put, Target, Txn
from elastic_health.verdicts import Cause, Verdict, VerdictKind


def formation(d: Draft) -> None:
    """Form, or note why not and when to look again."""
    s, spec = d.s, d.s.settings.me.spec
    if len(ready(s.view, d.wall)) < spec.min_nodes:
        d.set(ready_since=None)
    elif s.ready_since is None:
        d.set(ready_since=d.now)
    found = consider(s.view, _knowledge(d), spec.min_nodes, spec.max_nodes, s.settings.policies.membership, d.now, d.wall)
    if not isinstance(found, Chosen):
        d.set(formable_since=None)
        if found.until:
            d.wake(found.until)
        if found.reason is not Wait.ENDED:
            whom = ", ".join(".".join(w) for w in found.who)
            d.say(f"wait_{found.reason.value}", f"waiting to form: {found.reason.value}{' ' + whom if whom else ''}")
        return
    if d.s.formable_since is None:
        d.set(formable_since=d.now)
    assert d.s.formable_since is not None
    wait = turn(s.who, s.view, d.wall, d.s.formable_since, s.settings.policies.membership, d.now)
    if wait is not None:
        if wait.until:
            d.wake(wait.until)
        return
    if d.s.formed > d.s.view.current:
        return
    members = ranked(found.entries, s.view.generation)
    names = shards(d, members) if d.can_send(Purpose.FORM) else None
    if names is not None:
        d.quiet(Purpose.FORM, 0.2)
        d.set(listing=None)
        d.send(Purpose.FORM, _form(d, members, names), names=(str(d.s.view.current + 1),))


def _knowledge(d: Draft) -> Knowledge:
    s, last = d.s, d.s.view.generation
    members = last.members if last else ()
    missing = [m for m in members if (e := s.view.candidates.get(m.who)) is None or e.candidate.state is not CandidateState.READY]
    later = s.view.incarnations if missing else {}
    sure = frozenset(m.who for m in missing if last and proven(d, m, last.number, later))
    answering = frozenset(m.who for m in missing if s.peers.get(m.who, Peer()).answers)
    return Knowledge(sure, answering, s.gone_since, s.verdict_seen.get(s.view.current), s.ready_since, s.formable_since)


def _choice(d: Draft) -> Choice:
    view = d.s.view
    return choose(view.checkpoints, view.generation, view.verdict, view.skip_windows)


def _budget(d: Draft) -> Budget:
    """What the whole run has spent, with the verdict that is being carried out."""
    view, spec = d.s.view, d.s.settings.me.spec
    if view.generation is None or view.verdict is None:
        return opened(spec.max_restarts)
    return charge(view.budget, view.verdict, d.wall, newest_of(view.checkpoints))


def _form(d: Draft, members: tuple[Member, ...], names: tuple[str, ...]) -> Txn:
    s, view, last = d.s, d.s.view, d.s.view.generation
    choice, budget = _choice(d), _budget(d)
    g = Generation(
        number=view.current + 1,
        kind=GenerationKind.FORMED,
        previous=view.current,
        communicator=view.current + 1,
        members=members,
        plan=choice.plan,
        spec=last.spec if last else s.settings.me.spec,
        bounds=s.settings.bounds,
        restarts=budget.restarts,
        moved=moved(members, last),
        shards=names,
    )
    txn = fence.form(s.settings.keys, view, s.who, g, budget, choice.abandon, _why_left(view.verdict), d.stamp())
    if choice.needs_leave_to_start_over and not s.settings.policies.checkpoints.start_over:
        return _stopped(d, txn, g)
    return txn


def _stopped(d: Draft, txn: Txn, g: Generation) -> Txn:
    """No checkpoint is usable and starting over is not allowed: the generation is born with its `abort` verdict."""
    v = Verdict(
        VerdictKind.ABORT,
        Cause.NO_CHECKPOINT,
        g.number,
        Cause.NO_CHECKPOINT.value,
        "no usable checkpoint is left and checkpoints.start_over is false; restore one by hand or allow starting over",
        exit_status=int(ExitStatus.NO_CHECKPOINT),
        writer=f"{'.'.join(d.s.who)}#{d.s.next_id}",
    )
    key = d.s.settings.keys.verdict(g.number)
    return Txn((*txn.compare, Compare(key, Target.CREATE, 0)), (*txn.then, Put(key, d.stamp().value(v))), txn.otherwise)


def _why_left(v: Verdict | None) -> str:
    return f"{v.kind.value} of generation {v.generation}: {v.reason}" if v else ""


def in_place_formation(d: Draft) -> None:
    """The rank-0 agent of a held group: same members and processes, new number, plan and fence."""
    s, last = d.s, d.s.view.generation
    if last is None or last.number != s.generation or not s.fresh(d.now) or not d.can_send(Purpose.FORM) or s.who not in s.view.candidates:
        return
    if s.view.verdict is None:  # told by a peer, and not yet read here: what it names is read with it
        return
    choice, budget = _choice(d), _budget(d)
    if choice.needs_leave_to_start_over:
        d.stop_workers("the rollback's target is gone; the next formation decides")
        return
    barred = [m.node for m in last.members if s.view.barred(m.node, d.wall) is not None]
    if barred:
        d.stop_workers(f"{', '.join(barred)} went into quarantine; the next formation goes on without")
        return
    g = fence.in_place(last, last.number + 1, plan=choice.plan, restarts=budget.restarts)
    d.quiet(Purpose.FORM, 0.2)
    txn = fence.form(s.settings.keys, s.view, s.who, g, budget, choice.abandon, _why_left(s.view.verdict), d.stamp())
    d.send(Purpose.FORM, txn, names=(str(g.number),))
