"""`analyze`: files of any encoding and size, tables for people, one closed object for machines, documented statuses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_health.cli import analyze, input_os
from elastic_health.cli.codes import Code
from elastic_health.cli.input_os import decoded, read_input
from elastic_health.cli.main import main
from elastic_health.errors import InputError
from elastic_health.findings import FindingKind, Level
from tests.preflight.dcgm_outputs import FAILING, PASSING, Said, object_4, styled, table_3

pytestmark = pytest.mark.spec("U3")

KEYS = {"kind", "files", "verdict", "reason", "ranks", "nodes", "gpus", "findings", "fleet", "parsed"}
FINDING_KEYS = {
    "kind", "level", "reason", "advice", "ranks", "nodes", "gpus", "measured", "required", "unit", "signature", "evidence",
}  # fmt: skip
PASS, FAIL = styled(object_4(PASSING)), styled(object_4(FAILING))
WARN = styled(object_4((*PASSING, Said("memory_bandwidth", ("Skip", "Skip")))))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["analyze", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def made(text: str | bytes, name: str = "out.txt") -> str:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return made


@pytest.mark.parametrize(
    ("text", "verdict", "status"),
    [(PASS, "pass", 0), (WARN, "warn", 0), (FAIL, "fail", 80), (FAIL[:500], "not_measured", 3), ("", "not_measured", 3)],
)
def test_verdict_and_status(text: str, verdict: str, status: int, file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "dcgm", file(text))
    assert (code, err) == (status, "") and f"out.txt: {verdict}: " in out
    code, out, _ = run(capsys, "dcgm", file(text), "--json")
    assert code == status and json.loads(out)["verdict"] == verdict


def test_the_table_for_people(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = "Bandwidth of GPU {gpu} in direction d2h of 2.10 did not exceed minimum required bandwidth of 8.00."
    _, out, _ = run(capsys, "dcgm", file(table_3((Said("pcie", ("Pass", "Fail"), text),))))
    assert "fail   low_bandwidth  GPU 1  2.1 GB/s  8 GB/s    pcie failed on GPU 1" in out
    assert "do: compare the PCIe link's width" in out


def test_the_object_for_machines_is_closed(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "dcgm", file(FAIL), "--json", "--exit-status", "226")
    told = json.loads(out)
    assert set(told) == KEYS and all(set(f) == FINDING_KEYS for f in told["findings"])
    assert {f["kind"] for f in told["findings"]} <= {k.value for k in FindingKind}
    assert {f["level"] for f in told["findings"]} <= {level.value for level in Level}
    assert told["gpus"] == ["1"] and told["nodes"] == told["ranks"] == [] and told["parsed"]["exit_status"] == 226


def test_exit_status_counts(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "dcgm", file(PASS), "--exit-status", "205")[0] == 0
    assert run(capsys, "dcgm", file(PASS), "--exit-status", "-9")[0] == Code.NOT_MEASURED
    assert run(capsys, "dcgm", file(FAIL), "--exit-status", "0")[0] == Code.UNFIT


def test_several_files_are_nodes(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = [file(FAIL, f"node-{i}.json") for i in range(3)]
    code, out, _ = run(capsys, "dcgm", *files, "--json")
    told = json.loads(out)
    assert code == Code.UNFIT and told["nodes"] == files and set(told) == KEYS and set(told["parsed"]) == set(files)
    assert [w["signature"] for w in told["fleet"]] == ["dcgm:memory:58"] and told["fleet"][0]["of"] == 3
    assert "fleet: 3 of 3 nodes fail alike" in run(capsys, "dcgm", *files)[1]
    mixed = [file(PASS, "good.json"), file(FAIL[:500], "cut.json")]
    assert run(capsys, "dcgm", *mixed)[0] == Code.NOT_MEASURED


def test_nvlink(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = "GPU 0: NVIDIA H100 (UUID: GPU-0)\n\t Link 0: CRC Errors: 3\n\t Link 1: CRC Errors: 0\n"
    assert run(capsys, "nvlink", file(text))[0] == Code.UNFIT
    assert run(capsys, "nvlink", file(text), "--most-errors", "3", "--gpus", "1", "--links", "2")[0] == 0
    assert run(capsys, "nvlink", file(text), "--most-errors", "3", "--links", "4")[0] == Code.UNFIT


# ---- files


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings(encoding: str, file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for text, status in ((PASS, 0), (FAIL, Code.UNFIT)):
        assert run(capsys, "dcgm", file(text.replace("\n", "\r\n").encode(encoding)))[0] == status


def test_bytes_that_are_no_text(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for junk in (os.urandom(100_000), b"\xff\xfe" * 50, b"\x00" * 1000, bytes(range(256)) * 100, b"\x80" * 10):
        assert run(capsys, "dcgm", file(junk))[0] == Code.NOT_MEASURED
        assert run(capsys, "nvlink", file(junk))[0] == Code.NOT_MEASURED
    assert run(capsys, "dcgm", file(b"\xe4\xf6\xff\n" + FAIL.encode() + b"\xff"))[0] == Code.UNFIT
    assert decoded(b"caf\xe9") == "caf\ufffd"


def test_a_long_file_is_read_in_part_and_said(file: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dcgm = analyze.KINDS["dcgm"]
    monkeypatch.setattr(analyze, "KINDS", {"dcgm": replace(dcgm, read=lambda path: read_input(path, most=len(PASS)))})
    assert run(capsys, "dcgm", file(PASS))[0] == 0
    code, out, _ = run(capsys, "dcgm", file(PASS + "\n" + FAIL))
    assert code == Code.NOT_MEASURED and "MiB were read" in out
    assert run(capsys, "dcgm", file(FAIL + " " * 10_000))[0] == Code.UNFIT
    assert read_input(file("abcdef"), most=3).text == "abc" and input_os.MAX_BYTES == 64 * 1024 * 1024


@pytest.mark.parametrize("name", ["nosuch", ".", "a\x00b", "x" * 5000])
def test_a_bad_file_is_one_clear_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "dcgm", str(tmp_path / name))
    assert (code, out) == (Code.NO_INPUT, "") and err.startswith("expected a file") and err.count("\n") == 1


def test_an_unreadable_file(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(PASS)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        read_input(path)


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FAIL.encode())))
    code, out, _ = run(capsys, "dcgm", "-")
    assert code == Code.UNFIT and "dcgm standard input: fail" in out


def test_a_pipe_as_a_user_has_it() -> None:
    words = [sys.executable, "-m", "elastic_health.cli.main", "analyze", "dcgm", "-", "--json"]
    done = subprocess.run(words, input=PASS.encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["files"] == ["standard input"]


def test_unknown_kinds_and_missing_files_are_usage() -> None:
    for arguments in (["analyze"], ["analyze", "nosuch", "x"], ["analyze", "dcgm"], ["analyze", "dcgm", "x", "--exit-status", "y"]):
        with pytest.raises(SystemExit) as e:
            main(arguments)
        assert e.value.code == Code.USAGE


def test_control_characters_of_an_output_reach_no_terminal(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = styled(object_4((Said("memory", ("Fail",), "bad \x1b[2J\x07 words", (58, 2, 10)),)))
    code, out, _ = run(capsys, "dcgm", file(text))
    assert code == Code.UNFIT and "\x1b" not in out and "\x07" not in out
