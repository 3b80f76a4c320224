"""The progress page: a worker's markers in one small file in shared memory, as bytes with a fixed, versioned layout.

Law: each section has one writer and two slots; a write goes to the slot that was not written last, with a checksum
over it, so that a reader (even of a killed or stopped writer) always finds one whole, newest-but-one record at worst.
Only a writer that writes twice during one look can leave both slots torn: `torn` says so, and the reader looks again.
Times are CLOCK_MONOTONIC nanoseconds of this node, 0 for never.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from elastic_health.liveness.facts import GroupFrontier, Phase, progression

MAGIC = b"EHPAGE03"
PAGE_BYTES = 4096
GROUPS = 8
PHASES: tuple[Phase, ...] = tuple(Phase)

_MARK = struct.Struct("<QqQqqBQQB")  # seq, steps, step_at, position, microbatch, phase, phase_at, bound_hint_ms, saves
_BEAT = struct.Struct("<QqQqQQbQBB")  # seq, pid, beat_at, activity, activity_at, frontier_at, warmable, modules, script, groups
_GROUP = struct.Struct("<24sqq24sIII")  # name, enqueued, completed, operation; ranks: first, stride, how many
_ORDER = struct.Struct("<QQQQBI")  # seq, beat_at, deadline, generation, hold, wish
_CHECK = struct.Struct("<I")

_BEAT_BYTES = _BEAT.size + GROUPS * _GROUP.size
_ROOM: Mapping[str, tuple[int, int]] = MappingProxyType({"mark": (64, 128), "beat": (512, 1024), "order": (3072, 128)})
"""Offset of the first slot, and bytes a slot, by section."""
_BODY: Mapping[str, int] = MappingProxyType({"mark": _MARK.size, "beat": _BEAT_BYTES, "order": _ORDER.size})


@dataclass(frozen=True)
class Mark:
    """Written by the script's own thread: completed steps (-1: none told), position in samples, phase; `saves`: it saves
    a checkpoint when the agent wishes one."""

    steps: int = -1
    step_at: int = 0
    position: int = 0
    microbatch: int = 0
    phase: Phase = Phase.BOOT
    phase_at: int = 0
    bound_hint_ms: int = 0
    saves: bool = False


@dataclass(frozen=True)
class Beat:
    """Written by the heartbeat thread.

    Attributes:
        warmable: 1 if a pre-imported process may take this script over, 0 if not, -1 unknown yet.
        modules: bit i set: the script has imported `preload.MODULES[i]`, and nothing that would forbid importing it earlier
            had happened before.
        running: the script runs (False: its last line has been executed; atexit handlers or other threads may still run).
        groups: newest collective of up to `GROUPS` process groups.  `ranks` is kept where it is an arithmetic progression.
    """

    pid: int = 0
    beat_at: int = 0
    activity: int = 0
    activity_at: int = 0
    frontier_at: int = 0
    warmable: int = -1
    modules: int = 0
    running: bool = False
    groups: tuple[GroupFrontier, ...] = ()


@dataclass(frozen=True)
class Order:
    """Written by the agent: its own heartbeat, when the worker must end if nothing more is heard, the generation (it
    grows when an in-place rollback hands a new one over), whether to hold before the next step, and the number of the newest
    wish for a checkpoint (0: none; all ranks answer the highest that any of them was told)."""

    beat_at: int = 0
    deadline: int = 0
    generation: int = 0
    hold: bool = False
    wish: int = 0


@dataclass(frozen=True)
class PageFacts:
    """One look at a page."""

    mark: Mark
    beat: Beat
    order: Order


def blank() -> bytes:
    """A page that nobody has written yet."""
    return MAGIC + bytes(PAGE_BYTES - len(MAGIC))


def place(section: str, seq: int) -> int:
    """Offset of the slot that write number `seq` goes to."""
    first, size = _ROOM[section]
    return first + (seq & 1) * size


def sealed(body: bytes) -> bytes:
    """A slot's bytes: checksum, then the body."""
    return _CHECK.pack(zlib.crc32(body)) + body


def pack_mark(
    seq: int, steps: int, step_at: int, position: int, microbatch: int, phase: int, phase_at: int, hint_ms: int, saves: bool = False
) -> bytes:
    """The hot path: plain numbers, no objects; `phase` is its place in `PHASES`."""
    body = _MARK.pack(seq, steps, step_at, position, microbatch, phase, phase_at, hint_ms, saves)
    return _CHECK.pack(zlib.crc32(body)) + body


def pack_beat(seq: int, b: Beat) -> bytes:
    head = _BEAT.pack(
        seq, b.pid, b.beat_at, b.activity, b.activity_at, b.frontier_at, b.warmable, b.modules, b.running, min(len(b.groups), GROUPS)
    )
    groups = (_GROUP.pack(_name(g.group), g.enqueued, g.completed, _name(g.op), *progression(g.ranks)) for g in b.groups[:GROUPS])
    return sealed((head + b"".join(groups)).ljust(_BEAT_BYTES, b"\0"))


def pack_order(seq: int, o: Order) -> bytes:
    return sealed(_ORDER.pack(seq, o.beat_at, o.deadline, o.generation, o.hold, o.wish))


def read(page: bytes) -> PageFacts:
    """Everything on a page; sections never written, or torn in both slots, are at their defaults.

    Raises:
        ValueError: it isn't a page of this layout.
    """
    if page[: len(MAGIC)] != MAGIC or len(page) < PAGE_BYTES:
        raise ValueError(f"expected a progress page of layout {MAGIC.decode()}, found {page[:8]!r}")
    return PageFacts(_read_mark(page), _read_beat(page), _read_order(page))


def torn(page: bytes) -> bool:
    """Is there a section that was written, but of which neither slot is whole in this copy?"""
    return any(_newest(page, section) is None and any(_slot(page, section, 1)) for section in _ROOM)


def last_written(page: bytes, section: str) -> int:
    """Sequence number of a section's newest record, 0 if there is none: where a writer goes on."""
    body = _newest(page, section)
    return int.from_bytes(body[:8], "little") if body is not None else 0


def _slot(page: bytes, section: str, seq: int) -> bytes:
    at = place(section, seq)
    return page[at : at + _CHECK.size + _BODY[section]]


def _newest(page: bytes, section: str) -> bytes | None:
    """The body of the newest whole slot of a section; each body begins with its sequence number, from 1."""
    found: list[bytes] = []
    for slot in (_slot(page, section, 0), _slot(page, section, 1)):
        body = slot[_CHECK.size :]
        if any(slot) and zlib.crc32(body) == _CHECK.unpack_from(slot)[0]:
            found.append(body)
    return max(found, key=lambda b: int.from_bytes(b[:8], "little"), default=None)


def _read_mark(page: bytes) -> Mark:
    body = _newest(page, "mark")
    if body is None:
        return Mark()
    _, steps, step_at, position, microbatch, phase, phase_at, hint, saves = _MARK.unpack(body)
    return Mark(steps, step_at, position, microbatch, PHASES[min(phase, len(PHASES) - 1)], phase_at, hint, bool(saves))


def _read_beat(page: bytes) -> Beat:
    body = _newest(page, "beat")
    if body is None:
        return Beat()
    _, pid, beat_at, activity, activity_at, frontier_at, warmable, modules, running, n = _BEAT.unpack_from(body)
    groups = tuple(_group(body, i) for i in range(min(n, GROUPS)))
    return Beat(pid, beat_at, activity, activity_at, frontier_at, warmable, modules, bool(running), groups)


def _group(body: bytes, i: int) -> GroupFrontier:
    name, enqueued, completed, op, first, stride, count = _GROUP.unpack_from(body, _BEAT.size + i * _GROUP.size)
    return GroupFrontier(_text(name), enqueued, completed, _text(op), tuple(first + n * stride for n in range(count)))


def _read_order(page: bytes) -> Order:
    body = _newest(page, "order")
    if body is None:
        return Order()
    _, beat_at, deadline, generation, hold, wish = _ORDER.unpack(body)
    return Order(beat_at, deadline, generation, bool(hold), wish)


def _name(text: str) -> bytes:
    return text.encode("ascii", "replace")[:24]


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", "replace")
