"""Judges NVLinks by their states and error counters.

`dcgmi diag` does not look at them (NVIDIA/DCGM#198).  Counters run since the driver was loaded or they were reset: a reading
above its limit says that there were errors, not when.

Laws: a link that is down, or a counter above its limit, fails; what has no links, or was cut, is `not_measured`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.dcgm_runs import once
from elastic_health.preflight.nvlink_text import LinkFacts, Links, LinkState, read_links
from elastic_health.preflight.results import CheckResult, outcome_of

CHECK = "nvlink"


@dataclass(frozen=True)
class NvlinkLimits:
    """The highest reading that is still well.

    Attributes:
        counts: for counters of errors that reached a packet or the link.
        corrected: for counters of what was corrected or merely discarded; above it warns.
        bit_error_rate: effective, after correction; 1e-12 is the bound of DCGM_FR_NVLINK_EFFECTIVE_BER_THRESHOLD's kind.
        by_counter: own limits by name, e.g. {"replay": 100}; names as in `counter_name`.
    """

    counts: float = 0
    corrected: float = 0
    bit_error_rate: float = 1e-12
    by_counter: Mapping[str, float] = field(default_factory=dict)


# Names of what is counted without being an error.
_TRAFFIC = re.compile(r"(?:tx|rx)[_ ](?:packets|bytes|data)|fec_")
_CORRECTED = frozenset(
    ("symbol", "rx_symbol", "effective", "tx_discards", "rx_general", "link_recovery_successful_events", "total_link_recovery_events")
)
_RATES: Mapping[str, bool] = MappingProxyType({"effective_ber": True, "symbol_ber": False})
_ADVICE = "reset the counters (`nvidia-smi nvlink -re`), read them again under load; if they grow, reseat or replace the GPU or its board"
_AGAIN = "run the command again and keep all of its output"
_ADVICE_DOWN = "check Fabric Manager and its log, then reset the GPU or reboot; a link that stays down needs the hardware looked at"
_ADVICE_RATE = "read it again after a reset of the counters; a rate that stays high needs the link's hardware looked at"


def parse_nvlink(
    output: str, *, limits: NvlinkLimits = NvlinkLimits(), expected_gpus: int | None = None, expected_links: int | None = None
) -> CheckResult:
    """The verdict on what `dcgmi nvlink` or `nvidia-smi nvlink` printed.

    Args:
        output: of `-s`, `-e`, `-e -j`, or several of them one after the other.
        expected_gpus, expected_links: numbers of GPUs, and of links of each, where they are known; fewer fail.
    """
    links = read_links(output)
    found = [*_down(links), *_slow(links), *_counts(links, limits), *_missing(links, expected_gpus, expected_links)]
    told = any(f.state is not None or f.counters for f in links.facts.values())
    if not told:
        found.append(_not_measured(*_why_nothing(links, output)))
    elif links.torn:
        found.append(_not_measured(f"the output is not complete: {'; '.join(once(links.torn))}", _AGAIN))
    outcome = outcome_of(found, measured=told)
    return CheckResult(CHECK, outcome, tuple(found), _summary(links, found, told), details=_details(links))


def counter_name(name: str) -> str:
    """One name for a counter in all tools: `CRC Data Error`, `CRC Data Errors` -> `crc_data`."""
    plain = re.sub(r"[\W_]+", "_", name.strip().lower()).strip("_")
    plain = re.sub(r"_errors?(?=_\d|$)", "", plain).removeprefix("local_")
    return re.sub(r"^link_integrity$", "integrity", plain)


def _not_measured(reason: str, advice: str) -> Finding:
    return Finding(FindingKind.NOT_MEASURED, reason, level=Level.WARN, advice=advice, signature="nvlink:not_measured")


def _why_nothing(links: Links, output: str) -> tuple[str, str]:
    if links.errors:
        return f"the links could not be read: {links.errors[0][:300]}", "is the host engine running, and the driver loaded?"
    if links.torn:
        return f"no link in the output: {links.torn[0]}", _AGAIN
    if not output.strip():
        return "the output is empty", "this machine may have no NVLinks; then leave this check out"
    return "the output speaks of no NVLink", "this machine may have no NVLinks; then leave this check out"


def _by_gpu(links: Links) -> Iterator[tuple[str, list[LinkFacts]]]:
    for gpu in links.gpus:
        yield gpu, [f for f in links.facts.values() if f.gpu == gpu]


def _named(facts: list[LinkFacts]) -> str:
    numbers = [str(f.link) for f in facts if f.link >= 0]
    return f"link{'s' if len(numbers) != 1 else ''} {','.join(numbers)}" if numbers else "all links"


def _finding(gpu: str, facts: list[LinkFacts], what: str, level: Level, advice: str, sign: str) -> Finding:
    evidence = {"links": [f.link for f in facts if f.link >= 0]}
    reason = f"GPU {gpu}: {_named(facts)}: {what}"
    return Finding(FindingKind.LINK_ERROR, reason, gpus=(gpu,), level=level, advice=advice, evidence=evidence, signature=f"nvlink:{sign}")


def _down(links: Links) -> Iterator[Finding]:
    for gpu, facts in _by_gpu(links):
        down = [f for f in facts if f.state is LinkState.DOWN]
        if down:
            yield _finding(gpu, down, "down", Level.FAIL, _ADVICE_DOWN, "down")
        off = [f for f in facts if f.state is LinkState.DISABLED]
        if off:
            yield _finding(gpu, off, "disabled", Level.NOTE, "fine where the partition or the machine type has them so", "disabled")
    for switch, ports in links.switches_down.items():
        reason = f"NVSwitch {switch}: ports {','.join(map(str, ports[:64]))} are down"
        advice = "compare with a node of the same type: ports that nothing is wired to are always down"
        evidence = {"ports": ports}
        yield Finding(FindingKind.LINK_ERROR, reason, level=Level.NOTE, advice=advice, evidence=evidence, signature="nvlink:switch_down")


def _slow(links: Links) -> Iterator[Finding]:
    fastest = max((f.speed_gbs for f in links.facts.values() if f.speed_gbs is not None), default=None)
    for gpu, facts in _by_gpu(links):
        slow = [f for f in facts if f.speed_gbs is not None and fastest is not None and f.speed_gbs < fastest]
        if slow and fastest is not None:
            least = min(f.speed_gbs for f in slow if f.speed_gbs is not None)
            made = _finding(gpu, slow, f"{least:g} GB/s, others {fastest:g}", Level.WARN, _ADVICE_DOWN, "slow")
            yield replace(made, measured=least, required=fastest, unit="GB/s")


def _counts(links: Links, limits: NvlinkLimits) -> Iterator[Finding]:
    for gpu, facts in _by_gpu(links):
        for name in once(counter_name(n) for f in facts for n in f.counters):
            if _TRAFFIC.match(name):
                continue
            limit, level = _limit(name, limits)
            values = [(f, v) for f in facts for n, v in f.counters.items() if counter_name(n) == name]
            above = [(f, v) for f, v in values if v > limit]
            if above:
                worst = max(v for _, v in above)
                unit = "" if name in _RATES else "errors"
                made = _finding(gpu, [f for f, _ in above], f"{name} {worst:g}", level, _ADVICE_RATE if name in _RATES else _ADVICE, name)
                yield replace(made, measured=worst, required=limit, unit=unit)


def _limit(name: str, limits: NvlinkLimits) -> tuple[float, Level]:
    hard = _RATES.get(name, name not in _CORRECTED)
    default = limits.bit_error_rate if name in _RATES else limits.corrected if name in _CORRECTED else limits.counts
    return limits.by_counter.get(name, default), Level.FAIL if hard else Level.WARN


def _missing(links: Links, expected_gpus: int | None, expected_links: int | None) -> Iterator[Finding]:
    if expected_gpus is not None and len(links.gpus) < expected_gpus and links.gpus:
        reason = f"{len(links.gpus)} GPUs are told of"
        made = Finding(FindingKind.DEVICE_MISSING, reason, advice="compare `nvidia-smi -L` with the machine", signature="nvlink:gpus")
        yield replace(made, measured=len(links.gpus), required=expected_gpus, unit="GPUs")
    for gpu, facts in _by_gpu(links):
        numbered = [f for f in facts if f.link >= 0]
        if expected_links is not None and numbered and len(numbered) < expected_links:
            made = _finding(gpu, numbered, f"{len(numbered)} links are told of", Level.FAIL, _ADVICE_DOWN, "links")
            yield replace(made, measured=len(numbered), required=expected_links, unit="links")


def _summary(links: Links, found: list[Finding], told: bool) -> str:
    reasons = [f.reason for f in found if f.level is not Level.NOTE]
    if not told:
        return reasons[-1] if reasons else "not measured"
    count = sum(1 for f in links.facts.values() if f.link >= 0)
    more = f"; {reasons[0]}" if reasons else ""
    return f"{count} links of {len(links.gpus)} GPUs{more}{f' (and {len(reasons) - 1} more)' if len(reasons) > 1 else ''}"


def _details(links: Links) -> Mapping[str, object]:
    rows = [
        {
            "gpu": f.gpu,
            "link": f.link,
            "state": f.state.value if f.state else None,
            "speed_gbs": f.speed_gbs,
            "counters": {counter_name(n): v for n, v in f.counters.items()},
        }
        for f in list(links.facts.values())[:4096]
    ]
    return {"gpus": list(links.gpus), "links": rows, "complete": not links.torn}
