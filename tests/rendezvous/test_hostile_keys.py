"""A key of the layout that somebody overwrote: the group goes on, or stops cleanly with a message that names the key.

One agent after the other looks at it: a running member, a joining one, and the group after its next restart.
"""

from __future__ import annotations

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.generations import CheckpointRecord
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase
from elastic_health.rendezvous.store import Put, Txn, TxnResult
from elastic_health.verdicts import Cause
from tests.rendezvous.group import KEYS, Agent, Group
from tests.rendezvous.hostile import BAD, kinds

pytestmark = pytest.mark.spec("R1", "R6")
KINDS = kinds(KEYS, 1, ("a", "alife1-0"))

ENDS_A_RUNNING_GROUP = ("current", "generation", "verdict")
"""The fence goes by them, or nobody knows any more who is a member."""
ENDS_AT_THE_NEXT_FORMATION = (*ENDS_A_RUNNING_GROUP, "budget", "a checkpoint")
"""What the next generation is made from: going on without it could start over or forget a cap."""


def pair() -> tuple[Group, Agent, Agent]:
    g = Group(1, 2)
    a, b = g.add("a"), g.add("b")
    assert (a.phase, b.phase) == (Phase.RUNNING, Phase.RUNNING)
    return g, a, b


def put(g: Group, key: str, value: bytes) -> None:
    g.store.apply(Txn((), (Put(key, value),)))


def left_over(agent: Agent, key: str) -> None:
    assert agent.left == ExitStatus.RUN_REFUSED, agent.state
    assert agent.state.left is not None
    text = agent.state.left[1]
    assert key in text and "expected" in text and "found" in text and len(text) < 1500, text


@pytest.mark.parametrize("bad", ["broken", *(pytest.param(b, marks=pytest.mark.slow) for b in BAD if b != "broken")])
@pytest.mark.parametrize("kind", KINDS)
def test_while_a_group_runs(kind: str, bad: str) -> None:
    g, a, b = pair()
    put(g, KINDS[kind], BAD[bad])
    g.wait(8.0)
    if kind in ENDS_A_RUNNING_GROUP:
        left_over(a, KINDS[kind])
        left_over(b, KINDS[kind])
        return
    assert (a.phase, b.phase, g.members()) == (Phase.RUNNING, Phase.RUNNING, ["a", "b"])
    assert not a.told(ev.StopWorkers), "nobody was disturbed"
    a.commit(1, 70)
    (answer,) = a.told(ev.CommitAnswered)
    assert isinstance(answer, ev.CommitAnswered) and answer.committed, "the fence still holds"
    if a.state.view.unreadable:
        assert any(KINDS[kind] in text for text in a.said("unreadable"))


@pytest.mark.parametrize("bad", ["another schema", pytest.param("broken", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_at_the_next_formation(kind: str, bad: str) -> None:
    g, a, b = pair()
    if kind not in ("verdict", "a checkpoint"):
        put(g, KINDS[kind], BAD[bad])
        g.wait(1.0)
    elif kind == "a checkpoint":
        a.commit(1, 40)
        put(g, KEYS.checkpoint("000000000040.000001"), BAD[bad])
        g.run()
    if a.phase is Phase.RUNNING:
        a.judge(Cause.WORKER_EXIT)
    if kind == "verdict":
        put(g, KINDS[kind], BAD[bad])
    g.wait(10.0)
    if kind in ENDS_AT_THE_NEXT_FORMATION:
        left_over(a, KINDS[kind])
        left_over(b, KINDS[kind])
        return
    assert (g.members(), g.current().number, a.phase, b.phase) == (["a", "b"], 2, Phase.RUNNING, Phase.RUNNING)


@pytest.mark.parametrize("bad", ["broken", pytest.param("wrong types", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_that_joins(kind: str, bad: str) -> None:
    """A member's place is free: it is taken, or the newcomer leaves at once and says why."""
    g = Group(1, 3)
    a = g.add("a")
    g.wait(2.0)
    put(g, kinds(KEYS, 1, ("a", "alife1-0"))[kind], BAD[bad])
    c = g.add("c")
    g.wait(6.0)
    if kind in ENDS_A_RUNNING_GROUP:
        left_over(c, KINDS[kind])
        left_over(a, KINDS[kind])
        return
    assert (a.phase, c.phase) == (Phase.RUNNING, Phase.RUNNING) or kind in ENDS_AT_THE_NEXT_FORMATION
    if kind in ENDS_AT_THE_NEXT_FORMATION:
        left_over(c, KINDS[kind])


@pytest.mark.parametrize("value", [b'{"generation":99}', b'{"generation":0}', b'{"generation":-1}'])
def test_a_current_that_names_no_generation(value: bytes) -> None:
    g, a, b = pair()
    put(g, KEYS.current, value)
    g.wait(3.0)
    left_over(a, KEYS.current)
    left_over(b, KEYS.current)
    late = g.add("late")
    left_over(late, KEYS.current)


def test_a_current_that_was_written_again_as_it_was_costs_a_restart() -> None:
    """Its mod revision is the fence: nothing of generation 1 could commit any more."""
    g, a, b = pair()
    put(g, KEYS.current, b'{"v":1,"generation":1}')
    g.wait(10.0)
    assert (g.members(), g.current().number, a.phase, b.phase) == (["a", "b"], 2, Phase.RUNNING, Phase.RUNNING)


def test_put_right_again_the_run_goes_on() -> None:
    """A correct budget is enough; nothing was lost meanwhile."""
    g, a, _ = pair()
    good = g.store.get(KEYS.budget)
    assert good is not None
    put(g, KEYS.budget, b"{")
    a.judge(Cause.WORKER_EXIT)
    g.wait(10.0)
    left_over(a, KEYS.budget)
    put(g, KEYS.budget, good.value)
    late = g.add("late")
    g.wait(15.0)
    assert (g.members(), late.phase, g.current().restarts) == (["late"], Phase.RUNNING, 1)


def test_a_quarantine_that_cannot_be_read_bars_its_node_and_no_other() -> None:
    g, _, b = pair()
    put(g, "/elastic-health/quarantine/nodes/c", b"bad fan")
    c = g.add("c")
    assert c.left == ExitStatus.QUARANTINED and c.state.left is not None and "nodes/c" in c.state.left[1]
    assert b.phase is Phase.RUNNING


def test_a_commit_over_a_checkpoint_that_somebody_wrote_is_refused_in_words() -> None:
    g, a, _ = pair()
    put(g, KEYS.checkpoint("000000000040.000001"), b"mine")
    a.commit(1, 40)
    (answer,) = a.told(ev.CommitAnswered)
    assert isinstance(answer, ev.CommitAnswered) and not answer.committed
    assert any("000000000040.000001" in text for text in a.said("bad_checkpoint"))
    assert a.phase is Phase.RUNNING


@pytest.mark.spec("R3")
def test_what_a_newer_version_added_is_kept_where_its_value_is_rewritten() -> None:
    g, a, b = pair()
    a.commit(1, 40)
    name = KEYS.checkpoint("000000000040.000001")
    stored = g.store.get(name)
    budget = g.store.get(KEYS.budget)
    assert stored is not None and budget is not None
    put(g, name, stored.value[:-1] + b',"colour":"blue","state2":{"x":[1]}}')
    put(g, KEYS.budget, budget.value[:-1] + b',"colour":"red"}')
    a.judge(Cause.CHECKPOINT_UNUSABLE, torn="000000000040.000001")
    g.wait(10.0)
    assert g.current().number == 2
    left, charged = g.store.get(name), g.store.get(KEYS.budget)
    assert left is not None and charged is not None
    assert b'"abandoned"' in left.value and b'"colour":"blue","state2":{"x":[1]}' in left.value
    assert b'"restarts":1' in charged.value and b'"colour":"red"' in charged.value
    assert isinstance(b.state.view.checkpoints["000000000040.000001"], CheckpointRecord)


def test_an_agent_whose_candidate_is_undone_each_time_goes_slowly_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Group(1, 1)
    shipped = g.store.apply

    def undone(txn: Txn) -> TxnResult:
        result = shipped(txn)
        for op in txn.then:
            if isinstance(op, Put) and op.lease and op.key.startswith(KEYS.candidates):
                shipped(Txn((), (Put(op.key, b"{", op.lease),)))
        return result

    monkeypatch.setattr(g.store, "apply", undone)
    a = g.add("a")
    g.wait(20.0)
    assert 5 < a.state.incarnation < 30
    assert any(KEYS.candidates in text for text in a.said("unreadable"))
    g.wait(700.0)
    assert a.left == ExitStatus.STORE_UNREACHABLE
