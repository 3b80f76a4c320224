"""Commands that need no store, and the generated pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic_health.cli.codes import MEANINGS, Code
from elastic_health.cli.main import main
from elastic_health.cli.papers import decision_page, exit_page
from elastic_health.cli.show import table
from elastic_health.exits import EXIT_TABLE, ExitStatus
from elastic_health.verdicts import Cause

pytestmark = pytest.mark.spec("U3")
DOCS = Path(__file__).parents[2] / "docs"


def test_generated_pages_are_current() -> None:
    assert (DOCS / "EXIT_STATUS.md").read_text() == exit_page(), "run: elastic-health exits --markdown > docs/EXIT_STATUS.md"
    assert (DOCS / "DECISIONS.md").read_text() == decision_page(), "run: elastic-health decisions --markdown > docs/DECISIONS.md"


def test_every_status_has_its_row_and_equal_meanings_have_equal_numbers() -> None:
    assert {m.status for m in EXIT_TABLE} == set(ExitStatus) and len(EXIT_TABLE) == len(ExitStatus)
    assert set(MEANINGS) == set(Code)
    same = {"OK", "BAD_CONFIG", "STORE_UNREACHABLE", "STORE_REFUSED", "RUN_REFUSED"}
    assert all(Code[name] == ExitStatus[name] for name in same)


def test_exits_and_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exits", "--json"]) == 0
    assert {r["status"] for r in json.loads(capsys.readouterr().out)["exits"]} == {int(s) for s in ExitStatus}
    assert main(["decisions"]) == 0
    out = capsys.readouterr().out
    assert all(c.value in out for c in Cause)


def test_config_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("restarts: {total: 3}\n")
    bad.write_text("restarts: {totl: 3}\nports: {listen: x}\n")
    assert main(["config", "check", str(good)]) == Code.OK
    assert capsys.readouterr().out == f"{good}: no mistakes\n"
    assert main(["config", "check", str(bad)]) == Code.BAD_CONFIG
    err = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0].strip() for line in err[1:]] == [f"{bad}:1", f"{bad}:2"]
    assert main(["config", "check", "--json", str(bad)]) == Code.BAD_CONFIG
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], [m["line"] for m in told["mistakes"]]) == (False, [1, 2])
    assert main(["config", "check", str(tmp_path / "none")]) == Code.BAD_CONFIG
    assert "No such file" in capsys.readouterr().err


def test_config_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert "restarts" in json.loads(capsys.readouterr().out)["properties"]


def test_a_wrong_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["run"])
    assert e.value.code == Code.USAGE and "invalid choice" in capsys.readouterr().err


def test_tables_align() -> None:
    assert table(("a", "n"), [("x", 5), ("long", 10)]) == ["a      n", "----  --", "x      5", "long  10"]
    assert table(("a",), []) == ["a", "-"]
