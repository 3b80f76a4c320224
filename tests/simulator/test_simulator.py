"""The simulator itself: some hundred seeds, the shipped modules and no others, every fault, every boundary."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_health.rendezvous import membership, serve
from tests.simulator import node as node_module
from tests.simulator.faults import FAULTS
from tests.simulator.run import Outcome, simulate
from tests.simulator.setup import Setup, read, setup
from tests.simulator.strikes import Strike
from tests.simulator.sweep import BASES, SEED, boundaries, cases
from tests.simulator.tally import SURE_FROM, Tally

HERE = Path(__file__).parent


def show(o: Outcome) -> str:
    return "\n".join((*o.history[-120:], f"seed {o.seed}: {o.broken}"))


@pytest.mark.spec("R1", "R2", "R6", "R10", "U6")
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_seeds_hold_every_invariant(first: int) -> None:
    for seed in range(first, first + 20):
        o = simulate(seed)
        assert not o.broken, show(o)


def test_a_seed_is_its_whole_history() -> None:
    seed = next(s for s in range(100) if len(setup(s).strikes) > 3)
    assert simulate(seed) == simulate(seed)


def test_it_runs_the_shipped_modules() -> None:
    """Identity, not likeness: the functions that nodes call are those that agents call, from the product's files."""
    used = vars(node_module)
    assert used["membership"] is membership
    assert used["page_deadline"] is serve.page_deadline
    root = HERE.parents[1] / "rendezvous"
    names = "answers draft fence forming gather joining judging lead leaving loss membership order refusal serve state turns view"
    for name in names.split():
        module = sys.modules[f"elastic_health.rendezvous.{name}"]
        assert Path(module.__file__ or "").resolve() == root / f"{name}.py"


def test_it_replaces_nothing_of_the_product() -> None:
    """No attribute of the product's modules is set; bugs are planted into copies of the tree."""
    for path in HERE.glob("*.py"):
        for n in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "setattr"), path.name
            assert not (isinstance(n, ast.Attribute) and n.attr == "setattr"), path.name


@pytest.mark.spec("R1", "R2")
def test_without_faults_one_generation_does_it_all() -> None:
    for seed in (s for s in range(60) if not setup(s).strikes):
        o = simulate(seed)
        assert not o.broken, show(o)
        assert o.ended == "finish"


@pytest.mark.spec("U6")
@pytest.mark.parametrize("seed", range(5))
def test_an_outage_alone_ends_no_generation(seed: int) -> None:
    quiet = replace(setup(seed), nodes=3, least=3, most=3, total=None, loss=0.0, skewed=False)
    o = simulate(seed, replace(quiet, strikes=(Strike("store outage", 5.0, target=0),)))
    assert not o.broken, show(o)
    assert (o.generations, o.ended) == (1, "finish")


@pytest.mark.spec("R1", "R10")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("moment", ["rollback verdict", "in-place form", "taken up", "phase holding"])
@pytest.mark.parametrize("fault", ["agent killed", "worker exits", "node partitioned"])
@pytest.mark.parametrize("target", [-2, 1])
def test_a_rollback_in_place_interrupted_at_each_step(fault: str, moment: str, target: int, seed: int) -> None:
    strikes = (Strike("halt and roll back", 0.3, "txn commit", 2, -2), Strike(fault, 0.0, moment, 1, target))
    base = replace(setup(seed), nodes=3, least=2, most=3, total=None, every=5, strikes=strikes)
    o = simulate(seed, replace(base, start_over=True, keep=2, reach_steps=10))
    assert not o.broken, show(o)
    assert o.faults[fault] == 1


@pytest.mark.spec("R1", "R2", "R6")
@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("fault", ["node drained", "all drained", "node stopped"])
@pytest.mark.parametrize("moment", ["phase running", "phase starting", "txn commit", "phase ready"])
def test_what_is_done_on_purpose_is_never_counted(moment: str, fault: str, saves: bool) -> None:
    """A drain at each boundary, with and without a second one: the run goes on, and no restart is spent."""
    for seed in range(2):
        strikes = (Strike(fault, 0.0, moment, 1 + seed, -1), Strike("node drained", 0.2 * seed, "txn leaving", 1, 1))
        base = replace(setup(seed), nodes=3, least=1 + seed % 3, most=3, total=None, every=5, loss=0.0, skewed=False, saves=saves)
        o = simulate(seed, replace(base, strikes=strikes))
        assert not o.broken, show(o)
        assert o.ended == "finish"


@pytest.mark.slow
@pytest.mark.spec("R1", "R2", "R6", "R10")
def test_every_fault_strikes_in_a_few_hundred_seeds() -> None:
    struck: set[str] = set()
    for seed in range(400):
        o = simulate(seed)
        assert not o.broken, show(o)
        struck |= set(o.faults)
    assert not set(FAULTS) - struck


# ---- every fault at every boundary
@pytest.mark.spec("R1", "R10")
def test_a_sweep_names_each_fault_at_each_boundary_of_each_plain_run() -> None:
    swept = [(c.base, c.setup.strikes[-1].k, c.setup.strikes[-1].fault) for c in cases()]
    for base in BASES:
        n = boundaries(base)
        assert n > 60
        assert {(k, f) for b, k, f in swept if b == base} == {(k, f) for k in range(1, n + 1) for f in FAULTS}


@pytest.mark.spec("R1", "R10")
@pytest.mark.parametrize("start", range(4))
def test_part_of_a_sweep_holds_every_invariant(start: int) -> None:
    swept, struck = tuple(cases(stride=1801, start=start * 450)), 0
    for c in swept:
        o = simulate(SEED, c.setup)
        assert not o.broken, f"{c.setup.text()}\n{show(o)}"
        struck += bool(o.faults[c.setup.strikes[-1].fault])
    assert struck > 0.8 * len(swept)  # the others would have met an agent that another fault had ended


def test_up_to_the_fault_a_swept_run_is_the_plain_one() -> None:
    base = BASES["restart"]
    plain = simulate(SEED, base).history
    o = simulate(SEED, replace(base, strikes=(*base.strikes, Strike("agent killed", 0.0, "boundary", 60, -1))))
    at = next(i for i, line in enumerate(o.history) if "agent killed" in line)
    assert at > 20
    assert o.history[:at] == plain[:at]


# ---- what is told
def test_a_setup_is_a_line_of_json() -> None:
    for seed in range(200):
        assert read(setup(seed).text()) == setup(seed)


def test_a_kind_of_fault_that_never_struck_is_an_error() -> None:
    tally, o = Tally(), simulate(0)
    for _ in range(SURE_FROM):
        tally.add(o)
    assert tally.never
    assert "never struck: " + ", ".join(tally.never) in "\n".join(tally.lines(1.0))
    for name in tally.never:
        o.faults[name] += 1
    tally.add(o)
    assert tally.never == ()


def test_a_history_tells_generations_verdicts_and_checkpoints() -> None:
    strikes = (Strike("halt and roll back", 0.3, "txn commit", 2, -2),)
    o = simulate(15, Setup(strikes=strikes, total=30))
    text = "\n".join(o.history)
    assert not o.broken, show(o)
    parts = (
        "generation 1 (formed) of n0, n1, n2, from the beginning",
        "FAULT halt and roll back strikes n0",
        "verdict on generation 1: rollback (numeric_halt), back to the beginning",
        "generation 2 (in place)",
        "checkpoint 10.g1 abandoned",
        "checkpoint 15.g2 committed after",
    )
    for part in parts:
        assert part in text, text
