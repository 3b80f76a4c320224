"""The fence and every transaction behind it, on a store: what lands, what is refused, and what is left unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from elastic_health.checkpoints.line import plan_for
from elastic_health.generations import Budget, CandidateState, CheckpointRecord, StoreAddress
from elastic_health.incidents import Record
from elastic_health.rendezvous import fence
from elastic_health.rendezvous.fence import Fence, Stamp
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.store import Delete, Put, Txn, WatchBatch
from elastic_health.rendezvous.view import Current, View, apply
from elastic_health.verdicts import VerdictKind
from tests.rendezvous.shapes import KEYS, entry, generation, verdict

STAMP = Stamp("2026-01-01T00:00:00.000+00:00", "a")
CHECKPOINT = CheckpointRecord(5, 1, "step-5", 5, 2, None, "m")
RECORD = Record("r1", "restart", "seen", "stall", "stall", 1)


class Desk:
    """A store in which generation 1 of a and b runs, with one checkpoint."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.lease = self.store.grant(60.0).id
        self.put(KEYS.candidate("a", "x-0"), entry("a").candidate, self.lease)
        self.put(KEYS.candidate("b", "x-0"), entry("b").candidate, self.lease)
        self.put(KEYS.generation(1), generation(1, "a", "b"))
        self.put(KEYS.current, Current(1))
        self.put(KEYS.checkpoint(CHECKPOINT.name), CHECKPOINT)
        self.fence = Fence(KEYS, 1, self.view().current_mod)

    def put(self, key: str, value: object, lease: int = 0) -> None:
        self.store.apply(Txn((), (Put(key, STAMP.value(value), lease),)))

    def view(self) -> View:
        return apply(View(), WatchBatch(self.store.revision, (), True, self.store.range(KEYS.root).kvs), KEYS)

    def lands(self, txn: Txn) -> bool:
        before = self.store.revision
        done = self.store.apply(txn).succeeded
        assert done or self.store.revision == before
        return done

    def end(self) -> None:
        self.put(KEYS.verdict(1), verdict(1))

    def replace(self) -> None:
        """The next generation is current, and the verdict key of the last one is gone (someone tidied up)."""
        self.end()
        self.put(KEYS.current, Current(2))
        self.store.apply(Txn((), (Delete(KEYS.verdict(1)),)))


def _member(d: Desk) -> Txn:
    mod = d.view().candidates["a", "x-0"].mod_revision
    return fence.member(d.fence, entry("a", state=CandidateState.MEMBER).candidate, mod, d.lease, STAMP)


FENCED: dict[str, Callable[[Desk], Txn]] = {
    "commit": lambda d: fence.commit(d.fence, CheckpointRecord(9, 1, "step-9", 9, 2, CHECKPOINT.name, "n"), STAMP),
    "deleting": lambda d: fence.mark_deleting(d.fence, d.view(), [CHECKPOINT.name], STAMP),
    "member": _member,
    "store": lambda d: fence.publish_store(d.fence, StoreAddress("a", 1, ""), STAMP),
    "publish": lambda d: fence.publish(d.fence, KEYS.progress, b"{}"),
    "reattach": lambda d: fence.reattach(d.fence, entry("c").candidate, d.lease, STAMP),
}


@pytest.mark.spec("R10")
@pytest.mark.parametrize("what", FENCED)
@pytest.mark.parametrize(("then", "lands"), [("it runs", True), ("it has a verdict", False), ("another is current", False)])
def test_what_belongs_to_a_generation_ends_with_it(what: str, then: str, lands: bool) -> None:
    d = Desk()
    txn = FENCED[what](d)
    if then != "it runs":
        d.end() if then == "it has a verdict" else d.replace()
    assert d.lands(txn) is lands


@pytest.mark.spec("R10")
@pytest.mark.parametrize("what", ["commit", "deleting", "member", "store", "reattach"])
def test_landing_twice_changes_nothing_more(what: str) -> None:
    d = Desk()
    txn = FENCED[what](d)
    assert d.lands(txn)
    assert not d.lands(txn)


@pytest.mark.spec("R1")
def test_the_first_verdict_stands() -> None:
    d = Desk()
    first, second = (fence.verdict(KEYS, verdict(1, writer=w), RECORD, STAMP, d.view()) for w in "ab")
    assert d.lands(first)
    assert not d.lands(second)
    stored = d.view().verdict
    assert stored is not None and stored.writer == "a"


@pytest.mark.spec("R1")
def test_a_verdict_takes_the_dead_members_with_it() -> None:
    d = Desk()
    assert d.lands(fence.verdict(KEYS, verdict(1), RECORD, STAMP, d.view(), [("b", "x-0")]))
    assert list(d.view().candidates) == [("a", "x-0")]


@pytest.mark.spec("R3", "S5")
@pytest.mark.parametrize(("target", "lands"), [(CHECKPOINT.name, True), ("000000000001.000001", False), (None, True)])
def test_a_rollback_needs_its_target_as_it_was_read(target: str | None, lands: bool) -> None:
    d = Desk()
    v = verdict(1, VerdictKind.ROLLBACK, target=target)
    txn = fence.verdict(KEYS, v, RECORD, STAMP, d.view())
    assert d.lands(txn) is lands
    other = Desk()
    other.lands(FENCED["deleting"](other))
    assert other.lands(txn) is (target is None)


def _form(d: Desk) -> Txn:
    view = d.view()
    g = replace(generation(2, "a", "b"), plan=plan_for(view.checkpoints, CHECKPOINT.name, ()))
    return fence.form(KEYS, view, ("a", "x-0"), g, Budget(restarts=1), (), "", STAMP)


@pytest.mark.spec("R1", "R2", "R3", "R6")
@pytest.mark.parametrize(
    ("meanwhile", "lands"),
    [
        (lambda d: None, True),
        (lambda d: d.put(KEYS.current, Current(2)), False),
        (lambda d: d.put(KEYS.generation(2), generation(2, "b")), False),
        (lambda d: d.put(KEYS.budget, Budget(restarts=9)), False),
        (lambda d: d.put(KEYS.checkpoint(CHECKPOINT.name), CHECKPOINT), False),
        (lambda d: d.store.expire(d.lease), False),
        (lambda d: d.put(KEYS.candidate("c", "x-0"), entry("c").candidate), True),
    ],
    ids=["nothing", "another current", "it is there", "the budget moved", "the checkpoint moved", "the former is gone", "a newcomer"],
)  # fmt: skip
def test_forming_compares_all_that_it_was_decided_from(meanwhile: Callable[[Desk], None], lands: bool) -> None:
    d = Desk()
    d.end()
    txn = _form(d)
    meanwhile(d)
    assert d.lands(txn) is lands
    assert (d.view().generations.get(2, None) is not None and d.view().budget.restarts == 1) is lands


@pytest.mark.spec("R1")
def test_no_generation_forms_over_one_that_has_no_verdict() -> None:
    d = Desk()
    assert not d.lands(_form(d))


@pytest.mark.spec("R1", "R2")
def test_a_late_ready_never_lands_on_a_member() -> None:
    d = Desk()
    key = KEYS.candidate("a", "x-0")
    kv = d.store.get(key)
    assert kv is not None
    late = fence.candidate_state(KEYS, entry("a").candidate, kv.mod_revision, d.lease, STAMP)
    assert d.lands(_member(d))
    assert not d.lands(late)
    assert d.view().candidates["a", "x-0"].candidate.state is CandidateState.MEMBER
