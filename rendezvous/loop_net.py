"""The shell around the membership machine: one inbox, one turn at a time; carries effects out, decides nothing.

Law: only `run` touches the state, in one thread; everything else (store replies, watches, links, worker exits) posts
events.  The lease is renewed by a turn of this loop only, so that a stuck agent loses it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from elastic_health.generations import CheckpointRecord, Generation, StoreAddress
from elastic_health.messages import LinkMessage, Ping, Progress, Started
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.inbox import merged
from elastic_health.rendezvous.membership import check, start, step
from elastic_health.rendezvous.serve import page_deadline
from elastic_health.rendezvous.sight_net import Sight
from elastic_health.rendezvous.state import Settings, State
from elastic_health.rendezvous.store import (
    Lease,
    LeaseGone,
    RequestTooLarge,
    Store,
    StoreAmbiguous,
    StoreError,
    StoreFull,
    StoreRefused,
    Txn,
    TxnResult,
)
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Verdict

log = logging.getLogger("elastic_health")
LONGEST_NAP_S = 0.25
"""The loop turns at least this often: pages are read and deadlines written then."""
_AT_ONCE = 1024
"""Events taken from the inbox at a time: rank 0 of thousands of nodes hears so many in a fraction of a second."""
RENEWAL_SHARE = 1 / 3
"""Of the lease's time, what one renewal may take.  It is sent when a third is over, and sent again."""


class Links(Protocol):
    """What the loop needs of the agent links."""

    def connect(self, who: Who, address: str, generation: int) -> None: ...

    def tell(self, who: Who | None, message: LinkMessage) -> None: ...

    def probe(self, who: Who, address: str) -> None: ...

    def close_generation(self, generation: int) -> None: ...

    def rename(self, incarnation: str) -> None:
        """This agent goes on under another incarnation."""


class Hands(Protocol):
    """What the loop asks of whoever holds the workers; answers come back as events."""

    def preflight(self, stage: str) -> None: ...

    def open_store(self, generation: Generation) -> None: ...

    def start_workers(self, generation: Generation, rank: int, store: StoreAddress) -> None: ...

    def stop_workers(self, generation: int, verdict: Verdict | None, reason: str, until: float) -> None: ...

    def wish_checkpoint(self, generation: int) -> None: ...

    def pass_signal(self, generation: int) -> None: ...

    def hold_workers(self, generation: int) -> None: ...

    def take_up(self, generation: Generation) -> None: ...

    def commit_answered(self, answer: ev.CommitAnswered) -> None: ...

    def remove_files(self, record: CheckpointRecord) -> None: ...

    def page_human(self, verdict: Verdict) -> None: ...

    def heard(self, who: Who, message: LinkMessage) -> None:
        """A message over a link, before the machine sees it."""

    def look(self, state: State, deadline: float, now: float) -> None:
        """Once a turn: read pages, judge, write the workers' deadline (monotonic seconds)."""


class MembershipLoop:
    """Runs one agent's membership over a store session.

    Args:
        store: an open session; the loop doesn't close it.
        debug: check the invariants after each step.
    """

    def __init__(self, store: Store, settings: Settings, links: Links, hands: Hands, *, debug: bool = False) -> None:
        self._store, self._links, self._hands, self._debug = store, links, hands, debug
        self._inbox: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(3, thread_name_prefix="eh-lease")
        self._sight = Sight(store, settings.keys, self.post)
        self._waiting: deque[ev.Event] = deque()
        self._last_said = self._last_warned = ""
        self._turn = threading.Lock()
        self.state = start(settings, self._clock())

    @staticmethod
    def _clock() -> ev.Clock:
        return ev.Clock(time.monotonic(), time.time())

    def post(self, event: ev.Event) -> None:
        """Thread-safe: have the loop take an event in."""
        self._inbox.put(event)

    def tell(self, who: Who, message: LinkMessage) -> None:
        """Send over a link at once; not a matter of membership."""
        self._links.tell(who, message)

    def open(self) -> None:
        """Read the run and the quarantine, then watch both.

        Raises:
            StoreError: the first read failed.
        """
        # A read is asked again until its deadline: the store may be out just now.
        self._sight.open(self.state.settings.policies.membership.join_timeout_s)

    def close(self) -> None:
        """Stop watching; the session stays open."""
        self._sight.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def run(self, until: Callable[[State], bool], deadline: float | None = None) -> bool:
        """Turn until `until(state)` holds or monotonic `deadline` passes; False on the latter."""
        with self._turn:
            while not until(self.state):
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return False
                nap = min(LONGEST_NAP_S, max(0.0, self.state.wake_at - now))
                self._take(self._next(nap if deadline is None else min(nap, deadline - now)))
            return True

    def _next(self, nap: float) -> ev.Event:
        """What waits, made fewer.  What peers tell without concern to membership is only heard."""
        if not self._waiting:
            self._waiting.extend(merged(e for e in self._drained(nap) if not self._only_heard(e)))
        return self._waiting.popleft() if self._waiting else ev.Tick()

    def _only_heard(self, event: ev.Event) -> bool:
        if not isinstance(event, ev.PeerSaid):
            return False
        self._hands.heard(event.who, event.message)
        return isinstance(event.message, Progress | Ping | Started)

    def _drained(self, nap: float) -> list[ev.Event]:
        events: list[ev.Event] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._inbox.get(timeout=nap) if nap > 0 else self._inbox.get_nowait())
            while len(events) < _AT_ONCE:
                events.append(self._inbox.get_nowait())
        return events

    def _take(self, event: ev.Event) -> None:
        clock = self._clock()
        before = self.state
        self.state, effects = step(before, event, clock)
        if self._debug:
            check(before, self.state)
        if before.who != self.state.who:
            self._links.rename(self.state.who[1])
        if before.phase is not self.state.phase:
            log.info("%s: %s -> %s", ".".join(self.state.who), before.phase.value, self.state.phase.value)
        for effect in effects:
            self._carry_out(effect)
        self._hands.look(self.state, page_deadline(self.state, clock.now), clock.now)

    # ---- effects
    def _carry_out(self, e: ev.Effect) -> None:
        match e:
            case ev.Send():
                self._send(e.id, e.txn)
            case ev.Attend():
                self._pool.submit(self._sight.attend)
            case ev.GrantLease():
                self._grant(e.ttl_s)
            case ev.RenewLease():
                self._renew(e.lease)
            case ev.RevokeLease():
                self._pool.submit(self._revoke, e.lease)
            case ev.RunPreflight():
                self._hands.preflight(e.stage)
            case ev.OpenStore():
                self._hands.open_store(e.generation)
            case ev.StartWorkers():
                self._hands.start_workers(e.generation, e.rank, e.store)
            case ev.StopWorkers():
                self._hands.stop_workers(e.generation, e.verdict, e.reason, e.until)
            case ev.WishCheckpoint():
                self._hands.wish_checkpoint(e.generation)
            case ev.PassSignal():
                self._hands.pass_signal(e.generation)
            case ev.HoldWorkers():
                self._hands.hold_workers(e.generation)
            case ev.TakeUp():
                self._hands.take_up(e.generation)
            case ev.Connect():
                self._links.connect(e.who, e.address, e.generation)
            case ev.CloseLinks():
                self._links.close_generation(e.generation)
            case ev.Tell():
                self._links.tell(e.who, e.message)
            case ev.Probe():
                self._links.probe(e.who, e.address)
            case ev.CommitAnswered():
                self._hands.commit_answered(e)
            case ev.RemoveFiles():
                self._hands.remove_files(e.record)
            case ev.PageHuman():
                self._hands.page_human(e.verdict)
            case ev.Say():
                self._say(e)
            case ev.Leave():
                log.info("leaving with status %d: %s", e.status, e.text)
            case ev.WriteRecord():
                log.info("recorded: %s", e.verdict.reason if e.verdict else e.what)

    def _say(self, e: ev.Say) -> None:
        line = f"{e.what}: {e.text}"
        if line != self._last_said:
            self._last_said = line
            log.log(logging.WARNING if e.warn else logging.INFO, "%s", line)

    def _warn_once(self, line: str) -> None:
        if line != self._last_warned:
            self._last_warned = line
            log.warning("%s", line)

    def _send(self, id: int, txn: Txn) -> None:
        self._store.txn_async(txn, lambda found: self.post(answer(id, found)))

    def _grant(self, ttl_s: float) -> None:
        sent_at, key = time.monotonic(), self.state.settings.keys.candidate(*self.state.who)

        def done(found: Lease | StoreError) -> None:
            if isinstance(found, StoreError):
                self._warn_once(f"no lease for {key}: {found}")
                self.post(ev.LeaseFailed(0, False))
            else:
                self.post(ev.LeaseHeld(found.id, sent_at, found.ttl_s))

        self._store.grant_async(ttl_s, done)

    def _renew(self, lease: int) -> None:
        sent_at = time.monotonic()

        def done(answer: float | StoreError) -> None:
            if isinstance(answer, StoreError):
                self.post(ev.LeaseFailed(lease, isinstance(answer, LeaseGone)))
            else:
                self.post(ev.LeaseHeld(lease, sent_at, answer))

        # Answered or failed well before the lease ends: an outage must be known as one by then.
        self._store.renew_async(lease, done, timeout_s=self.state.settings.bounds.lease_s * RENEWAL_SHARE)

    def _revoke(self, lease: int) -> None:
        try:
            self._store.revoke(lease)
        except StoreError as e:
            log.info("lease %x was not revoked and will run out: %s", lease, e)


def answer(id: int, found: TxnResult | StoreError) -> ev.Event:
    """What became of a transaction, as an event."""
    if isinstance(found, TxnResult):
        return ev.TxnDone(id, found)
    fatal, full = isinstance(found, StoreRefused | RequestTooLarge), isinstance(found, StoreFull)
    return ev.TxnFailed(id, isinstance(found, StoreAmbiguous), str(found), fatal, isinstance(found, LeaseGone), full)
