"""What follows from the facts: one turn looks at the whole state and decides until nothing more follows.

Laws, in the order in which a turn asks:
 1. the lease is renewed only by a turn, so a stuck agent loses it;
 2. an unanswered create-only write is sent again until it is answered;
 3. a verdict on the own generation comes before everything else;
 4. who may not be sure of its lease decides, commits and publishes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elastic_health.exits import ExitStatus
from elastic_health.generations import CandidateState, GenerationKind
from elastic_health.messages import Goodbye, Reaped, Started, VerdictSeen, WorkersDone
from elastic_health.rendezvous import events as ev, fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.few import attend
from elastic_health.rendezvous.gather import in_place_formation
from elastic_health.rendezvous.joining import LEASE_RETRY_S, checking, joining, leave_ended, ready
from elastic_health.rendezvous.judging import incident, judge
from elastic_health.rendezvous.lead import lead
from elastic_health.rendezvous.leaving import leaves, quarantined, tell_drain
from elastic_health.rendezvous.loss import lost_members
from elastic_health.rendezvous.refusal import end_of, ended, stopped, torn_fence
from elastic_health.rendezvous.serve import may_run, settle_incident
from elastic_health.rendezvous.state import Peer, Phase, Purpose, State, Workers
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause, Verdict, VerdictKind

_MOST_ROUNDS = 12
_LAST_WORD_S = 1.0


def turn(d: Draft) -> None:
    """Decide until the phase stays."""
    _lease(d)
    d.resend_due()
    attend(d)
    for _ in range(_MOST_ROUNDS):
        phase = d.s.phase
        if d.s.drain is not None and phase is not Phase.RUNNING:  # nothing more to wait for
            d.set(stopping=d.s.stopping or d.s.drain.reason, drain=None)
        TURNS[phase](d)
        if d.s.phase is phase:
            return


def _lease(d: Draft) -> None:
    """Renew at a third of the TTL; ask again soon when there was no answer."""
    s = d.s
    if s.phase is Phase.LEFT or not s.lease or s.lease_gone:
        return
    ttl = s.settings.bounds.lease_s
    due = s.lease_deadline - ttl * 2 / 3
    if s.lease_asked_at is not None:
        due = max(due, s.lease_asked_at + LEASE_RETRY_S)
    if d.now >= due:
        d.set(lease_asked_at=d.now)
        d.do(ev.RenewLease(s.lease))
        due = d.now + LEASE_RETRY_S
    d.wake(due)
    if d.now < s.lease_deadline:
        d.wake(s.lease_deadline)


# ---- membership
def _verdict_on(d: Draft) -> Verdict | None:
    """The verdict on the generation that this agent acts for, from the store or from a peer that read it there.  Without
    one, a newer generation says that there is one."""
    s = d.s
    v = s.view.verdicts.get(s.generation)
    if v is None and s.peer_verdict is not None and s.peer_verdict.generation == s.generation:
        v = s.peer_verdict
    return v


def _member_common(d: Draft) -> bool:
    """Verdict, newer generation, stop, right to run: True if the phase was left."""
    s, v = d.s, _verdict_on(d)
    if v is not None:
        _apply(d, v)
        return True
    if s.record is None:
        d.stop_workers(f"the record of generation {s.generation} can't be read any more")
        return True
    newer = s.view.generation
    if newer is not None and newer.number > s.generation and not (newer.kind is GenerationKind.IN_PLACE and newer.previous == s.generation):
        d.stop_workers(f"generation {newer.number} has formed")
        return True
    torn = torn_fence(s.view, s.settings.keys, s.generation, s.token) if newer is None or newer.number <= s.generation else ""
    if torn:
        d.stop_workers(torn)
        return True
    if s.stopping is not None:
        if tell_drain(d, s.stopping) or not s.fresh(d.now):
            d.stop_workers(s.stopping)
            return True
        return False
    quarantined(d)
    allowed, why = may_run(d)
    if not allowed:
        d.stop_workers(why)
        return True
    return False


def _apply(d: Draft, v: Verdict) -> None:
    """Every member applies the one verdict."""
    d.set(ended=v)
    d.do(ev.Tell(None, VerdictSeen(v)))
    dying = d.s.pending_incident is not None and d.s.pending_incident.cause is not Cause.NUMERIC_HALT
    alive = d.s.workers is Workers.UP and d.s.phase is Phase.RUNNING and not dying
    if v.kind is VerdictKind.ROLLBACK and alive and d.s.stopping is None and d.s.drain is None:
        d.refuse_commits("the generation rolls back")
        d.set(pending_incident=None)
        d.go(Phase.HOLDING)
        d.do(ev.HoldWorkers(d.s.generation))
        return
    d.stop_workers(f"{v.kind.value}: {v.cause.value}: {v.reason}")


def _starting(d: Draft) -> None:
    s = d.s
    if _member_common(d):
        return
    record = s.record
    assert record is not None
    lost_members(d, record)
    settle_incident(d)
    if s.rank == 0 and s.generation not in s.view.stores:
        if s.opened != s.generation:
            d.set(opened=s.generation)
            d.do(ev.OpenStore(record))
        elif s.store_address is not None and s.published != s.generation and s.fresh(d.now) and d.can_send(Purpose.STORE):
            d.send(Purpose.STORE, fence.publish_store(d.fence(), s.store_address, d.stamp()))
    address = s.view.stores.get(s.generation)
    broken = s.view.unreadable.get(s.settings.keys.store(s.generation))
    if broken is not None and s.workers is Workers.NONE:
        judge(d, incident(d, Cause.NOT_STARTED, broken))
    if address is not None and s.workers is Workers.NONE and s.rank is not None:
        d.set(workers=Workers.ASKED)
        first = record.members[0]
        if s.rank != 0:
            d.do(ev.Connect(first.who, first.address, s.generation))
        d.do(ev.StartWorkers(record, s.rank, address))
    elif s.workers in (Workers.UP, Workers.DONE):
        d.do(ev.Tell(None, Started(s.generation)))
        d.go(Phase.RUNNING)
        return
    at = s.since + record.bounds.start_s
    d.wake(at)
    if d.now >= at and address is None:
        first = record.members[0]
        judge(d, incident(d, Cause.NOT_STARTED, f"{first.node} published no store within {record.bounds.start_s:g} s", nodes=(first.node,)))


def _running(d: Draft) -> None:
    if _member_common(d) or leaves(d):
        return
    record = d.s.record
    assert record is not None
    lost_members(d, record)
    settle_incident(d)
    if d.s.workers is Workers.DONE and d.s.rank != 0:
        first = record.members[0].who
        up = d.s.peers.get(first, Peer()).up_since
        if up is not None and d.s.told_done_at != up:  # once for each time that the link comes up
            d.set(told_done_at=up)
            d.do(ev.Tell(first, WorkersDone(d.s.generation)))
    if d.s.rank == 0:
        lead(d, record)
    elif d.s.waiting_commits:
        d.refuse_commits("only the rank-0 agent commits")


def _holding(d: Draft) -> None:
    s, record = d.s, d.s.view.generation
    over = record is not None and record.number > s.generation
    if (
        over
        and record is not None
        and record.kind is GenerationKind.IN_PLACE
        and record.previous == s.generation
        and s.workers is Workers.UP
    ):
        if record.member(*s.who) is not None and s.fresh(d.now):
            d.set(
                generation=record.number,
                token=s.view.current_mod,
                ended=None,
                held=0,
                peer_verdict=None,
                pending_incident=None,
                last_commit=None,
            )
            d.do(ev.TakeUp(record))
            d.go(Phase.RUNNING)
            return
    # Nothing has to start, so a former that doesn't form is stuck: the others do better to form anew.
    at = s.since + s.settings.bounds.link_timeout_s + s.settings.bounds.kill_grace_s
    d.wake(at)
    allowed, why = may_run(d)
    if (
        over
        or s.stopping is not None
        or not allowed
        or s.held == -1
        or s.workers is not Workers.UP
        or d.now >= at
        or _gave_up(d)
        or s.pending_incident
    ):
        d.stop_workers(why or s.stopping or "the rollback in place was given up")
        return
    if s.rank == 0 and s.held == s.generation:
        in_place_formation(d)


def _gave_up(d: Draft) -> bool:
    """Some member is no longer a member of this generation: it has given the rollback in place up, or is gone."""
    s, record = d.s, d.s.record
    if record is None:
        return True
    first = record.members[0].who
    if not s.view.complete and first != s.who and s.peers.get(first, Peer()).up_since is None:
        return True  # it forms in place, and its link breaks when it gives up
    return any(_out(s, m.who) for m in record.members)


def _out(s: State, who: Who) -> bool:
    entry = s.view.candidates.get(who)
    left = s.view.complete and entry is not None and entry.candidate.state is not CandidateState.MEMBER
    return left or s.view.lost(who) or s.peers.get(who, Peer()).dead


def _stopping(d: Draft) -> None:
    s = d.s
    if s.workers is not Workers.NONE:
        return
    if s.stopping is not None and s.under_way(Purpose.VERDICT) is not None and s.fresh(d.now) and d.now < s.since + _LAST_WORD_S:
        return d.wake(s.since + _LAST_WORD_S)  # gone before its word has landed, it would be missed as a lost member
    over = ended(s.view) or end_of(s.ended) or stopped(s)
    d.do(ev.Tell(None, Goodbye(s.generation) if s.stopping or over else Reaped(s.generation)), ev.CloseLinks(s.generation))
    if over is not None:
        return leave_ended(d, over)
    if s.stopping is not None:
        return d.leave(ExitStatus.STOPPED if "can't be ended" not in s.stopping else ExitStatus.UNFIT_NODE, s.stopping)
    d.set(stage="join" if s.ended is not None and s.ended.blames(s.settings.me.node) else "restart")
    if not s.fresh(d.now):
        return d.rejoin()
    d.set(
        preflight=None,
        preflight_asked=False,
        checking_told=False,
        generation=0,
        token=0,
        joined_at=d.now,  # its patience begins anew, also when its lease ends right after this
    )
    d.go(Phase.CHECKING)


def _left(d: Draft) -> None:
    """Nothing follows any more."""


TURNS: Mapping[Phase, Callable[[Draft], None]] = {
    Phase.JOINING: joining,
    Phase.CHECKING: checking,
    Phase.READY: ready,
    Phase.STARTING: _starting,
    Phase.RUNNING: _running,
    Phase.HOLDING: _holding,
    Phase.STOPPING: _stopping,
    Phase.LEFT: _left,
}
