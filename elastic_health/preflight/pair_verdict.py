"""What a meeting's figures say of its nodes and of the ways between them.

A pair is bad when it is slower than is required, when its operation did not end, or when its results are wrong.  Who did
well with anybody is fit.  From that:

 - a bad pair of two fit nodes: the route between them is bad;
 - a node that did well with nobody, and badly with two or more partners that are fit: the node is bad;
 - any other bad pair can't be told apart: those of the two that aren't known to be fit are suspects, and so is the route.

Laws:
 - no node is named that did well with anybody; two bad routes that end at one node and a bad node look alike from outside;
 - a node that did well with nobody does not pass; a pair with wrong results that can't be told apart keeps both of them out;
 - without a baseline, pairs are compared with each other: the median of at least two others; where most of them are slow
   beside the best one, nobody can tell which is usual, and nothing is said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.baselines import FEWEST_SIZES, MIN_RATIO, Baseline, Run, compare
from elastic_health.preflight.pairs import GONE, Pair, Told, View, measured, route, stalled, told_of
from elastic_health.preflight.results import CheckResult, Outcome, outcome_of

CHECK = "pair"
"""The check under which baselines of pairs are kept."""
UNIT = "GB/s"
MEETING_RATIO = 0.7
"""Of the median of the other pairs: they load shared switches at the same time, so they differ more than one node from itself."""
FEWEST_OTHERS = 2
_ADVICE_NODE = "look at its network cards, cables and switch ports (ethtool -S, ibstat), then measure it again"
_ADVICE_ROUTE = "look at the switches and cables between these two; each of them is well with others"
_ADVICE_OPEN = "measure again with a third node that is known to be well"


class State(Enum):
    """Of one pair."""

    GOOD = "good"
    SLOW = "slow"
    STALLED = "stalled"
    WRONG = "wrong"
    UNKNOWN = "unknown"  # not measured
    UNCOMPARED = "uncompared"  # measured, and nothing to compare it with

    @property
    def bad(self) -> bool:
        return self in (State.SLOW, State.STALLED, State.WRONG)


@dataclass(frozen=True)
class Edge:
    """A pair and what was measured between the two.

    Attributes:
        size, measured, required: of the worst size; 0 where nothing is compared.
        reason: why it is not good.
    """

    pair: Pair
    state: State
    figures: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""
    size: int = 0
    measured: float = 0.0
    required: float = 0.0

    def other(self, node: str) -> str:
        return self.pair[1] if self.pair[0] == node else self.pair[0]


@dataclass(frozen=True)
class Doubt:
    """A bad pair that can't be told apart: one of these nodes is bad, or the route between the two."""

    edge: Edge
    suspects: tuple[str, ...]


@dataclass(frozen=True)
class Blame:
    """Who is bad.  `fit`: who did well with anybody."""

    fit: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    routes: tuple[Edge, ...] = ()
    doubts: tuple[Doubt, ...] = ()


# ---- from what was told to pairs


def edges_of(view: View) -> tuple[Edge, ...]:
    """All appointments, measured or not; GOOD ones are not yet compared with anything."""
    return tuple(_edge(pair, told_of(view, number, pair)) for number, round_ in enumerate(view.rounds) for pair in round_.pairs)


def _edge(pair: Pair, told: Sequence[Told | None]) -> Edge:
    values = [dict(t.figures) for t in told if t is not None and t.figures]
    common = set.intersection(*(set(v) for v in values)) if values else set()
    figures = {size: min(v[size] for v in values) for size in sorted(common)}
    wrong = [why for t in told if t is not None for why in t.wrong]
    if wrong:
        return Edge(pair, State.WRONG, figures, f"the results between {pair[0]} and {pair[1]} are wrong: {wrong[0]}")
    if measured(told):
        return Edge(pair, State.GOOD, figures)
    if stalled(told):
        return Edge(pair, State.STALLED, figures, f"an all-reduce between {pair[0]} and {pair[1]} did not end in its time")
    return Edge(pair, State.UNKNOWN, figures, _why_unknown(pair, told))


def _why_unknown(pair: Pair, told: Sequence[Told | None]) -> str:
    failed = [f"{node}: {t.failed}" for node, t in zip(pair, told, strict=True) if t is not None and t.failed]
    silent = [node for node, t in zip(pair, told, strict=True) if t is None]
    if silent:
        return f"{' and '.join(silent)} did not tell: it died, or was late"
    return failed[0] if failed else "only one of the two came to the end"


# ---- comparing


def graded(edges: Sequence[Edge], baseline: Baseline | None, min_ratio: float, meeting_ratio: float, fewest: int) -> tuple[Edge, ...]:
    """Compare the measured pairs with the baseline; with each other where there is none."""
    if baseline is not None:
        return tuple(_against(e, baseline, min_ratio, fewest) if e.state is State.GOOD else e for e in edges)
    return tuple(_among(e, [o for o in edges if o is not e], meeting_ratio) if e.state is State.GOOD else e for e in edges)


def _against(edge: Edge, baseline: Baseline, min_ratio: float, fewest: int) -> Edge:
    result = compare(Run("", edge.figures), baseline, min_ratio, check=CHECK, fewest=fewest)
    low = next((f for f in result.findings if f.kind is FindingKind.LOW_BANDWIDTH), None)
    if low is not None:
        size = next((s for s, v in edge.figures.items() if v == low.measured), 0)
        return replace(edge, state=State.SLOW, reason=low.reason, size=size, measured=low.measured or 0.0, required=low.required or 0.0)
    if result.outcome is Outcome.NOT_MEASURED:
        return replace(edge, state=State.UNCOMPARED, reason=result.summary)
    return edge


def _among(edge: Edge, others: Sequence[Edge], ratio: float) -> Edge:
    """Bad where more than half of its sizes are below `ratio` × the median of the others (the upper one of two)."""
    series = {size: _series(size, others) for size in edge.figures}
    known = {size: values for size, values in series.items() if len(values) >= FEWEST_OTHERS}
    if not known:
        reason = f"no baseline, and fewer than {FEWEST_OTHERS} other pairs to compare with"
        return replace(edge, state=State.UNCOMPARED, reason=reason)
    usual = {size: statistics.median_high(values) for size, values in known.items()}
    if (size := _mostly_low(edge, usual, ratio)) is not None:
        value, required = edge.figures[size], usual[size] * ratio
        reason = f"{value:.3g} {UNIT} at {size} bytes, {value / usual[size]:.0%} of the median of {len(known[size])} other pairs"
        return replace(edge, state=State.SLOW, reason=reason, size=size, measured=value, required=required)
    if _mostly_low(edge, {size: max(values) for size, values in known.items()}, ratio) is not None:
        reason = "no baseline, and most pairs of this meeting are as slow beside the best one: nobody can tell which is usual"
        return replace(edge, state=State.UNCOMPARED, reason=reason)
    return edge


def _series(size: int, others: Iterable[Edge]) -> list[float]:
    """The others' figures; one that stalled counts as 0."""
    found = [0.0 if o.state is State.STALLED else o.figures.get(size, math.nan) for o in others if o.state in (State.GOOD, State.STALLED)]
    return [value for value in found if math.isfinite(value)]


def _mostly_low(edge: Edge, usual: Mapping[int, float], ratio: float) -> int | None:
    """The worst size, if more than half are low."""
    low = [size for size, good in usual.items() if edge.figures[size] < good * ratio]
    return min(low, key=lambda size: edge.figures[size] / usual[size]) if 2 * len(low) > len(usual) else None


# ---- blaming


def blame(edges: Sequence[Edge]) -> Blame:
    """Who or what is bad, of pairs that have been compared."""
    fit = frozenset(node for e in edges if e.state is State.GOOD for node in e.pair)
    bad = [e for e in edges if e.state.bad]
    routes = tuple(e for e in bad if fit.issuperset(e.pair))
    sure: dict[str, set[str]] = {}
    for e in bad:
        for node in e.pair:
            if node not in fit and e.other(node) in fit:
                sure.setdefault(node, set()).add(e.other(node))
    nodes = frozenset(node for node, partners in sure.items() if len(partners) >= 2)
    doubts = tuple(
        Doubt(e, tuple(sorted(n for n in e.pair if n not in fit))) for e in bad if e not in routes and not nodes.intersection(e.pair)
    )
    return Blame(fit, nodes, routes, doubts)


# ---- one node's result


def judge_pairs(
    view: View,
    node: str,
    baseline: Baseline | None = None,
    *,
    check: str = CHECK,
    min_ratio: float = MIN_RATIO,
    meeting_ratio: float = MEETING_RATIO,
    fewest: int = FEWEST_SIZES,
) -> CheckResult:
    """The result of one node, from all that was told in a meeting.

    Args:
        baseline: of pairs of this node type; None: pairs are compared with each other.
        min_ratio: of the baseline.  meeting_ratio: of the median of the other pairs.
        fewest: sizes that must be comparable with the baseline.
    """
    edges = graded(edges_of(view), baseline, min_ratio, meeting_ratio, fewest)
    found = blame(edges)
    mine = [e for e in edges if node in e.pair]
    findings = [*_own(node, mine, found), *_of_others(node, found), *_how(edges, baseline, found)]
    if node not in found.fit and not any(f.level is Level.FAIL or f.kind is FindingKind.NOT_MEASURED for f in findings):
        findings.insert(0, _unmeasured(node, mine))
    outcome = outcome_of(findings, measured=node in found.fit)
    return CheckResult(check, outcome, tuple(findings), _summary(outcome, findings, mine), details=_details(edges, found))


def _own(node: str, mine: Sequence[Edge], found: Blame) -> Iterator[Finding]:
    if node in found.nodes:
        yield _guilty(node, [e for e in mine if e.state.bad], found)
        return
    for e in mine:
        if e in found.routes:
            yield _bad_route(e)
        elif e.state.bad and (doubt := next((d for d in found.doubts if d.edge is e), None)) is not None:
            yield _doubt(node, doubt)
        elif e.state.bad:
            yield _note(f"bad with {e.other(node)}, which is bad itself", e)
        elif e.state is not State.GOOD:
            yield _note(f"not measured with {e.other(node)}: {e.reason}", e)


def _guilty(node: str, bad: Sequence[Edge], found: Blame) -> Finding:
    worst = _worst(bad)
    partners = sorted(e.other(node) for e in bad if e.other(node) in found.fit)
    reason = f"{node} is bad with {' and '.join(partners)}, who are well with others: {worst.reason}"
    return Finding(_kind(worst), reason, nodes=(node,), **_figures(worst), advice=_ADVICE_NODE)


def _bad_route(edge: Edge) -> Finding:
    level = Level.FAIL if edge.state is State.WRONG else Level.WARN
    reason = f"the route {route(edge.pair)} is bad, and both of its ends are well with others: {edge.reason}"
    return Finding(_kind(edge), reason, level=level, **_figures(edge), advice=_ADVICE_ROUTE)


def _doubt(node: str, doubt: Doubt) -> Finding:
    edge, wrong = doubt.edge, doubt.edge.state is State.WRONG
    who = f"{' or '.join(doubt.suspects)} is bad, or the route {route(edge.pair)}: which of them can't be told"
    figures = _figures(edge)
    evidence = {**figures.pop("evidence"), "suspects": list(doubt.suspects)}
    if wrong:
        return Finding(FindingKind.WRONG_RESULT, f"{who}; {edge.reason}", **figures, evidence=evidence, advice=_ADVICE_OPEN)
    if node not in doubt.suspects:
        return Finding(FindingKind.NOTE, f"{who}; {edge.reason}", level=Level.NOTE, **figures, evidence=evidence)
    return Finding(FindingKind.NOT_MEASURED, f"{who}; {edge.reason}", level=Level.WARN, **figures, evidence=evidence, advice=_ADVICE_OPEN)


def _of_others(node: str, found: Blame) -> Iterator[Finding]:
    for bad in sorted(found.nodes - {node}):
        yield Finding(FindingKind.NOTE, f"in this meeting {bad} is bad", level=Level.NOTE, evidence={"bad_node": bad})
    for e in found.routes:
        if node not in e.pair:
            name = route(e.pair)
            yield Finding(FindingKind.NOTE, f"in this meeting the route {name} is bad", level=Level.NOTE, evidence={"route": name})


def _how(edges: Sequence[Edge], baseline: Baseline | None, found: Blame) -> Iterator[Finding]:
    if baseline is None and found.fit:
        reason = "no baseline of pairs: compared with the other pairs of this meeting, so what all share was not seen"
        advice = f"record one on good nodes: elastic-health baseline record --check {CHECK}"
        yield Finding(FindingKind.NOTE, reason, level=Level.NOTE, advice=advice)


def _unmeasured(node: str, mine: Sequence[Edge]) -> Finding:
    with_bad = [e.other(node) for e in mine if e.state.bad]
    reason = f"measured only with {', '.join(with_bad)}, which is bad itself" if with_bad else "no pair with it was measured"
    if not with_bad and mine:
        reason = f"no pair with it has an outcome: {mine[-1].reason or GONE}"
    return Finding(FindingKind.NOT_MEASURED, reason, level=Level.WARN, advice="let it be checked again with other nodes that wait")


def _note(reason: str, edge: Edge) -> Finding:
    return Finding(FindingKind.NOTE, reason, level=Level.NOTE, evidence={"route": route(edge.pair)})


def _kind(edge: Edge) -> FindingKind:
    return FindingKind.WRONG_RESULT if edge.state is State.WRONG else FindingKind.LOW_BANDWIDTH


def _worst(edges: Sequence[Edge]) -> Edge:
    order = (State.WRONG, State.STALLED, State.SLOW)
    return min(edges, key=lambda e: (order.index(e.state), e.measured / e.required if e.required else 0.0))


def _figures(edge: Edge) -> dict[str, Any]:
    compared = edge.state is State.SLOW
    return {
        "measured": edge.measured if compared else None,
        "required": edge.required if compared else None,
        "unit": UNIT if compared else "",
        "evidence": {"route": route(edge.pair), "state": edge.state.value, "size": edge.size},
    }


def _summary(outcome: Outcome, findings: Sequence[Finding], mine: Sequence[Edge]) -> str:
    if outcome is Outcome.FAIL:
        return next(f.reason for f in findings if f.level is Level.FAIL)
    if outcome is Outcome.NOT_MEASURED:
        return next(f.reason for f in findings if f.kind is FindingKind.NOT_MEASURED)
    if outcome is Outcome.WARN:
        return next(f.reason for f in findings if f.level is Level.WARN)
    good = [e for e in mine if e.state is State.GOOD]
    peak = max((value for e in good for value in e.figures.values()), default=0.0)
    return f"measured with {len(good)} partners, up to {peak:.3g} {UNIT}"


def _details(edges: Sequence[Edge], found: Blame) -> dict[str, object]:
    pairs = [
        {"route": route(e.pair), "state": e.state.value, "busbw_by_size": {str(s): v for s, v in e.figures.items()}, "reason": e.reason}
        for e in edges
    ]
    return {
        "pairs": pairs,
        "bad_nodes": sorted(found.nodes),
        "bad_routes": sorted(route(e.pair) for e in found.routes),
        "suspects": sorted({node for d in found.doubts for node in d.suspects}),
        "unit": UNIT,
    }
