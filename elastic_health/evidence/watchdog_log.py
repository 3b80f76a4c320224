"""Lines that torch's collective watchdogs, NCCL and gloo leave in a worker's output, as typed events.

Law: `parse` is total: any text, cut anywhere, in any case and behind any launcher's prefix, gives events and never raises; a
field whose end was cut off is left out rather than guessed.  Forms of torch 1.12 to 2.13 are known; they were taken from
public reports.  An event says who *reports*; who is at fault is judged elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

MAX_TEXT = 1 << 20
MAX_LINE = 1 << 14
MAX_EVENTS = 4096


class LogEvent(Enum):
    """What a line says."""

    TIMEOUT = "timeout"  # a rank's watchdog: this operation ran for too long
    DETECTED = "detected"  # the same, with the group's newest enqueued and completed operation
    WATCHDOG_ENDED = "watchdog_ended"  # the watchdog thread ended with an exception
    WATCHDOG_STUCK = "watchdog_stuck"  # the watchdog's own heartbeat monitor fired
    GOING_DOWN = "going_down"
    DUMP_SIGNAL = "dump_signal"  # `origin`: the first reporter, -1 for this rank itself
    DUMP_OBSERVED = "dump_observed"
    DUMP_UNFINISHED = "dump_unfinished"
    LAGGING = "lagging"  # torch's own desync report names `suspects`
    DEVICE_ERROR = "device_error"
    NETWORK_ERROR = "network_error"
    PEER_CLOSED = "peer_closed"
    BARRIER = "barrier"  # a monitored barrier waited for `suspects`
    SAVING = "saving"


@dataclass(frozen=True)
class WatchdogEvent:
    """One event; -1 or "" where the line doesn't say.

    Attributes:
        rank: the rank that reports.
        group: process group as printed (id, or guid).
        seq, op, timeout_ms, ran_ms: the operation.
        enqueued, completed: newest operations of the group.
        stamp: (month, day, second of the day) by the line's own clock, None without one.
        line: counted from 0.
    """

    kind: LogEvent
    line: int
    rank: int = -1
    group: str = ""
    seq: int = -1
    op: str = ""
    timeout_ms: int = -1
    ran_ms: int = -1
    enqueued: int = -1
    completed: int = -1
    origin: int = -1
    suspects: tuple[int, ...] = ()
    peer: str = ""
    detail: str = ""
    stamp: tuple[int, int, float] | None = None


_I = re.IGNORECASE
_GLOG = re.compile(r"\[[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)", _I)
_ISO = re.compile(r"\b\d{4}-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d(?:[.,]\d{1,9})?)")
_RANK_PREFIX = re.compile(r"\[rank ?(\d{1,7})\]:", _I)
_MPI_PREFIX = re.compile(r"\[\d{1,4},(\d{1,7})\]<std(?:err|out)>", _I)
_PG = re.compile(r"\[PG (?:ID )?(\d{1,9})(?: PG GUID ?([^\s()\]]{0,64}))?[^\]]{0,120}?Rank (\d{1,7})\]", _I)
_RANK = re.compile(r"\[Rank (\d{1,7})\]", _I)
_SEQ = re.compile(r"SeqNum ?= ?(\d{1,18})[,)]", _I)
_OP = re.compile(r"OpType ?= ?(\w{1,40})[,)]", _I)
_LIMIT = re.compile(r"Timeout\(ms\) ?= ?(\d{1,15})\)", _I)
_RAN = re.compile(r"ran for (\d{1,15}) milliseconds", _I)
_ENQUEUED = re.compile(r"last enqueued NCCL work: (-?\d{1,18})[,.]", _I)
_COMPLETED = re.compile(r"last completed NCCL work: (-?\d{1,18})\.", _I)
_AT_WORK = re.compile(r"at work: (\d{1,18})[,.]", _I)
_DUMP_FROM = re.compile(r"timeout from {1,4}rank (\d{1,7})\b", _I)
_CUDA = re.compile(r"CUDA error: ([^\r\n]{1,120})", _I)
_HOST = r"(\[[0-9a-f.:%\w]{1,80}\](?::\d{1,5})?|[\w.:-]{1,120}(?:<\d{1,5}>)?)"
_CLOSED = re.compile(r"Connection closed by (?:remote )?peer,? {0,2}" + _HOST + "?", _I)
_RESET = re.compile(r"(?:Read|Write|Send|Recv) error {0,2}" + _HOST + r"?[:\s]{0,3}Connection reset by peer", _I)
_IB = re.compile(r"NET/IB ?: ?Got completion from peer " + _HOST + r" with (?:error|status=) ?(\d{1,4})", _I)
_LAGGING = re.compile(r"\[(\d{1,7})\] finished collective #(\d{1,18}), but didn't join", _I)
_BARRIER = re.compile(r"monitoredBarrier, but received errors while waiting for send/recv from rank (\d{1,7})", _I)
_BARRIER_MISSING = re.compile(r"Rank (?:0|zero)[^\r\n]{0,120}?rank[s]? ([\d, ]{1,200}) failed to pass monitoredBarrier", _I)
_SAVING = re.compile(r"\b(?:saving|writing|dumping)\b[^\r\n]{0,60}\b(?:checkpoint|model|ckpt|state_dict)", _I)
_REMOTE = re.compile(r"ncclRemoteError|remote process exited or there was a network error", _I)
_NO_ERROR_CONNECT = re.compile(r"Gloo connectFullMesh failed with", _I)
_PLAIN: tuple[tuple[LogEvent, re.Pattern[str]], ...] = (
    (LogEvent.WATCHDOG_STUCK, re.compile(r"watchdog got stuck for (\d{1,9}) seconds|due to ProcessGroupNCCL watchdog hang", _I)),
    (LogEvent.WATCHDOG_ENDED, re.compile(r"(?:Process group|NCCL) watchdog thread terminated with exception", _I)),
    (LogEvent.GOING_DOWN, re.compile(r"we are taking the entire process down", _I)),
    (LogEvent.DUMP_OBSERVED, re.compile(r"Observed flight recorder dump signal from another rank", _I)),
    (LogEvent.DUMP_UNFINISHED, re.compile(r"timed out after waiting for \d{1,12}ms flight recorder dumps", _I)),
)
_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout", _I)
_DETECTED = re.compile(r"Exception \(either an error or timeout\) detected by watchdog", _I)
_DUMP_SIGNAL = re.compile(r"Received a dump signal due to a collective timeout", _I)


def parse(text: str) -> tuple[WatchdogEvent, ...]:
    """Events in order of their own timestamps, where they have them, else of their lines; the newest 1 MiB is read.

    The same timeout is often printed twice (again inside `what():`); it is one event.
    """
    found: list[WatchdogEvent] = []
    seen: set[tuple[object, ...]] = set()
    for number, line in enumerate(text[-MAX_TEXT:].splitlines()):
        for event in _events(line[:MAX_LINE], number):
            key = (event.kind, event.rank, event.seq, event.suspects, event.peer, event.detail)
            if key not in seen:
                seen.add(key)
                found.append(event)
        if len(found) >= MAX_EVENTS:
            break
    return _in_order(found)


def _in_order(events: list[WatchdogEvent]) -> tuple[WatchdogEvent, ...]:
    """An event without a clock keeps its place behind the line before it.  December before January, when both occur."""
    months = {e.stamp[0] for e in events if e.stamp}
    wraps = 12 in months and 1 in months
    keys, last = [], (0, 0, 0.0)
    for event in events:
        if event.stamp:
            month, day, second = event.stamp
            last = (month + 12 if wraps and month < 7 else month, day, second)
        keys.append(last)
    return tuple(event for _, _, event in sorted(zip(keys, range(len(events)), events, strict=True), key=lambda row: row[:2]))


def _events(line: str, number: int) -> Iterator[WatchdogEvent]:
    rank, group = _reporter(line)
    common = {"line": number, "rank": rank, "group": group, "stamp": _stamp(line)}
    yield from (WatchdogEvent(kind, **common) for kind, pattern in _PLAIN if pattern.search(line))  # type: ignore[arg-type]
    if match := _TIMEOUT.search(line):
        yield _timeout(line[match.end() :], WatchdogEvent(LogEvent.TIMEOUT, **common))  # type: ignore[arg-type]
    if match := _DETECTED.search(line):
        yield _work(line[match.end() :], WatchdogEvent(LogEvent.DETECTED, **common))  # type: ignore[arg-type]
    if match := _DUMP_SIGNAL.search(line):
        event = _work(line[match.end() :], WatchdogEvent(LogEvent.DUMP_SIGNAL, **common))  # type: ignore[arg-type]
        yield _with(event, origin=_int(_DUMP_FROM, line))
    for kind, fields in _named(line):
        yield _with(WatchdogEvent(kind, **common), **fields)  # type: ignore[arg-type]


def _named(line: str) -> Iterator[tuple[LogEvent, dict[str, object]]]:
    """Lines that name somebody or something else than the reporter."""
    if match := _CUDA.search(line):
        yield LogEvent.DEVICE_ERROR, {"detail": match[1].strip()}
    for match in _IB.finditer(line):
        yield LogEvent.NETWORK_ERROR, {"peer": match[1], "detail": f"IB completion error {match[2]}"}
    for pattern in (_CLOSED, _RESET):
        for match in pattern.finditer(line):
            yield LogEvent.PEER_CLOSED, {"peer": match[1] or ""}
    if _REMOTE.search(line) and not _IB.search(line):
        yield LogEvent.PEER_CLOSED, {"detail": "remote error"}
    if _NO_ERROR_CONNECT.search(line):
        yield LogEvent.PEER_CLOSED, {"detail": "mesh not connected"}
    for match in _LAGGING.finditer(line):
        yield LogEvent.LAGGING, {"suspects": (int(match[1]),), "completed": int(match[2])}
    for match in _BARRIER.finditer(line):
        yield LogEvent.BARRIER, {"suspects": (int(match[1]),)}
    for match in _BARRIER_MISSING.finditer(line):
        yield LogEvent.BARRIER, {"suspects": tuple(int(n) for n in re.findall(r"\d{1,7}", match[1]))}
    if match := _SAVING.search(line):
        yield LogEvent.SAVING, {"detail": match[0][:120]}


def _with(event: WatchdogEvent, **fields: object) -> WatchdogEvent:
    return WatchdogEvent(**{**event.__dict__, **fields})


def _timeout(rest: str, event: WatchdogEvent) -> WatchdogEvent:
    op = _OP.search(rest)
    return _with(
        event, seq=_int(_SEQ, rest), op=op[1].upper() if op else "", timeout_ms=_int(_LIMIT, rest), ran_ms=_int(_RAN, rest)
    )


def _work(rest: str, event: WatchdogEvent) -> WatchdogEvent:
    return _with(event, seq=_int(_AT_WORK, rest), enqueued=_int(_ENQUEUED, rest), completed=_int(_COMPLETED, rest))


def _int(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else -1


def _reporter(line: str) -> tuple[int, str]:
    """The rank that speaks, and its group: from torch's own brackets, else from the launcher's prefix."""
    if match := _PG.search(line):
        return int(match[3]), match[2] or match[1]
    for pattern in (_RANK, _RANK_PREFIX, _MPI_PREFIX):
        if match := pattern.search(line):
            return int(match[1]), ""
    return -1, ""


def _stamp(line: str) -> tuple[int, int, float] | None:
    match = _GLOG.search(line) or _ISO.search(line)
    if not match:
        return None
    month, day, hour, minute = (int(match[n]) for n in range(1, 5))
    return month, day, hour * 3600 + minute * 60 + float(match[5].replace(",", "."))
