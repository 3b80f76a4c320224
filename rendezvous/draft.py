"""A step being worked out: the state as it will be, and the effects so far.  Lives for one call of `step`.

Law: every transaction leaves through `send`, which gives it an id and remembers why it was sent; at most one of a
purpose is under way.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from typing import Any

from elastic_health._version import __version__
from elastic_health.generations import Candidate, CandidateState, CheckpointRecord, CheckpointState
from elastic_health.rendezvous import events as ev, fence
from elastic_health.rendezvous.state import Phase, Purpose, Sent, State, Workers
from elastic_health.rendezvous.store import Txn
from elastic_health.verdicts import Cause

_DELETE_AT_ONCE = 40
_SHORT_LIFE_S = 0.5
"""A candidate that is gone so soon after it was written was not lost with its lease."""
_LEAST_NAP_S = 0.01


class Draft:
    """Mutable inside one step; what comes out is frozen again."""

    def __init__(self, state: State, clock: ev.Clock) -> None:
        self.s, self.clock, self.now, self.wall = state, clock, clock.now, clock.wall
        self.effects: list[ev.Effect] = []
        self._wake = float("inf")

    def done(self) -> tuple[State, tuple[ev.Effect, ...]]:
        # Nothing more follows at this instant: a wake-up that is due already would only keep the loop spinning.
        return self.s.changed({"wake_at": max(self._wake, self.now + _LEAST_NAP_S)}), tuple(self.effects)

    # ---- state
    def set(self, **changes: Any) -> None:
        self.s = self.s.changed(changes)

    def go(self, phase: Phase) -> None:
        self.set(phase=phase, since=self.now, ready_since=None, formable_since=None, listing=None)

    def wake(self, at: float) -> None:
        """Something may follow at `at` even if nothing else happens."""
        self._wake = min(self._wake, at)

    def same_workers(self, generation: int) -> bool:
        """Were the workers of this agent started for `generation` (or for the communicator that it uses)?"""
        record = self.s.record
        return generation == self.s.generation or (record is not None and generation == record.communicator)

    # ---- effects
    def do(self, *effects: ev.Effect) -> None:
        self.effects.extend(effects)

    def say(self, what: str, text: str, *, warn: bool = False) -> None:
        self.do(ev.Say(what, text, warn))

    def stamp(self) -> fence.Stamp:
        at = datetime.fromtimestamp(self.wall, timezone.utc).isoformat(timespec="milliseconds")
        return fence.Stamp(at, self.s.settings.me.node)

    def fence(self) -> fence.Fence:
        return fence.Fence(self.s.settings.keys, self.s.generation, self.s.token)

    def candidate(self, state: CandidateState, generation: int = 0) -> Candidate:
        me = self.s.settings.me
        node, incarnation = self.s.who
        return Candidate(
            node,
            incarnation,
            state,
            me.address,
            me.workers,
            me.spec,
            me.role,
            me.topology,
            generation,
            self.s.settings.policies.membership.join_timeout_s,
            __version__,
            self.s.drain is not None,
        )

    # ---- transactions
    def can_send(self, purpose: Purpose) -> bool:
        quiet = self.s.quiet_until.get(purpose, float("-inf"))
        if self.now < quiet:
            self.wake(quiet)
            return False
        return self.s.under_way(purpose) is None

    def send(self, purpose: Purpose, txn: Txn, **about: Any) -> None:
        sent = Sent(self.s.next_id, purpose, txn, self.s.generation, **about)
        self.set(sent={**self.s.sent, sent.id: sent}, next_id=sent.id + 1)
        self.do(ev.Send(sent.id, txn))

    def resend_due(self) -> None:
        for sent in tuple(self.s.sent.values()):
            if not sent.resend_at:
                continue
            if self.now < sent.resend_at:
                self.wake(sent.resend_at)
                continue
            self.set(sent={**self.s.sent, sent.id: dataclasses.replace(sent, resend_at=0.0)})
            self.do(ev.Send(sent.id, sent.txn))

    def forget(self, sent: Sent) -> None:
        self.set(sent={k: v for k, v in self.s.sent.items() if k != sent.id})

    def drop(self, *purposes: Purpose) -> None:
        """Stop waiting for these; they may still land, and are harmless then."""
        self.set(sent={k: v for k, v in self.s.sent.items() if v.purpose not in purposes})

    def quiet(self, purpose: Purpose, seconds: float) -> None:
        self.set(quiet_until={**self.s.quiet_until, purpose: self.now + seconds})

    # ---- fenced writes of the rank-0 agent
    def leads(self) -> bool:
        """May this agent commit, publish and finish now?"""
        s = self.s
        return s.phase is Phase.RUNNING and s.rank == 0 and s.fresh(self.now) and s.generation not in s.view.verdicts

    def answer_commit(self, request: int, committed: bool, reason: str, record: CheckpointRecord | None = None) -> None:
        """The last answer to a commit; one whose worker was told to go on without it is said aloud too."""
        self.set(commits_refused_since=None)
        if request in self.s.unanswered_commits:
            self.set(unanswered_commits={r: at for r, at in self.s.unanswered_commits.items() if r != request})
        elif committed and record is not None:
            self.say("committed_late", f"checkpoint {record.name}, which waited for the store, is committed")
        else:
            self.say("commit_lost", f"a checkpoint that waited for the store is not committed: {reason}", warn=True)
        self.do(ev.CommitAnswered(request, committed, reason, record))

    def commit_waits_again(self, sent: Sent) -> None:
        """A commit that surely didn't land waits for the store."""
        again = next((e for e in self.s.sent.values() if e.request == sent.request), None)
        if again is None and sent.commit is not None:
            self.set(waiting_commits=(sent.commit, *self.s.waiting_commits))

    def ask_deletion(self, names: tuple[str, ...]) -> None:
        live = tuple(n for n in names if n in self.s.view.checkpoints and self.s.view.checkpoints[n].state is not CheckpointState.DELETING)[
            :_DELETE_AT_ONCE
        ]
        if live and self.leads() and self.can_send(Purpose.DELETE):
            self.send(Purpose.DELETE, fence.mark_deleting(self.fence(), self.s.view, live, self.stamp()), names=live)

    def publish(self, key: str, value: bytes) -> None:
        """One at a time of each key; dropped when it can't be written now, since a newer one follows."""
        under_way = any(s.purpose is Purpose.PUBLISH and s.txn.then[0].key == key for s in self.s.sent.values())
        if self.leads() and not under_way and self.now >= self.s.quiet_until.get(Purpose.PUBLISH, self.now):
            self.send(Purpose.PUBLISH, fence.publish(self.fence(), key, value))

    def refuse_commits(self, why: str) -> None:
        """Answer every commit that waits or is under way; one under way may still land, and its files stay."""
        requests = [s.request for s in self.s.sent.values() if s.purpose is Purpose.COMMIT]
        for request in (*requests, *(c.request for c in self.s.waiting_commits)):
            self.answer_commit(request, False, why)
        self.drop(Purpose.COMMIT)
        self.set(waiting_commits=())

    # ---- endings
    def stop_workers(self, reason: str) -> None:
        """To STOPPING.  Workers that were never asked for count as reaped."""
        drain, cause = self.s.drain, self.s.ended.cause if self.s.ended is not None else Cause.DRAIN
        until = drain.until if drain is not None and not drain.saves and cause is Cause.DRAIN else 0.0
        asked = self.s.workers in (Workers.ASKED, Workers.UP, Workers.DONE)
        self.refuse_commits(f"generation {self.s.generation} has ended: {reason}")
        self.set(pending_incident=None, stop_reason=reason, workers=Workers.STOPPING if asked else Workers.NONE)
        self.drop(Purpose.STORE, Purpose.COMMIT, Purpose.DELETE, Purpose.FORGET, Purpose.PUBLISH, Purpose.MEMBER, Purpose.REATTACH)
        self.drop(Purpose.LEAVING)
        self.go(Phase.STOPPING)
        if asked:
            self.do(ev.StopWorkers(self.s.generation, self.s.ended, reason, until))

    def leave(self, status: int, text: str) -> None:
        """The end: the candidate goes at once (the lease may already be lost), then the agent."""
        if self.s.created:
            self.send(Purpose.LEAVE, fence.leave(self.s.settings.keys, self.s.who))
        if self.s.lease:
            self.do(ev.RevokeLease(self.s.lease))
        self.set(left=(status, text), workers=Workers.NONE)
        self.go(Phase.LEFT)
        self.do(ev.CloseLinks(self.s.generation), ev.Leave(status, text))

    def rejoin(self) -> None:
        """Without a lease this incarnation is over: begin again as the next one.  What it knew of its peers is forgotten, and
        so is since when they are gone: who was not told of the verdict yet gets its time anew."""
        if self.s.lease:
            self.do(ev.RevokeLease(self.s.lease))
        at_once = self.s.phase is Phase.CHECKING and self.now < self.s.since + _SHORT_LIFE_S
        if at_once:  # something undoes every join: go slowly, and not for ever
            self.quiet(Purpose.JOIN, 2 * _SHORT_LIFE_S)
        elif self.s.phase is not Phase.JOINING:  # its patience begins anew; a join that keeps failing has only one
            self.set(joined_at=self.now)
        self.set(
            incarnation=self.s.incarnation + 1, lease=0, lease_deadline=float("-inf"), lease_gone=False, lease_gone_at=None,
            lease_asked_at=None, granting=False, created=0, candidate_mod=0, reattach_over=0, checking_told=False, generation=0, token=0,
            preflight=None,
            preflight_asked=False, sent={}, peers={}, ended=None, pending_incident=None, peer_verdict=None, held=0,
            telling=None, told=False, gone_since={},
        )  # fmt: skip
        self.go(Phase.JOINING)
