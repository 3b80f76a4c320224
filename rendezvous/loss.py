"""Which members are lost: candidate gone, or proven dead by a refused connection.  Pure.

Law: "lost" is said of a member only when its candidate has been gone for longer than it may take to put it back after an
outage, or when its address refused a connection (its agent process is dead).  A silent link is only a suspicion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from elastic_health.generations import CandidateState, Generation, Member
from elastic_health.messages import VerdictSeen
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.judging import incident, judge
from elastic_health.rendezvous.state import Peer
from elastic_health.verdicts import Cause

_PROBE_EVERY_S = 1.0
_PROBES_AT_ONCE = 64
_IN_TURN_S = 0.5
_SPARE_AFTER = 3
_NAMED = 200
"""So many lost members are named in a verdict: half a cluster's names would not fit into a transaction."""
_PROBE_MISSING_AFTER_S = 0.2


def lost_members(d: Draft, record: Generation) -> None:
    """Any member, or any ready candidate, ends a generation of which a member is lost: in turn, so that n agents that see
    the same loss do not write n verdicts."""
    lost = [m for m in _suspects(d, record) if m.who != d.s.who and _lost(d, m)]
    if not lost:
        d.set(lost_since=None)
        return
    if d.s.lost_since is None:
        d.set(lost_since=d.now)
    assert d.s.lost_since is not None
    at = d.s.lost_since + _place(d, record, lost) * _IN_TURN_S
    if d.now < at:
        d.wake(at)
    elif d.s.fresh(d.now):
        rest, lost = len(lost) - _NAMED, lost[:_NAMED]
        nodes = tuple(m.node for m in lost)
        ranks = tuple(r for m in lost for r in range(m.first_rank, m.first_rank + m.workers))
        how = ", ".join(f"{m.node} ({_how(d, m)})" for m in lost)
        how += f" and {rest} more" if rest > 0 else ""
        what = incident(d, Cause.LOST_MEMBER, f"lost {how}", nodes=nodes, ranks=ranks, generation=record.number)
        dead = tuple(m.who for m in lost if d.s.peers.get(m.who, Peer()).dead)
        judge(d, what, dead, tuple(m.who for m in lost if m.who not in dead))


def _suspects(d: Draft, record: Generation) -> list[Member]:
    """Members of whom anything speaks, by rank: of thousands hardly one."""
    whos = {who for who, peer in d.s.peers.items() if peer.dead or peer.down_since is not None} | d.s.gone_since.keys()
    return sorted((m for who in whos if (m := record.member(*who)) is not None), key=lambda m: m.rank)


def _place(d: Draft, record: Generation, lost: list[Member]) -> int:
    """How many others are to say it first: living members of lower rank; for a spare the members, of whom a few will do."""
    left = {m.who for m in lost}
    before = [m for m in record.members if m.who not in left and m.who != d.s.who]
    if d.s.rank is None:
        return min(len(before), _SPARE_AFTER)
    return sum(m.rank < d.s.rank for m in before)


def _how(d: Draft, m: Member) -> str:
    """The evidence, for people."""
    if d.s.peers.get(m.who, Peer()).dead:
        return "its agent's address refuses connections"
    return "its lease has ended and it did not come back"


def _lost(d: Draft, m: Member) -> bool:
    peer = d.s.peers.get(m.who, Peer())
    if peer.dead:
        return True
    gone = d.s.gone_since.get(m.who)
    if gone is not None:
        probe(d, m)
        # All come back from an outage together, but not all of them as soon as this agent.
        until = max(gone + d.s.settings.bounds.link_timeout_s, d.s.store_back_at + d.s.settings.return_s)
        d.wake(until)
        return d.now >= until
    if peer.down_since is not None:
        probe(d, m)
    return False


def probe(d: Draft, m: Member) -> None:
    """Dial its address, at most once a second."""
    peer = d.s.peers.get(m.who, Peer())
    due = d.now if peer.probed_at is None else peer.probed_at + _PROBE_EVERY_S
    if d.now >= due:
        d.set(peers={**d.s.peers, m.who: dataclasses.replace(peer, probed_at=d.now)})
        d.do(ev.Probe(m.who, m.address))
        due = d.now + _PROBE_EVERY_S
    d.wake(due)


def probe_missing(d: Draft) -> None:
    """A ready candidate that waits for members of the ended generation asks whether they still live."""
    last = d.s.view.generation
    seen = d.s.verdict_seen.get(d.s.view.current)
    if last is None or seen is None:
        return
    if d.now < seen + _PROBE_MISSING_AFTER_S:
        d.wake(seen + _PROBE_MISSING_AFTER_S)
        return
    waiting = [m for m in last.members if m.who != d.s.who and _waits(d, m)]
    later = d.s.view.incarnations if waiting else {}
    missing = [m for m in waiting if not proven(d, m, last.number, later)]
    missing.sort(key=lambda m: d.s.peers.get(m.who, Peer()).probed_at or 0.0)
    for m in missing[:_PROBES_AT_ONCE]:
        probe(d, m)
        _tell_verdict(d, m)


def _waits(d: Draft, m: Member) -> bool:
    entry = d.s.view.candidates.get(m.who)
    return entry is None or entry.candidate.state is not CandidateState.READY


def _tell_verdict(d: Draft, m: Member) -> None:
    """A member that lives without the store can't know that its group is over: tell it over a link of our own.  One is
    enough: it passes the verdict on, and its broken links end the rest."""
    verdict, peer = d.s.view.verdict, d.s.peers.get(m.who, Peer())
    if verdict is None or m.who in d.s.view.candidates:
        return
    if d.s.telling is None and peer.answers:
        d.set(telling=m.who, told=False)
        d.do(ev.Connect(m.who, m.address, verdict.generation))
    elif d.s.telling == m.who and peer.up_since is not None and not d.s.told:
        d.set(told=True)
        d.do(ev.Tell(m.who, VerdictSeen(verdict)))


def stop_telling(d: Draft) -> None:
    """The link that was only for telling the verdict is not needed any more."""
    if d.s.telling is not None:
        d.set(telling=None, told=False)
        d.do(ev.CloseLinks(d.s.view.current))


def proven(d: Draft, m: Member, generation: int, later: Mapping[tuple[str, str], int]) -> bool:
    """Dead by a refused connection; or told over its link that its workers are reaped; or the same agent is back under a
    later incarnation, which it takes only after that."""
    peer = d.s.peers.get(m.who, Peer())
    name, _, n = m.incarnation.rpartition("-")
    return peer.dead or peer.reaped >= generation or (n.isdigit() and later.get((m.node, name), -1) > int(n))
