"""What the canary's process prints, read back: whole lines only, whatever became of the process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elastic_health.codec import build
from elastic_health.errors import BadValue
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.canary import CHECK, CPU, Vote, is_digest, judge_local, merged, steady
from elastic_health.preflight.fingerprint import Fingerprint
from elastic_health.preflight.results import CheckResult, Outcome, not_measured

SEED = 20240607
REPEATS = 3
CPU_SIZE = 256
CPU_DTYPES = ("float32", "bfloat16", "float16")
CUDA_SIZE = 4096
CUDA_DTYPES = ("float32", "tf32", "bfloat16", "float16")


@dataclass(frozen=True)
class Unit:
    """One device and dtype.  `error`: the first line of what went wrong on it."""

    device: str
    fingerprint: Fingerprint
    digests: tuple[str, ...]
    repeats: int
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Report:
    """`complete`: the process came to its end, having looked at `devices` devices.  `open`: the device that it was at
    when it printed its last line, "" for none."""

    units: tuple[Unit, ...]
    complete: bool
    devices: int = 0
    unread: tuple[str, ...] = field(default=())
    open: str = ""


def read_report(text: str) -> Report:
    """The lines that are ours.  A broken one is kept in `unread`, shortened; other programs' chatter is passed over."""
    units, unread, complete, devices, at = list[Unit](), list[str](), False, 0, ""
    for line in text.splitlines():
        if not line.lstrip().startswith("{"):
            continue
        try:
            body = json.loads(line)
            if isinstance(body, dict) and body.get("done") is True:
                count = body.get("devices")
                complete, devices = True, count if isinstance(count, int) else 0
                continue
            if isinstance(body, dict) and isinstance(body.get("begin"), str):
                at = body["begin"][:200]
                continue
            units.append(_unit(body))
        except (ValueError, RecursionError, BadValue) as e:
            unread.append(str(e)[:200])
    return Report(tuple(units), complete, devices, tuple(unread[:8]), "" if complete else at)


def _unit(body: object) -> Unit:
    unit = build(Unit, body, "a line of the canary")
    wrong = [d for d in unit.digests if not is_digest(d)]
    if wrong:
        raise BadValue("64 hexadecimal digits", f"a line of the canary: digest {wrong[0][:80]!r}", "run the canary by hand and look at it")
    return unit


def by_fingerprint(units: Iterable[Unit]) -> Mapping[Fingerprint, tuple[Unit, ...]]:
    """Comparable ones together."""
    found: dict[Fingerprint, list[Unit]] = {}
    for unit in units:
        found.setdefault(unit.fingerprint, []).append(unit)
    return {key: tuple(members) for key, members in found.items()}


def own_votes(units: Iterable[Unit], node: str, at: str) -> tuple[Vote, ...]:
    """The votes that this node has for one fingerprint: of devices without an error that agreed with themselves."""
    fine = [u for u in units if not u.error]
    agreed = steady({u.device: u.digests for u in fine}, max((u.repeats for u in fine), default=1))
    return tuple(Vote(node, device, digest, at) for device, digest in sorted(agreed.items()))


def judge_report(report: Report, node: str) -> CheckResult:
    """What the node's own measurements say, before any other node is asked."""
    results = [_group(units, node) for units in by_fingerprint(report.units).values()]
    if report.unread:
        results.append(not_measured(CHECK, f"the canary printed what can't be read: {report.unread[0]}"))
    seen = len({u.device for u in report.units})
    if not report.complete:
        results.append(_cut(report.open, node))
    elif not seen:
        results.append(not_measured(CHECK, "the canary found no device"))
    elif seen < report.devices:
        results.append(not_measured(CHECK, f"{seen} of {report.devices} devices gave an answer"))
    return merged(results)


def _cut(at: str, node: str) -> CheckResult:
    """Crashed, or ended at its time limit; the device that it was at is named, though it need not be the cause."""
    reason = "the canary's process ended before it was done" + (f", while {at} was measured" if at else "")
    advice = f"look at the kernel log for Xid lines of {at}" if at and at != CPU else ""
    gpus = (at,) if at and at != CPU else ()
    found = Finding(FindingKind.NOT_MEASURED, reason, nodes=(node,) if node else (), gpus=gpus, level=Level.WARN, advice=advice)
    return CheckResult(CHECK, Outcome.NOT_MEASURED, (found,), reason)


def _group(units: tuple[Unit, ...], node: str) -> CheckResult:
    failed = [_device_error(u, node) for u in units if u.error]
    errors = [CheckResult(CHECK, Outcome.FAIL, (f,), f.reason) for f in failed if f.level is Level.FAIL]
    errors += [CheckResult(CHECK, Outcome.NOT_MEASURED, (f,), f.reason) for f in failed if f.level is not Level.FAIL]
    measured = {u.device: u.digests for u in units if not u.error}
    repeats = max((u.repeats for u in units), default=1)
    local = [judge_local(measured, repeats, node=node)] if measured else []
    return merged([*local, *errors])


def _device_error(unit: Unit, node: str) -> Finding:
    """A GPU that can't multiply is broken; a processor that can't lacks support for the dtype; memory may be taken."""
    taken = "out of memory" in unit.error.lower()
    broken = unit.device != CPU and not taken
    reason = f"{unit.device}: a {unit.fingerprint.dtype} matmul of size {unit.fingerprint.size} failed: {unit.error}"
    return Finding(
        FindingKind.DEVICE_ERROR if broken else FindingKind.NOT_MEASURED,
        reason,
        nodes=(node,) if node else (),
        gpus=(unit.device,) if unit.device != CPU else (),
        level=Level.FAIL if broken else Level.WARN,
        advice="see who holds the memory of this device (nvidia-smi)" if taken else "look at the kernel log for Xid lines of this device",
    )
