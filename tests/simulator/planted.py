"""Bugs to plant into the shipped modules, each against one law: a simulator that misses one proves nothing.

Each takes pytest's `monkeypatch` and replaces a function of the product by a broken one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from elastic_health.checkpoints import line
from elastic_health.rendezvous import answers, draft, fence, forming, gather, joining, loss, membership, serve, turns
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase, Purpose, Workers
from elastic_health.rendezvous.store import Compare, Target, Txn
from elastic_health.rendezvous.view import View

Patch = pytest.MonkeyPatch


def _without(txn: Txn, key: str, target: Target) -> Txn:
    return dataclasses.replace(txn, compare=tuple(c for c in txn.compare if not (key in c.key and c.target is target)))


def fence_without_verdict(p: Patch) -> None:
    p.setattr(fence.Fence, "compares", lambda self: (Compare(self.keys.current, Target.MOD, self.token),))


def lease_from_the_reply(p: Patch) -> None:
    """Counted from when the answer came, not from when the request was sent."""

    def held(d: draft.Draft, e: ev.LeaseHeld) -> None:
        _lease_held(d, dataclasses.replace(e, sent_at=d.now))

    _lease_held = membership.ABSORB[ev.LeaseHeld]
    p.setattr(membership, "ABSORB", {**membership.ABSORB, ev.LeaseHeld: held})


def verdict_overwritten(p: Patch) -> None:
    shipped = fence.verdict
    p.setattr(fence, "verdict", lambda *a, **k: _without(shipped(*a, **k), "/verdicts/", Target.CREATE))


def newest_whatever_its_line(p: Patch) -> None:
    def choose(records: line.Records, *a: Any, **k: Any) -> line.Choice:
        found = shipped(records, *a, **k)
        newest = max(line.committed(records, records), default=None)
        return dataclasses.replace(found, plan=line.plan_for(records, newest, found.plan.windows))

    shipped = line.choose
    p.setattr(gather, "choose", choose)


def branch_not_abandoned(p: Patch) -> None:
    shipped = line.choose
    p.setattr(gather, "choose", lambda *a, **k: dataclasses.replace(shipped(*a, **k), abandon=()))


def windows_forgotten(p: Patch) -> None:
    def choose(records: line.Records, last: Any, verdict: Any, skips: Any = (), torn: Any = None) -> line.Choice:
        return shipped(records, last, verdict and dataclasses.replace(verdict, windows=()), skips, torn)

    shipped = line.choose
    p.setattr(gather, "choose", choose)


def recorded_windows_ignored(p: Patch) -> None:
    shipped = line.choose
    p.setattr(gather, "choose", lambda records, last, verdict, skips: shipped(records, last, verdict))


def spawned_before_member(p: Patch) -> None:
    """STARTING at once, and `member` never written."""

    def send(self: draft.Draft, purpose: Purpose, txn: Txn, **about: Any) -> None:
        if purpose is not Purpose.MEMBER:
            return shipped(self, purpose, txn, **about)
        self.set(was_member=True, last_started=self.s.generation, workers=Workers.NONE, peers={}, opened=0, store_address=None)
        self.go(Phase.STARTING)

    shipped = draft.Draft.send
    p.setattr(draft.Draft, "send", send)


def commit_kept_for_the_next(p: Patch) -> None:
    """A commit that an ended generation still asks for waits for the next one."""

    def refuse_commits(self: draft.Draft, why: str) -> None:
        under_way = tuple(s.commit for s in self.s.sent.values() if s.commit is not None)
        self.set(waiting_commits=(*self.s.waiting_commits, *under_way))
        self.drop(Purpose.COMMIT)

    p.setattr(draft.Draft, "refuse_commits", refuse_commits)


def former_waits_for_nobody(p: Patch) -> None:
    p.setattr(forming, "_missing", lambda *a, **k: None)


def late_ready_accepted(p: Patch) -> None:
    """`ready` compares only that the candidate is the same one, so a late copy of it lands on a member."""

    def candidate_state(keys: Any, candidate: Any, mod: int, lease: int, stamp: Any) -> Txn:
        txn = shipped(keys, candidate, mod, lease, stamp)
        return dataclasses.replace(txn, compare=(dataclasses.replace(txn.compare[0], target=Target.VERSION, value=_ANY),))

    class _Any(int):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, int) and other > 0

        __hash__ = int.__hash__

    _ANY = _Any(1)
    shipped = fence.candidate_state
    p.setattr(fence, "candidate_state", candidate_state)


def workers_outlive_the_lease(p: Patch) -> None:
    """No right to run is ever asked for, and the page's deadline never passes."""
    p.setattr(turns, "may_run", lambda d: (True, ""))
    from tests.simulator import node

    p.setattr(node, "page_deadline", lambda state, now: now + 1000.0)


def impatient_join(p: Patch) -> None:
    """The time to join is counted from the agent's start for ever."""
    shipped = draft.Draft.rejoin

    def rejoin(self: draft.Draft) -> None:
        before = self.s.joined_at
        shipped(self)
        self.set(joined_at=before)

    p.setattr(draft.Draft, "rejoin", rejoin)


def death_while_holding_forgotten(p: Patch) -> None:
    def judged(d: draft.Draft, e: ev.Judged) -> None:
        if d.s.phase is not Phase.HOLDING:
            shipped(d, e)

    shipped = membership.ABSORB[ev.Judged]
    p.setattr(membership, "ABSORB", {**membership.ABSORB, ev.Judged: judged})


def second_writers_verdict_applied(p: Patch) -> None:
    """Whoever writes a verdict applies its own, whichever won."""

    def verdict(d: draft.Draft, sent: Any, r: Any) -> None:
        shipped(d, sent, r)
        if sent.verdict is not None and d.s.generation == sent.verdict.generation:
            d.set(peer_verdict=sent.verdict, ended=sent.verdict)

    shipped = answers._ANSWERS[Purpose.VERDICT]
    p.setattr(answers, "_ANSWERS", {**answers._ANSWERS, Purpose.VERDICT: verdict})


def only_members_miss_members(p: Patch) -> None:
    """A ready candidate never says that a member is lost."""
    p.setattr(joining, "lost_members", lambda d, record: None)


def quarantine_ignored(p: Patch) -> None:
    p.setattr(View, "barred", lambda self, node, wall: None)


def stuck_former_waited_for(p: Patch) -> None:
    def turn(me: Any, view: View, *a: Any) -> Any:
        first = forming.ready(view, a[0])[0].who
        return None if me == first else forming.Waiting(forming.Wait.NOT_MY_TURN)

    p.setattr(gather, "turn", turn)


def deleted_without_fence(p: Patch) -> None:
    shipped = fence.mark_deleting
    p.setattr(fence, "mark_deleting", lambda f, *a: _without(_without(shipped(f, *a), "/verdicts/", Target.CREATE), "current", Target.MOD))


def ride_through_without_links(p: Patch) -> None:
    p.setattr(serve, "watched", lambda state: ())


def dead_by_silence(p: Patch) -> None:
    """A broken link is taken for a proof of death."""

    def proven(d: draft.Draft, m: Any, generation: int) -> bool:
        peer = d.s.peers.get(m.who)
        return shipped(d, m, generation) or (peer is not None and peer.down_since is not None)

    shipped = loss.proven
    p.setattr(gather, "proven", proven)
    p.setattr(loss, "proven", proven)


BUGS: Mapping[str, Callable[[Patch], None]] = {
    f.__name__: f
    for f in (
        fence_without_verdict,
        lease_from_the_reply,
        verdict_overwritten,
        newest_whatever_its_line,
        branch_not_abandoned,
        windows_forgotten,
        recorded_windows_ignored,
        spawned_before_member,
        commit_kept_for_the_next,
        former_waits_for_nobody,
        late_ready_accepted,
        workers_outlive_the_lease,
        impatient_join,
        death_while_holding_forgotten,
        second_writers_verdict_applied,
        only_members_miss_members,
        quarantine_ignored,
        stuck_former_waited_for,
        deleted_without_fence,
        ride_through_without_links,
        dead_by_silence,
    )
}
