"""From a finished command to a check's result, whatever its judge says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.checks import CheckSpec, Context, Kind, Stage
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.commands import Ended, Ran, Stuck
from elastic_health.preflight.results import CheckResult, Outcome, not_measured
from elastic_health.preflight.tool import Tool, by_text, judged, told
from elastic_health.preflight.tool_proc import tool_runner

pytestmark = pytest.mark.spec("P1", "P2", "P7")

SPEC = CheckSpec("tool", Kind.DCGM, frozenset(Stage), time_limit_s=12.0, parameters={"level": 2})
FAIL = Finding(FindingKind.DEVICE_ERROR, "bad memory", gpus=("GPU-1",))
BY_OUTCOME = {
    Outcome.PASS: CheckResult("x", Outcome.PASS),
    Outcome.WARN: CheckResult("x", Outcome.WARN, (Finding(FindingKind.THROTTLED, "hot", level=Level.WARN),)),
    Outcome.FAIL: CheckResult("x", Outcome.FAIL, (FAIL,), "bad memory"),
    Outcome.NOT_MEASURED: not_measured("x", "the judge could not read it"),
    Outcome.SKIPPED: CheckResult("x", Outcome.SKIPPED),
}
CUT = [Ended.TIME_LIMIT, Ended.OUTPUT_LIMIT, Ended.CANCELLED, Ended.LOST]
STUCK = (Stuck(77, "nvvs", "D", "nvidia_ioctl"),)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_of_a_whole_run_the_judge_has_the_word(outcome: Outcome) -> None:
    result = judged(SPEC, Ran(("t",), Ended.BY_ITSELF, 0, seconds=2.5), lambda ran: BY_OUTCOME[outcome])
    assert (result.outcome, result.check, result.seconds) == (outcome, "tool", 2.5)


@pytest.mark.parametrize("ended", CUT)
@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_cut_run_passes_nobody_and_keeps_a_failure(ended: Ended, outcome: Outcome) -> None:
    result = judged(SPEC, Ran(("t",), ended, 0), lambda ran: BY_OUTCOME[outcome])
    kept = outcome if outcome in (Outcome.FAIL, Outcome.SKIPPED) else Outcome.NOT_MEASURED
    assert result.outcome is kept
    if kept is Outcome.NOT_MEASURED:
        assert [f.kind for f in result.findings].count(FindingKind.NOT_MEASURED) == 1 and result.summary == result.findings[0].reason


def test_a_time_limit_is_said_with_its_length() -> None:
    result = judged(SPEC, Ran(("t",), Ended.TIME_LIMIT), lambda ran: BY_OUTCOME[Outcome.PASS])
    assert "12 s" in result.summary and "time_limit_s" in result.findings[0].advice


@pytest.mark.parametrize("omitted", [1, 10**9])
def test_output_with_a_gap_passes_nobody(omitted: int) -> None:
    result = judged(SPEC, Ran(("t",), Ended.BY_ITSELF, 0, omitted=omitted), lambda ran: BY_OUTCOME[Outcome.PASS])
    assert result.outcome is Outcome.NOT_MEASURED and str(omitted) in result.summary


def test_a_missing_tool_is_skipped_and_said_so() -> None:
    def never(ran: Ran) -> CheckResult:
        raise AssertionError("nothing ran, there is nothing to judge")

    result = judged(SPEC, Ran(("dcgmi",), Ended.MISSING, detail="no dcgmi on PATH"), never)
    assert result.outcome is Outcome.SKIPPED and result.summary == "skipped: no dcgmi on PATH"
    for ended in (Ended.NOT_EXECUTABLE, Ended.NOT_STARTED):
        result = judged(SPEC, Ran(("dcgmi",), ended, detail="it is a folder"), never)
        assert result.outcome is Outcome.NOT_MEASURED and result.findings[0].kind is FindingKind.MISCONFIGURED


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_process_that_cannot_be_killed_fails_the_node(outcome: Outcome) -> None:
    result = judged(SPEC, Ran(("t",), Ended.TIME_LIMIT, stuck=STUCK), lambda ran: BY_OUTCOME[outcome])
    assert result.outcome is Outcome.FAIL and result.findings[0].kind is FindingKind.LEFTOVER_PROCESS
    assert "77" in result.summary and "nvidia_ioctl" in result.summary


def test_the_judge_gets_the_text_and_the_status() -> None:
    got: list[tuple[str, int | None]] = []

    def judge(text: str, status: int | None) -> CheckResult:
        got.append((text, status))
        return BY_OUTCOME[Outcome.FAIL]

    judged(SPEC, Ran(("t",), Ended.BY_ITSELF, 226, stdout="out", stderr="err"), by_text(judge))
    judged(SPEC, Ran(("t",), Ended.BY_ITSELF, None, signal=9, stderr="err"), by_text(judge))
    judged(SPEC, Ran(("t",), Ended.TIME_LIMIT, None, signal=15, stdout="o"), by_text(judge))
    assert got == [("out", 226), ("err", -9), ("o", None)]


@given(st.sampled_from(list(Ended)), st.sampled_from(list(Outcome)), st.integers(0, 2), st.booleans())
def test_no_run_that_is_not_whole_ever_passes(ended: Ended, outcome: Outcome, omitted: int, stuck: bool) -> None:
    ran = Ran(("t",), ended, 0, omitted=omitted, stuck=STUCK if stuck else ())
    result = judged(SPEC, ran, lambda ran: BY_OUTCOME[outcome])
    if not ran.whole or stuck:
        assert result.outcome not in (Outcome.PASS, Outcome.WARN)


def test_a_check_is_told_what_it_is_for() -> None:
    said = json.loads(told(SPEC, Context(Stage.JOIN, "n1", "run7", "h100", 8)))
    assert said == {
        "check": "tool",
        "stage": "join",
        "node": "n1",
        "run": "run7",
        "node_type": "h100",
        "workers": 8,
        "parameters": {"level": 2},
    }


def test_a_tool_is_one_line_its_command_and_its_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that replays an output and a status, found on PATH; the level comes from the specification."""
    stand_in = tmp_path / "dcgmi-stand-in"
    stand_in.write_text('#!/bin/sh\necho "level $3"\nexit 226\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    got: list[tuple[str, int | None]] = []

    def judge(text: str, status: int | None) -> CheckResult:
        got.append((text, status))
        return not_measured("dcgm", "NVVS error (-30)")

    runner = tool_runner(Tool(lambda spec, context: ("dcgmi-stand-in", "diag", "-r", str(spec.parameters["level"])), by_text(judge)))
    order = Order()
    result = runner(SPEC, Context(Stage.JOIN, "n1"), order)
    order.close()
    assert got == [("level 2\n", 226)] and result.outcome is Outcome.NOT_MEASURED
    assert result.details["command"] == ["dcgmi-stand-in", "diag", "-r", "2"] and result.seconds > 0
