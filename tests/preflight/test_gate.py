"""The gate's decision, as a table; the breaker; and stages run with checks that break, hang and block."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, strategies as st

from elastic_health.errors import ConfigError
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.breaker import BreakerPolicy, NodeFailure, may_quarantine, suspicions
from elastic_health.preflight.checks import (
    Cancel,
    CheckSpec,
    Context,
    Kind,
    Runner,
    Stage,
    Unmeasured,
    due,
    lanes,
    parameter,
    stage_of,
    words,
)
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.gate import HEAD, RECORD_FINDINGS, Decision, Verdict, Why, decide, record, table
from elastic_health.preflight.gate_proc import run_stage
from elastic_health.preflight.policy import DCGM_LIMITS_S, DEFAULT_CHECKS, PreflightPolicy, dcgm_specs
from elastic_health.preflight.registry_proc import registry
from elastic_health.preflight.results import CheckResult, Outcome, not_measured, outcome_of

pytestmark = pytest.mark.spec("P7")

EVERY = frozenset(Stage)


def spec(name: str = "one", **more: object) -> CheckSpec:
    return CheckSpec(name, Kind.OWN, EVERY, **more)  # type: ignore[arg-type]


def result(outcome: Outcome, check: str = "one", *findings: Finding) -> CheckResult:
    return CheckResult(check, outcome, findings, "as it is")


def decided(outcome: Outcome | None, **more: object) -> Decision:
    results = [result(outcome)] if outcome is not None else []
    return decide(Stage.JOIN, "n1", [spec(**more)], results)


# ---- one check


@pytest.mark.parametrize(
    ("outcome", "required", "unmeasured", "why"),
    [
        (Outcome.PASS, False, Unmeasured.ADMIT, Why.PASSED),
        (Outcome.PASS, True, Unmeasured.REFUSE, Why.PASSED),
        (Outcome.WARN, False, Unmeasured.ADMIT, Why.WARNED),
        (Outcome.WARN, True, Unmeasured.REFUSE, Why.WARNED),
        (Outcome.FAIL, False, Unmeasured.ADMIT, Why.FAILED),
        (Outcome.FAIL, True, Unmeasured.REFUSE, Why.FAILED),
        (Outcome.SKIPPED, False, Unmeasured.ADMIT, Why.SKIPPED),
        (Outcome.SKIPPED, False, Unmeasured.REFUSE, Why.SKIPPED),
        (Outcome.SKIPPED, True, Unmeasured.ADMIT, Why.REQUIRED_BUT_SKIPPED),
        (Outcome.NOT_MEASURED, False, Unmeasured.ADMIT, Why.NOT_MEASURED_ADMITS),
        (Outcome.NOT_MEASURED, True, Unmeasured.ADMIT, Why.NOT_MEASURED_ADMITS),
        (Outcome.NOT_MEASURED, False, Unmeasured.REFUSE, Why.NOT_MEASURED_REFUSES),
        (None, False, Unmeasured.ADMIT, Why.NOT_MEASURED_REFUSES),
    ],
)
def test_what_an_outcome_means_for_the_node(outcome: Outcome | None, required: bool, unmeasured: Unmeasured, why: Why) -> None:
    decision = decided(outcome, required=required, when_not_measured=unmeasured)
    assert decision.rows[0].why is why
    assert decision.verdict is (Verdict.REFUSE if why.refuses else Verdict.ADMIT)
    assert bool(decision.signatures) is why.refuses and bool(decision.reason) is why.refuses


def test_the_table_above_is_complete() -> None:
    """Each outcome with each policy has its row, so that a new outcome can't slip in as an admission."""
    for outcome, required, unmeasured in itertools.product(Outcome, (False, True), Unmeasured):
        assert decided(outcome, required=required, when_not_measured=unmeasured).rows[0].why in Why


def test_any_failure_of_any_check_refuses() -> None:
    """IBM/autopilot#68: a node was called healthy although a later category of the diagnostic had failed."""
    specs = [spec(f"c{i}") for i in range(5)]
    for bad in range(5):
        results = [result(Outcome.FAIL if i == bad else Outcome.PASS, f"c{i}") for i in range(5)]
        decision = decide(Stage.JOIN, "n1", specs, results)
        assert decision.verdict is Verdict.REFUSE and [r.result.check for r in decision.refusing] == [f"c{bad}"]
    late = (Finding(FindingKind.NOTE, "fine", level=Level.NOTE), Finding(FindingKind.DEVICE_ERROR, "PCIe failed"))
    assert outcome_of(late, measured=True) is Outcome.FAIL


@given(st.lists(st.sampled_from([o for o in Outcome if o is not Outcome.FAIL]), max_size=6), st.lists(st.integers(0, 5), max_size=3))
def test_a_failure_refuses_whatever_stands_beside_it(others: list[Outcome], bad: list[int]) -> None:
    names = [f"c{i}" for i in range(6)]
    outcomes = dict(zip(names, [*others, *[Outcome.PASS] * 6], strict=False)) | {f"c{i}": Outcome.FAIL for i in bad}
    decision = decide(Stage.JOIN, "n1", [spec(n) for n in names], [result(outcomes[n], n) for n in names])
    assert decision.verdict.lets_in is not bool(bad)
    assert {row.result.check for row in decision.refusing} == {f"c{i}" for i in bad}


def test_observing_admits_and_says_what_it_would_have_done() -> None:
    decision = decide(Stage.JOIN, "n1", [spec()], [result(Outcome.FAIL)], observe_only=True)
    assert decision.verdict is Verdict.ADMIT_OBSERVED and decision.verdict.lets_in and decision.reason and decision.signatures
    assert decide(Stage.JOIN, "n1", [spec()], [result(Outcome.PASS)], observe_only=True).verdict is Verdict.ADMIT
    assert record(decision)["verdict"] == "admit_observed"


def test_results_of_other_checks_count_for_nothing() -> None:
    decision = decide(Stage.JOIN, "n1", [spec()], [result(Outcome.PASS), result(Outcome.FAIL, "stranger")])
    assert decision.verdict is Verdict.ADMIT and len(decision.rows) == 1


def test_a_stage_without_checks_admits() -> None:
    assert decide(Stage.RESTART, "n1", [], []).verdict is Verdict.ADMIT


# ---- table and record


LOW = Finding(FindingKind.LOW_RESOURCE, "/scratch: 0.40 GiB free", measured=0.4, required=1.0, unit="GiB", advice="delete what is old")
HOT = Finding(FindingKind.THROTTLED, "GPU 3: hot", level=Level.WARN, gpus=("GPU-3",))


def test_the_table_shows_measured_against_required_and_what_to_do() -> None:
    absent = Finding(FindingKind.NOTE, "skipped: no dcgmi on PATH", level=Level.NOTE)
    specs = [spec("host"), spec("dcgm", required=True), spec("canary")]
    results = [
        result(outcome_of((LOW, HOT), measured=True), "host", LOW, HOT),
        CheckResult("dcgm", Outcome.SKIPPED, (absent,), absent.reason),
        result(Outcome.PASS, "canary"),
    ]
    decision = decide(Stage.JOIN, "n1", specs, results)
    rows = table(decision)
    assert rows == [
        ("host", "fail", "/scratch: 0.40 GiB free", "0.4 GiB", "1 GiB", "delete what is old"),
        ("host", "fail", "GPU 3: hot", "", "", ""),
        ("dcgm", "skipped (required)", "skipped: no dcgmi on PATH", "", "", ""),
    ]
    assert all(len(row) == len(HEAD) for row in rows)
    assert ("canary", "pass", "as it is", "", "", "") in table(decision, everything=True)
    assert decision.reason == "host: /scratch: 0.40 GiB free; dcgm: skipped: no dcgmi on PATH"


def test_a_record_is_small_plain_and_finite() -> None:
    many = tuple(Finding(FindingKind.DEVICE_ERROR, f"bad {i}" * 1000, measured=float("nan"), required=float("inf")) for i in range(200))
    said = record(decide(Stage.JOIN, "n1", [spec()], [result(Outcome.FAIL, "one", *many)]))
    text = json.dumps(said, allow_nan=False)
    assert len(text) < 20_000 and said["verdict"] == "refuse"
    check = said["checks"][0]  # type: ignore[index]
    assert len(check["findings"]) == RECORD_FINDINGS and check["findings_left_out"] == 200 - RECORD_FINDINGS


def test_nodes_that_fail_alike_have_one_signature_and_others_another() -> None:
    def of(node: str, *found: Finding) -> tuple[str, ...]:
        return decide(Stage.JOIN, node, [spec("dcgm")], [result(Outcome.FAIL, "dcgm", *found)]).signatures

    one = Finding(FindingKind.DEVICE_ERROR, "GPU 3 of n1", gpus=("GPU-a",), signature="pcie")
    other = Finding(FindingKind.DEVICE_ERROR, "GPU 5 of n2", gpus=("GPU-b",), signature="pcie")
    assert of("n1", one) == of("n2", other) == ("dcgm:pcie",)
    assert of("n3", LOW) == ("dcgm:low_resource",) and of("n4") == ("dcgm:failed",)


# ---- the breaker


def failures(*nodes: str, at: float = 1000.0, by: str = "dcgm:pcie") -> list[NodeFailure]:
    return [NodeFailure(node, at, (by,)) for node in nodes]


POLICY = BreakerPolicy(window_s=600.0, nodes=3, share=0.05)


def test_many_nodes_that_fail_alike_are_a_fault_of_the_set_up() -> None:
    """NVIDIA/DCGM#254: one test failed on all GPUs of all nodes after an upgrade."""
    found = suspicions(failures("n1", "n2", "n3"), 3, POLICY, 1000.0)
    assert [(s.signature, s.nodes) for s in found] == [("dcgm:pcie", ("n1", "n2", "n3"))]
    assert "3 of 3 nodes" in found[0].reason and not may_quarantine(failures("n4")[0], found)


def test_one_node_that_failed_is_marked_alone() -> None:
    """flux-framework/flux-core#7663: one of 2048 was absent, and all were drained."""
    found = suspicions(failures("n1"), 2048, POLICY, 1000.0)
    assert found == () and may_quarantine(failures("n1")[0], found)


def test_of_a_large_fleet_a_few_bad_nodes_are_just_bad() -> None:
    few = failures("n1", "n2", "n3")
    assert suspicions(few, 1000, POLICY, 1000.0) == ()
    many = failures(*(f"n{i}" for i in range(50)))
    assert len(suspicions(many, 1000, POLICY, 1000.0)) == 1
    assert len(suspicions(few, 0, POLICY, 1000.0)) == 1  # nobody counts the checked ones


def test_the_same_node_again_and_again_is_one_node() -> None:
    again = [NodeFailure("n1", 900.0 + i, ("dcgm:pcie",)) for i in range(50)]
    assert suspicions(again, 3, POLICY, 1000.0) == ()


def test_old_failures_never_come_back() -> None:
    """NVIDIA/NVSentinel#1347: old events were replayed on healthy nodes."""
    old = failures("n1", "n2", "n3", at=399.0)
    assert suspicions(old, 3, POLICY, 1000.0) == () and len(suspicions(old, 3, POLICY, 900.0)) == 1


def test_failures_of_different_kinds_don_t_add_up() -> None:
    mixed = failures("n1", by="a:x") + failures("n2", by="b:y") + failures("n3", by="c:z")
    assert suspicions(mixed, 3, POLICY, 1000.0) == ()


def test_a_node_with_a_fault_of_its_own_beside_the_common_one_may_be_quarantined() -> None:
    found = suspicions(failures("n1", "n2", "n3"), 3, POLICY, 1000.0)
    assert may_quarantine(NodeFailure("n2", 1000.0, ("dcgm:pcie", "host:device_error")), found)
    assert not may_quarantine(NodeFailure("n2", 1000.0, ()), ())


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 2000), st.sampled_from(["x", "y"])), max_size=30),
    st.integers(0, 50),
    st.floats(0, 2000),
)
def test_the_breaker_against_a_naive_count(seen: list[tuple[str, float, str]], checked: int, now: float) -> None:
    given_ = [NodeFailure(node, at, (signature,)) for node, at, signature in seen]
    found = {s.signature: set(s.nodes) for s in suspicions(given_, checked, POLICY, now)}
    for signature in ("x", "y"):
        nodes = {n for n, at, s in seen if s == signature and at > now - 600.0 and at <= now + 600.0}
        opens = len(nodes) >= 3 and len(nodes) >= 0.05 * checked
        assert (signature in found) is opens and (not opens or found[signature] == nodes)


# ---- stages


@pytest.mark.parametrize(
    ("new", "blamed", "repaired", "stage"),
    [
        (True, False, False, Stage.JOIN),
        (False, True, False, Stage.JOIN),
        (False, False, False, Stage.RESTART),
        (True, True, True, Stage.AFTER_REPAIR),
        (False, False, True, Stage.AFTER_REPAIR),
    ],
)
def test_which_stage_a_node_goes_through(new: bool, blamed: bool, repaired: bool, stage: Stage) -> None:
    assert stage_of(new=new, blamed=blamed, repaired=repaired) is stage


def test_the_default_checks_of_each_stage() -> None:
    names = {stage: [s.name for s in due(DEFAULT_CHECKS, stage)] for stage in Stage}
    assert names == {
        Stage.JOIN: ["host", "canary", "dcgm", "bandwidth"],
        Stage.RESTART: ["host"],
        Stage.AFTER_REPAIR: ["host", "canary", "dcgm", "bandwidth"],
    }
    levels = {stage: [s.parameters["level"] for s in due(DEFAULT_CHECKS, stage) if s.name == "dcgm"] for stage in Stage}
    assert levels == {Stage.JOIN: [2], Stage.RESTART: [], Stage.AFTER_REPAIR: [3]}
    for stage in Stage:
        longest = max((sum(s.time_limit_s for s in lane) for lane in lanes(due(DEFAULT_CHECKS, stage))), default=0.0)
        assert longest <= PreflightPolicy().total_s


def test_each_level_of_dcgm_has_its_own_limit() -> None:
    made = dcgm_specs({Stage.JOIN: 1, Stage.RESTART: 0, Stage.AFTER_REPAIR: 4}, DCGM_LIMITS_S)
    assert [(s.stages, s.time_limit_s) for s in made] == [({Stage.JOIN}, 60.0), ({Stage.AFTER_REPAIR}, 10800.0)]


def test_two_checks_of_one_name_at_a_stage_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="several named one"):
        due([spec(), spec()], Stage.JOIN)


def test_checks_of_one_lane_follow_one_another() -> None:
    specs = [spec("a"), spec("b", lane="gpu"), spec("c"), spec("d", lane="gpu"), spec("e", lane="disk")]
    assert [[s.name for s in lane] for lane in lanes(specs)] == [["a"], ["c"], ["b", "d"], ["e"]]


def test_parameters_are_read_with_their_type() -> None:
    one = spec(parameters={"level": 2, "words": ["a", "b"], "on": True})
    assert parameter(one, "level", int, 1) == 2 and parameter(one, "level", float, 1.0) == 2.0 and parameter(one, "absent", str, "x") == "x"
    assert words(one, "words") == ("a", "b") and words(one, "absent") == ()
    for name, kind in (("level", str), ("on", int), ("words", str)):
        with pytest.raises(ConfigError):
            parameter(one, name, kind, kind())
    with pytest.raises(ConfigError):
        words(one, "level")


# ---- running them


CONTEXT = Context(Stage.JOIN, "n1")


def by_name(runners: Mapping[str, Runner]) -> Mapping[Kind, Runner]:
    return {Kind.OWN: lambda spec, context, cancel: runners[spec.name](spec, context, cancel)}


def passes(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
    return result(Outcome.PASS, spec.name)


def breaks(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
    raise RuntimeError("the check has a bug")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets go of checks that block for ever, at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_check_that_breaks_takes_no_other_with_it() -> None:
    specs = [spec("a"), spec("b"), spec("c")]
    found = run_stage(specs, CONTEXT, by_name({"a": passes, "b": breaks, "c": passes}), total_s=30.0)
    assert [(r.check, r.outcome) for r in found] == [("a", Outcome.PASS), ("b", Outcome.NOT_MEASURED), ("c", Outcome.PASS)]
    assert "RuntimeError: the check has a bug" in found[1].summary


def test_independent_checks_run_side_by_side_and_those_of_a_lane_do_not() -> None:
    together = threading.Barrier(2, timeout=20.0)
    busy, most = [0], [0]

    def meets(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        together.wait()
        return passes(spec, context, cancel)

    def alone(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        time.sleep(0.05)
        busy[0] -= 1
        return passes(spec, context, cancel)

    specs = [spec("x"), spec("y"), *(spec(f"g{i}", lane="gpu") for i in range(4))]
    runners: dict[str, Runner] = {"x": meets, "y": meets, **{f"g{i}": alone for i in range(4)}}
    found = run_stage(specs, CONTEXT, by_name(runners), total_s=30.0)
    assert [r.check for r in found] == [s.name for s in specs] and {r.outcome for r in found} == {Outcome.PASS}
    assert most == [1]


def test_each_check_gets_its_own_limit_and_no_more_than_is_left() -> None:
    limits: dict[str, float] = {}

    def tells(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        limits[spec.name] = spec.time_limit_s
        return passes(spec, context, cancel)

    run_stage([spec("a", time_limit_s=2.0), spec("b", time_limit_s=500.0)], CONTEXT, by_name({"a": tells, "b": tells}), total_s=10.0)
    assert limits["a"] == 2.0 and 9.0 < limits["b"] <= 10.0


def test_what_has_no_time_left_is_not_begun() -> None:
    def uses_it_up(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        time.sleep(spec.time_limit_s + 0.05)
        return passes(spec, context, cancel)

    specs = [spec("a", lane="gpu"), spec("b", lane="gpu")]
    found = run_stage(specs, CONTEXT, by_name({"a": uses_it_up, "b": passes}), total_s=0.2)
    assert found[0].outcome is Outcome.PASS and found[1].outcome is Outcome.NOT_MEASURED and "not begun" in found[1].summary


def test_an_order_to_stop_reaches_what_runs_and_what_has_not_begun() -> None:
    order, began = Order(), threading.Event()

    def waits(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        began.set()
        deadline = time.monotonic() + 20.0
        while not cancel.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        return not_measured(spec.name, "stopped")

    specs = [spec("a", lane="gpu"), spec("b", lane="gpu")]
    thread = threading.Thread(target=lambda: (began.wait(20.0), order.give()))
    thread.start()
    started = time.monotonic()
    found = run_stage(specs, CONTEXT, by_name({"a": waits, "b": passes}), total_s=30.0, cancel=order)
    thread.join()
    order.close()
    assert time.monotonic() - started < 15.0
    assert [r.summary for r in found] == ["stopped", "not begun: the agent was told to stop"]


def test_a_kind_that_nobody_runs_is_not_measured() -> None:
    found = run_stage([CheckSpec("p", Kind.PAIR, EVERY)], CONTEXT, {}, total_s=5.0)
    assert found[0].outcome is Outcome.NOT_MEASURED and "pair" in found[0].summary
    assert run_stage([], CONTEXT, {}, total_s=5.0) == ()


def test_results_are_told_as_they_come() -> None:
    told: list[str] = []
    run_stage([spec("a")], CONTEXT, by_name({"a": passes}), total_s=5.0, on_result=lambda r: told.append(r.check))
    assert told == ["a"]


@pytest.mark.slow
def test_a_check_that_never_returns_is_left_behind(release: threading.Event) -> None:
    """A thread that the kernel holds (a dead mount) can't be ended; the node is judged without it."""

    def never(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        release.wait(120.0)
        return passes(spec, context, cancel)

    started = time.monotonic()
    specs = [spec("a", time_limit_s=0.2), spec("b", time_limit_s=0.2)]
    found = run_stage(specs, CONTEXT, by_name({"a": never, "b": passes}), total_s=60.0)
    assert [r.outcome for r in found] == [Outcome.NOT_MEASURED, Outcome.PASS] and "did not return" in found[0].summary
    assert time.monotonic() - started < 20.0


def test_a_stage_of_real_processes_end_to_end() -> None:
    """Host check, an own check that passes, one that fails, one that hangs, one that is not there: one refusal, all told."""
    specs = [
        CheckSpec("host", Kind.HOST, EVERY, time_limit_s=20.0, parameters={"parts": ["memory", "limits"], "memory_bytes": 1.0}),
        CheckSpec("good", Kind.OWN, EVERY, parameters={"command": ["true"]}),
        CheckSpec("bad", Kind.OWN, EVERY, parameters={"command": ["sh", "-c", "echo broken >&2; exit 3"]}),
        CheckSpec("slow", Kind.OWN, EVERY, time_limit_s=0.5, parameters={"command": ["sleep", "600"]}),
        CheckSpec("gone", Kind.OWN, EVERY, parameters={"command": ["no-such-check-anywhere"]}),
    ]
    found = run_stage(specs, CONTEXT, registry(tools={}, runners={}), total_s=60.0)
    decision = decide(Stage.JOIN, "n1", specs, found)
    assert [row.why for row in decision.rows][1:] == [Why.PASSED, Why.FAILED, Why.NOT_MEASURED_ADMITS, Why.SKIPPED]
    assert decision.verdict is Verdict.REFUSE and "bad: it ended with status 3: broken" in decision.reason
