"""`elastic-health preflight`: the gate by hand, its table, its JSON and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_health.cli.codes import Code
from elastic_health.cli.main import main

pytestmark = pytest.mark.spec("U3", "P7")
QUICK = "host: {parts: [memory, limits]}, canary: {stages: []}"


def written(folder: Path, rest: str) -> str:
    path = folder / "health.yaml"
    path.write_text(f"preflight: {{{rest}}}\n")
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["preflight", "--json", "--node", "n1", *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELASTIC_HEALTH_ENDPOINT", raising=False)
    monkeypatch.delenv("ELASTIC_HEALTH_CONFIG", raising=False)


def test_an_ordinary_machine_is_let_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(capsys, "--config", written(tmp_path, QUICK))
    assert code == Code.OK and said["decision"] == "admit" and said["verdict"] in ("pass", "warn")
    assert (said["stage"], said["mode"], said["node"]) == ("join", "enforce", "n1")
    outcomes = {c["check"]: c["outcome"] for c in said["checks"]}
    assert outcomes["host"] in ("pass", "warn") and set(outcomes) == {"host", "dcgm", "bandwidth"}


def test_a_bad_one_is_told_with_measured_against_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "host: {parts: [memory], memory_bytes: 1.0e+17}, canary: {stages: []}")
    assert main(["preflight", "--node", "n1", "--config", path]) == Code.UNFIT
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0].startswith("preflight join of n1: refused in ")
        and lines[2].split() == "check outcome found measured required what to do".split()
    )
    assert any(line.startswith("host ") and "93132257 GiB" in line and "leftover" in line for line in lines)
    assert any(line.startswith("dcgm ") and "no dcgmi on PATH" in line for line in lines)


def test_observe_only_says_what_it_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "mode: observe_only, host: {parts: [memory], memory_bytes: 1.0e+17}, canary: {stages: []}")
    code, said = told(capsys, "--config", path)
    assert code == Code.UNFIT and (said["verdict"], said["decision"], said["mode"]) == ("fail", "admit_observed", "observe_only")


def test_the_stage_says_which_checks_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, QUICK)
    code, said = told(capsys, "--config", path, "--stage", "restart")
    assert code == Code.OK and [c["check"] for c in said["checks"]] == ["host"] and said["seconds"] < 2.0


@pytest.mark.parametrize("rest", ["mode: off", "host: {stages: []}, canary: {stages: []}"])
def test_nothing_measured_is_no_pass(rest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(capsys, "--config", written(tmp_path, rest))
    assert code == Code.NOT_MEASURED and said["verdict"] == "not_measured"


def test_what_tools_print_can_not_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = tmp_path / "hostile"
    hostile.write_text("#!/bin/sh\nprintf 'bad \\033[2J\\033[H'; exit 1\n")
    hostile.chmod(0o755)
    path = written(tmp_path, f"host: {{stages: []}}, canary: {{stages: []}}, own: [{{name: own, command: [{hostile}]}}]")
    assert main(["preflight", "--config", path]) == Code.UNFIT
    assert "\033" not in capsys.readouterr().out


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--config", written(tmp_path, "mod: off")]) == Code.BAD_CONFIG
    assert "preflight.mod" in capsys.readouterr().err
    assert main(["preflight", "--config", written(tmp_path, QUICK), "--endpoint", "127.0.0.1:1"]) == Code.STORE_UNREACHABLE
