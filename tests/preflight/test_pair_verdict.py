"""Bad nodes and bad routes are told apart from two partners' figures; an innocent node is never named; silence never passes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.baselines import Baseline, Provenance, Run, combine
from elastic_health.preflight.pair_verdict import CHECK, Edge, State, blame, edges_of, graded, judge_pairs
from elastic_health.preflight.pairs import Here, Pair, Roll, Round, Seat, Told, View, next_round, route
from elastic_health.preflight.results import CheckResult, Outcome

pytestmark = pytest.mark.spec("P3")
SIZES = (1 << 20, 1 << 24, 1 << 26)
FAST, SLOW = 10.0, 2.0
MANY = st.integers(3, 9)


def names(n: int) -> list[str]:
    return [f"n{i:02d}" for i in range(n)]


def figures(value: float) -> tuple[tuple[int, float], ...]:
    return tuple((size, value * share) for size, share in zip(SIZES, (0.5, 0.9, 1.0), strict=True))


def good(value: float = FAST) -> Told:
    return Told(figures(value))


def baseline(value: float = FAST) -> Baseline:
    runs = [Run(f"r{i}", dict(figures(value))) for i in range(3)]
    return Baseline(CHECK, "box", "GB/s", 3, combine(runs), Provenance("n", "2026-01-01T00:00:00Z"))


def met(n: int) -> list[tuple[Pair, ...]]:
    """The rounds of n nodes when all goes well."""
    members, rounds, held = names(n), list[tuple[Pair, ...]](), dict[frozenset[str], bool]()
    while pairs := next_round(members, set(members), held, len(rounds)):
        held |= {frozenset(p): True for p in pairs}
        rounds.append(pairs)
    return rounds


def view(told: Mapping[Pair, Told | tuple[Told | None, Told | None]], rounds: Iterable[tuple[Pair, ...]] = ()) -> View:
    """A meeting's end.  `told`: for a pair, what both tell, or each."""
    all_rounds = list(rounds) or [(pair,) for pair in told]
    nodes = sorted({node for pairs in all_rounds for pair in pairs for node in pair})
    here = tuple(Here(n, n, "127.0.0.1", "m") for n in nodes)
    said = {}
    for number, pairs in enumerate(all_rounds):
        for pair in pairs:
            both = told[pair]
            both = both if isinstance(both, tuple) else (both, both)
            said |= {(number, node): t for node, t in zip(pair, both, strict=True) if t is not None}
    return View({h.node: Seat(h, i) for i, h in enumerate(here)}, Roll(here), tuple(Round(p) for p in all_rounds), said, {}, True)


def full(n: int, bad_nodes: Iterable[str] = (), bad_routes: Iterable[str] = (), bad: Told | None = None) -> View:
    """n nodes, all measured; a pair is bad if one of it or the route between them is."""
    nodes, routes = set(bad_nodes), set(bad_routes)
    rounds = met(n)
    is_bad = {pair: bool(nodes & set(pair)) or route(pair) in routes for pairs in rounds for pair in pairs}
    return view({pair: (bad or good(SLOW)) if is_bad[pair] else good() for pair in is_bad}, rounds)


def named(result: CheckResult) -> set[str]:
    return {n for f in result.findings for n in f.nodes}


def judged(seen: View, node: str, with_baseline: bool = True) -> CheckResult:
    return judge_pairs(seen, node, baseline() if with_baseline else None)


# ---- one bad thing


@pytest.mark.parametrize("with_baseline", [True, False])
@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8])
def test_one_bad_node_is_named_and_nobody_else(n: int, with_baseline: bool) -> None:
    for bad in names(n):
        seen = full(n, [bad])
        results = {node: judged(seen, node, with_baseline) for node in names(n)}
        assert {node for node, r in results.items() if r.outcome is Outcome.FAIL} == {bad}
        assert all(r.outcome is Outcome.PASS for node, r in results.items() if node != bad)
        assert named(results[bad]) == {bad} and set().union(*(named(r) for r in results.values())) == {bad}
        finding = next(f for f in results[bad].findings if f.nodes)
        assert finding.kind is FindingKind.LOW_BANDWIDTH and (finding.measured or 0) < (finding.required or 0) and finding.unit == "GB/s"
        assert all(r.details["bad_nodes"] == [bad] for r in results.values())


@pytest.mark.parametrize("with_baseline", [True, False])
@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8])
def test_one_bad_route_is_named_and_no_node(n: int, with_baseline: bool) -> None:
    for pair in itertools.chain.from_iterable(met(n)):
        seen = full(n, (), [route(pair)])
        for node in names(n):
            result = judged(seen, node, with_baseline)
            assert not named(result) and result.details["bad_routes"] == [route(pair)] and result.details["bad_nodes"] == []
            assert result.outcome is (Outcome.WARN if node in pair else Outcome.PASS)
            assert node not in pair or route(pair) in result.summary


@pytest.mark.parametrize("with_baseline", [True, False])
def test_all_good(with_baseline: bool) -> None:
    for n in (3, 4, 5):
        assert {judged(full(n), node, with_baseline).outcome for node in names(n)} == {Outcome.PASS}


# ---- what two partners can tell, and what they can't


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, set[str], set[str]]:
    """Nodes, bad ones, bad routes; no innocent node has two bad routes, since that looks like a bad node from outside."""
    n = draw(MANY)
    nodes = draw(st.sets(st.sampled_from(names(n)), max_size=n))
    pairs = list(itertools.chain.from_iterable(met(n)))
    routes: set[str] = set()
    for pair in draw(st.lists(st.sampled_from(pairs), unique=True)):
        if all(sum(node in r.split("+") for r in routes) == 0 for node in pair):
            routes.add(route(pair))
    return n, nodes, routes


@given(worlds())
def test_never_an_innocent_node_and_what_can_be_told_is_told(world: tuple[int, set[str], set[str]]) -> None:
    n, bad_nodes, bad_routes = world
    seen = full(n, bad_nodes, bad_routes)
    edges = graded(edges_of(seen), baseline(), 0.9, 0.7, 3)
    found = blame(edges)
    assert found.nodes <= bad_nodes and {route(e.pair) for e in found.routes} <= bad_routes
    well = {node for e in edges if e.state is State.GOOD for node in e.pair}
    partners = {node: {e.other(node) for e in edges if node in e.pair} for node in names(n)}
    assert {node for node in bad_nodes if partners[node] <= well} <= found.nodes
    told = {route(e.pair) for e in edges if route(e.pair) in bad_routes and well.issuperset(e.pair)}
    assert told <= {route(e.pair) for e in found.routes}
    for doubt in found.doubts:
        assert bad_nodes & set(doubt.suspects) or route(doubt.edge.pair) in bad_routes
    for node in names(n):
        result = judged(seen, node)
        assert named(result) <= bad_nodes
        assert result.outcome is not Outcome.PASS or node not in bad_nodes


@given(MANY, st.data())
def test_any_part_of_what_was_told_names_no_innocent_node_and_silence_never_passes(n: int, data: st.DataObject) -> None:
    bad = data.draw(st.sampled_from(names(n)))
    rounds = met(n)
    kinds = st.sampled_from(("both", "first", "failed", "silent", "stalled"))
    told: dict[Pair, tuple[Told | None, Told | None]] = {}
    for pair in itertools.chain.from_iterable(rounds):
        value = good(SLOW if bad in pair else FAST)
        failed = Told(failed="no torch")
        told[pair] = {
            "both": (value, value),
            "first": (value, None),
            "failed": (failed, Told(stalled=True)),
            "silent": (None, None),
            "stalled": (Told(stalled=True), Told(failed="closed", broke=True)) if bad in pair else (value, value),
        }[data.draw(kinds)]
    seen = view(told, rounds)
    for with_baseline in (True, False):
        for node in names(n):
            result = judged(seen, node, with_baseline)
            assert named(result) <= {bad}
            if result.outcome is Outcome.PASS:
                assert any(node in p and any(t is not None and t.measured for t in both) for p, both in told.items())
                assert node != bad or not with_baseline


def test_two_nodes_can_not_tell_which_of_them_it_is() -> None:
    seen = view({("a", "b"): good(SLOW)})
    for node in "ab":
        result = judged(seen, node)
        assert result.outcome is Outcome.NOT_MEASURED and not named(result) and result.details["suspects"] == ["a", "b"]
        assert "a or b is bad, or the route a+b: which of them can't be told" in result.summary
        assert (result.findings[0].measured or 0) < (result.findings[0].required or 0)
    assert judged(view({("a", "b"): good()}), "a").outcome is Outcome.PASS
    alone = judged(view({("a", "b"): good()}), "a", with_baseline=False)
    assert alone.outcome is Outcome.NOT_MEASURED and "no baseline" in alone.summary


def test_a_suspect_whose_second_partner_died_is_not_measured_and_its_partner_passes() -> None:
    gone = (Told(failed="its partner has gone"), None)
    seen = view({("a", "b"): good(SLOW), ("b", "c"): good(), ("a", "d"): gone})
    assert judged(seen, "a").outcome is Outcome.NOT_MEASURED and judged(seen, "b").outcome is Outcome.PASS
    assert judged(seen, "a").details["suspects"] == ["a"]


def test_who_was_measured_with_a_bad_node_only_is_not_measured() -> None:
    seen = view({("bad", "a"): good(SLOW), ("bad", "b"): good(SLOW), ("bad", "x"): good(SLOW), ("a", "b"): good()})
    assert judged(seen, "bad").outcome is Outcome.FAIL
    x = judged(seen, "x")
    assert x.outcome is Outcome.NOT_MEASURED and "measured only with bad" in x.summary and not named(x)


def test_nothing_measured_is_never_pass() -> None:
    for told in ((None, None), (Told(failed="no torch"), Told(failed="no torch")), (Told(), Told())):
        result = judged(view({("a", "b"): told}), "a")
        assert result.outcome is Outcome.NOT_MEASURED
    assert judge_pairs(View(closed=True), "a", baseline()).outcome is Outcome.NOT_MEASURED


# ---- wrong and stalled


def test_wrong_results_fail_a_node_whatever_its_speed() -> None:
    wrong = Told(figures(FAST * 2), ("3 elements of 1048576 bytes",))
    result = judged(full(4, ["n01"], bad=wrong), "n01")
    assert result.outcome is Outcome.FAIL and named(result) == {"n01"}
    assert result.findings[0].kind is FindingKind.WRONG_RESULT
    assert judged(full(4, ["n01"], bad=wrong), "n00").outcome is Outcome.PASS


def test_wrong_results_that_can_not_be_told_apart_keep_both_out_and_blame_neither() -> None:
    wrong = Told(figures(FAST), ("1 element",))
    for node in "ab":
        result = judged(view({("a", "b"): (wrong, good())}), node)
        assert result.outcome is Outcome.FAIL and not named(result) and result.findings[0].kind is FindingKind.WRONG_RESULT
    on_route = full(4, (), [route(met(4)[0][0])], wrong)
    for node in met(4)[0][0]:
        result = judged(on_route, node)
        assert result.outcome is Outcome.FAIL and not named(result) and result.details["bad_nodes"] == []


@pytest.mark.parametrize("with_baseline", [True, False])
def test_who_never_comes_to_the_end_is_bad(with_baseline: bool) -> None:
    stalled = Told(figures(0.01)[:1], stalled=True)
    seen = full(5, ["n02"], bad=stalled)
    result = judged(seen, "n02", with_baseline)
    assert result.outcome is Outcome.FAIL and named(result) == {"n02"} and "did not end" in result.summary
    assert judged(seen, "n03", with_baseline).outcome is Outcome.PASS


def test_a_stall_counts_only_where_both_were_there() -> None:
    for other in (None, Told(failed="no torch"), Told(failed="gone")):
        assert edges_of(view({("a", "b"): (Told(stalled=True), other)}))[0].state is State.UNKNOWN
    broken = (Told(failed="connection closed", broke=True), Told(stalled=True))
    assert edges_of(view({("a", "b"): broken}))[0].state is State.STALLED
    crashed = (Told(failed="connection closed", broke=True), Told(failed="signal 9", broke=True))
    assert edges_of(view({("a", "b"): crashed}))[0].state is State.UNKNOWN


# ---- without a baseline


def test_where_most_pairs_are_slow_beside_the_best_nobody_passes_or_fails_by_them() -> None:
    seen = full(4, names(4)[:2])
    states = [e.state for e in graded(edges_of(seen), None, 0.9, 0.7, 3)]
    slow = [e for e, s in zip(edges_of(seen), states, strict=True) if set(e.pair) & set(names(4)[:2])]
    assert len(slow) >= 3 and State.SLOW not in states and states.count(State.UNCOMPARED) == len(slow)


def test_pairs_that_differ_a_little_are_all_good() -> None:
    edges = [Edge(p, State.GOOD, dict(figures(FAST * f))) for p, f in ((("a", "b"), 1.0), (("b", "c"), 0.85), (("a", "c"), 0.8))]
    assert {e.state for e in graded(edges, None, 0.9, 0.7, 3)} == {State.GOOD}


def test_it_says_that_it_was_compared_with_the_meeting_only() -> None:
    result = judged(full(3), "n00", with_baseline=False)
    assert any(f.kind is FindingKind.NOTE and f.level is Level.NOTE and "no baseline" in f.reason for f in result.findings)


def test_sizes_that_the_baseline_does_not_have_are_not_compared() -> None:
    other = Told(((12345, FAST),))
    result = judged(view({("a", "b"): other, ("b", "c"): other, ("a", "c"): other}), "a")
    assert result.outcome is Outcome.NOT_MEASURED and "sizes" in result.summary
