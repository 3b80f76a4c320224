"""Baselines: what a check measured on known-good nodes of one type, by size, and how a node compares with that.

Laws:
 - a baseline comes from several runs; the median is what counts, so that one odd run moves nothing;
 - only sizes that both sides have are compared, the others are named; too few of them, or no baseline, is
   `not_measured`, never `pass`;
 - wrong results fail a node whatever its speed, and never become a baseline.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_health.codec import rest
from elastic_health.errors import BaselineError
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.results import CheckResult, Outcome, not_measured, outcome_of

MIN_RATIO = 0.9
FEWEST_SIZES = 3
LEAST_RUNS = 3
RESOLUTION = 0.01
"""Tools print two decimals: figures that differ by less are equal, and a baseline's below it can't be compared."""
MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation (Rousseeuw and Croux, 1993)."""
PREVIOUS_KEPT = 8
MOST_SIZES = 1024


@dataclass(frozen=True)
class Run:
    """One run of the tool on one good node.

    Attributes:
        values: size in bytes → figure.
        wrong: reasons why its *results* are wrong (not its speed).
        missing: reasons why it isn't whole.
        notes: what a person should know all the same.
    """

    source: str
    values: Mapping[int, float]
    unit: str = "GB/s"
    wrong: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """One size over all runs.  `mad`: median absolute deviation from the median, unscaled, in the baseline's unit."""

    size: int
    median: float
    mad: float
    lowest: float
    highest: float
    runs: int


@dataclass(frozen=True)
class Provenance:
    """Where and how figures were measured.  `at`: UTC, ISO 8601.  `versions`: of this package, torch, driver, NCCL."""

    node: str
    at: str
    command: str = ""
    by: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, Any] = rest()


@dataclass(frozen=True)
class Baseline:
    """What is stored.  `runs`: how many it comes from.  `previous`: of the baselines that it replaced, newest first."""

    check: str
    node_type: str
    unit: str
    runs: int
    figures: tuple[Figure, ...]
    provenance: Provenance
    previous: tuple[Provenance, ...] = ()
    rest: Mapping[str, Any] = rest()

    @property
    def medians(self) -> dict[int, float]:
        """Size in bytes → median, for checks that want no more."""
        return {f.size: f.median for f in self.figures}


@dataclass(frozen=True)
class NodeFacts:
    """What a node type is made of.  `gpus`: the model of each; `nics`: the model of each network device that isn't virtual."""

    gpus: tuple[str, ...] = ()
    cpu: str = ""
    cpus: int = 0
    nics: tuple[str, ...] = ()


def node_type(facts: NodeFacts, named: str = "") -> str:
    """The type under which a node's baselines are kept: `named` (YAML, `--node-type`), else derived from its hardware.

    A derived type changes with the hardware that is *seen*: a node that lost a GPU is of another type and finds no
    baseline.  Fleets name their types.
    """
    if named:
        return named
    parts = [_counted(facts.gpus) or "no-gpu", _word(facts.cpu) or "cpu", f"{facts.cpus}-cpus" if facts.cpus else "", _counted(facts.nics)]
    return ".".join(p for p in parts if p)[:253].strip(".-")


def _counted(models: Sequence[str]) -> str:
    words = [_word(m) for m in models]
    return "+".join(f"{words.count(w)}x-{w}" for w in sorted(set(words))).replace("+", "_") if words else ""


def _word(text: str) -> str:
    plain = re.sub(r"\((?:R|TM|C)\)|\bProcessor\b|\bCPU\b|@.*", " ", text, flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z0-9]+", "-", plain).strip("-")[:80]


# ---- recording


def combine(runs: Sequence[Run], *, least: int = LEAST_RUNS) -> tuple[Figure, ...]:
    """The figures of several runs: of every size that all of them have.

    Raises:
        BaselineError: fewer than `least` runs, a run with wrong or missing results, another unit, no common size, or a
            figure that is no positive number.
    """
    if len(runs) < least:
        raise BaselineError(f"at least {least} runs", f"{len(runs)}", "measure again on the good node, or write --runs N for fewer")
    for run in runs:
        _check_run(run, runs[0].unit)
    common = sorted(set.intersection(*(set(r.values) for r in runs)))
    usable = [s for s in common if all(r.values[s] > RESOLUTION for r in runs)]
    if not usable:
        raise BaselineError("sizes that all runs have, with figures above 0", "none", "give runs of one command on one type of node")
    return tuple(_figure(size, [r.values[size] for r in runs]) for size in usable)


def _check_run(run: Run, unit: str) -> None:
    if run.wrong:
        raise BaselineError("runs with right results", f"{run.source}: {run.wrong[0]}", "find out what is broken: this is not a good node")
    if run.missing:
        raise BaselineError("whole runs", f"{run.source}: {run.missing[0]}", "give the tool's whole output, or leave this run out")
    if run.unit != unit:
        raise BaselineError(f"figures in {unit}", f"{run.source}: {run.unit}", "give runs of one tool")
    if not run.values or len(run.values) > MOST_SIZES:
        raise BaselineError(f"1 to {MOST_SIZES} sizes", f"{run.source}: {len(run.values)}", "give the tool's output")
    bad = next((s for s, v in run.values.items() if s <= 0 or not math.isfinite(v) or v < 0), None)
    if bad is not None:
        raise BaselineError("sizes above 0 with finite figures", f"{run.source}: size {bad}: {run.values[bad]}", "leave this run out")


def _figure(size: int, values: Sequence[float]) -> Figure:
    median = statistics.median(values)
    mad = statistics.median(abs(v - median) for v in values)
    return Figure(size, round(median, 6), round(mad, 6), min(values), max(values), len(values))


def left_out(runs: Sequence[Run], figures: Sequence[Figure]) -> tuple[int, ...]:
    """Sizes that some run has and the baseline hasn't."""
    return tuple(sorted({s for r in runs for s in r.values} - {f.size for f in figures}))


def unsteady(figures: Sequence[Figure], min_ratio: float = MIN_RATIO) -> tuple[Figure, ...]:
    """Sizes at which good runs differ so much that a good node may fall below `min_ratio` by chance."""
    return tuple(f for f in figures if MAD_TO_SIGMA * f.mad > (1 - min_ratio) * f.median)


def succeed(new: Baseline, old: Baseline | None) -> Baseline:
    """`new` in the place of `old`: it remembers where the older ones came from, and keeps what newer versions wrote."""
    if old is None:
        return new
    return replace(new, previous=(old.provenance, *old.previous)[:PREVIOUS_KEPT], rest=old.rest)


# ---- comparing


def compare(
    measured: Run,
    baseline: Baseline | None,
    min_ratio: float = MIN_RATIO,
    *,
    check: str = "",
    node: str = "",
    fewest: int = FEWEST_SIZES,
) -> CheckResult:
    """One node against its baseline.

    Args:
        fewest: sizes that must be comparable (all of the baseline's, where it has fewer).

    Raises:
        ValueError: `min_ratio` is not in (0, 1], or `fewest` is below 1.
    """
    if not 0 < min_ratio <= 1 or fewest < 1:
        raise ValueError(f"expected 0 < min_ratio <= 1 and fewest >= 1; found {min_ratio} and {fewest}")
    name = check or (baseline.check if baseline else "")
    nodes = (node,) if node else ()
    findings = [
        Finding(FindingKind.WRONG_RESULT, why, nodes=nodes, advice="keep the node out: data is corrupted on its way")
        for why in measured.wrong
    ]
    if baseline is None:
        why = not_measured(name, "no baseline for this node type", advice="record one on a good node: elastic-health baseline record")
        return _with(why, findings)
    rows = [_Row(f, measured.values[f.size], min_ratio) for f in baseline.figures if f.size in measured.values]
    rows = [r for r in rows if math.isfinite(r.measured) and r.measured >= 0 and RESOLUTION < r.good.median < math.inf]
    findings += _low(rows, baseline, nodes)
    findings += _lacking(measured, baseline, len(rows), fewest)
    findings += _notes(measured, baseline, min_ratio)
    outcome = outcome_of(findings, measured=bool(rows))
    return CheckResult(
        name, outcome, tuple(findings), _summary(rows, findings, baseline, outcome), details=_details(rows, measured, baseline)
    )


@dataclass(frozen=True)
class _Row:
    good: Figure
    measured: float
    min_ratio: float

    @property
    def ratio(self) -> float:
        return self.measured / self.good.median

    @property
    def required(self) -> float:
        return self.good.median * self.min_ratio

    @property
    def low(self) -> bool:
        return self.measured + RESOLUTION <= self.required


def _low(rows: Sequence[_Row], baseline: Baseline, nodes: tuple[str, ...]) -> Iterator[Finding]:
    low = [r for r in rows if r.low]
    if not low:
        return
    worst = min(low, key=lambda r: r.ratio)
    good = worst.good
    reason = (
        f"{len(low)} of {len(rows)} sizes are below {worst.min_ratio:.0%} of the baseline; the worst, {good.size} bytes: "
        f"{worst.measured:.2f} {baseline.unit}, {worst.ratio:.0%} of {good.median:.2f} (MAD {good.mad:.2f}, {good.runs} runs)"
    )
    yield Finding(
        FindingKind.LOW_BANDWIDTH,
        reason,
        nodes=nodes,
        measured=worst.measured,
        required=worst.required,
        unit=baseline.unit,
        evidence={"sizes": [r.good.size for r in low], "ratio": round(worst.ratio, 4)},
        advice="look at link states, clocks and throttling (nvidia-smi nvlink -s, nvidia-smi -q -d PERFORMANCE), then measure again",
    )


def _lacking(measured: Run, baseline: Baseline, common: int, fewest: int) -> Iterator[Finding]:
    needed = max(1, min(fewest, len(baseline.figures)))
    reasons = list(measured.missing)
    if measured.unit != baseline.unit:
        reasons.append(f"figures are in {measured.unit}, the baseline's in {baseline.unit}")
    if common < needed:
        reasons.append(f"{common} sizes are in the measurement and in the baseline, at least {needed} are needed")
    for reason in reasons:
        advice = "measure the sizes of the baseline, to the end; or record the baseline again"
        yield Finding(FindingKind.NOT_MEASURED, reason, level=Level.WARN, advice=advice)


def _notes(measured: Run, baseline: Baseline, min_ratio: float) -> Iterator[Finding]:
    here, there = _only(measured, baseline)
    if here or there:
        reason = f"sizes not compared: {len(here)} only measured, {len(there)} only in the baseline"
        evidence = {"only_measured": here, "only_baseline": there}
        yield Finding(FindingKind.NOTE, reason, level=Level.NOTE, evidence=evidence)
    loose = [f.size for f in unsteady(baseline.figures, min_ratio) if f.size in measured.values]
    if loose:
        reason = f"at {len(loose)} sizes the baseline's own runs differ by more than is allowed here"
        advice = "record it again from more runs, on an idle node, with larger sizes or more iterations"
        yield Finding(FindingKind.NOTE, reason, level=Level.NOTE, evidence={"sizes": loose}, advice=advice)
    for note in measured.notes:
        yield Finding(FindingKind.NOTE, note, level=Level.NOTE)


def _only(measured: Run, baseline: Baseline) -> tuple[list[int], list[int]]:
    known = set(baseline.medians)
    return sorted(set(measured.values) - known), sorted(known - set(measured.values))


def _summary(rows: Sequence[_Row], findings: Sequence[Finding], baseline: Baseline, outcome: Outcome) -> str:
    if outcome is Outcome.FAIL:
        return next(f.reason for f in findings if f.level is Level.FAIL)
    if outcome is Outcome.NOT_MEASURED:
        return next((f.reason for f in findings if f.kind is FindingKind.NOT_MEASURED), "nothing could be compared")
    worst = min(rows, key=lambda r: r.ratio)
    return (
        f"{len(rows)} sizes at {worst.ratio:.0%} of the baseline or better (lowest at {worst.good.size} bytes: {worst.measured:.2f} "
        f"of {worst.good.median:.2f} {baseline.unit})"
    )


def _details(rows: Sequence[_Row], measured: Run, baseline: Baseline) -> dict[str, object]:
    here, there = _only(measured, baseline)
    sizes = [
        {
            "size": r.good.size,
            "measured": r.measured,
            "median": r.good.median,
            "mad": r.good.mad,
            "ratio": round(r.ratio, 4),
            "required": round(r.required, 6),
            "low": r.low,
        }
        for r in rows
    ]
    return {
        "unit": baseline.unit,
        "node_type": baseline.node_type,
        "sizes": sizes,
        "only_measured": here,
        "only_baseline": there,
        "baseline": {"node": baseline.provenance.node, "at": baseline.provenance.at, "runs": baseline.runs},
    }


def _with(result: CheckResult, findings: Sequence[Finding]) -> CheckResult:
    if not findings:
        return result
    return replace(result, outcome=Outcome.FAIL, findings=(*findings, *result.findings), summary=findings[0].reason)
