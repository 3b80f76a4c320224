"""Who forms the next generation, when, and of what: pure, with the reason for each wait.

Laws:
 - a generation is formed only by a ready candidate, only after the last one has a verdict;
 - it holds between MIN and MAX ready, unquarantined candidates;
 - no missing member of the last generation may still run workers: it is proven dead, or told over its link that they
   are reaped, or its lease has ended and link timeout + kill grace have passed since (a broken link or an ended lease
   stops its workers within that time; one that still answers is told the verdict, and the time counts from then).

What this can't bound: a whole generation that rides through on the far side of a partition, with MIN spares on the near
side and no way between them.  It trains on until its ride-through bound, and can commit, publish and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from elastic_health.generations import CandidateState, Generation
from elastic_health.policies import MembershipPolicy
from elastic_health.rendezvous.order import picked
from elastic_health.rendezvous.view import Entry, View, Who
from elastic_health.verdicts import VerdictKind


class Wait(Enum):
    """Why no generation is formed now."""

    NO_VERDICT = "no_verdict"
    ENDED = "ended"
    TOO_FEW = "too_few"
    LAST_CALL = "last_call"
    MEMBER_ALIVE = "member_alive"
    MEMBER_NOT_PROVEN = "member_not_proven"
    BACKOFF = "backoff"
    NOT_MY_TURN = "not_my_turn"


@dataclass(frozen=True)
class Waiting:
    """`until`: when to look again at the latest (0: only something new can change it).  `who`: whom it waits for."""

    reason: Wait
    until: float = 0.0
    who: tuple[Who, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """The members of the next generation, oldest candidate first (not yet ranked)."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Knowledge:
    """What this candidate knows beside the store.

    Attributes:
        proven: members that are dead or whose workers are reaped, by link or probe.
        answering: members that answered the last probe: told of the verdict, they end their workers in bounded time.
        gone_since: when it saw a member's candidate vanish from the store.
        verdict_seen: when it saw the verdict of the last generation.
        ready_since: when MIN candidates were first ready, None if they aren't.
        formable_since: when all but the turn was fulfilled, None if it isn't.
    """

    proven: frozenset[Who]
    answering: frozenset[Who]
    gone_since: Mapping[Who, float]
    verdict_seen: float | None
    ready_since: float | None
    formable_since: float | None


def ready(view: View, wall: float) -> tuple[Entry, ...]:
    """Ready candidates that are not in quarantine, oldest first."""
    if not view.quarantined:
        return view.in_line
    return tuple(e for e in view.in_line if view.barred(e.candidate.node, wall) is None)


def consider(
    view: View, know: Knowledge, spec_min: int, spec_max: int, policy: MembershipPolicy, now: float, wall: float
) -> Chosen | Waiting:
    """All conditions except whose turn it is."""
    last, verdict = view.generation, view.verdict
    if view.current and verdict is None:
        return Waiting(Wait.NO_VERDICT)
    if verdict is not None and verdict.kind in (VerdictKind.FINISH, VerdictKind.ABORT):
        return Waiting(Wait.ENDED)
    fit = ready(view, wall)
    if len(fit) < spec_min:
        return Waiting(Wait.TOO_FEW)
    if last is not None:
        missing = _missing(view, last, know, policy, now, full=len(fit) >= spec_max)
        if missing is not None:
            return missing
        assert verdict is not None and know.verdict_seen is not None
        if now < know.verdict_seen + verdict.backoff_s:
            return Waiting(Wait.BACKOFF, know.verdict_seen + verdict.backoff_s)
    elif len(fit) < spec_max and know.ready_since is not None and now < know.ready_since + policy.last_call_s:
        return Waiting(Wait.LAST_CALL, know.ready_since + policy.last_call_s)
    return Chosen(picked(fit, last, spec_max))


def turn(me: Who, view: View, wall: float, formable_since: float, policy: MembershipPolicy, now: float) -> Waiting | None:
    """None: it is `me` who forms now.  The oldest ready candidate is first; each next one waits `former_delay_s` more."""
    place = next((i for i, e in enumerate(ready(view, wall)) if e.who == me), None)
    if place is None:
        return Waiting(Wait.NOT_MY_TURN)
    at = formable_since + place * policy.former_delay_s
    return Waiting(Wait.NOT_MY_TURN, at) if now < at else None


def _missing(view: View, last: Generation, know: Knowledge, policy: MembershipPolicy, now: float, *, full: bool) -> Waiting | None:
    """What still stands against leaving out the members of the last generation that are not ready."""
    alive, unproven, until, look_again = [], [], 0.0, 0.0
    for m in last.members:
        entry = view.candidates.get(m.who)
        if entry is not None and entry.candidate.state is CandidateState.READY:
            continue
        if m.who in know.proven:
            continue
        if entry is not None:
            # Live but not ready.  `checking` means that its workers are reaped: only a group that is not full waits for it,
            # and not for ever; hardly at all for one that is blamed, since its checks are those of a new node.
            blamed = view.verdict is not None and view.verdict.blames(m.node)
            seen = know.verdict_seen if know.verdict_seen is not None else now
            late = seen + (policy.last_call_s if blamed else policy.bounds.start_s)
            if entry.candidate.state is CandidateState.MEMBER:
                alive.append(m.who)
            elif not full and now < late:
                alive.append(m.who)
                look_again = late
            continue
        since = know.gone_since.get(m.who, now)
        if m.who in know.answering and know.verdict_seen is not None:
            since = max(since, know.verdict_seen)
        over = since + policy.bounds.link_timeout_s + policy.bounds.kill_grace_s
        if now < over:
            unproven.append(m.who)
            until = max(until, over)
    if alive:
        return Waiting(Wait.MEMBER_ALIVE, look_again, tuple(alive))
    return Waiting(Wait.MEMBER_NOT_PROVEN, until, tuple(unproven)) if unproven else None
