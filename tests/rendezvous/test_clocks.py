"""Nodes whose clocks are hours apart: no decision goes by another node's wall clock."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from elastic_health.generations import Budget, Spent
from elastic_health.policies import Caps, Policies, RecoveryPolicy
from elastic_health.recovery.budget import as_seen
from elastic_health.rendezvous.state import Phase
from elastic_health.verdicts import Cause, VerdictKind
from tests.rendezvous.group import Group

pytestmark = pytest.mark.spec("R6")
ROOT = Path(__file__).parents[2]
HOURS = 3600.0

MAY_NAME_THE_WALL_CLOCK = {
    "rendezvous/events.py": "defines it",
    "rendezvous/draft.py": "stamps what is written",
    "rendezvous/view.py": "a quarantine's end, which a person wrote, against the own clock",
    "rendezvous/refusal.py": "the same",
    "rendezvous/joining.py": "the same",
    "rendezvous/forming.py": "the same",
    "rendezvous/gather.py": "the same; and stamps the budget",
    "rendezvous/lead.py": "the same",
    "rendezvous/leaving.py": "the same",
    "rendezvous/few.py": "the same",
    "rendezvous/judging.py": "stamps records; ages of the budget by `as_seen`",
    "elastic_health/recovery/budget.py": "`as_seen`",
    "agents/incidents.py": "stamps incidents",
}


def test_nothing_else_in_the_decisions_knows_the_wall_clock() -> None:
    found = set()
    for folder in ("rendezvous", "agents", "elastic_health/recovery", "elastic_health/liveness", "elastic_health/checkpoints"):
        for path in (ROOT / folder).glob("*.py"):
            if path.stem.endswith(("_etcd", "_torch", "_proc", "_os", "_net")):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else getattr(node, "arg", "")
                if name == "wall":
                    found.add(str(path.relative_to(ROOT)))
    assert found == set(MAY_NAME_THE_WALL_CLOCK)


def test_stamps_of_values_are_read_by_no_decision() -> None:
    """`at` and `by` are for people: no type that decisions read has them, but for what `as_seen` corrects."""
    from elastic_health import generations, verdicts

    for module in (generations, verdicts):
        for name, cls in vars(module).items():
            fields = getattr(cls, "__dataclass_fields__", {})
            assert "at" not in fields or name == "Spent", name


@pytest.mark.parametrize("skews", [(5.0, -5.0, 0.0), (-5.0, 5.0, 100.0), (0.0, 3.0, -48.0)])
def test_the_hourly_cap_holds_whoever_judges(skews: tuple[float, ...]) -> None:
    caps = Caps(total=None, per_hour=3, per_node=None, per_signature=None, without_commit=None, early_exits=None, backoff_s=(0.0,))
    g = Group(3, 3, Policies(recovery=RecoveryPolicy(caps)))
    g.add("a", "b", "c")
    for agent, hours in zip(g.agents, skews, strict=True):
        agent.skew_s = hours * HOURS
    for i in range(3):
        assert all(a.phase is Phase.RUNNING for a in g.agents), i
        g.agents[i % 3].judge(Cause.WORKER_EXIT)
        g.wait(60.0)
    assert g.current().number == 4
    g.agents[skews.index(max(skews))].judge(Cause.WORKER_EXIT)
    verdict = g.verdict(4)
    assert verdict is not None and verdict.kind is VerdictKind.ABORT and "last hour" in verdict.reason


@pytest.mark.parametrize("skews", [(5.0, -5.0, 0.0), (-5.0, 5.0, 100.0)])
def test_an_hour_later_the_cap_lets_one_through(skews: tuple[float, ...]) -> None:
    caps = Caps(total=None, per_hour=1, per_node=None, per_signature=None, without_commit=None, early_exits=None, backoff_s=(0.0,))
    g = Group(3, 3, Policies(recovery=RecoveryPolicy(caps)))
    g.add("a", "b", "c")
    for agent, hours in zip(g.agents, skews, strict=True):
        agent.skew_s = hours * HOURS
    g.agents[0].judge(Cause.WORKER_EXIT)
    g.wait(3700.0)
    g.agents[1].judge(Cause.WORKER_EXIT)
    g.wait(20.0)
    assert g.current().number == 3 and all(a.phase is Phase.RUNNING for a in g.agents)


def test_ages_of_what_was_seen_and_of_what_was_there_before() -> None:
    spent = tuple(Spent(at, "stall", "stall", g) for g, at in ((1, 9_000.0), (2, 99_000.0), (3, 0.0), (4, 99_000.0)))
    told = as_seen(Budget(spent=spent), {1: 100.0, 2: 100.0, 3: 700.0}, 2, now=1000.0, wall=10_000.0)
    assert [s.at for s in told.spent] == [9_000.0, 9_100.0, 9_700.0, 10_000.0]


def test_a_record_of_a_slow_clock_is_not_the_oldest() -> None:
    from elastic_health.incidents import Record
    from elastic_health.records_etcd import prune, write_record
    from elastic_health.rendezvous.keys import RunKeys
    from elastic_health.rendezvous.memory import MemoryStore
    from elastic_health.rendezvous.memory_session import MemorySession

    keys = RunKeys("job")
    store = MemorySession(MemoryStore())
    for name in ("09", "08", "07", "01"):
        write_record(store, keys, Record(name, "restart", "", "stall", "stall", 1), at="", by="n")
    assert prune(store, keys, kept=2) == 2
    assert [kv.key[-2:] for kv in store.range(keys.records).kvs] == ["01", "07"]
