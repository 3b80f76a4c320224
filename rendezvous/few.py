"""Who hears of every candidate: the few oldest, and the rank-0 agent.  Pure.

Law: at any time the oldest living candidate hears of all; so somebody who may form, or say that a member is lost, always
knows enough.  An agent counts the older candidates once, when it joins (none can come in before it), and takes off every
candidate that goes; when fewer than `few` may be left, it attends.  So a formation is told to a few, not to all: n agents
that each hear of n candidates would be told n * n.  Attending is never given up: what it costs is bounded by the deaths.
"""

from __future__ import annotations

from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.state import Phase

_SMALL = 64
_MEMBER = (Phase.STARTING, Phase.RUNNING, Phase.HOLDING)


def attend(d: Draft) -> None:
    """Ask to hear of all candidates once it is this agent's part."""
    s = d.s
    if s.attends or not s.created:
        return
    if s.older < _few(d) or (s.phase in _MEMBER and s.rank == 0) or _counts_who_stays(d):
        ask(d)


def ask(d: Draft) -> None:
    """Once in an agent's life."""
    if not d.s.attends:
        d.set(attends=True, attended_at=d.now)
        d.do(ev.Attend())


def _counts_who_stays(d: Draft) -> bool:
    """One that leaves says whether enough stay, spares among them.  In a large group it goes by the members alone."""
    s = d.s
    leaves = s.drain is not None or s.stopping is not None or s.view.barred(s.settings.me.node, d.wall) is not None
    return leaves and s.record is not None and len(s.record.members) <= _SMALL


def _few(d: Draft) -> int:
    """One more for each doubling of the time that a ready candidate waits: living but stuck ones must not stop the run."""
    s = d.s
    if s.phase is not Phase.READY or (s.view.generation is not None and s.view.verdict is None):
        return s.settings.few
    more, patience = 0, s.settings.few * s.settings.policies.membership.former_delay_s
    while d.now >= s.since + patience:
        more, patience = more + 1, patience * 2
    if s.older < s.settings.few + more + 1:  # it would be the next one
        d.wake(s.since + patience)
    return s.settings.few + more
