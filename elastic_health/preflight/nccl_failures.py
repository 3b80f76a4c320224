"""What the error lines of an nccl-tests program mean, as findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from elastic_health.findings import Finding, FindingKind
from elastic_health.preflight.nccl_output import Failure, NcclTests

_I = re.IGNORECASE
# The first that matches names the kind; texts are those of ncclGetErrorString and cudaGetErrorString.
_KINDS: Mapping[re.Pattern[str], FindingKind] = MappingProxyType(
    {
        re.compile(r"remote process exited|network error|unhandled system error", _I): FindingKind.NETWORK_ERROR,
        re.compile(r"out of memory", _I): FindingKind.LOW_RESOURCE,
        re.compile(r"no CUDA-capable device|invalid device ordinal", _I): FindingKind.DEVICE_MISSING,
        re.compile(r"invalid (?:usage|argument)|insufficient|no kernel image|not supported", _I): FindingKind.MISCONFIGURED,
        re.compile(r"^timeout$", _I): FindingKind.NO_PROGRESS,
        re.compile(
            r"unhandled (?:cuda|hip) error|uncorrectable|device|nvlink|launch|illegal|unknown error|hardware", _I
        ): FindingKind.DEVICE_ERROR,
    }
)
_ADVICE: Mapping[FindingKind, str] = MappingProxyType(
    {
        FindingKind.NETWORK_ERROR: "look at the links and at the other nodes' output: the first to end is the origin",
        FindingKind.LOW_RESOURCE: "another process holds the memory of a GPU: nvidia-smi names it",
        FindingKind.DEVICE_MISSING: "compare nvidia-smi -L with what the node should have",
        FindingKind.MISCONFIGURED: "run with NCCL_DEBUG=WARN; compare driver, CUDA and NCCL versions",
        FindingKind.NO_PROGRESS: "an operation did not end: look at links and at Xid errors of all nodes of the run",
        FindingKind.DEVICE_ERROR: "run with NCCL_DEBUG=WARN and look for Xid errors in the kernel log",
        FindingKind.APPLICATION_ERROR: "run with NCCL_DEBUG=WARN",
    }
)


def failure_findings(parsed: NcclTests) -> Iterator[Finding]:
    """One finding for each different error text; traces alone give one, unless the summary already says what failed."""
    by_text: dict[str, list[Failure]] = {}
    for failure in parsed.failures:
        by_text.setdefault(failure.text, []).append(failure)
    traces = by_text.pop("", [])
    for text, same in by_text.items():
        yield _finding(text, same, parsed)
    explained = by_text or any(s.oob_ok is False or s.average_ok is False for s in parsed.summaries)
    if traces and not explained:
        yield _finding("", traces, parsed)


def _finding(text: str, same: Iterable[Failure], parsed: NcclTests) -> Finding:
    kind = next((kind for pattern, kind in _KINDS.items() if pattern.search(text)), FindingKind.APPLICATION_ERROR)
    where = sorted({failure.where for failure in same if failure.where})
    hosts = tuple(sorted({failure.host for failure in same if failure.host}))
    reason = f"the test failed: {text}" if text else "the test ended with an error that it does not explain"
    evidence = {"where": where, "rows_before": len(parsed.rows), "nccl_warnings": list(parsed.nccl_warnings[:4])}
    secondary = kind is FindingKind.NETWORK_ERROR and "remote process" in text.lower()
    return Finding(kind, reason, nodes=hosts, evidence=evidence, advice=_ADVICE[kind], secondary=secondary)
