"""Own executables and entry points: exit status, JSON, and what neither can hide."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from elastic_health import variables
from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.checks import CheckSpec, Context, Kind, Runner, Stage
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.commands import Ended, Ran
from elastic_health.preflight.own import MAX_FINDINGS, judge_own
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.preflight.tool_proc import entry_runner, own_runner

pytestmark = pytest.mark.spec("P6")

CONTEXT = Context(Stage.JOIN, "n1", "run7", "h100", 8)


def own(stdout: str = "", status: int | None = 0, *, stderr: str = "", signal: int = 0) -> CheckResult:
    return judge_own("mine", Ran(("mine",), Ended.BY_ITSELF, status, signal, stdout=stdout, stderr=stderr))


def said(outcome: str, **finding: object) -> str:
    return json.dumps({"outcome": outcome, "findings": [finding] if finding else []})


# ---- exit status and JSON


@pytest.mark.parametrize(
    ("stdout", "status", "outcome"),
    [
        ("", 0, Outcome.PASS),
        ("all is well\n", 0, Outcome.PASS),
        ("", 1, Outcome.FAIL),
        ("all is well\n", 77, Outcome.FAIL),
        (said("pass"), 0, Outcome.PASS),
        (said("warn"), 0, Outcome.WARN),
        (said("fail"), 0, Outcome.FAIL),
        (said("skipped"), 0, Outcome.SKIPPED),
        (said("not_measured"), 0, Outcome.NOT_MEASURED),
        (said("pass"), 2, Outcome.FAIL),
        (said("warn"), 2, Outcome.FAIL),
        (said("skipped"), 2, Outcome.FAIL),
        (said("fail"), 2, Outcome.FAIL),
        ("working…\n" + said("fail") + "\n", 0, Outcome.FAIL),
        (json.dumps({"outcome": "pass"}, indent=2), 0, Outcome.PASS),
        (json.dumps({"outcome": "fail"}, indent=2), 0, Outcome.FAIL),
        ('{"temperature": 40}', 0, Outcome.PASS),
        ('{"findings": [{"reason": "x", "level": "fail"}]}', 0, Outcome.FAIL),
        ('{"outcome": "pass", "findings": [{"reason": "x", "level": "fail"}]}', 0, Outcome.FAIL),
        ('{"outcome": "pass", "findings": [{"reason": "x", "level": "warn"}]}', 0, Outcome.WARN),
        ('{"outcome": "pass"', 0, Outcome.NOT_MEASURED),
        ("noise\n{'outcome': 'pass'}", 0, Outcome.NOT_MEASURED),
        ('{"outcome": "ok"}', 0, Outcome.NOT_MEASURED),
        ('{"outcome": ["fail"]}', 0, Outcome.NOT_MEASURED),
        ('{"outcome": "pass", "findings": "none"}', 0, Outcome.NOT_MEASURED),
        ('{"outcome": "pass"', 3, Outcome.FAIL),
    ],
)
def test_exit_status_and_json_together(stdout: str, status: int, outcome: Outcome) -> None:
    assert own(stdout, status).outcome is outcome


def test_where_they_disagree_the_result_says_so() -> None:
    result = own(said("pass"), 4)
    assert any("JSON says pass" in f.reason and "status 4" in f.reason and f.level is Level.FAIL for f in result.findings)


def test_a_failure_without_json_tells_its_last_words() -> None:
    assert "disk 3 is gone" in own("", 1, stderr="looking\ndisk 3 is gone\n\n").summary
    assert "signal 11" in own("", None, signal=11).summary


def test_a_finding_carries_its_figures() -> None:
    found = own(said("fail", reason="slow disk", measured=0.4, required=1, unit="GB/s", advice="change it", gpus=["GPU-1"])).findings[0]
    assert (found.kind, found.reason, found.measured, found.required) == (FindingKind.OWN_CHECK, "slow disk", 0.4, 1.0)
    assert (found.unit, found.advice, found.gpus, found.level) == ("GB/s", "change it", ("GPU-1",), Level.FAIL)


def test_figures_that_are_none_are_dropped() -> None:
    text = '{"outcome": "fail", "findings": [{"reason": "x", "measured": NaN, "required": true}, {"reason": 7, "measured": 1e999}]}'
    first, second = own(text).findings
    assert (first.measured, first.required, second.measured, second.reason) == (None, None, None, "it gives no reason")


def test_foreign_text_is_bounded_and_printable() -> None:
    rows = [{"reason": "\x1b[2J" + "x" * 10_000} for _ in range(1000)]
    result = own(json.dumps({"outcome": "fail", "findings": rows}))
    assert len(result.findings) == MAX_FINDINGS + 1 and len(result.findings[0].reason) < 500
    assert result.findings[0].reason.isprintable()


JSONISH = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["outcome", "findings", "reason", "level"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSONISH, st.sampled_from([0, 1, -9]), st.text(max_size=20))
def test_any_json_is_judged_and_a_failed_status_never_forgiven(body: object, status: int, before: str) -> None:
    result = own(f"{before}\n{json.dumps(body)}", None if status < 0 else status, signal=-min(status, 0))
    assert (result.outcome is Outcome.FAIL) >= (status != 0)
    assert result.outcome is Outcome.FAIL or not any(f.level is Level.FAIL for f in result.findings)


@given(st.integers(1, 200))
def test_json_that_was_cut_never_passes(at: int) -> None:
    whole = said("pass", reason="figures", measured=3.5, required=3.0, unit="GB/s", advice="none")
    if at < len(whole):
        assert own(whole[:at]).outcome is Outcome.NOT_MEASURED


# ---- real executables


@pytest.fixture
def cancel() -> Iterator[Order]:
    order = Order()
    yield order
    order.close()


def executable(folder: Path, body: str) -> list[str]:
    path = folder / "check.sh"
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return [str(path)]


def run(runner: Runner, cancel: Order, limit_s: float = 30.0, **parameters: object) -> CheckResult:
    kind = Kind.OWN if "command" in parameters else Kind.ENTRY
    return runner(CheckSpec("mine", kind, frozenset(Stage), time_limit_s=limit_s, parameters=parameters), CONTEXT, cancel)


def test_an_own_executable_runs_and_knows_what_for(tmp_path: Path, cancel: Order) -> None:
    command = executable(tmp_path, f"echo \"${variables.CHECK}\" > {tmp_path}/told; echo '{said('warn', reason='dusty')}'\n")
    result = run(own_runner(), cancel, command=command, threshold=3)
    assert (result.outcome, result.summary, result.check) == (Outcome.WARN, "dusty", "mine")
    told = json.loads((tmp_path / "told").read_text())
    assert (told["node"], told["stage"], told["parameters"]["threshold"]) == ("n1", "join", 3)


def test_it_sees_no_secret(tmp_path: Path, cancel: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE_WORD", "HF_TOKEN", "RANK", "KEPT_TOKEN"):
        monkeypatch.setenv(name, "seen")
    command = executable(tmp_path, "env")
    result = run(own_runner(["STORE_WORD"]), cancel, command=[*command], keep_env=["KEPT_TOKEN"])
    assert result.outcome is Outcome.PASS
    command = executable(tmp_path, f"env > {tmp_path}/seen")
    run(own_runner(["STORE_WORD"]), cancel, command=command, keep_env=["KEPT_TOKEN"])
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert "KEPT_TOKEN" in seen and "PATH" in seen and not seen & {"STORE_WORD", "HF_TOKEN", "RANK"}


def test_one_that_hangs_has_measured_nothing(tmp_path: Path, cancel: Order) -> None:
    started = time.monotonic()
    result = run(own_runner(), cancel, limit_s=0.5, command=executable(tmp_path, "echo on; sleep 600"))
    assert result.outcome is Outcome.NOT_MEASURED and "0.5 s" in result.summary and time.monotonic() - started < 10


def test_one_that_is_not_there_or_not_executable(tmp_path: Path, cancel: Order) -> None:
    assert run(own_runner(), cancel, command=["no-such-check-anywhere"]).outcome is Outcome.SKIPPED
    assert run(own_runner(), cancel, command=[str(tmp_path)]).outcome is Outcome.NOT_MEASURED
    assert run(own_runner(), cancel, command=[]).outcome is Outcome.NOT_MEASURED


# ---- entry points


ENTRIES = """
    import os, sys, threading, time
    from elastic_health.findings import Finding, FindingKind, Level
    from elastic_health.preflight.results import CheckResult, Outcome
    def fit(context):
        print("chatter on stdout")
        os.system("printf 'more of it, without an end of line'")
        return context.node == "n1" and context.parameters["threshold"] == 3
    def unfit(context): return False
    def full(context):
        found = Finding(FindingKind.OWN_CHECK, "slow", measured=1.0, required=2.0, unit="GB/s")
        return CheckResult("whatever", Outcome.FAIL, (found,), "slow", details={"at": 1})
    def soft(context):  # says pass, but its finding fails
        return CheckResult("whatever", Outcome.PASS, (Finding(FindingKind.OWN_CHECK, "bad", level=Level.FAIL),))
    def raises(context): raise ValueError("the probe is not plugged in")
    def leaves(context): sys.exit(3)
    def dies(context): os.kill(os.getpid(), 11)
    def vanishes(context): os._exit(0)
    def odd(context): return 7
    def nothing(context): pass
    def endless(context): time.sleep(600)
    def threads(context):
        threading.Thread(target=time.sleep, args=(600,)).start()
        return True
    def unspeakable(context): return CheckResult("x", Outcome.PASS, details={"set": {1}})
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with entry points, on the path of the processes that are started."""
    (tmp_path / "own_entries_under_test.py").write_text(textwrap.dedent(ENTRIES))
    info = tmp_path / "own_entries_under_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-entries-under-test\nVersion: 1.0\n")
    names = "fit unfit full soft raises leaves dies vanishes odd nothing endless threads unspeakable".split()
    points = [f"{name} = own_entries_under_test:{name}" for name in names] + ["broken = no_such_module_anywhere:check"]
    (info / "entry_points.txt").write_text("[elastic_health.checks]\n" + "\n".join(points) + "\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))


@pytest.mark.parametrize(
    ("entry", "outcome", "said"),
    [
        ("fit", Outcome.PASS, ""),
        ("unfit", Outcome.FAIL, "False"),
        ("full", Outcome.FAIL, "slow"),
        ("soft", Outcome.FAIL, "bad"),
        ("raises", Outcome.NOT_MEASURED, "ValueError: the probe is not plugged in"),
        ("leaves", Outcome.NOT_MEASURED, "3"),
        ("dies", Outcome.NOT_MEASURED, "signal 11"),
        ("vanishes", Outcome.NOT_MEASURED, "without a result"),
        ("odd", Outcome.NOT_MEASURED, "int"),
        ("nothing", Outcome.NOT_MEASURED, "NoneType"),
        ("threads", Outcome.PASS, ""),
        ("unspeakable", Outcome.NOT_MEASURED, "not plain data"),
        ("broken", Outcome.NOT_MEASURED, "no_such_module_anywhere"),
        ("absent", Outcome.SKIPPED, "no entry point absent"),
    ],
)
def test_an_entry_point_in_its_own_process(installed: None, cancel: Order, entry: str, outcome: Outcome, said: str) -> None:
    result = run(entry_runner(), cancel, entry=entry, threshold=3)
    assert (result.outcome, result.check) == (outcome, "mine") and said in result.summary
    if entry == "full":
        assert (result.findings[0].measured, result.findings[0].required, result.details["at"]) == (1.0, 2.0, 1)


def test_one_that_never_returns_is_ended(installed: None, cancel: Order) -> None:
    result = run(entry_runner(), cancel, limit_s=1.0, entry="endless")
    assert result.outcome is Outcome.NOT_MEASURED and "1 s" in result.summary
