"""The hall where nodes meet for the pair check, in the store: `pairs/<pool>/here/<node>` and `pairs/<pool>/meetings/<id>/…`.

Laws:
 - a node is there while its process renews its lease; the dead vanish, and with them their seat;
 - a meeting, each of its rounds, each offer, each telling and its end are created once: of two that would write, one wins;
 - nothing is told after the end, so all members judge the same figures;
 - a meeting's records are under one lease that nobody renews: they go with the last member, or when that lease ends.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from elastic_health.codec import dump, load
from elastic_health.errors import BadValue
from elastic_health.preflight.pairs import MOST_ROUNDS, Close, Form, Here, Open, Pace, Roll, Round, Seat, Since, Told, View, noticed
from elastic_health.rendezvous.keys import FleetKeys, check_segment
from elastic_health.rendezvous.store import (
    Compare,
    KeyValue,
    LeaseGone,
    Put,
    Store,
    StoreAmbiguous,
    StoreError,
    StoreUnavailable,
    Target,
    Txn,
    WatchBatch,
)

LEASE_S = 6.0
"""A node that has died is missed after so long."""
_RENEWALS = 3.0
_MARGIN_S = 120.0
_LONGEST_NAME = 200
_SETTLES_S = 0.5
_AGAIN_S = 0.3
_TRIES = 4


@dataclass(frozen=True)
class _Offer:
    endpoint: str


@dataclass(frozen=True)
class _End:
    rounds: int


def pool_of(run: str, node_type: str) -> str:
    """Who meets whom: nodes of one type that wait for one run ("" for checks by hand).

    Raises:
        ConfigError: a name that can't stand in a key.
    """
    name = f"{run or 'by-hand'}.{node_type or 'any'}"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:160]}.{hashlib.sha256(name.encode()).hexdigest()[:24]}"
    return check_segment("run or node type", name)


class Hall:
    """One node's place in a pool, from `enter` to `leave`.  `view` and `since` change while `wait` waits; `lost`: the seat is.

    Args:
        on_change: told the new view, from a thread of the store's.
    """

    def __init__(self, store: Store, keys: FleetKeys, pool: str, me: Here, on_change: Callable[[View], None] | None = None) -> None:
        self._store, self._keys, self._pool, self.me = store, keys, pool, me
        self._on_change = on_change
        self._changed = threading.Condition()
        self._kvs: dict[str, KeyValue] = {}
        self._version = 0
        self._revision = 0
        self._meeting = ""
        self._lease = 0
        self.lost = False
        self._left = threading.Event()
        self._renewing: threading.Thread | None = None
        self._watch: Any = None
        self.view = View()
        now = time.monotonic()
        self.since = Since(now, now, now)

    # ---- coming and going

    def enter(self) -> None:
        """Take a seat, over that of a former process of this node's name, and watch.

        Raises:
            StoreError: the store could not be written or read.
        """
        self._lease = self._store.grant(LEASE_S).id
        seat = Put(self._keys.pair_here(self._pool, self.me.node), self._dump(self.me), self._lease)
        self._sent(Txn((), (seat,)), must=True)
        self._watch = self._store.watch(self._keys.pairs(self._pool), self._look() + 1, self._take)
        self._renewing = threading.Thread(target=self._renew, name="eh-pair-lease", daemon=True)
        self._renewing.start()

    def leave(self) -> None:
        """Give up the seat; who is the last of a meeting clears it away.  Raises nothing: what stays ends with its lease."""
        self._left.set()
        if self._watch is not None:
            self._watch.close()
        if self._renewing is not None:
            self._renewing.join(LEASE_S)
        if self.lost or not self._lease:
            return
        try:
            self._store.revoke(self._lease)
            self._clear()
        except StoreError:
            return

    def _clear(self) -> None:
        """Revoke the meeting's lease if none of its members is there any more."""
        roll = self.view.roll
        if roll is None or not roll.lease:
            return
        there = {kv.key: kv for kv in self._store.range(self._keys.pairs_here(self._pool)).kvs}
        if not any(self._is_there(member, there) for member in roll.members):
            self._store.revoke(roll.lease)

    def _is_there(self, member: Here, there: Mapping[str, KeyValue]) -> bool:
        kv = there.get(self._keys.pair_here(self._pool, member.node))
        seat = _read(Here, kv) if kv is not None else None
        return seat is not None and seat.incarnation == member.incarnation

    def _renew(self) -> None:
        pause_s, last = LEASE_S / _RENEWALS, time.monotonic()
        while not self._left.wait(pause_s):
            sent = time.monotonic()
            try:
                self._store.renew(self._lease, timeout_s=pause_s)
                last = sent
            except LeaseGone:
                return self._lose()
            except StoreError:
                if time.monotonic() - last > LEASE_S:  # the others have missed this node by now
                    return self._lose()

    def _lose(self) -> None:
        """The seat is lost, also where nobody can tell this node so."""
        with self._changed:
            self.lost = True
            self.view = view = self._read_view()
        self.wake()
        if self._on_change is not None:
            self._on_change(view)

    # ---- seeing

    def _look(self) -> int:
        """Read the pool now; what the watch still has to tell of before is passed over then."""
        found = self._store.range(self._keys.pairs(self._pool))
        self._take(WatchBatch(found.revision, (), True, found.kvs))
        return found.revision

    def _take(self, batch: WatchBatch) -> None:
        with self._changed:
            if batch.revision <= self._revision:
                return
            if batch.snapshot:
                self._kvs = {kv.key: kv for kv in batch.kvs}
            for event in batch.events:
                if event.kv.mod_revision <= self._revision:
                    continue
                if event.deleted:
                    self._kvs.pop(event.kv.key, None)
                else:
                    self._kvs[event.kv.key] = event.kv
            self._revision = batch.revision
            before, self.view = self.view, self._read_view()
            self.since = noticed(self.since, before, self.view, time.monotonic())
            self._version += 1
            self._changed.notify_all()
            view = self.view
        if self._on_change is not None:
            self._on_change(view)

    def _read_view(self) -> View:
        prefix = self._keys.pairs_here(self._pool)
        seats = {}
        for key, kv in self._kvs.items():
            here = _read(Here, kv) if key.startswith(prefix) else None
            if here is not None and key == self._keys.pair_here(self._pool, here.node):
                seats[here.node] = Seat(here, kv.create_revision, kv.mod_revision, kv.lease)
        mine = seats.pop(self.me.node, None) if self.lost else seats.get(self.me.node)
        if mine is not None and mine.here.incarnation == self.me.incarnation:
            self._meeting = mine.here.meeting
        return self._with_meeting(seats, self._meeting) if self._meeting else View(seats)

    def _with_meeting(self, seats: Mapping[str, Seat], meeting: str) -> View:
        prefix = self._keys.pair_meeting(self._pool, meeting)
        parts = {key[len(prefix) :]: kv for key, kv in self._kvs.items() if key.startswith(prefix)}
        roll = _read(Roll, parts["roll"]) if "roll" in parts else None
        rounds = _each(Round, parts, "rounds/")
        told = {_appointment(part): found for part, found in _each(Told, parts, "told/").items()}
        offers = {_appointment(part): found.endpoint for part, found in _each(_Offer, parts, "offers/").items()}
        return View(seats, roll, tuple(rounds[part] for part in sorted(rounds)), told, offers, "closed" in parts)

    @property
    def version(self) -> int:
        """Grows with every change; for `wait`."""
        return self._version

    def wait(self, seen: int, until: float) -> None:
        """Return once something has changed since version `seen`, or at `until` (monotonic)."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, max(0.0, until - time.monotonic()))

    def wake(self) -> None:
        """End a `wait`."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    # ---- deciding and telling: each is created once, by whoever comes first

    def form(self, act: Form, pace: Pace) -> None:
        """Begin a meeting, if all of these still wait.

        Raises (this and the next ones):
            StoreError: it could not be written.
        """
        lasts_s = _MARGIN_S + MOST_ROUNDS * pace.round_s
        lease, meeting = self._store.grant(lasts_s).id, secrets.token_hex(6)
        seats = [(seat, self._keys.pair_here(self._pool, seat.here.node)) for seat in act.seats]
        members = tuple(replace(seat.here, meeting=meeting) for seat, _ in seats)
        roll = Put(self._keys.pair_roll(self._pool, meeting), self._dump(Roll(members, lease)), lease)
        moved = tuple(Put(key, self._dump(replace(seat.here, meeting=meeting)), seat.lease) for seat, key in seats)
        same = tuple(Compare(key, Target.MOD, seat.revision) for seat, key in seats)
        if self._sent(Txn(same, (roll, *moved))) is False:
            self._store.revoke(lease)

    def open(self, act: Open) -> None:
        """Begin a round."""
        self._create(self._keys.pair_round(self._pool, self._meeting, act.number), Round(act.pairs))

    def close(self, act: Close) -> None:
        """End the meeting."""
        self._create(self._keys.pair_closed(self._pool, self._meeting), _End(len(self.view.rounds)))

    def offer(self, number: int, endpoint: str) -> None:
        """Say where this node waits for its partner."""
        self._create(self._keys.pair_offer(self._pool, self._meeting, number, self.me.node), _Offer(endpoint))

    def tell(self, number: int, told: Told) -> None:
        """Tell of an appointment."""
        self._create(self._keys.pair_told(self._pool, self._meeting, number, self.me.node), told)

    def _create(self, key: str, value: object) -> None:
        """Until it is answered: a refusal after a lost answer may be of our own write, and means "there already" all the same."""
        roll, closed = self.view.roll, self._keys.pair_closed(self._pool, self._meeting)
        absent = tuple(Compare(k, Target.CREATE, 0) for k in dict.fromkeys((key, closed)))
        txn = Txn(absent, (Put(key, self._dump(value), roll.lease if roll is not None else 0),))
        for left in reversed(range(_TRIES)):
            if self._sent(txn, must=not left) is not None:
                return

    def _sent(self, txn: Txn, *, must: bool = False) -> bool | None:
        """Send, and see it: the next decision is made on a view that has the outcome.  None: it may land or not.

        Raises:
            StoreError: of all kinds; where the answer is lost only with `must`.
        """
        try:
            done = self._store.txn(txn)
        except (StoreAmbiguous, StoreUnavailable):
            if must:
                raise
            self._left.wait(_AGAIN_S)
            return None
        if self._watch is not None and not (done.succeeded and self._sees(done.revision)):
            self._look()
        return done.succeeded

    def _sees(self, revision: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._revision >= revision, _SETTLES_S)

    def _dump(self, value: object) -> bytes:
        return dump(value, at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), by=self.me.node)


def _read(cls: type[Any], kv: KeyValue) -> Any:
    """A value, None for one that makes no sense: it counts as absent."""
    try:
        return load(cls, kv.value, kv.key)
    except BadValue:
        return None


def _each(cls: type[Any], parts: Mapping[str, KeyValue], folder: str) -> dict[str, Any]:
    read = {part: _read(cls, kv) for part, kv in parts.items() if part.startswith(folder)}
    return {part: value for part, value in read.items() if value is not None}


def _appointment(part: str) -> tuple[int, str]:
    """`offers/<k>.<node>` and `told/<k>.<node>`; (-1, "") for a key that somebody else has written."""
    number, _, node = part.partition("/")[2].partition(".")
    return (int(number), node) if number.isascii() and number.isdigit() else (-1, "")
