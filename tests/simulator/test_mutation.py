"""The mutation check and the shrinker, on a few bugs that are found soon; `make mutants` plants them all."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.simulator.mutants import MUTANTS, Mutant
from tests.simulator.mutation import ENOUGH, ROOT, check, child, first_failure, main, plant, planted

SOON = ("ready_before_preflight", "retention_unfenced", "no_fence")


@pytest.mark.parametrize("name", MUTANTS)
def test_every_planted_bug_still_fits_its_module(name: str) -> None:
    """And what comes out is Python."""
    m = MUTANTS[name]
    text = planted((ROOT / m.file).read_text(), m)
    assert text != (ROOT / m.file).read_text()
    compile(text, m.file, "exec")


def test_a_bug_that_fits_no_more_is_told() -> None:
    with pytest.raises(ValueError, match=r"expected .* once in x\.py; found it 2 times: adapt"):
        planted("a a", Mutant("", "x.py", "a", "b"))


def test_enough_bugs_are_meant_to_pass_the_unit_tests() -> None:
    assert sum(not m.seen for m in MUTANTS.values()) >= ENOUGH


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_bug"]) == 2
    assert "no_such_bug" in capsys.readouterr().err


@pytest.mark.spec("R1", "R10")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SOON[:1])
def test_a_planted_bug_is_found_made_small_and_replayed(name: str, tmp_path: Path) -> None:
    plant(name, tmp_path)
    seed, law, out = first_failure(tmp_path, shrink_s=6.0)
    assert seed is not None, out
    assert f"FAILED seed {seed}: Broken: {law}" in out
    assert "  the law: " in out
    faults, nodes, lines = (tuple(map(int, m)) for m in re.findall(r"(\d+) -> (\d+) (?:faults|nodes|lines)", out))
    assert faults[1] <= min(2, faults[0]) and nodes[1] <= nodes[0] and lines[1] < lines[0], out
    command = re.search(r"replay the small one: python (.*)", out)
    assert command is not None
    status, again = child(tmp_path, *shlex.split(command[1]), limit_s=60.0)
    assert status == 1 and f"Broken: {law}" in again, again
    assert again.splitlines()[-3:] == out[: out.index("faults that struck")].rstrip().splitlines()[-3:]
    sound, history = child(ROOT, *shlex.split(command[1]), limit_s=60.0)
    assert sound == 0, history


@pytest.mark.slow
@pytest.mark.spec("R1", "R10")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SOON)
def test_a_bug_passes_the_unit_tests_and_fails_the_simulator(name: str) -> None:
    report = check(name)
    assert report.holds, report.line
