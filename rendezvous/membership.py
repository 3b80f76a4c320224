"""Membership of one agent as a pure machine: `step(state, event, clock) -> (state, effects)`.

Law: facts first, then what follows from them.  `absorb` takes one event into the state without deciding; `turns.turn`
looks at the whole state and decides until nothing more follows.  No clock is read, nothing is sent: the shell in
`loop_net` (or the simulator) carries the effects out.  The same modules run in both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from elastic_health.generations import Generation, Member
from elastic_health.messages import Goodbye, Reaped, VerdictSeen, WorkersDone
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.answers import answered
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.state import RESENT, WAYS, Drain, Peer, Phase, Purpose, Sent, Settings, State, Workers
from elastic_health.rendezvous.store import Get
from elastic_health.rendezvous.turns import turn
from elastic_health.rendezvous.view import Part, View, Who, apply

RESEND_S = (0.1, 0.2, 0.5, 1.0)
"""Pauses before a transaction is sent again, by number of tries; the last one repeats."""


MOST_WAITING_COMMITS = 256
"""Checkpoints that may wait for the store at once; one a second fills it within the default bound of an outage."""
_MOST_TOLD = 20
"""Of the keys that can't be read, how many are named."""


class BrokenInvariant(AssertionError):
    """A step broke one of the laws that `check` knows; always a bug."""


def start(settings: Settings, clock: ev.Clock) -> State:
    """The state of an agent that has done nothing yet."""
    return State(settings=settings, since=clock.now, joined_at=clock.now)


def step(state: State, event: ev.Event, clock: ev.Clock) -> tuple[State, tuple[ev.Effect, ...]]:
    """Take one event in; returns the new state and what the shell has to do, in order."""
    if state.left is not None:
        return state, ()
    draft = Draft(state, clock)
    ABSORB[type(event)](draft, event)
    turn(draft)
    return draft.done()


def check(before: State, after: State) -> None:
    """Raise BrokenInvariant if a step from `before` to `after` was against the laws of `state`."""
    if before.phase is not after.phase and not _reachable(before.phase, after.phase):
        raise BrokenInvariant(f"{before.phase.value} -> {after.phase.value} is not a way")
    home = after.phase in (Phase.STARTING, Phase.RUNNING, Phase.HOLDING, Phase.STOPPING)
    if after.workers is not Workers.NONE and not home:
        raise BrokenInvariant(f"workers {after.workers.value} in {after.phase.value}")
    if home and not after.generation:
        raise BrokenInvariant(f"{after.phase.value} without a generation")


def _reachable(a: Phase, b: Phase) -> bool:
    """One step may take several ways at once."""
    seen, todo = {a}, [a]
    while todo:
        for nxt in WAYS[todo.pop()]:
            if nxt not in seen:
                seen.add(nxt)
                todo.append(nxt)
    return b in seen


# ---- facts
def _tick(d: Draft, _: ev.Tick) -> None:
    """Only `now` is new."""


def _together(d: Draft, e: ev.Together) -> None:
    for fact in e.facts:
        ABSORB[type(fact)](d, fact)


def _store_changed(d: Draft, e: ev.StoreChanged) -> None:
    before = d.s.view
    view = apply(before, e.batch, d.s.settings.keys, fleet=e.fleet, part=e.part)
    main = not e.fleet and e.part in (Part.ALL, Part.REST)
    if view is before:
        return
    if main and not d.s.synced:  # what had ended before this agent came says nothing to it
        d.set(found_ended=max(view.verdicts, default=0))
    d.set(view=view, **({"fleet_synced": True} if e.fleet else {"synced": True} if main else {}))
    seen = {g: d.now for g in view.verdicts if g not in d.s.verdict_seen}
    if seen:
        d.set(verdict_seen={**d.s.verdict_seen, **seen})
    _note_gone(d, before, view)
    for key, why in sorted(view.unreadable.items())[:_MOST_TOLD]:
        if before.unreadable.get(key) != why:
            d.say("unreadable", why, warn=True)
    _note_leaving(d, view)
    if _own_gone(d.s, e, view):
        d.set(lease_gone=True)
    if e.part is Part.GONE and e.batch.snapshot:
        d.set(before=sum(0 < kv.create_revision < d.s.created for kv in e.batch.kvs), deaths_before=view.deaths)


def _own_gone(s: State, e: ev.StoreChanged, view: View) -> bool:
    """What is told of revisions before `created` speaks of an earlier candidate."""
    if e.fleet or not 0 < s.created <= e.batch.revision:
        return False
    if e.part is Part.GONE:
        own = s.settings.keys.candidate(*s.who)
        return any(x.deleted and x.kv.key == own and x.kv.mod_revision > s.created for x in e.batch.events) or (
            e.batch.snapshot and not any(kv.key == own for kv in e.batch.kvs)
        )
    return e.part is Part.ALL and s.who not in view.candidates


def _note_gone(d: Draft, before: View, view: View) -> None:
    """Since when is the candidate of a member of the current generation gone?"""
    record = view.generation
    if record is before.generation and view.candidates is before.candidates and view.gone is before.gone:
        return
    gone = {m.who: d.s.gone_since.get(m.who, d.now) for m in _gone(record, view)} if record else {}
    if gone != d.s.gone_since:
        d.set(gone_since=gone)


def _note_leaving(d: Draft, view: View) -> None:
    """Which members of the current generation have said that they leave?  Remembered when their candidates are gone."""
    record = view.generation
    told = d.s.leaving | {who for who, e in view.candidates.items() if e.candidate.leaving} if record is not None else frozenset()
    kept = frozenset(m.who for m in record.members if m.who in told) if record is not None and told else frozenset()
    if kept != d.s.leaving:
        d.set(leaving=kept)
def _gone(record: Generation, view: View) -> list[Member]:
    if view.complete:
        return [m for m in record.members if m.who not in view.candidates]
    return [m for who in view.gone if (m := record.member(*who)) is not None]


def _txn_done(d: Draft, e: ev.TxnDone) -> None:
    sent = d.s.sent.get(e.id)
    if sent is not None:
        d.forget(sent)
        answered(d, sent, e.result)
    if d.s.fresh(d.now):  # without a lease in hand its fate is still to be told, and riding goes on until then
        _store_is_back(d)


def _given_up(d: Draft, request: int) -> bool:
    """The store refuses a commit.  One whose worker was told that it waits is asked again for a while: nobody else can any more."""
    since = d.s.commits_refused_since
    if request in d.s.unanswered_commits:
        return True
    if since is None:
        d.set(commits_refused_since=d.now)
    return since is not None and d.now >= since + d.s.settings.bounds.start_s


def _store_is_back(d: Draft) -> None:
    lost = d.s.store_lost_since
    if lost is not None:
        long = d.now >= lost + d.s.settings.bounds.lease_s / 3  # leases may have ended: see when a lost store is noticed
        d.set(store_lost_since=None, **({"store_back_at": d.now} if long else {}))


def _txn_failed(d: Draft, e: ev.TxnFailed) -> None:
    sent = d.s.sent.get(e.id)
    if sent is None:
        return
    if e.lease_gone:
        d.set(lease_gone=True)
        _store_is_back(d)
    elif not (e.fatal or e.full) and d.s.store_lost_since is None:
        d.set(store_lost_since=d.now)
    pause = RESEND_S[min(sent.tries, len(RESEND_S)) - 1]
    if e.fatal or e.full:
        later = "; it is tried again" if e.full else ""
        d.say("store_refuses", f"{_written(sent)} could not be written ({sent.purpose.value}): {e.reason}{later}", warn=True)
        pause = RESEND_S[-1]
    # Once a try has been unsure, a later one that surely failed settles nothing: the first may have landed.
    unsure = e.ambiguous or (sent.tries > 1 and not (e.fatal or e.lease_gone))
    if unsure and sent.purpose in RESENT:
        again = dataclasses.replace(sent, resend_at=d.now + pause, tries=sent.tries + 1)
        d.set(sent={**d.s.sent, sent.id: again})
        return
    d.forget(sent)
    d.quiet(sent.purpose, pause)
    if sent.purpose is Purpose.SHARD:
        d.set(listing=None)  # it may still land; a new attempt has new names
    if sent.request and e.fatal and _given_up(d, sent.request):
        d.answer_commit(sent.request, False, f"the store refuses it: {e.reason}")
    elif sent.request:
        d.commit_waits_again(sent)


def _written(sent: Sent) -> str:
    """The first key that a transaction would write: a person looks there."""
    return next((op.key for op in sent.txn.then if not isinstance(op, Get)), "nothing")


def _lease_held(d: Draft, e: ev.LeaseHeld) -> None:
    d.set(lease_asked_at=None, granting=False)
    if d.s.lease in (0, e.lease):
        d.set(lease=e.lease, lease_deadline=max(d.s.lease_deadline, e.sent_at + e.ttl_s))
    _store_is_back(d)


def _lease_failed(d: Draft, e: ev.LeaseFailed) -> None:
    d.set(lease_asked_at=d.now, granting=False)
    if e.gone and e.lease == d.s.lease:
        d.set(lease_gone=True)
        _store_is_back(d)
    elif not e.gone and d.s.store_lost_since is None:
        d.set(store_lost_since=d.now)


def _preflight_done(d: Draft, e: ev.PreflightDone) -> None:
    if d.s.phase is Phase.CHECKING:
        d.set(preflight=e.fit, preflight_reason=e.reason)


def _store_opened(d: Draft, e: ev.StoreOpened) -> None:
    if d.s.phase is Phase.STARTING and e.generation == d.s.generation:
        d.set(store_address=e.address)


def _workers_up(d: Draft, e: ev.WorkersUp) -> None:
    if d.s.workers is Workers.ASKED and e.generation == d.s.generation:
        d.set(workers=Workers.UP, workers_since=d.now)


def _workers_done(d: Draft, e: ev.WorkersDone) -> None:
    if d.s.workers is Workers.UP and d.same_workers(e.generation):
        d.set(workers=Workers.DONE)


def _workers_reaped(d: Draft, e: ev.WorkersReaped) -> None:
    if d.s.workers is Workers.STOPPING:
        d.set(workers=Workers.NONE)
        if e.stuck:
            d.set(stopping=f"processes that can't be ended: {e.stuck}")


def _judged(d: Draft, e: ev.Judged) -> None:
    """The first cause wins; a consequence gives way to a cause."""
    mine = d.s.phase in (Phase.STARTING, Phase.RUNNING, Phase.HOLDING) and e.incident.generation == d.s.generation
    old = d.s.pending_incident
    if mine and (old is None or (old.secondary and not e.incident.secondary)):
        d.set(pending_incident=e.incident, incident_at=d.now)


def _peer(d: Draft, who: Who, **changes: Any) -> None:
    d.set(peers={**d.s.peers, who: dataclasses.replace(d.s.peers.get(who, Peer()), **changes)})


def _link_up(d: Draft, e: ev.LinkUp) -> None:
    _peer(d, e.who, up_since=d.now, down_since=None, dead=False)


def _link_down(d: Draft, e: ev.LinkDown) -> None:
    _peer(d, e.who, up_since=None, down_since=d.now)


def _peer_said(d: Draft, e: ev.PeerSaid) -> None:
    m = e.message
    if isinstance(m, Reaped | Goodbye):
        _peer(d, e.who, reaped=m.generation)
    elif isinstance(m, WorkersDone):
        _peer(d, e.who, done=m.generation)
    elif isinstance(m, VerdictSeen) and m.verdict.generation == d.s.generation:
        d.set(peer_verdict=m.verdict)


def _probed(d: Draft, e: ev.Probed) -> None:
    _peer(d, e.who, dead=e.dead or d.s.peers.get(e.who, Peer()).dead, answers=e.answers and not e.dead)


def _commit_asked(d: Draft, e: ev.CommitAsked) -> None:
    """Only from workers of the generation that runs: what an ended one still asks must not wait for the next."""
    if d.s.phase is not Phase.RUNNING or e.record.generation != d.s.generation:
        d.do(ev.CommitAnswered(e.request, False, f"generation {e.record.generation} has ended"))
    elif len(d.s.waiting_commits) >= MOST_WAITING_COMMITS:
        d.do(ev.CommitAnswered(e.request, False, f"{MOST_WAITING_COMMITS} others wait for the store already"))
    else:
        d.set(waiting_commits=(*d.s.waiting_commits, e), unanswered_commits={**d.s.unanswered_commits, e.request: d.now})


def _delete_asked(d: Draft, e: ev.DeleteAsked) -> None:
    d.ask_deletion(e.names)


def _files_gone(d: Draft, e: ev.FilesGone) -> None:
    d.set(files_gone=d.s.files_gone | {e.name}, forget_due=True)


def _publish_asked(d: Draft, e: ev.PublishAsked) -> None:
    d.publish(e.key, e.value)


def _stop_asked(d: Draft, e: ev.StopAsked) -> None:
    _stop(d, e.reason)


def _stop(d: Draft, reason: str) -> None:
    if d.s.stopping is None:
        d.set(stopping=reason, stopping_at=d.now)


def _drain_asked(d: Draft, e: ev.DrainAsked) -> None:
    """Only a member whose workers run has something to save; anyone else leaves at once."""
    if d.s.drain is not None or d.s.stopping is not None:
        return
    if d.s.phase is not Phase.RUNNING:
        _stop(d, e.reason)
        return
    d.set(drain=Drain(e.reason, e.until, e.saves, e.step))
    if d.s.workers is Workers.UP:
        d.do(ev.WishCheckpoint(d.s.generation) if e.saves else ev.PassSignal(d.s.generation))


def _workers_left(d: Draft, e: ev.WorkersLeft) -> None:
    drain = d.s.drain
    if drain is not None and d.same_workers(e.generation):
        left_at = d.now if drain.left_at is None else drain.left_at
        d.set(drain=dataclasses.replace(drain, left_at=left_at, all_left=drain.all_left or e.all))


def _held(d: Draft, e: ev.Held) -> None:
    if d.s.phase is Phase.HOLDING and e.generation == d.s.generation:
        d.set(held=e.generation if e.ok else -1)


ABSORB: Mapping[type, Callable[[Draft, Any], None]] = {
    ev.Tick: _tick,
    ev.Together: _together,
    ev.StoreChanged: _store_changed,
    ev.TxnDone: _txn_done,
    ev.TxnFailed: _txn_failed,
    ev.LeaseHeld: _lease_held,
    ev.LeaseFailed: _lease_failed,
    ev.PreflightDone: _preflight_done,
    ev.StoreOpened: _store_opened,
    ev.WorkersUp: _workers_up,
    ev.WorkersDone: _workers_done,
    ev.WorkersReaped: _workers_reaped,
    ev.Judged: _judged,
    ev.LinkUp: _link_up,
    ev.LinkDown: _link_down,
    ev.PeerSaid: _peer_said,
    ev.Probed: _probed,
    ev.CommitAsked: _commit_asked,
    ev.DeleteAsked: _delete_asked,
    ev.FilesGone: _files_gone,
    ev.PublishAsked: _publish_asked,
    ev.StopAsked: _stop_asked,
    ev.DrainAsked: _drain_asked,
    ev.WorkersLeft: _workers_left,
    ev.Held: _held,
}
