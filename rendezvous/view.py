"""What one agent knows of the store: an immutable snapshot of the run's keys, kept up by watch batches.

Law: a view is a function of the batches applied, in order; applying one returns a new view.  A value that can't be
read is not an error here: it is kept in `unreadable` (key -> message) and counts as absent, so that a hand-edited key
can stop a decision (`refusal.unusable`) but never crash an agent.  Two are not what they seem to be: a node whose
quarantine can't be read is in quarantine, and a candidate without a lease is no candidate, since it would outlive its agent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any

from elastic_health.codec import load, shown
from elastic_health.errors import BadValue, DataError
from elastic_health.generations import Budget, Candidate, CandidateState, CheckpointRecord, Generation, MemberShard, StoreAddress, whole
from elastic_health.rendezvous.keys import FleetKeys, RunKeys, last_segment
from elastic_health.rendezvous.store import KeyValue, WatchBatch
from elastic_health.verdicts import Verdict
from elastic_health.windows import Window, normal

Who = tuple[str, str]
"""(node, incarnation)."""


class Part(Enum):
    """What a watch of the run covers.

    `all` is everything in one order, with every candidate: for the few that may form, and for rank 0.  The others hear of
    what stands behind the candidates in key order (`rest`), of the `budget`, and of candidates only that they are `gone`.
    """

    ALL = "all"
    REST = "rest"
    BUDGET = "budget"
    GONE = "gone"


@dataclass(frozen=True)
class Current:
    """`runs/<run>/current`: only a number; what fences is the key's mod revision."""

    generation: int


@dataclass(frozen=True)
class Entry:
    """A candidate as the store holds it."""

    candidate: Candidate
    create_revision: int
    mod_revision: int

    @property
    def who(self) -> Who:
        return (self.candidate.node, self.candidate.incarnation)


@dataclass(frozen=True)
class Quarantined:
    """`quarantine/nodes/<node>`; `until` in epoch seconds, 0 for no end."""

    reason: str = ""
    until: float = 0.0


@dataclass(frozen=True)
class View:
    """Every key of the run that membership needs, at `revision`.

    Attributes:
        complete: `candidates` holds every candidate.  Otherwise it says nothing; `gone` names those whose candidate is known
            to have gone, and `deaths` counts all that have gone since this view began.
    """

    revision: int = 0
    candidates: Mapping[Who, Entry] = field(default_factory=dict)
    current: int = 0
    current_mod: int = 0
    generations: Mapping[int, Generation] = field(default_factory=dict)
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    verdict_mods: Mapping[int, int] = field(default_factory=dict)
    stores: Mapping[int, StoreAddress] = field(default_factory=dict)
    checkpoints: Mapping[str, CheckpointRecord] = field(default_factory=dict)
    checkpoint_mods: Mapping[str, int] = field(default_factory=dict)
    skips: Mapping[str, Window] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    budget_mod: int = 0
    deleting: bool = False
    quarantined: Mapping[str, Quarantined] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    shards: Mapping[str, MemberShard] = field(default_factory=dict)
    complete: bool = False
    gone: frozenset[Who] = frozenset()
    deaths: int = 0

    def lost(self, who: Who) -> bool:
        """Is this one's candidate known to be gone?  Without the candidates, only what was told since counts."""
        return who not in self.candidates if self.complete else who in self.gone

    @functools.cached_property
    def in_line(self) -> tuple[Entry, ...]:
        """Every ready candidate, oldest first."""
        found = (e for e in self.candidates.values() if e.candidate.state is CandidateState.READY)
        return tuple(sorted(found, key=attrgetter("create_revision")))

    @functools.cached_property
    def incarnations(self) -> Mapping[tuple[str, str], int]:
        """(node, agent) -> the newest incarnation's number, of all candidates."""
        newest: dict[tuple[str, str], int] = {}
        for node, incarnation in self.candidates:
            name, _, n = incarnation.rpartition("-")
            if n.isdigit():
                newest[node, name] = max(int(n), newest.get((node, name), -1))
        return newest

    @property
    def generation(self) -> Generation | None:
        """The current generation's record."""
        return self.generations.get(self.current)

    @property
    def verdict(self) -> Verdict | None:
        """The current generation's verdict."""
        return self.verdicts.get(self.current)

    @property
    def skip_windows(self) -> tuple[Window, ...]:
        return normal(self.skips.values())

    def barred(self, node: str, wall: float) -> Quarantined | None:
        """The quarantine entry that keeps `node` out at epoch second `wall`."""
        q = self.quarantined.get(node)
        return q if q and bars(q.until, wall) else None


def bars(until: float, wall: float) -> bool:
    """Does a quarantine with this end hold at epoch second `wall`?  One whose end is no number holds."""
    return until == 0.0 or not wall >= until


def apply(view: View, batch: WatchBatch, keys: RunKeys, *, fleet: bool = False, part: Part = Part.ALL) -> View:
    """The view after a batch of a part of the run, or with `fleet` of the quarantine.  A snapshot replaces all of that."""
    if part is Part.GONE:
        return _without(view, batch, keys)
    draft = _Draft(view, keys)
    if batch.snapshot:
        draft.replace(batch.kvs, fleet, part)
    for event in batch.events:
        draft.remove(event.kv.key) if event.deleted else draft.put(event.kv)
    return draft.done(max(view.revision, batch.revision) if part is not Part.BUDGET else view.revision)


def _without(view: View, batch: WatchBatch, keys: RunKeys) -> View:
    """Candidates that go, told to one who doesn't hear of those that come.  After a snapshot, members that are not in it
    are gone; a sample of candidates (read while joining) is kept for comparison only."""
    if view.complete:
        return view
    draft = _Draft(view, keys)
    for event in batch.events:
        if not event.deleted:
            draft.put(event.kv)
    view = draft.done(view.revision)
    gone = {_at("candidates", e.kv.key) for e in batch.events if e.deleted}
    deaths = view.deaths + len(gone)
    if batch.snapshot:
        present = {_at("candidates", kv.key) for kv in batch.kvs}
        gone |= {m.who for m in view.generation.members if m.who not in present} if view.generation else set()
    return dataclasses.replace(view, gone=view.gone | gone, deaths=deaths) if gone else view


_MODS: Mapping[str, str] = {"checkpoints": "checkpoint_mods", "verdicts": "verdict_mods"}
"""Rooms whose mod revisions are kept, for transactions that compare a value with what was read."""


@functools.lru_cache(maxsize=8)
def _prefixes(keys: RunKeys) -> Mapping[str, str]:
    """Room -> what its keys start with."""
    return {
        "candidates": keys.candidates,
        "shards": keys.members,
        "generations": keys.generations,
        "verdicts": keys.verdicts,
        "stores": f"{keys.root}stores/",
        "checkpoints": keys.checkpoints,
        "skips": keys.skips,
        "quarantined": f"{FleetKeys(keys.prefix).quarantine}nodes/",
    }


class _Draft:
    """A view being changed: copies a mapping at most once a batch."""

    def __init__(self, view: View, keys: RunKeys) -> None:
        self._view, self._keys, self._changed = view, keys, dict[str, Any]()
        self._rooms = _prefixes(keys)
        self._barred = self._rooms["quarantined"]

    def _read(self, room: str, kv: KeyValue) -> tuple[Any, Any]:
        return self._generation(kv) if room == "generations" else _READERS[room](kv)

    def _generation(self, kv: KeyValue) -> tuple[int, Generation]:
        number, g = _generation(kv)
        return number, whole(g, self._changed.get("shards", self._view.shards)) if g.shards else g

    def _map(self, name: str) -> dict[Any, Any]:
        if name not in self._changed:
            self._changed[name] = dict(getattr(self._view, name))
        return self._changed[name]  # type: ignore[no-any-return]

    def put(self, kv: KeyValue) -> None:
        if kv.key in self._changed.get("unreadable", self._view.unreadable):
            self._map("unreadable").pop(kv.key)
        try:
            self._put(kv)
        except (BadValue, DataError, ValueError) as e:  # ValueError: a number in the key that is none
            self.remove(kv.key)
            self._map("unreadable")[kv.key] = str(e)
            if kv.key.startswith(self._barred):
                self._map("quarantined")[last_segment(kv.key)] = Quarantined(f"what its key says can't be read: {e}")

    def _put(self, kv: KeyValue) -> None:
        if kv.key == self._keys.current:
            self._changed["current"] = load(Current, kv.value, kv.key).generation
            self._changed["current_mod"] = kv.mod_revision
        elif kv.key == self._keys.budget:
            self._changed["budget"], self._changed["budget_mod"] = load(Budget, kv.value, kv.key), kv.mod_revision
        elif kv.key == self._keys.deleting:
            self._changed["deleting"] = True
        else:
            for name, prefix in self._rooms.items():
                if kv.key.startswith(prefix):
                    at, value = self._read(name, kv)
                    self._map(name)[at] = value
                    if name in _MODS:
                        self._map(_MODS[name])[at] = kv.mod_revision

    def remove(self, key: str) -> None:
        self._map("unreadable").pop(key, None) if key in self._view.unreadable else None
        if key == self._keys.current:
            self._changed["current"], self._changed["current_mod"] = 0, 0
        elif key == self._keys.budget:
            self._changed["budget"], self._changed["budget_mod"] = Budget(), 0
        elif key == self._keys.deleting:
            self._changed["deleting"] = False
        for name, prefix in self._rooms.items():
            if key.startswith(prefix):
                self._map(name).pop(_at(name, key), None)
                if name in _MODS:
                    self._map(_MODS[name]).pop(_at(name, key), None)

    def replace(self, kvs: Iterable[KeyValue], fleet: bool, part: Part) -> None:
        for name in self._rooms:
            if (name == "quarantined") == fleet and part is not Part.BUDGET and (name != "candidates" or part is Part.ALL):
                self._changed[name] = {}
        if not fleet and part in (Part.ALL, Part.BUDGET):
            self._changed.update(budget=Budget(), budget_mod=0)
        if not fleet and part is not Part.BUDGET:
            self._changed.update(current=0, current_mod=0, deleting=False)
            self._changed.update({mods: {} for mods in _MODS.values()})
        if not fleet and part is Part.ALL:
            self._changed.update(complete=True, gone=frozenset())
        here = FleetKeys(self._keys.prefix).quarantine if fleet else self._keys.root if part is not Part.BUDGET else self._keys.budget
        self._changed["unreadable"] = {k: why for k, why in self._view.unreadable.items() if not k.startswith(here)}
        for kv in sorted(kvs, key=lambda kv: not kv.key.startswith(self._keys.members)):  # before the records that name them
            self.put(kv)

    def done(self, revision: int) -> View:
        return dataclasses.replace(self._view, revision=revision, **self._changed)


def _at(room: str, key: str) -> Any:
    """The key within its room's mapping; a segment that no writer of ours makes maps to itself."""
    segment = last_segment(key)
    if room in ("generations", "verdicts", "stores"):
        return int(segment) if segment.isascii() and segment.isdigit() and len(segment) <= 18 else segment
    if room == "candidates":
        node, _, incarnation = segment.rpartition(".")
        return (node, incarnation)
    return segment


def _entry(kv: KeyValue) -> tuple[Who, Entry]:
    c, at = load(Candidate, kv.value, kv.key), _at("candidates", kv.key)
    _same(kv.key, at, (c.node, c.incarnation))
    if not kv.lease:
        raise BadValue("a candidate under its agent's lease", f"{shown(kv.key, 320)}: one without", "delete this key: nobody else will")
    return at, Entry(c, kv.create_revision, kv.mod_revision)


def _generation(kv: KeyValue) -> tuple[int, Generation]:
    g = load(Generation, kv.value, kv.key)
    _same(kv.key, _at("generations", kv.key), g.number)
    return g.number, g


def _shard(kv: KeyValue) -> tuple[str, MemberShard]:
    return last_segment(kv.key), load(MemberShard, kv.value, kv.key)


def _verdict(kv: KeyValue) -> tuple[int, Verdict]:
    v = load(Verdict, kv.value, kv.key)
    _same(kv.key, _at("verdicts", kv.key), v.generation)
    return v.generation, v


def _store(kv: KeyValue) -> tuple[int, StoreAddress]:
    at = _at("stores", kv.key)
    if not isinstance(at, int):
        raise BadValue("the number of a generation", shown(kv.key, 320), "delete this key")
    return at, load(StoreAddress, kv.value, kv.key)


def _checkpoint(kv: KeyValue) -> tuple[str, CheckpointRecord]:
    c = load(CheckpointRecord, kv.value, kv.key)
    _same(kv.key, last_segment(kv.key), c.name)
    return c.name, c


def _same(key: str, spelt: object, said: object) -> None:
    """A value under another's key must not be taken for either.

    Raises:
        DataError: key and value disagree.
    """
    if spelt != said:
        found = f"{shown(key, 320)}: {shown(str(said))}"
        raise DataError(f"a value that speaks of {shown(str(spelt))}, as its key does", found, "correct or delete this key")


def _skip(kv: KeyValue) -> tuple[str, Window]:
    return last_segment(kv.key), load(Window, kv.value, kv.key)


def _quarantined(kv: KeyValue) -> tuple[str, Quarantined]:
    return last_segment(kv.key), load(Quarantined, kv.value, kv.key)


_READERS: Mapping[str, Callable[[KeyValue], tuple[Any, Any]]] = {
    "candidates": _entry,
    "shards": _shard,
    "verdicts": _verdict,
    "stores": _store,
    "checkpoints": _checkpoint,
    "skips": _skip,
    "quarantined": _quarantined,
}
