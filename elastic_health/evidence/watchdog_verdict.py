"""What a watchdog log proves, and what it doesn't: events to findings, origins apart from reporters.

Law: the rank that prints a timeout is a reporter, and so is the rank that a dump signal came from.  A rank is named only by
torch's desync report, by its own device error, or by being the only silent ones among many reporters.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastic_health.evidence.watchdog_log import LogEvent, WatchdogEvent
from elastic_health.findings import Finding, FindingKind
from elastic_health.verdicts import Cause

SHORTEST_SANE_MS = 1000
TIMEOUT_EVENTS = (LogEvent.TIMEOUT, LogEvent.DETECTED, LogEvent.DUMP_SIGNAL, LogEvent.DUMP_OBSERVED)


def judge_log(events: Iterable[WatchdogEvent]) -> tuple[Finding, ...]:
    """Findings, the likeliest first cause first; empty when the log holds no failure."""
    events = tuple(events)
    device = _device(events)
    if device:
        return (device, *_timeouts(events))
    found = (*_timeouts(events), *_network(events))
    return found or _stuck(events)


def _of(events: tuple[WatchdogEvent, ...], *kinds: LogEvent) -> tuple[WatchdogEvent, ...]:
    return tuple(event for event in events if event.kind in kinds)


def _ranks(events: Iterable[WatchdogEvent]) -> tuple[int, ...]:
    return tuple(sorted({event.rank for event in events if event.rank >= 0}))


def _device(events: tuple[WatchdogEvent, ...]) -> Finding | None:
    """The earliest asynchronous device error; later ones are kept as evidence."""
    errors = _of(events, LogEvent.DEVICE_ERROR)
    if not errors:
        return None
    first = errors[0]
    ranks = (first.rank,) if first.rank >= 0 else ()
    evidence = {"detail": first.detail, "later": list(_ranks(errors[1:]))}
    return Finding(
        FindingKind.DEVICE_ERROR,
        f"device error: {first.detail}",
        ranks,
        evidence=evidence,
        cause=Cause.WORKER_EXIT,
        signature=f"device_error:{first.detail.lower()}",
    )


def _timeouts(events: tuple[WatchdogEvent, ...]) -> tuple[Finding, ...]:
    about = _of(events, *TIMEOUT_EVENTS)
    if not about:
        return ()
    timeouts = _of(events, LogEvent.TIMEOUT)
    tight = next((e for e in timeouts if 0 <= e.timeout_ms < SHORTEST_SANE_MS), None)
    if tight:
        return (_misconfigured(tight),)
    first = next((e for e in timeouts if e.seq >= 0), about[0])
    suspects, how = _suspects(events)
    saving = _saving_before(events)
    op = next((e.op for e in timeouts if e.op), "")
    evidence: dict[str, object] = {
        "reporters": list(_ranks(about)),
        "seq": first.seq,
        "op": op,
        "group": first.group,
        "timeout_ms": first.timeout_ms,
        "first_reporter": next((e.origin for e in about if e.origin >= 0), -1),
        "saving": saving,
        "named_by": how,
        "dump_unfinished": list(_ranks(_of(events, LogEvent.DUMP_UNFINISHED))),
        "entered_beyond": max((e.enqueued - e.completed for e in about if e.enqueued >= 0 and e.completed >= 0), default=-1),
    }
    words = f"collective timeout ({op or 'unknown operation'}, operation {first.seq})"
    words += ", a checkpoint was being saved: likely a slow save, no one is blamed" if saving else ""
    named = () if saving else suspects
    return (
        Finding(
            FindingKind.WATCHDOG_TIMEOUT,
            words,
            named,
            evidence=evidence,
            cause=Cause.WATCHDOG_TIMEOUT,
            signature=f"watchdog_timeout:{op}{':saving' if saving else ''}",
        ),
    )


def _misconfigured(event: WatchdogEvent) -> Finding:
    return Finding(
        FindingKind.MISCONFIGURED,
        f"the collective timeout is {event.timeout_ms} ms: a setting, not a fault",
        measured=float(event.timeout_ms),
        required=float(SHORTEST_SANE_MS),
        unit="ms",
        evidence={"reporters": [event.rank], "op": event.op},
        cause=Cause.WATCHDOG_TIMEOUT,
        signature="misconfigured:collective_timeout",
    )


def _suspects(events: tuple[WatchdogEvent, ...]) -> tuple[tuple[int, ...], str]:
    """Ranks that something names, and what does."""
    lagging = _of(events, LogEvent.LAGGING)
    if lagging:
        return tuple(sorted({rank for event in lagging for rank in event.suspects})), "desync report"
    reporters = set(_ranks(_of(events, *TIMEOUT_EVENTS)))
    silent = tuple(rank for rank in range(max(reporters, default=-1) + 1) if rank not in reporters)
    # A few silent ones among many reporters did not enter; many silent ones are just not in this file.
    if silent and len(silent) * 2 <= len(reporters):
        return silent, "silence"
    return (), ""


def _saving_before(events: tuple[WatchdogEvent, ...]) -> str:
    """The last word about saving, if it came before the first timeout."""
    words = ""
    for event in events:
        if event.kind is LogEvent.SAVING:
            words = event.detail
        elif event.kind is LogEvent.TIMEOUT:
            return words
    return ""


def _network(events: tuple[WatchdogEvent, ...]) -> tuple[Finding, ...]:
    about = _of(events, LogEvent.NETWORK_ERROR, LogEvent.PEER_CLOSED, LogEvent.BARRIER)
    if not about:
        return ()
    first = about[0]
    peers = list(dict.fromkeys(e.peer for e in about if e.peer))
    suspects = sorted({rank for e in about for rank in e.suspects})
    kind = FindingKind.NETWORK_ERROR if first.kind is LogEvent.NETWORK_ERROR else FindingKind.PEER_CONSEQUENCE
    words = "a peer went away first; whoever reports it is a victim"
    if kind is FindingKind.NETWORK_ERROR:
        words = f"network error: {first.detail}"
    return (
        Finding(
            kind,
            words,
            nodes=_peer_node(first),
            evidence={"peers": peers, "suspects": suspects, "reporters": list(_ranks(about)), "detail": first.detail},
            cause=Cause.WORKER_EXIT,
            signature=f"{kind.value}:{first.detail or 'connection closed'}",
            secondary=True,
        ),
    )


def _peer_node(event: WatchdogEvent) -> tuple[str, ...]:
    """NCCL prints a lost peer as `host<port>`: that host failed before the reporter did.  An address alone is no node's name."""
    host, bracket, _ = event.peer.partition("<")
    is_name = bool(bracket) and not host.replace(".", "").isdigit() and ":" not in host
    return (host,) if is_name and event.kind is LogEvent.PEER_CLOSED else ()


def _stuck(events: tuple[WatchdogEvent, ...]) -> tuple[Finding, ...]:
    """Only the watchdog's own monitor fired: typically a hang while groups are destroyed, after training had ended."""
    stuck = _of(events, LogEvent.WATCHDOG_STUCK)
    if not stuck:
        return ()
    return (
        Finding(
            FindingKind.TEARDOWN_HANG,
            "the watchdog itself hung, no operation timed out: likely in teardown; the result may be complete",
            evidence={"reporters": list(_ranks(stuck))},
            cause=Cause.WATCHDOG_TIMEOUT,
            signature="teardown_hang",
        ),
    )
