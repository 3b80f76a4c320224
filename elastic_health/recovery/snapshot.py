"""One run's keys at one revision, read into our types: what `status`, `runs` and `why` tell of.

Law: a value that can't be read is named in `unreadable` and left out; it never hides the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elastic_health.codec import load, shown
from elastic_health.errors import BadValue, DataError
from elastic_health.exits import ExitStatus
from elastic_health.generations import Budget, Candidate, CheckpointRecord, CheckpointState, Generation, MemberShard, StoreAddress, whole
from elastic_health.incidents import Record
from elastic_health.liveness.summary import Published, Summary
from elastic_health.recovery.skips import read_skips
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import KeyValue
from elastic_health.rendezvous.view import Current
from elastic_health.verdicts import Verdict, VerdictKind
from elastic_health.windows import Window


class RunState(Enum):
    """Where a run is.  `capped` and `stopped` are ends; `restarting` has a verdict and no next generation yet; `deleting`:
    a deletion began and has not ended."""

    EMPTY = "empty"
    DELETING = "deleting"
    FORMING = "forming"
    RUNNING = "running"
    LOST = "lost"
    RESTARTING = "restarting"
    FINISHED = "finished"
    CAPPED = "capped"
    STOPPED = "stopped"
    PAUSED = "paused"


@dataclass(frozen=True)
class RunSnapshot:
    """`at` maps a key to the UTC time in its value.  `progress` and `summary` are the published JSON objects as they are;
    `published` and `group` the same as our types."""

    keys: RunKeys
    current: int = 0
    generations: Mapping[int, Generation] = field(default_factory=dict)
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    skips: tuple[Window, ...] = ()
    budget: Budget = field(default_factory=Budget)
    progress: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    published: Published | None = None
    group: Summary | None = None
    deleting: bool = False
    at: Mapping[str, str] = field(default_factory=dict)
    mods: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    @property
    def generation(self) -> Generation | None:
        return self.generations.get(self.current)

    @property
    def verdict(self) -> Verdict | None:
        """The current generation's."""
        return self.verdicts.get(self.current)

    @property
    def newest_committed(self) -> CheckpointRecord | None:
        usable = [c for c in self.checkpoints if c.state is CheckpointState.COMMITTED]
        return max(usable, key=lambda c: (c.generation, c.step), default=None)

    @property
    def state(self) -> RunState:
        if self.deleting:
            return RunState.DELETING
        if not self.current:
            return RunState.FORMING if self.candidates else RunState.EMPTY
        v = self.verdict
        if v is None:
            return RunState.RUNNING if self.candidates else RunState.LOST
        if v.kind is VerdictKind.FINISH:
            return RunState.FINISHED
        if v.kind is VerdictKind.ABORT:
            return RunState.STOPPED if v.exit_status == ExitStatus.STOPPED else RunState.CAPPED
        if v.kind is VerdictKind.STOP and not self.candidates:
            return RunState.PAUSED
        return RunState.RESTARTING


def snapshot(keys: RunKeys, kvs: Iterable[KeyValue]) -> RunSnapshot:
    """Read everything below `runs/<run>/`; keys of other runs and unknown kinds are passed over."""
    groups: dict[str, list[KeyValue]] = {}
    for kv in kvs:
        if kv.key.startswith(keys.root):
            groups.setdefault(kv.key[len(keys.root) :].split("/", 1)[0], []).append(kv)
    bad: list[str] = []
    skips, bad_skips = read_skips(groups.get("skips", ()))
    bad.extend(str(e) for e in bad_skips)

    def each(kind: str, cls: type[Any]) -> list[Any]:
        return [value for _, value in _loaded(groups.get(kind, ()), cls, bad)]

    def in_order(kind: str) -> list[KeyValue]:
        """As they came to be, by the store's order: the writers' clocks may be hours apart."""
        return sorted(groups.get(kind, ()), key=lambda kv: kv.create_revision)

    def numbered(kind: str, cls: type[Any], number: Callable[[Any], int], key: Callable[[int], str]) -> dict[int, Any]:
        """A value under another's key is taken for neither."""
        found = {}
        for kv, value in _loaded(groups.get(kind, ()), cls, bad):
            if kv.key == key(number(value)):
                found[number(value)] = value
            else:
                bad.append(f"{shown(kv.key, 320)}: speaks of generation {shown(str(number(value)))}")
        return found

    def leased(kv: KeyValue) -> bool:
        if not kv.lease:
            bad.append(f"{shown(kv.key, 320)}: a candidate without a lease, so no living agent's; delete this key")
        return bool(kv.lease)

    for _ in _loaded(groups.get("stores", ()), StoreAddress, bad):
        pass  # nobody asks for them here, but what can't be read is named

    return RunSnapshot(
        keys=keys,
        current=next((c.generation for c in each("current", Current)), 0),
        generations=_whole(numbered("generations", Generation, lambda g: g.number, keys.generation), groups.get("members", ()), bad),
        verdicts=numbered("verdicts", Verdict, lambda v: v.generation, keys.verdict),
        records=tuple(r for _, r in _loaded(in_order("records"), Record, bad)),
        checkpoints=tuple(each("checkpoints", CheckpointRecord)),
        candidates=tuple(c for kv, c in _loaded(groups.get("candidates", ()), Candidate, bad) if leased(kv)),
        skips=skips,
        budget=next(iter(each("budget", Budget)), Budget()),
        progress=_object(groups, "progress"),
        summary=_object(groups, "summary"),
        published=next(iter(each("progress", Published)), None),
        group=next(iter(each("summary", Summary)), None),
        deleting="deleting" in groups,
        at={kv.key: _at(kv) for kvs_ in groups.values() for kv in kvs_},
        mods={kv.key: kv.mod_revision for kvs_ in groups.values() for kv in kvs_},
        unreadable=tuple(bad),
    )


def _whole(found: Mapping[int, Generation], shards: Iterable[KeyValue], bad: list[str]) -> Mapping[int, Generation]:
    """Long member lists put together."""
    parts = {kv.key.rsplit("/", 1)[1]: part for kv, part in _loaded(shards, MemberShard, bad)}
    put: dict[int, Generation] = {}
    for g in found.values():
        try:
            put[g.number] = whole(g, parts)
        except DataError as e:
            bad.append(f"generation {g.number}: {e}")
    return put


def _loaded(kvs: Iterable[KeyValue], cls: type[Any], bad: list[str]) -> Iterable[tuple[KeyValue, Any]]:
    for kv in kvs:
        try:
            yield kv, load(cls, kv.value, kv.key)
        except (BadValue, DataError) as e:
            bad.append(str(e) if kv.key in str(e) else f"{shown(kv.key, 320)}: {e}")


def _object(groups: Mapping[str, list[KeyValue]], name: str) -> Mapping[str, Any]:
    """As it was published, whoever did; reading it as our type names what is wrong with it."""
    for kv in groups.get(name, ()):
        try:
            value = json.loads(kv.value)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    return {}


def _at(kv: KeyValue) -> str:
    try:
        value = json.loads(kv.value)
    except (ValueError, RecursionError):
        return ""
    at = value.get("at") if isinstance(value, dict) else None
    return at if isinstance(at, str) else ""
