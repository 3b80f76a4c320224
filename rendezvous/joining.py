"""Before membership: joining, checking and waiting as a ready candidate.  Pure.

Law: only `ready` counts for forming; it is said of an agent whose workers are all reaped and whose checks passed.  A spare
watches the running generation and does nothing to it, except to say that a member is lost.
"""

from __future__ import annotations

from elastic_health.exits import ExitStatus
from elastic_health.generations import CandidateState, GenerationKind
from elastic_health.incidents import Record
from elastic_health.recovery.reopen import resumed
from elastic_health.rendezvous import events as ev, fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.few import ask
from elastic_health.rendezvous.gather import formation
from elastic_health.rendezvous.judging import incident, judge
from elastic_health.rendezvous.leaving import telling
from elastic_health.rendezvous.loss import lost_members, probe_missing, stop_telling
from elastic_health.rendezvous.refusal import Refusal, calls_a_person, ended, refuse, resumable, stopped, unusable
from elastic_health.rendezvous.state import Phase, Purpose
from elastic_health.verdicts import Cause

LEASE_RETRY_S = 0.5
GRANT_ANSWER_S = 10.0
"""By then a session has answered: its calls have a deadline of a few seconds (`store.timeout_s`)."""
_TELL_CHECKING_AFTER_S = 0.3


def _grant(d: Draft) -> None:
    """Ask for a lease; again soon after a failure, but not while the answer is still under way: a slow store must not get
    more to do for being slow."""
    asked = d.s.lease_asked_at
    due = d.now if asked is None else asked + (GRANT_ANSWER_S if d.s.granting else LEASE_RETRY_S * 2)
    if d.now >= due:
        d.set(lease_asked_at=d.now, granting=True)
        d.do(ev.GrantLease(d.s.settings.bounds.lease_s))
        due = d.now + GRANT_ANSWER_S
    d.wake(due)


def joining(d: Draft) -> None:
    s = d.s
    if s.stopping is not None:
        return d.leave(ExitStatus.STOPPED, s.stopping)
    if not (s.synced and s.fleet_synced):
        return _join_timeout(d, ExitStatus.STORE_UNREACHABLE, "the store did not answer")
    over = (ended(s.view) if s.was_member else None) or stopped(s)
    refusal = over or unusable(s.view, s.settings.keys) or refuse(s.view, s.settings.me.node, s.settings.me.spec, d.wall)
    if refusal is not None:
        return leave_ended(d, over) if over is not None else d.leave(refusal.status, refusal.text)
    if resumable(s.view):
        _resume(d)
    elif not s.lease:
        _grant(d)
    elif d.can_send(Purpose.JOIN) and s.fresh(d.now):
        candidate = d.candidate(CandidateState.CHECKING)
        d.send(Purpose.JOIN, fence.join(s.settings.keys, candidate, s.lease, d.stamp()))
    elif s.lease_gone or not s.fresh(d.now):
        d.rejoin()
    status = ExitStatus.REPLACED if s.was_member else ExitStatus.STORE_UNREACHABLE
    return _join_timeout(d, status, "the store took no candidate from this node")


def _resume(d: Draft) -> None:
    """A run that was stopped goes on: its end becomes a requested restart, once no member of it is left to read that end."""
    record, v = d.s.view.generation, d.s.view.verdict
    if d.s.view.candidates and not d.s.view.complete:  # nobody new has come yet, so there are old ones: hear of all of them
        return ask(d)
    left = [m.node for m in record.members if m.who in d.s.view.candidates] if record is not None else []
    if left:
        d.say("resume_waits", f"this run was stopped; waiting for {', '.join(left[:5])} to leave before it goes on")
    elif v is not None and d.can_send(Purpose.RESUME):
        again = resumed(v, d.s.settings.me.node)
        what = incident(d, Cause.REQUESTED, again.reason, generation=v.generation)
        note = Record(what.id, "resume", again.reason, v.cause.value, v.signature, v.generation, v.step, who=".".join(d.s.who), at=d.wall)
        d.say("resume", again.reason, warn=True)
        d.send(Purpose.RESUME, fence.resume(d.s.settings.keys, d.s.view, again, note, d.stamp()))


def _join_timeout(d: Draft, status: ExitStatus, text: str, since: float | None = None) -> None:
    at = (d.s.joined_at if since is None else since) + d.s.settings.policies.membership.join_timeout_s
    d.wake(at)
    if d.now >= at:
        d.leave(status, f"{text} within join_timeout_s={d.s.settings.policies.membership.join_timeout_s:g}")


def leave_ended(d: Draft, over: Refusal) -> None:
    """The run is over.  Whoever sees a bad end calls for a person: the verdict's writer may be dead (the pager calls once)."""
    v = d.s.view.verdict if ended(d.s.view) else d.s.ended
    if v is not None and calls_a_person(v):
        d.do(ev.PageHuman(v))
    d.leave(over.status, over.text)


def _outside(d: Draft) -> bool:
    """Common to CHECKING and READY: reasons to leave or to begin again.  True if one was found."""
    s = d.s
    if s.stopping is not None:
        if not telling(d):
            d.leave(ExitStatus.STOPPED, s.stopping)
    elif not s.fresh(d.now):
        d.say("lease_lost", "this node's lease has ended; joining again under a new incarnation", warn=True)
        d.rejoin()
    elif (over := ended(s.view) or stopped(s)) is not None:
        leave_ended(d, over)
    elif (broken := unusable(s.view, s.settings.keys)) is not None:
        d.leave(broken.status, broken.text)
    elif s.view.barred(s.settings.me.node, d.wall) is not None:
        refusal = refuse(s.view, s.settings.me.node, s.settings.me.spec, d.wall)
        d.leave(ExitStatus.QUARANTINED, refusal.text if refusal else "quarantined")
    else:
        return False
    return True


def checking(d: Draft) -> None:
    if _outside(d):
        return
    s = d.s
    if not s.preflight_asked:
        d.set(preflight_asked=True)
        d.do(ev.RunPreflight(s.stage))
    elif s.preflight is False:
        d.leave(ExitStatus.UNFIT_NODE, s.preflight_reason or "preflight failed")
    elif s.preflight is True and s.under_way(Purpose.CHECKING) is None:
        _tell_candidate(d, Purpose.READY, CandidateState.READY)
    elif s.preflight is None and not s.checking_told:
        # So that a group that is full does not wait for these checks.  Quick ones need no extra write.
        if d.now < s.since + _TELL_CHECKING_AFTER_S:
            d.wake(s.since + _TELL_CHECKING_AFTER_S)
        else:
            _tell_candidate(d, Purpose.CHECKING, CandidateState.CHECKING)


def _tell_candidate(d: Draft, purpose: Purpose, state: CandidateState) -> None:
    if d.can_send(purpose):
        s = d.s
        d.send(purpose, fence.candidate_state(s.settings.keys, d.candidate(state), s.candidate_mod, s.lease, d.stamp()))


def ready(d: Draft) -> None:
    if _outside(d):
        return
    s, record = d.s, d.s.view.generation
    mine = record.member(*s.who) if record else None
    if record is not None and s.view.verdict is None:
        if mine is None:
            lost_members(d, record)
            d.say("spare", f"generation {record.number} is running without this node; waiting as a spare")
        elif record.kind is GenerationKind.IN_PLACE or record.number == s.last_started:
            if s.ended is not None and s.ended.generation == record.number:
                return  # a peer has told its verdict, which is not read here yet
            # The workers that it was formed with are gone here: never start others in their place.
            judge(d, incident(d, Cause.LOST_MEMBER, "a member has no workers any more", nodes=(s.settings.me.node,)))
        elif d.can_send(Purpose.MEMBER):
            stop_telling(d)
            d.set(generation=record.number, token=s.view.current_mod)
            candidate = d.candidate(CandidateState.MEMBER, record.number)
            d.send(Purpose.MEMBER, fence.member(d.fence(), candidate, s.candidate_mod, s.lease, d.stamp()))
        return
    broken = unusable(s.view, s.settings.keys, forming=True)
    if broken is not None:
        return d.leave(broken.status, broken.text)
    since = max(s.since, s.verdict_seen.get(s.view.current, s.since))
    if s.view.complete:  # the others wait for a generation
        probe_missing(d)
        formation(d)
    if d.s.phase is Phase.READY:
        _join_timeout(d, ExitStatus.NOT_FORMED, "fewer than MIN fit nodes came, or the last members could not be proven gone", since)
