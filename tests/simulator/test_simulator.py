"""The simulator itself: some hundred seeds, the shipped modules and no others, and planted bugs that it must find."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_health.rendezvous import membership, serve
from tests.simulator import node as node_module
from tests.simulator.faults import FAULTS, Strike
from tests.simulator.planted import BUGS
from tests.simulator.run import Outcome, setup, simulate

HERE = Path(__file__).parent
QUICK_BUGS = (
    "fence_without_verdict",
    "lease_from_the_reply",
    "verdict_overwritten",
    "newest_whatever_its_line",
    "branch_not_abandoned",
    "spawned_before_member",
    "commit_kept_for_the_next",
)
MOST_SEEDS = 1000


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
    """Only the planted bugs set attributes of the product's modules."""
    for path in HERE.glob("*.py"):
        if path.name == "planted.py":
            continue
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
    o = simulate(seed, base)
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


def _found(name: str) -> Outcome | None:
    with pytest.MonkeyPatch.context() as p:
        BUGS[name](p)
        return next((o for o in map(simulate, range(MOST_SEEDS)) if o.broken), None)


@pytest.mark.spec("R1", "R10")
@pytest.mark.parametrize("name", QUICK_BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert _found(name) is not None


@pytest.mark.slow
@pytest.mark.spec("R1", "R10")
@pytest.mark.parametrize("name", [n for n in BUGS if n not in QUICK_BUGS])
def test_every_planted_bug_is_found(name: str) -> None:
    assert _found(name) is not None


@pytest.mark.slow
@pytest.mark.spec("R1", "R2", "R6", "R10")
def test_every_fault_strikes_in_a_few_hundred_seeds() -> None:
    struck: set[str] = set()
    for seed in range(400):
        o = simulate(seed)
        assert not o.broken, show(o)
        struck |= set(o.faults)
    assert not set(FAULTS) - struck
