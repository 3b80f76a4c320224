"""The table of phases is complete, is what the machine does, and is what the documentation shows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from elastic_health.generations import RunSpec
from elastic_health.rendezvous import membership, state, table, table_os, turns
from elastic_health.rendezvous.events import Clock, Event
from elastic_health.rendezvous.membership import BrokenInvariant, check, start
from elastic_health.rendezvous.state import WAYS, Me, Phase, Settings, State, Workers
from tests.rendezvous.shapes import KEYS

ROOT = Path(__file__).parents[2]
FRESH = start(Settings(KEYS, Me("a", "x", "a:1", 2, RunSpec(1, 1, "d"))), Clock(0.0, 0.0))


def at(phase: Phase, **changes: object) -> State:
    return FRESH.changed({"phase": phase, "generation": 1, **changes})


@pytest.mark.spec("R1")
def test_every_phase_has_its_ways_and_its_turn() -> None:
    assert set(WAYS) == set(turns.TURNS) == set(Phase)
    assert not WAYS[Phase.LEFT]
    assert all(why for ways in WAYS.values() for why in ways.values())


@pytest.mark.spec("R1")
def test_every_phase_is_reached_and_ends() -> None:
    reached, todo = {Phase.JOINING}, [Phase.JOINING]
    while todo:
        new = set(WAYS[todo.pop()]) - reached
        reached |= new
        todo += new
    assert reached == set(Phase)
    ends = {Phase.LEFT}
    while more := {p for p in Phase if p not in ends and ends & set(WAYS[p])}:
        ends |= more
    assert ends == set(Phase)


@pytest.mark.spec("R1")
def test_every_event_is_taken_in() -> None:
    assert set(membership.ABSORB) == set(Event.__args__)


@pytest.mark.spec("R1")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (at(Phase.LEFT), at(Phase.JOINING)),
        (at(Phase.JOINING), at(Phase.JOINING, workers=Workers.UP)),
        (at(Phase.RUNNING), at(Phase.READY, workers=Workers.UP)),
        (at(Phase.READY), at(Phase.STARTING, generation=0)),
    ],
)
def test_what_is_against_the_table_is_found(before: State, after: State) -> None:
    with pytest.raises(BrokenInvariant):
        check(before, after)


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="genration"):
        FRESH.changed({"genration": 1})


@pytest.mark.spec("R1")
def test_no_phase_is_entered_beside_the_draft() -> None:
    """`phase=` is set in one function only, so that each change of phase also starts its clock."""
    found = []
    for path in sorted((ROOT / "rendezvous").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(k.arg == "phase" for k in node.keywords):
                found.append(path.name)
    assert found == ["draft.py"]


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "STATES.md").read_text()
    assert page == table.drawing(), "run: make docs"
    for phase, ways in state.WAYS.items():
        for other in ways:
            assert f"    {phase.value} --> {other.value}\n" in page


def test_the_architecture_shows_every_phase_and_every_way_out_of_it() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    assert page == table.redrawn(page), "run: make docs"
    for phase, ways in state.WAYS.items():
        for other, why in ways.items():
            assert f"    {phase.value} --> {other.value}\n" in page
            assert f"| {phase.value} | {other.value} | {why} |\n" in page


def test_pages_are_drawn_anew_and_a_page_without_a_place_for_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "ARCHITECTURE.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    assert table_os.main(tmp_path) == 0
    assert page.read_text() == f"before\n{table.BEGIN}\n{table.figure()}\n\n{table.ways()}\n{table.END}\nafter\n"
    assert (tmp_path / "STATES.md").read_text() == table.drawing()
    assert table_os.main(tmp_path) == 0
    assert capsys.readouterr().out.endswith("pages that changed: none\n")
    page.write_text("nothing to draw into\n")
    with pytest.raises(ValueError, match="put them back"):
        table_os.main(tmp_path)
