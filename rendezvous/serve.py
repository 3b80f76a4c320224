"""What a member may still do: run its workers, and have its incidents judged.  Pure.

Law (rule 7): workers run only while their agent can show that nobody can have replaced the group: its lease holds; or
the store is out, the outage is within its bound, and the links to all members are up; or its lease ended while the
store answers, and it is putting its candidate back, for at most the link timeout (longer while the links are up); or
nothing is known of its lease, and the link timeout since its end has not passed.
"""

from __future__ import annotations

from elastic_health.generations import CandidateState
from elastic_health.rendezvous import events as ev, fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.judging import judge
from elastic_health.rendezvous.state import Peer, Phase, Purpose, State
from elastic_health.rendezvous.view import Who

SETTLE_S = 1.0
"""How long the consequence of a peer's failure waits for its cause to be told by whoever saw it."""


def watched(state: State) -> tuple[Who, ...]:
    """The members to which this agent must have a link: rank 0 all, the others rank 0."""
    record = state.record
    if record is None:
        return ()
    if state.rank == 0:
        return tuple(m.who for m in record.members[1:])
    return (record.members[0].who,)


def riding(state: State, now: float) -> bool:
    """Is this a store outage that a healthy group may train through?"""
    lost, bound = state.store_lost_since, state.settings.outage_s
    return lost is not None and now <= lost + bound and linked(state)


def linked(state: State) -> bool:
    """Are the links to all members up, as far as this agent keeps them?"""
    return all(state.peers.get(who, Peer()).up_since is not None for who in watched(state))


def page_deadline(state: State, now: float) -> float:
    """Monotonic second at which workers end by themselves if their agent says nothing more (rule 7)."""
    link = state.settings.bounds.link_timeout_s
    if state.phase not in (Phase.STARTING, Phase.RUNNING, Phase.HOLDING):
        return now + state.settings.bounds.kill_grace_s
    if state.fresh(now) or _unsure(state):
        return state.lease_deadline + link
    return now + link


def _unsure(state: State) -> bool:
    """The lease has run out by this agent's own clock, and the store, which answers, has not said so yet."""
    return not state.lease_gone and state.store_lost_since is None


def may_run(d: Draft) -> tuple[bool, str]:
    """May this member's workers go on, and if not, why not."""
    s = d.s
    if s.fresh(d.now):
        return True, ""
    if s.lease_gone:
        return _put_back(d)
    if _unsure(s) and d.now < s.lease_deadline + s.settings.bounds.link_timeout_s:
        d.wake(s.lease_deadline + s.settings.bounds.link_timeout_s)
        return True, ""
    if s.phase is Phase.RUNNING and riding(s, d.now):
        d.say("riding", "the store is out; training goes on while all links are up", warn=True)
        assert s.store_lost_since is not None
        d.wake(s.store_lost_since + s.settings.outage_s)
        return True, ""
    return False, "this node could not renew its lease"


def _put_back(d: Draft) -> tuple[bool, str]:
    """The store says that the lease is over, and has no verdict yet: the candidate again, same incarnation."""
    s = d.s
    if s.lease_gone_at is None:
        d.set(lease_gone_at=d.now, lease=0, lease_asked_at=None, lease_deadline=float("-inf"))
        s = d.s
    assert s.lease_gone_at is not None
    until = s.lease_gone_at + (s.settings.return_s if linked(s) else s.settings.bounds.link_timeout_s)
    d.wake(until)
    if d.now >= until or s.phase is not Phase.RUNNING:
        return False, "this node's lease ended and its candidate could not be put back"
    if not s.lease:
        if s.lease_asked_at is None or d.now >= s.lease_asked_at + 1.0:
            d.set(lease_asked_at=d.now)
            d.do(ev.GrantLease(s.settings.bounds.lease_s))
    elif d.can_send(Purpose.REATTACH):
        candidate = d.candidate(CandidateState.MEMBER, s.generation)
        d.send(Purpose.REATTACH, fence.reattach(d.fence(), candidate, s.lease, d.stamp(), s.reattach_over))
    return True, ""


def settle_incident(d: Draft) -> None:
    """Turn what the judges told into a verdict; a consequence first waits for its cause."""
    what = d.s.pending_incident
    if what is None:
        return
    if what.secondary and d.now < d.s.incident_at + SETTLE_S:
        d.wake(d.s.incident_at + SETTLE_S)
        return
    if not d.s.fresh(d.now):
        # Nothing may be decided now; ending the own workers breaks the links, and so ends the group.
        d.stop_workers(f"{what.cause.value} while the store is out: {what.reason}")
        return
    judge(d, what)
