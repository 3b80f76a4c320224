"""The model holds, finds what each rule is for, and speaks of the same phases, ways and writes as the product."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_health.rendezvous.state import RESENT, WAYS, Phase, Purpose
from tests.model import shape
from tests.model.__main__ import INVARIANTS
from tests.model.configs import DEEP, FULL, LAPSES, SMALL
from tests.model.explore import Found, explore
from tests.model.shape import FAULTS, RULES, SPECIAL, Config

ROOT = Path(__file__).parents[2]


def show(f: Found) -> str:
    return "\n".join((*f.history, f.broken or "nothing breaks"))


@pytest.fixture(scope="module")
def small() -> Found:
    return explore(SMALL)


@pytest.mark.spec("R1", "R2", "R3", "R10", "U6")
def test_every_reachable_state_of_a_small_run_holds_every_invariant(small: Found) -> None:
    assert small.whole and not small.broken, show(small)
    assert small.faults == set(FAULTS) - SPECIAL
    assert small.states > 10_000


# ---- model and product speak of the same
@pytest.mark.spec("R1")
def test_the_model_takes_the_ways_of_the_products_table_and_no_others(small: Found) -> None:
    assert set(shape.PHASES) == {p.value for p in Phase}
    assert small.ways == {(a.value, b.value) for a, ways in WAYS.items() for b in ways}


@pytest.mark.spec("R1")
def test_the_models_transactions_are_the_products() -> None:
    assert not shape.TRANSACTIONS & set(shape.LEFT_OUT)
    assert shape.TRANSACTIONS | set(shape.LEFT_OUT) == {p.value for p in Purpose}
    assert shape.RESENT == {p.value for p in RESENT} - set(shape.LEFT_OUT)
    assert all(shape.LEFT_OUT.values())


def _rows(page: str, section: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    text = page.split(f"{section}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.group().splitlines()[2:]]


@pytest.mark.spec("R10")
def test_the_architectures_rules_are_those_that_the_model_can_leave_out() -> None:
    """Its table names, for each rule, the model's switches and the invariant that breaks without it."""
    rows = _rows((ROOT / "docs" / "ARCHITECTURE.md").read_text(), "### The nine rules")
    assert [row[0].partition(".")[0] for row in rows[:9]] == [str(n) for n in range(1, 10)]
    told: dict[str, str] = {}
    for row in rows:
        for names, invariant in re.findall(r"((?:`[^`]+`(?:, )?)+): (\w+)", row[2]):
            told |= dict.fromkeys(re.findall(r"`([^`]+)`", names), invariant)
    assert told == {name: invariant for name, (invariant, _) in LAPSES.items()}
    assert set(RULES) == set(LAPSES)
    for n, row in enumerate(rows[:9], 1):
        assert {x for x in RULES if x.split()[0] == str(n)} == set(re.findall(r"`([^`]+)`", row[2])), row[0]


@pytest.mark.spec("R1")
def test_the_architecture_names_every_phase_and_points_at_the_drawing() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    drawn = _rows((ROOT / "docs" / "STATES.md").read_text(), "left --> [*]\n```")
    assert [row[0] for row in drawn] == list(shape.PHASES)
    assert "`STATES.md`" in page and "make docs" in page


@pytest.mark.spec("R1")
def test_the_page_on_reliability_names_the_models_invariants_and_runs() -> None:
    page = (ROOT / "docs" / "RELIABILITY.md").read_text()
    assert {row[0] for row in _rows(page, "## Model")} == set(INVARIANTS)
    assert all(f"| {name} |" in page for name in FULL), "a configuration without its figures"


# ---- what each rule is for
def _without(rule: str) -> Found:
    return explore(replace(LAPSES[rule][1], off=frozenset({rule})))


@pytest.mark.spec("R1", "R10")
@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_an_invariant_breaks(rule: str) -> None:
    f = _without(rule)
    assert f.broken.startswith(LAPSES[rule][0]), show(f)
    assert f.history


@pytest.mark.spec("R1", "R10")
def test_with_the_rules_the_same_runs_hold() -> None:
    for c in {c for _, c in LAPSES.values()}:
        f = explore(c)
        assert f.whole and not f.broken, show(f)


def test_a_history_reads_as_what_happened() -> None:
    f = _without("fence verdict")
    assert f.broken == "I1: the commit of position 1 of generation 1 took effect after its end"
    assert f.history[0] == "  A: sends form of 1 with A from -1"
    assert "! A: worker exits" in f.history
    assert len(f.history) < 15, show(f)


def test_a_history_is_a_shortest_one() -> None:
    """Breadth first: no run with a smaller depth breaks anything."""
    f = _without("4")
    assert len(f.history) == f.depth or len(f.history) == f.depth - 1, show(f)


def test_the_time_budget_ends_an_exploration_unfinished() -> None:
    assert not explore(replace(SMALL, faults=2), until=0.0).whole


def test_all_sizes_that_the_target_promises_are_explored() -> None:
    sizes = {(c.nodes, c.faults) for c in FULL.values()}
    assert sizes >= {(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)}
    assert all(c.kinds == Config().kinds and not c.off for c in (*FULL.values(), *DEEP.values()))
