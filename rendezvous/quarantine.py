"""The fleet's quarantine list: what an entry says, which entries hold now, and how many may be added without a person.

Laws:
 - the list is the state: an entry holds while its key is there and its end has not come; what was there once never counts
   again (NVIDIA/NVSentinel#1347, #1415: a restart replayed old events on nodes that had been released);
 - a key that is there bars, whatever its value: people write `''`, `{}` and plain text;
 - for a node, what bars is what `view.Quarantined` reads, here as in every agent; all else in a value is for people;
 - an automatic entry replaces nobody's that holds, and the breaker bounds their number (flux-framework/flux-core#7663:
   one absent node took 2048 down): each one is written with `FleetKeys.quarantine_turn` as it was read, so that nodes
   that fail in the same instant are counted one after another.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elastic_health.codec import build, load, shown
from elastic_health.errors import BadValue, ConfigError
from elastic_health.rendezvous.keys import FleetKeys, check_segment, last_segment
from elastic_health.rendezvous.store import Compare, Delete, Get, KeyValue, Put, Target, Txn
from elastic_health.rendezvous.view import Quarantined, bars


class Kind(Enum):
    """Of what is in quarantine."""

    NODE = "node"
    GPU = "gpu"
    NIC = "nic"
    ROUTE = "route"


@dataclass(frozen=True)
class Resource:
    """`names`: (node,), (GPU uuid,), (node, NIC), or the two nodes of a route in order.  Make one with the functions below."""

    kind: Kind
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """As the command line and the key spell it."""
        return ("+" if self.kind is Kind.ROUTE else "/").join(self.names)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"

    def key(self, keys: FleetKeys) -> str:
        if self.kind is Kind.NODE:
            return keys.quarantined_node(*self.names)
        if self.kind is Kind.GPU:
            return keys.quarantined_gpu(*self.names)
        return keys.quarantined_nic(*self.names) if self.kind is Kind.NIC else keys.quarantined_route(*self.names)


def node(name: str) -> Resource:
    """
    Raises:
        ConfigError: as `check_segment`, here and in the next three.
    """
    return Resource(Kind.NODE, (check_segment("node name", name),))


def gpu(uuid: str) -> Resource:
    return Resource(Kind.GPU, (check_segment("GPU uuid", uuid),))


def nic(on: str, name: str) -> Resource:
    return Resource(Kind.NIC, (check_segment("node name", on), check_segment("NIC name", name)))


def route(a: str, b: str) -> Resource:
    """The route between two nodes; it has no direction."""
    if a == b:
        raise ConfigError("a route between two nodes", f"{a} twice", "name its two ends")
    first, second = sorted((check_segment("node name", a), check_segment("node name", b)))
    return Resource(Kind.ROUTE, (first, second))


@dataclass(frozen=True)
class Quarantine:
    """The value of an entry.

    Attributes:
        signature: what the resource failed by, equal for faults that are alike; "" where a person says why.
        incidents: ids of the incidents that led here.
        since, until: seconds since the epoch; `until` 0: until somebody releases it.
        automatic: written by an agent by policy; it counts for the breaker.
    """

    reason: str = ""
    signature: str = ""
    incidents: tuple[str, ...] = ()
    since: float = 0.0
    until: float = 0.0
    automatic: bool = False


@dataclass(frozen=True)
class Stamps:
    """Who wrote a value, and when (UTC), as `codec.dump` adds it; "" where nobody said."""

    by: str = ""
    at: str = ""


@dataclass(frozen=True)
class Entry:
    """One entry as the store holds it.  `note`: why a part of a JSON object could not be read, so that it has no end."""

    resource: Resource
    key: str
    said: Quarantine
    stamps: Stamps = field(default_factory=Stamps)
    mod_revision: int = 0
    note: str = ""

    def holds(self, now: float) -> bool:
        return bars(self.said.until, now)


def resource_of(key: str, keys: FleetKeys) -> Resource | None:
    """What a key of the list stands for, or None.  A node is read as the view reads it: by the last segment."""
    room, _, name = key.removeprefix(keys.quarantine).partition("/")
    if room == "nodes" and last_segment(key) and name:
        return Resource(Kind.NODE, (last_segment(key),))
    if room == "gpus" and name:
        return Resource(Kind.GPU, (name,))
    on, _, other = name.partition("/" if room == "nics" else "+")
    if not on or not other:
        return None
    if room == "nics":
        return Resource(Kind.NIC, (on, other))
    return Resource(Kind.ROUTE, (min(on, other), max(on, other))) if room == "routes" else None


def read(kvs: Iterable[KeyValue], keys: FleetKeys) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The entries below `keys.quarantine`, in key order, and the keys there that stand for nothing."""
    entries, strays = [], []
    for kv in kvs:
        resource = resource_of(kv.key, keys)
        if resource is not None:
            entries.append(_entry(kv, resource))
        elif kv.key != keys.quarantine_turn:
            strays.append(kv.key)
    return tuple(entries), tuple(strays)


def _entry(kv: KeyValue, resource: Resource) -> Entry:
    note, until = "", 0.0
    try:
        until = load(Quarantined, kv.value, kv.key).until  # what bars
    except BadValue as e:
        note = str(e)
    try:
        body = json.loads(kv.value)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        text = kv.value.decode("utf-8", "backslashreplace").strip()
        return Entry(resource, kv.key, Quarantine(shown(text)), Stamps(), kv.mod_revision)
    said = dataclasses.replace(_each(Quarantine(), body), until=until)
    return Entry(resource, kv.key, said, _each(Stamps(), body), kv.mod_revision, note)


def _each(default: Any, body: dict[str, Any]) -> Any:
    """The fields that can be read, one by one: a mistake in one is no reason to show nothing of the others."""
    found = default
    for name in (f.name for f in dataclasses.fields(default) if f.name in body):
        try:
            found = dataclasses.replace(found, **{name: getattr(build(type(default), {name: body[name]}, name), name)})
        except BadValue:
            continue
    return found


def active(entries: Iterable[Entry], now: float) -> tuple[Entry, ...]:
    """Those that hold at epoch second `now`."""
    return tuple(e for e in entries if e.holds(now))


def concerning(entries: Iterable[Entry], name: str, gpus: Collection[str], nics: Collection[str], now: float) -> tuple[Entry, ...]:
    """Those that keep this node out now: itself, one of its GPUs (uuids) or one of its NICs.

    A route keeps nobody out: it is about who trains next to whom.
    """
    own = {Resource(Kind.NODE, (name,)), *(Resource(Kind.GPU, (u,)) for u in gpus), *(Resource(Kind.NIC, (name, n)) for n in nics)}
    return tuple(e for e in active(entries, now) if e.resource in own)


def of(entries: Iterable[Entry], resource: Resource) -> tuple[Entry, ...]:
    """All entries of a resource; several, where people spelled its key in several ways."""
    return tuple(e for e in entries if e.resource == resource)


def put(found: Collection[Entry], key: str, value: bytes) -> Txn:
    """Replace `found` (all entries of one resource) by one at `key`, if they are as they were read."""
    others = tuple(Delete(e.key) for e in found if e.key != key)
    absent = () if any(e.key == key for e in found) else (Compare(key, Target.MOD, 0),)
    return Txn((*_unchanged(found), *absent), (*others, Put(key, value)), (Get(key),))


def release(found: Collection[Entry]) -> Txn:
    """Delete `found`, if they are as they were read."""
    return Txn(_unchanged(found), tuple(Delete(e.key) for e in found), tuple(Get(e.key) for e in found))


def _unchanged(found: Iterable[Entry]) -> tuple[Compare, ...]:
    return tuple(Compare(e.key, Target.MOD, e.mod_revision) for e in found)


@dataclass(frozen=True)
class Limits:
    """The breaker: how many automatic entries there may be.

    Attributes:
        window_s: entries alike that are older don't count as alike.
        alike: with one signature within the window, at most so many; two bad ones in an hour are bad luck.
        alike_share: or this part of the fleet, where that is more.
        share: with any signature, at most this part of the fleet at a time, but at least `alike`.

    Never so many that half of a known fleet, or more, would be out, except for one.  The window goes by the clocks of those
    who wrote the entries; one from the future counts, so a wrong clock errs towards suspecting the set-up.
    """

    window_s: float = 3600.0
    alike: int = 2
    alike_share: float = 0.01
    share: float = 0.10


def may_quarantine(
    existing: Iterable[Entry], resource: Resource, signature: str, now: float, fleet: int, limits: Limits
) -> tuple[bool, str]:
    """May `resource` be put into quarantine without a person, and if not, why not?

    Args:
        existing: the whole list.
        fleet: how many nodes the fleet has; 0 where nobody knows.
    """
    others = [e for e in existing if e.said.automatic and e.resource.kind is resource.kind and e.resource != resource]
    recent = {e.resource for e in others if e.said.signature == signature and not e.said.since <= now - limits.window_s}
    most = max(limits.alike, int(limits.alike_share * fleet))
    in_all = max(limits.alike, int(limits.share * fleet))
    if fleet:
        half = max(1, (fleet - 1) // 2)
        most, in_all = min(most, half), min(in_all, half)
    if len(recent) >= most:
        names = ", ".join(sorted(r.name for r in recent)[:8])
        return False, (
            f"{len(recent)} of the same kind ({names}) are in quarantine for the same reason ({signature or 'none given'}) since less than "
            f"{limits.window_s:g} s: look at what they share (driver, tool, configuration, network); none further is put there for it"
        )
    held = {e.resource for e in active(others, now)}
    if fleet and len(held) >= in_all:
        return False, f"{len(held)} of a fleet of {fleet} are in quarantine by policy: suspect the set-up; a person may add more"
    return True, ""


@dataclass(frozen=True)
class Proposal:
    """`txn` writes the entry; None: nothing is to be written, because of `why`.  `held`: the resource is there already."""

    txn: Txn | None
    why: str = ""
    held: bool = False


def propose(
    kvs: Iterable[KeyValue], keys: FleetKeys, resource: Resource, said: Quarantine, value: bytes, fleet: int, limits: Limits, turn: bytes
) -> Proposal:
    """An automatic entry, from one look at everything below `keys.quarantine`; `said.since` is now.

    Args:
        value: `said` as it shall be stored; `turn`: the value of the turn key.
    """
    kvs = tuple(kvs)
    entries, _ = read(kvs, keys)
    found = of(entries, resource)
    now = said.since
    holding = active(found, now)
    if holding:
        return Proposal(None, holding[0].said.reason, held=True)
    allowed, why = may_quarantine(entries, resource, said.signature, now, fleet, limits)
    if not allowed:
        return Proposal(None, why)
    mod = next((kv.mod_revision for kv in kvs if kv.key == keys.quarantine_turn), 0)
    entry = put(found, resource.key(keys), value)
    return Proposal(Txn((*entry.compare, Compare(keys.quarantine_turn, Target.MOD, mod)), (*entry.then, Put(keys.quarantine_turn, turn))))
