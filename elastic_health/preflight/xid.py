"""What the kernel log says of the GPUs of a node.

Laws:
 - an Xid that asks for a reset, a reboot or support fails the node; a program's own fault does not;
 - a burst is one finding; a fault and its consequences on one GPU are named together;
 - a log that nobody could read, or a text that is no kernel log, is `not_measured`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.kernel_time import Clocks
from elastic_health.preflight.results import CheckResult, Outcome, not_measured, outcome_of
from elastic_health.preflight.xid_catalog import ADVICE, ADVICE_OF, LEVELS, NVLINK5, Action, Entry, entry_of
from elastic_health.preflight.xid_events import EventKind, XidEvent, last_boot, looks_like_kernel_log, parse_xid

__all__ = ["CHECK", "XidEvent", "action_of", "analyze_xid", "judge_xid", "parse_xid"]

CHECK = "xid"
BURST_S = 300.0
"""Faults of a program on one GPU that follow each other within this time are one fault."""
MANY_FAULTS = 3
MOST_NAMED = 8
_HARMLESS_LINK_BITS = 1 << 0 | 1 << 23 | 1 << 30
"""Of Xid 74's first register: may be ignored (NVIDIA's workflow for NVLink errors)."""
_ORDER = tuple(Action)


def analyze_xid(
    text: str, *, readable: bool = False, since: float | None = None, this_boot: bool = False, clocks: Clocks = Clocks()
) -> CheckResult:
    """The verdict on a stored kernel log.

    Args:
        readable: the caller has read the kernel's own ring, so that an empty text means that nothing is wrong.
        since: see `judge_xid`.
        this_boot: leave out what stands before the newest start of a kernel (a syslog file holds several).
    """
    events = parse_xid(last_boot(text) if this_boot else text, clocks)
    return judge_xid(events, readable=readable or looks_like_kernel_log(text), since=since)


def judge_xid(events: Sequence[XidEvent], *, readable: bool = False, since: float | None = None, check: str = CHECK) -> CheckResult:
    """One result for the check.

    Args:
        readable: whether the log could be read; without events the answer hangs on it.
        since: seconds since the epoch; events that are known to be older are left out, those of unknown time are not.
    """
    kept = [event for event in events if since is None or event.epoch is None or event.epoch >= since]
    details = _details(kept, len(events) - len(kept))
    if not events and not readable:
        return not_measured(
            check,
            "no kernel log: nothing that the kernel prints was found",
            advice="read it as root: dmesg, or journalctl -k -b",
            details=details,
        )
    found = sorted(_findings(kept), key=lambda f: (-_weight(f), f.at))
    outcome = outcome_of(found, measured=True)
    return CheckResult(check, outcome, tuple(found), _summary(found, outcome, len(events) - len(kept)), details=details)


def action_of(event: XidEvent) -> Action:
    """What one event asks for, from the catalogue and from what its own line says."""
    if event.kind is EventKind.SWITCH:
        return Action.RESET_GPU if event.severity == "fatal" else Action.WATCH
    if event.kind is EventKind.INIT_FAILED:
        return Action.REBOOT
    if event.xid is None:
        return Action.WATCH
    if event.xid == 154:
        return _recovery(event.action)
    if event.xid in NVLINK5:
        return Action.RESET_GPU if event.severity == "fatal" else Action.WATCH
    if event.xid == 74 and event.registers and not event.registers[0] & ~_HARMLESS_LINK_BITS and not any(event.registers[1:]):
        return Action.NOTE
    return entry_of(event.xid).action


def _recovery(action: str) -> Action:
    said = action.lower()
    if said == "none":
        return Action.NOTE
    if "reboot" in said:
        return Action.REBOOT
    return Action.RESET_GPU if "reset" in said or "flr" in said else Action.WATCH


def _findings(events: Sequence[XidEvent]) -> Iterator[Finding]:
    by_gpu: dict[tuple[str, str], list[XidEvent]] = {}
    for event in events:
        by_gpu.setdefault((event.host, event.pci), []).append(event)
    gone = (EventKind.LOST, EventKind.INIT_FAILED)
    named_lost = {e.host for e in events if e.pci and (e.kind in gone or (e.kind is EventKind.XID and e.xid == 79))}
    for (host, gpu), of_gpu in by_gpu.items():
        if not gpu and host in named_lost:  # "probe failed for 1 device": the lines before it name the device
            of_gpu = [event for event in of_gpu if event.kind not in gone]
        yield from _of_gpu(gpu, of_gpu)


def _of_gpu(gpu: str, events: Sequence[XidEvent]) -> Iterator[Finding]:
    faults: list[XidEvent] = []
    cleanups: list[XidEvent] = []
    recoveries: list[XidEvent] = []
    groups: dict[tuple[EventKind, int | None, Action], list[XidEvent]] = {}
    lost = any(e.xid == 79 and e.kind is not EventKind.SWITCH for e in events)
    for event in events:
        action, kind = action_of(event), event.kind
        if kind is EventKind.INIT_FAILED and lost:  # a consequence
            continue
        if kind is EventKind.XID and event.xid in (45, 154):
            (cleanups if event.xid == 45 else recoveries).append(event)
        elif kind is EventKind.XID and action is Action.APPLICATION:
            faults.append(event)
        else:
            groups.setdefault((EventKind.XID if kind is EventKind.LOST else kind, event.xid, action), []).append(event)
    if faults:
        yield _application(gpu, faults, len(cleanups))
    elif cleanups:
        yield _cleanup(gpu, cleanups, alone=not groups)
    before = [xid for event in faults[:1] if (xid := event.xid) is not None]
    for (kind, xid, action), same in groups.items():
        yield _finding(gpu, kind, xid, action, same, before[-MOST_NAMED:])
        if xid is not None and xid not in before[-MOST_NAMED:]:
            before.append(xid)
    if recoveries:
        yield _asked(gpu, recoveries)


def _application(gpu: str, faults: Sequence[XidEvent], cleanups: int) -> Finding:
    """One finding for all faults of programs on this GPU: 13, 31, 43 … and the clean-up after them."""
    bursts = _bursts(faults)
    counts = Counter(event.xid for event in faults)
    named = ", ".join(f"Xid {xid}" + (f" ×{n}" if n > 1 else "") for xid, n in sorted(counts.items(), key=lambda item: item[0] or 0))
    first = min(faults, key=lambda e: (e.xid == 43, e.line))
    reason = f"{_place(gpu)}: fault of a program ({named}): {entry_of(first.xid or 0).meaning}"
    advice = ADVICE[Action.APPLICATION]
    if bursts >= MANY_FAULTS:
        advice = f"{bursts} separate faults on this GPU: run dcgmi diag -r 3 to tell a bad GPU from a bad program"
    evidence = {**_evidence(faults), "xids": {str(x): n for x, n in counts.items()}, "faults": bursts, "cleanups": cleanups}
    return _made(FindingKind.APPLICATION_ERROR, reason, gpu, Action.APPLICATION, faults, evidence, advice)


def _cleanup(gpu: str, events: Sequence[XidEvent], *, alone: bool) -> Finding:
    reason = f"{_place(gpu)}: Xid 45: {entry_of(45).meaning}" + ("; no other Xid explains it" if alone else "; follow the other Xid")
    action = Action.WATCH if alone else Action.NOTE
    return _made(FindingKind.NOTE, reason, gpu, action, events, _evidence(events), ADVICE[action])


def _finding(gpu: str, kind: EventKind, xid: int | None, action: Action, same: Sequence[XidEvent], before: Sequence[int]) -> Finding:
    evidence = _evidence(same)
    if before:
        evidence["beside_xids"] = list(before)
    times = f" ×{len(same)}" if len(same) > 1 else ""
    if kind is EventKind.CUT:
        reason = f"{_place(gpu)}: a message of the driver is cut off: {same[0].raw[-120:]}"
        return _made(FindingKind.NOT_MEASURED, reason, gpu, action, same, evidence, "read the whole kernel log")
    if kind is EventKind.INIT_FAILED:
        reason = f"{_place(gpu)}: the driver could not initialise the GPU{times}: {same[0].detail[-120:]}"
        return _made(FindingKind.DEVICE_ERROR, reason, gpu, action, same, evidence, ADVICE[action])
    if kind is EventKind.SWITCH:
        reason = f"NVSwitch {gpu}: SXid {xid}{times}, {same[0].severity or 'severity not told'}: {same[0].detail[:120]}"
        advice = "reset all GPUs of the node together, or reboot" if action is Action.RESET_GPU else ADVICE[action]
        return _made(FindingKind.LINK_ERROR, reason, gpu, action, same, evidence, advice)
    entry = entry_of(xid or 0)
    reason = f"{_place(gpu)}: Xid {xid}{times}{_grade(same[0])}: {entry.meaning}"
    if entry.link:
        evidence.update(_link_evidence(same))
    advice = ADVICE_OF.get(xid or 0, ADVICE[action])
    return _made(_kind_of(entry, action), reason, gpu, action, same, evidence, advice)


def _kind_of(entry: Entry, action: Action) -> FindingKind:
    if action is Action.NOTE or not entry.used:
        return FindingKind.NOTE
    return FindingKind.LINK_ERROR if entry.link else FindingKind.DEVICE_ERROR


def _asked(gpu: str, recoveries: Sequence[XidEvent]) -> Finding:
    """Xid 154: the newest word counts; what it asked for before is history."""
    last = recoveries[-1]
    action = action_of(last)
    said = last.action or "words that are cut off"
    reason = (
        f"{_place(gpu)}: the driver asks for: {said}"
        if action is not Action.NOTE
        else f"{_place(gpu)}: the driver asks for nothing any more"
    )
    advice = f"do what the driver asks for: {said}" if last.action and action is not Action.NOTE else ADVICE[action]
    evidence = {**_evidence(recoveries), "actions": [e.action for e in recoveries[-MOST_NAMED:]]}
    kind = FindingKind.NOTE if action is Action.NOTE else FindingKind.DEVICE_ERROR
    return _made(kind, reason, gpu, action, recoveries, evidence, advice)


def _made(
    kind: FindingKind, reason: str, gpu: str, action: Action, events: Sequence[XidEvent], evidence: dict[str, object], advice: str
) -> Finding:
    level = Level.WARN if kind is FindingKind.NOT_MEASURED else LEVELS[action]
    at = min((e.epoch for e in events if e.epoch is not None), default=0.0)
    evidence = {**evidence, "action": action.value}
    nodes = (events[0].host,) if events[0].host else ()
    return Finding(kind, reason, nodes=nodes, gpus=(gpu,) if gpu else (), at=at, evidence=evidence, level=level, advice=advice)


def _evidence(events: Sequence[XidEvent]) -> dict[str, object]:
    first, last = events[0], events[-1]
    told: dict[str, object] = {
        "xid": first.xid,
        "count": len(events),
        "first": first.time,
        "last": last.time,
        "line": first.line,
        "raw": first.raw[:300],
        "processes": sorted({e.process or str(e.pid) for e in events if e.process or e.pid is not None})[:MOST_NAMED],
    }
    told.update({name: value for name, value in (("uuid", first.uuid), ("instance", first.instance)) if value})
    return told


def _link_evidence(events: Sequence[XidEvent]) -> dict[str, object]:
    return {
        "links": sorted({e.link for e in events if e.link is not None}),
        "units": sorted({e.unit for e in events if e.unit}),
        "subcodes": sorted({e.subcode for e in events if e.subcode is not None}),
    }


def _bursts(events: Iterable[XidEvent]) -> int:
    """How many faults these are: those within `BURST_S` of the one before are one; without times all are one."""
    times = sorted(at for e in events if (at := e.epoch if e.epoch is not None else e.uptime_s) is not None)
    return 1 + sum(1 for a, b in pairwise(times) if b - a > BURST_S)


def _grade(event: XidEvent) -> str:
    return f" ({event.severity})" if event.severity else " (severity not told)" if event.xid in NVLINK5 else ""


def _place(gpu: str) -> str:
    return f"GPU {gpu}" if gpu else "a GPU that is not named"


def _weight(finding: Finding) -> int:
    return (Level.NOTE, Level.WARN, Level.FAIL).index(finding.level)


def _summary(found: Sequence[Finding], outcome: Outcome, older: int) -> str:
    left = f" ({older} older ones left out)" if older else ""
    if not found:
        return f"no Xid and no lost GPU in the kernel log{left}"
    more = f"; {len(found) - 1} more findings" if len(found) > 1 else ""
    return f"{found[0].reason}{more}{left}"


def _details(events: Sequence[XidEvent], older: int) -> dict[str, object]:
    by_xid = Counter(e.xid for e in events if e.xid is not None and e.kind is not EventKind.SWITCH)
    return {
        "events": len(events),
        "xids": {str(xid): n for xid, n in sorted(by_xid.items())},
        "gpus": sorted({e.pci for e in events if e.pci}),
        "older": older,
        "worst_action": max((action_of(e) for e in events), key=_ORDER.index, default=Action.NOTE).value,
    }
