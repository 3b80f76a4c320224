"""`analyze nccl-tests` and `analyze xid`: the same verdicts and statuses as for the other kinds; real outputs of all kinds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from elastic_health.cli.analyze import KINDS
from elastic_health.cli.codes import Code
from elastic_health.cli.main import main
from tests.preflight.kernel_text import LOST, log, xid
from tests.preflight.nccl_text import NEW, output

pytestmark = pytest.mark.spec("U3")
CASES = os.environ.get("ELASTIC_HEALTH_CASES", "")
FOLDERS = {"dcgm": "dcgm", "nccl_tests": "nccl-tests", "xid": "xid"}
REAL = [(kind, path) for folder, kind in FOLDERS.items() for path in sorted(Path(CASES, folder).glob("*"))] if CASES else []


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["analyze", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    return code, json.loads(out)


def test_nccl_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, wrong, cut = (tmp_path / name for name in ("good", "wrong", "cut"))
    text = output(NEW)
    good.write_text(text)
    wrong.write_text(output(NEW, wrong="3"))
    cut.write_text(text[: len(text) // 2])
    assert run(capsys, "nccl-tests", str(good))[0] == 0
    code, told = run(capsys, "nccl-tests", str(wrong))
    assert code == Code.UNFIT and "wrong_result" in {f["kind"] for f in told["findings"]}
    assert run(capsys, "nccl-tests", str(cut))[0] == Code.NOT_MEASURED
    assert run(capsys, "nccl-tests", str(good), "--exit-status", "3")[0] == Code.NOT_MEASURED


def test_xid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app, lost, empty = (tmp_path / name for name in ("app", "lost", "empty"))
    app.write_text(log("syslog", xid(13)))
    lost.write_text(log("syslog", *LOST))
    empty.write_text("")
    code, told = run(capsys, "xid", str(app))
    assert code == 0 and told["verdict"] == "warn"
    code, told = run(capsys, "xid", str(lost))
    assert code == Code.UNFIT and told["gpus"]
    assert run(capsys, "xid", str(empty))[0] == Code.NOT_MEASURED


@pytest.mark.skipif(not REAL, reason="ELASTIC_HEALTH_CASES is not set")
@pytest.mark.parametrize(("kind", "path"), REAL, ids=[path.name for _, path in REAL])
def test_real_outputs_of_any_kind_get_a_verdict_of_every_reader(kind: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdicts themselves are in `tests/preflight`; here: one object, a documented status, and no reader stumbles over
    what is another's."""
    for one in KINDS:
        code, told = run(capsys, one, str(path))
        status = {"pass": 0, "warn": 0, "skipped": 0, "fail": Code.UNFIT, "not_measured": Code.NOT_MEASURED}[told["verdict"]]
        assert code == status
        if one not in (kind, "nvlink"):
            assert told["verdict"] != "pass", f"{one} calls an output of {kind} good"
