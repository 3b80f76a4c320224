"""Is the bandwidth inside a node (or across a pair) what it was on good nodes, and are the results right?

Laws:
 - a wrong result fails, whatever the speed and whatever else is missing;
 - a run that is not seen to its end is `not_measured`, as is the bandwidth of a single GPU, which is not defined;
 - N/A in the validation column is said as "not validated".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.bandwidth import MIN_RATIO, UNIT, compare_by_size
from elastic_health.preflight.nccl_failures import failure_findings
from elastic_health.preflight.nccl_output import NcclTests, parse_nccl_tests
from elastic_health.preflight.nccl_rows import GREATEST_DEVIATION, Half, Row
from elastic_health.preflight.results import CheckResult, Outcome, outcome_of

__all__ = ["CHECK", "NcclTests", "analyze_nccl_tests", "bus_bandwidths", "judge_nccl_tests", "parse_nccl_tests"]

CHECK = "nccl_tests"
MOST_WRONG_NAMED = 16
_SURE = 2.0
"""How far a printed deviation (one digit) must be above its limit to be certainly above it."""


def analyze_nccl_tests(text: str, exit_status: int | None = None) -> CheckResult:
    """The verdict on a stored output alone: results, completeness, errors; bandwidth is told, not compared."""
    return judge_nccl_tests(parse_nccl_tests(text, exit_status))


def judge_nccl_tests(
    parsed: NcclTests,
    baseline: Mapping[int, float] | None = None,
    min_ratio: float = MIN_RATIO,
    *,
    expected_ranks: int | None = None,
    check: str = CHECK,
) -> CheckResult:
    """One result for the check.

    Args:
        baseline: message size in bytes → bus bandwidth in GB/s of good nodes; None: not compared.
        min_ratio: of the baseline, in (0, 1].
        expected_ranks: how many GPUs should have worked together; another number is not the measurement that was asked for.
    """
    found = [*_wrong(parsed), *failure_findings(parsed), *_below_own_minimum(parsed)]
    lacking = [*_not_measured(parsed, expected_ranks)]
    if baseline is not None and not lacking:
        found += compare_by_size(bus_bandwidths(parsed), baseline, min_ratio)
    found += [*lacking, *_remarks(parsed)]
    outcome = outcome_of(found, measured=not lacking)
    return CheckResult(check, outcome, tuple(found), _summary(parsed, found, outcome, baseline is not None), details=_details(parsed))


def bus_bandwidths(parsed: NcclTests) -> dict[int, float]:
    """Message size in bytes → GB/s: out of place (in place where there is only that); the median of equal rows, and the slowest of
    several operations or types.  Rows of size 0 are left out."""
    series: dict[int, dict[tuple[int, str, str, int | None], list[float]]] = {}
    for row in parsed.rows:
        if row.size and row.halves:
            series.setdefault(row.size, {}).setdefault(row.key, []).append(row.halves[0].busbw)
    return {size: min(map(statistics.median, by_key.values())) for size, by_key in sorted(series.items())}


def _wrong(parsed: NcclTests) -> Iterator[Finding]:
    rows = [(row, count) for row in parsed.rows if (count := _wrong_count(parsed, row))]
    bounds = [s.out_of_bounds for s in parsed.summaries if s.oob_ok is False]
    bits = sum(s.bitwise_mismatches or 0 for s in parsed.summaries)
    if rows or bounds:
        said = f"{sum(b or 0 for b in bounds)} values out of bounds" if bounds else f"wrong elements in {len(rows)} rows"
        named = [
            {"size": row.size, "type": row.type, "redop": row.redop, "wrong": count if math.isfinite(count) else "not a number"}
            for row, count in rows[:MOST_WRONG_NAMED]
        ]
        yield _corrupt(f"the operation gave wrong results: {said}", parsed, {"rows": named, "out_of_bounds": sum(b or 0 for b in bounds)})
    if bits:
        yield _corrupt(f"repeated operations differ in their bits: {bits} mismatches", parsed, {"bitwise_mismatches": bits})


def _corrupt(reason: str, parsed: NcclTests, evidence: Mapping[str, object]) -> Finding:
    advice = (
        "data is corrupted on its way: keep the node out, test pairs of GPUs to find the one, and the PCIe and NVLink paths between them"
    )
    return Finding(FindingKind.WRONG_RESULT, reason, nodes=parsed.hosts, evidence=evidence, advice=advice)


def _wrong_count(parsed: NcclTests, row: Row) -> float:
    """Wrong elements in a row; a deviation counts only without a summary, and where it is surely above the tool's own limit."""
    return max((_of_half(parsed, row, half) for half in row.halves), default=0)


def _of_half(parsed: NcclTests, row: Row, half: Half) -> float:
    if half.wrong is not None:
        return half.wrong
    judged = parsed.closed or any(s.oob_ok for s in parsed.summaries)
    limit = GREATEST_DEVIATION.get(row.type, 0.0)
    surely = half.error is not None and half.error > _SURE * limit
    return (half.error or 0.0) if surely and not judged else 0


def _below_own_minimum(parsed: NcclTests) -> Iterator[Finding]:
    for summary in parsed.summaries:
        if summary.average_ok is False:
            reason = f"the program itself calls its average bus bandwidth of {summary.average} {UNIT} too low (NCCL_TESTS_MIN_BW)"
            yield Finding(FindingKind.LOW_BANDWIDTH, reason, measured=summary.average, unit=UNIT, nodes=parsed.hosts)


def _not_measured(parsed: NcclTests, expected: int | None) -> Iterator[Finding]:
    """Why there is no figure to trust."""
    if parsed.independent > 1:
        reason = (
            f"{parsed.independent} runs of {parsed.world_size} ranks each ran side by side: they did not measure a connection between them"
        )
        yield _lacking(
            reason, "build nccl-tests with MPI=1, or start it once with -g", {"runs": parsed.independent, "world": parsed.world_size}
        )
    elif parsed.launch_errors:
        yield _lacking(f"not all of it could run: {parsed.launch_errors[0]}", "", {"lines": list(parsed.launch_errors[:8])})
    elif not parsed.closed and (parsed.rows or parsed.runs):
        reason = f"cut off: {len(parsed.rows)} rows, but no whole summary of each of {max(1, parsed.runs)} runs"
        yield _lacking(reason, "read the whole output; a run that hangs is ended by its time limit", {})
    elif not parsed.rows:
        yield _lacking("no row of figures" if parsed.runs else "not an output of nccl-tests: no table and no summary", "", {})
    if parsed.exit_status:
        yield _lacking(f"the program ended with exit status {parsed.exit_status}", "", {"exit_status": parsed.exit_status})
    if parsed.independent == 1 and parsed.rows and _bandwidth_is_undefined(parsed):
        yield _lacking("one GPU alone: bus bandwidth is not defined", "measure with at least two GPUs", {"world": parsed.world_size})
    elif expected is not None and parsed.world_size not in (None, expected):
        reason = f"{parsed.world_size} ranks worked together, {expected} were asked for"
        yield _lacking(reason, "build nccl-tests with MPI=1 and look at the launcher's host list", {"world": parsed.world_size})


def _lacking(reason: str, advice: str, evidence: Mapping[str, object]) -> Finding:
    return Finding(FindingKind.NOT_MEASURED, reason, level=Level.WARN, advice=advice, evidence=evidence)


def _bandwidth_is_undefined(parsed: NcclTests) -> bool:
    """One rank; or, without a device list, the factor 0 that an all-reduce of one rank has: algorithm bandwidth, and none on the bus."""
    if parsed.world_size is not None:
        return parsed.world_size == 1
    halves = [half for row in parsed.rows for half in row.halves]
    return all(half.busbw == 0 for half in halves) and any(half.algbw >= 1 for half in halves)


def _remarks(parsed: NcclTests) -> Iterator[Finding]:
    if parsed.validated is False:
        reason = "results were not validated (N/A): the run says nothing of wrong results"
        yield Finding(FindingKind.MISCONFIGURED, reason, level=Level.WARN, advice="run with -c 1")
    if parsed.elided:
        yield Finding(FindingKind.NOTE, "some rows were left out of the stored text", level=Level.NOTE)
    if parsed.unfit:
        lines = [f"line {number}: {why}" for number, why, _ in parsed.unfit[:8]]
        yield Finding(
            FindingKind.NOTE,
            f"{len(parsed.unfit)} rows do not fit their header and were not read",
            level=Level.NOTE,
            evidence={"lines": lines},
        )


def _summary(parsed: NcclTests, found: list[Finding], outcome: Outcome, compared: bool) -> str:
    if outcome is Outcome.FAIL:
        return next(f.reason for f in found if f.level is Level.FAIL)
    if outcome is Outcome.NOT_MEASURED:
        return next(f.reason for f in found if f.kind is FindingKind.NOT_MEASURED)
    average = parsed.average_busbw
    figure = f"average bus bandwidth {average:g} {UNIT}" if average is not None else "no average"
    world = f" over {parsed.world_size} GPUs" if parsed.world_size else ""
    return figure + world + ("" if compared else ", not compared: no baseline") + ("" if parsed.validated else ", results not validated")


def _details(parsed: NcclTests) -> dict[str, object]:
    halves = [half for row in parsed.rows for half in row.halves]
    return {
        "average_busbw": parsed.average_busbw,
        "peak_busbw": max((half.busbw for half in halves), default=None),
        "busbw_by_size": {str(size): value for size, value in bus_bandwidths(parsed).items()},
        "rows": len(parsed.rows),
        "validated": parsed.validated,
        "wrong": sum(count for row in parsed.rows if math.isfinite(count := _wrong_count(parsed, row))),
        "out_of_bounds": next((s.out_of_bounds for s in reversed(parsed.summaries)), None),
        "world_size": parsed.world_size,
        "hosts": list(parsed.hosts),
        "runs": parsed.runs,
        "independent_runs": parsed.independent,
        "complete": parsed.closed,
        "operations": sorted({f"{row.type} {row.redop}".strip() for row in parsed.rows}),
        "programs": list(parsed.programs),
        "nccl_version": parsed.nccl_version,
        "exit_status": parsed.exit_status,
        "launch_errors": list(parsed.launch_errors),
        "nccl_warnings": list(parsed.nccl_warnings[:8]),
    }
