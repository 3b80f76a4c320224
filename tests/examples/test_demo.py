"""The whole demo, and that it can be stopped at any time without a trace of it running on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def start(out: Path) -> subprocess.Popen[str]:
    line = [sys.executable, str(DEMO), "--out", str(out)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


@pytest.mark.slow
@pytest.mark.spec("R1", "R2", "R3", "R4", "L7", "L8", "U1")
@pytest.mark.timeout(400)
def test_everything_holds(tmp_path: Path) -> None:
    demo = start(tmp_path / "out")
    said, _ = demo.communicate(timeout=380)
    assert demo.returncode == 0, said
    told = json.loads((tmp_path / "out" / "report.json").read_text())
    assert told["holds"] and told["proof"]["holds"] and told["proof"]["skipped_in_windows"] == 320
    assert [f["cause"] for f in told["faults"]] == [
        "worker_killed", "stall", "lost_member", "lost_member", "scale_up", "worker_killed",
    ]  # fmt: skip
    assert 2 in told["proof"]["world_sizes"]


@pytest.mark.spec("U1")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_stopped_in_the_middle_it_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    """That no process is left is seen to at this module's end, for every test."""
    demo = start(tmp_path / "out")
    assert demo.stdout is not None
    said = ""
    while "generation 1:" not in said:
        said += demo.stdout.readline() or pytest.fail(f"it ended early: {said}")
    os.kill(demo.pid, number)
    rest = "" if number is signal.SIGKILL else demo.stdout.read()
    assert demo.wait(60) == (-9 if number is signal.SIGKILL else 130)
    demo.stdout.close()
    assert "Traceback" not in rest


@pytest.mark.spec("U1")
def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    demo = start(tmp_path)
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1 and "expected an empty folder" in said and "Traceback" not in said
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
