"""Only a few hear of every candidate: who they are, what the others hear, and that no loss goes unsaid for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_health.codec import dump
from elastic_health.generations import Budget, CandidateState
from elastic_health.incidents import Incident
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.membership import check, start, step
from elastic_health.rendezvous.state import Me, Phase, Purpose, Settings, State
from elastic_health.rendezvous.store import Compare, Get, KeyValue, RangeResult, Target, TxnResult, WatchBatch, WatchEvent
from elastic_health.rendezvous.view import Current, Part
from elastic_health.verdicts import Cause
from tests.rendezvous.shapes import KEYS, SPEC, entry, generation

GRANTED_S = 100.0


class One:
    """One agent, fed by hand; `sent` are the transactions that it asked for, `out` everything else."""

    def __init__(self, node: str = "z") -> None:
        self.now, self.out = 0.0, list[ev.Effect]()
        self.state: State = start(Settings(KEYS, Me(node, "x", f"{node}:1", 1, SPEC)), self.clock)
        self.who = (node, "x-0")
        self.feed(ev.StoreChanged(WatchBatch(1, (), True), True), ev.StoreChanged(WatchBatch(1), part=Part.GONE))
        self.feed(ev.StoreChanged(WatchBatch(1, (), True), part=Part.BUDGET), ev.StoreChanged(WatchBatch(1, (), True), part=Part.REST))
        self.feed(ev.LeaseHeld(7, 0.0, GRANTED_S))

    @property
    def clock(self) -> ev.Clock:
        return ev.Clock(self.now, 1.7e9 + self.now)

    def feed(self, *events: ev.Event) -> None:
        for event in events:
            before = self.state
            self.state, effects = step(before, event, self.clock)
            check(before, self.state)
            self.out += effects

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.feed(ev.Tick())

    def answer(self, purpose: Purpose, result: TxnResult) -> None:
        sent = next(s for s in self.state.sent.values() if s.purpose is purpose)
        self.feed(ev.TxnDone(sent.id, result))

    def join(self, older: int) -> None:
        """The candidate is written at revision 50, and so many others are there."""
        self.answer(Purpose.JOIN, TxnResult(True, 50, (RangeResult(50, (), older),)))

    def ready(self) -> None:
        self.feed(ev.PreflightDone(True))
        self.answer(Purpose.READY, TxnResult(True, 60))

    def goes(self, *nodes: str, revision: int = 70) -> None:
        events = tuple(WatchEvent(True, KeyValue(KEYS.candidate(n, "x-0"), b"", 0, revision, 0)) for n in nodes)
        self.feed(ev.StoreChanged(WatchBatch(revision, events), part=Part.GONE))

    def hears(self, number: int, *nodes: str, revision: int = 80, budget: bool = True) -> None:
        g = replace(generation(number, *nodes), previous=0)
        kvs = ((KEYS.generation(number), dump(g, at="", by="a")), (KEYS.current, dump(Current(number), at="", by="a")))
        events = tuple(WatchEvent(False, KeyValue(k, v, revision, revision, 1)) for k, v in kvs)
        self.feed(ev.StoreChanged(WatchBatch(revision, events), part=Part.REST))
        if budget:
            self.hears_budget(revision)

    def hears_budget(self, revision: int) -> None:
        kv = KeyValue(KEYS.budget, dump(Budget(), at="", by="a"), revision, revision, 1)
        self.feed(ev.StoreChanged(WatchBatch(revision, (WatchEvent(False, kv),)), part=Part.BUDGET))

    @property
    def attends(self) -> bool:
        return any(isinstance(e, ev.Attend) for e in self.out)

    def under_way(self, purpose: Purpose) -> bool:
        return self.state.under_way(purpose) is not None


@pytest.mark.parametrize(("older", "attends"), [(0, True), (2, True), (3, False), (1000, False)])
def test_the_oldest_three_hear_of_all(older: int, attends: bool) -> None:
    one = One()
    one.join(older)
    assert one.attends is attends


def test_who_is_not_told_how_many_are_older_hears_of_all() -> None:
    """The answer was lost, and the second try found the first one's candidate."""
    one = One()
    mine = KeyValue(KEYS.candidate(*one.who), b"{}", 50, 50, 1, 7)
    one.answer(Purpose.JOIN, TxnResult(False, 90, (RangeResult(90, (mine,), 1),)))
    assert one.state.phase is Phase.CHECKING and one.attends


def test_one_comes_nearer_with_each_candidate_that_goes() -> None:
    one = One()
    one.join(5)
    one.goes("a", "b", revision=71)
    assert not one.attends
    one.goes("c", revision=72)
    assert one.attends


def test_one_who_waits_long_behind_living_ones_hears_of_all_too() -> None:
    """The three that could form are alive and stuck: three former delays later the fourth is there, then the fifth."""
    fourth, fifth = One(), One()
    for one, older in ((fourth, 3), (fifth, 4)):
        one.join(older)
        one.ready()
        one.wait(5.9)
    assert not fourth.attends
    assert fourth.state.wake_at <= 6.0
    fourth.wait(0.2)
    fifth.wait(0.2)
    assert fourth.attends and not fifth.attends
    fifth.wait(6.0)
    assert fifth.attends


def test_one_who_does_not_hear_of_all_never_forms() -> None:
    one = One()
    one.join(10)
    one.ready()
    one.wait(3.0)
    assert one.state.phase is Phase.READY and not one.under_way(Purpose.FORM)


def test_the_own_candidate_is_missed_too() -> None:
    one = One()
    one.join(10)
    one.ready()
    one.feed(ev.StoreChanged(WatchBatch(70, (WatchEvent(True, KeyValue(KEYS.candidate(*one.who), b"", 0, 70, 0)),)), part=Part.GONE))
    assert one.state.phase is Phase.JOINING and one.state.incarnation == 1


def spare() -> One:
    """Beside a group of a, b and c."""
    one = One()
    one.join(10)
    one.ready()
    one.hears(1, "a", "b", "c")
    return one


def lost(one: One) -> ev.Send:
    """It says that b is lost, once it is its turn."""
    one.goes("b", revision=90)
    one.wait(one.state.settings.bounds.link_timeout_s)
    assert not one.under_way(Purpose.VERDICT), "a and c say it first"
    one.wait(1.0)
    assert one.under_way(Purpose.VERDICT)
    return next(e for e in reversed(one.out) if isinstance(e, ev.Send))


@pytest.mark.spec("R1")
def test_a_loss_is_said_in_turn_and_the_lost_must_still_be_gone() -> None:
    key = KEYS.candidate("b", "x-0")
    txn = lost(spare()).txn
    assert Compare(key, Target.CREATE, 0) in txn.compare and Get(key) in txn.otherwise


@pytest.mark.spec("R1")
def test_who_put_its_candidate_back_is_not_lost() -> None:
    one = spare()
    lost(one)
    back = KeyValue(KEYS.candidate("b", "x-0"), b"{}", 95, 95, 1, 9)
    one.answer(Purpose.VERDICT, TxnResult(False, 96, (RangeResult(96, (), 0), RangeResult(96, (back,), 1))))
    one.wait(5.0)
    assert not one.under_way(Purpose.VERDICT) and one.state.lost_since is None
    one.goes("b", revision=99)
    one.wait(5.0)
    one.wait(2.0)
    assert one.under_way(Purpose.VERDICT), "and when it goes again, it is"


@pytest.mark.spec("R6")
@pytest.mark.parametrize("late_s", [0.5, None])
def test_no_verdict_on_an_older_budget_but_not_for_ever(late_s: float | None) -> None:
    """The budget was written with the generation and comes over another watch; or somebody deleted it."""
    one = One()
    one.join(10)
    one.ready()
    one.hears(1, "z", "y", budget=False)
    one.answer(Purpose.MEMBER, TxnResult(True, 85))
    one.feed(ev.Judged(_worker_exit(one)))
    assert not one.under_way(Purpose.VERDICT)
    one.wait(late_s or 2.1)
    if late_s is not None:
        assert not one.under_way(Purpose.VERDICT)
        one.hears_budget(80)
    assert one.under_way(Purpose.VERDICT)


def _worker_exit(one: One) -> Incident:
    return Incident("i", 1, Cause.WORKER_EXIT, "exit 1", "exit 1", one.clock.wall)


def test_a_snapshot_after_compaction_names_the_gone_and_counts_anew() -> None:
    one = spare()
    there = tuple(KeyValue(KEYS.candidate(n, "x-0"), b"{}", r, r, 1) for n, r in (("a", 10), ("c", 12), ("y", 55)))
    own = KeyValue(KEYS.candidate(*one.who), b"{}", 50, 60, 2)
    one.feed(ev.StoreChanged(WatchBatch(90, (), True, (*there, own)), part=Part.GONE))
    assert set(one.state.gone_since) == {("b", "x-0")}
    assert one.state.older == 2 and one.attends


def test_hearing_of_all_replaces_what_was_heard_before() -> None:
    one = spare()
    one.goes("b", revision=90)
    there = {n: entry(n, state=CandidateState.MEMBER).candidate for n in ("b", "z")}
    kvs = tuple(KeyValue(KEYS.candidate(n, c.incarnation), dump(c, at="", by=n), 50, 60, 2) for n, c in there.items())
    one.feed(ev.StoreChanged(WatchBatch(200, (), True, kvs)))
    assert one.state.view.complete and one.state.view.gone == frozenset()
    one.goes("b", revision=250)
    assert one.state.view.gone == frozenset(), "the old watch may still say something"
