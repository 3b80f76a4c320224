"""A node that leaves on purpose: a drain with a deadline, or at once.  Pure.

Laws:
 - a drain ends with the first of: a checkpoint committed that is no older than the step that was done when it was asked;
   the workers' own end after the signal was passed on; the deadline.  Then the node leaves, whatever else is under way;
 - leaving is told to the group as the verdict `drain`, which is no restart: the others form anew without this node, or,
   when fewer than MIN would be left, all stop, and the run goes on when it is started again;
 - a member whose node is put into quarantine leaves in the same way, but at once: what it would still commit can't be trusted;
 - while it drains, a member does everything that members do.
"""

from __future__ import annotations

import dataclasses
from enum import Enum

from elastic_health.generations import CandidateState, CheckpointState
from elastic_health.rendezvous import fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.judging import incident, judge
from elastic_health.rendezvous.state import Drain, Purpose, State, Workers
from elastic_health.verdicts import Cause

TOGETHER_S = 0.5
"""Workers that were passed the signal end one after another; shorter than a peer's incident waits for its cause
(`serve.SETTLE_S`), so that the group's end is told as this drain and not as a crash of whoever lost its connections."""
_TELL_S = 1.0
"""Past the deadline, so long for a verdict that can't be sent yet."""


class Over(Enum):
    """Why a drain is over."""

    SAVED = "a checkpoint is committed"
    ENDED = "its workers have ended"
    DEADLINE = "the deadline has passed"


def leaves(d: Draft) -> bool:
    """One look at this node's drain: True if it left RUNNING."""
    drain = d.s.drain
    if drain is None:
        return False
    why = over(d.s, drain, d.now)
    if why is None:
        _tell(d, drain)
        d.wake(drain.until)
        if drain.left_at is not None:
            d.wake(drain.left_at + TOGETHER_S)
        return False
    reason = f"{drain.reason}; {why.value}"
    if tell_drain(d, reason) or not d.s.fresh(d.now) or d.now >= drain.until + _TELL_S:
        d.set(stopping=reason)
        d.stop_workers(reason)
        return True
    d.wake(drain.until + _TELL_S)
    return False


def over(s: State, drain: Drain, now: float) -> Over | None:
    """Why there is nothing more to wait for, or None."""
    mine = (c for c in s.view.checkpoints.values() if c.generation == s.generation and c.state is CheckpointState.COMMITTED)
    if drain.saves and s.workers is Workers.UP and any(c.step >= drain.step for c in mine):
        return Over.SAVED
    if drain.all_left or (drain.left_at is not None and now >= drain.left_at + TOGETHER_S):
        return Over.ENDED
    return Over.DEADLINE if now >= drain.until else None


def tell_drain(d: Draft, reason: str) -> bool:
    """Tell the group that this node leaves; True once the verdict is on its way."""
    if d.s.under_way(Purpose.VERDICT) is None:
        own = d.s.settings.me.node
        others = sorted(e.candidate.node for e in d.s.view.candidates.values() if e.candidate.leaving and e.who != d.s.who)
        text = f"{own} leaves: {reason}" + (f" ({', '.join(others[:8])} leave too)" if others else "")
        judge(d, incident(d, Cause.DRAIN, text, nodes=(own, *others)))
    return d.s.under_way(Purpose.VERDICT) is not None


def quarantined(d: Draft) -> None:
    """Tell the group if this node is in quarantine.  The verdict then ends the generation for all of them alike, and this
    agent is refused when it wants to be ready again."""
    s = d.s
    entry = s.view.barred(s.settings.me.node, d.wall)
    if entry is not None and s.judged < s.generation and s.fresh(d.now):
        tell_drain(d, f"it is in quarantine ({entry.reason or 'no reason given'})")


def telling(d: Draft) -> bool:
    """A ready candidate that a generation has just been formed with does not leave it without a word: the others would
    miss a member.  True while it waits for that word to be written."""
    s, record = d.s, d.s.view.generation
    until = s.stopping_at + 2 * _TELL_S
    if record is None or s.view.verdict is not None or record.member(*s.who) is None or not s.fresh(d.now) or d.now >= until:
        return False
    if s.judged < record.number:
        tell_drain(d, s.stopping or "")
    d.wake(until)
    return True


def _tell(d: Draft, drain: Drain) -> None:
    """So that whoever counts who stays does not count on this node."""
    if drain.told or not d.s.fresh(d.now) or not d.can_send(Purpose.LEAVING):
        return
    s = d.s
    d.set(drain=dataclasses.replace(drain, told=True))
    candidate = d.candidate(CandidateState.MEMBER, s.generation)
    d.send(Purpose.LEAVING, fence.member(d.fence(), candidate, s.candidate_mod, s.lease, d.stamp()))
