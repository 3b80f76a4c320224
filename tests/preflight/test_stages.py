"""Which checks run at a stage, and stages run with checks that break, hang and block."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from elastic_health.errors import ConfigError
from elastic_health.preflight.checks import (
    Cancel,
    CheckSpec,
    Context,
    Kind,
    Runner,
    Stage,
    due,
    lanes,
    parameter,
    stage_of,
    words,
)
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.gate import Verdict, Why, decide
from elastic_health.preflight.gate_proc import run_stage
from elastic_health.preflight.policy import DCGM_LIMITS_S, DEFAULT_CHECKS, PreflightPolicy, dcgm_specs
from elastic_health.preflight.registry_proc import registry
from elastic_health.preflight.results import CheckResult, Outcome, not_measured
from tests.preflight.cases import EVERY, result, spec

pytestmark = pytest.mark.spec("P7")

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
