"""Who meets whom for the pair check: rounds, odd numbers, partners who die, any order of arrival; it always ends."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.preflight.pairs import (
    MOST_MEMBERS,
    MOST_ROUNDS,
    PARTNERS,
    Close,
    Form,
    Here,
    Leave,
    Meet,
    Open,
    Over,
    Pace,
    Pair,
    Roll,
    Round,
    Seat,
    Since,
    Tell,
    Told,
    View,
    Wait,
    next_round,
    noticed,
    present,
    route,
    step,
)

pytestmark = pytest.mark.spec("P3")
DONE = Told(((1024, 1.0),))
PACE = Pace(wait_s=30, settle_s=5, round_s=20)


def names(n: int) -> list[str]:
    return [f"n{i:02d}" for i in range(n)]


def all_rounds(members: list[str], dead_after: dict[str, int] | None = None) -> list[tuple[Pair, ...]]:
    """All rounds where everything is measured, and these die before their k-th round."""
    met: dict[frozenset[str], bool] = {}
    rounds: list[tuple[Pair, ...]] = []
    while True:
        there = {m for m in members if (dead_after or {}).get(m, 99) > len(rounds)}
        pairs = next_round(members, there, met, len(rounds))
        if not pairs:
            return rounds
        assert all(a in there and b in there for a, b in pairs)
        met |= {frozenset(p): True for p in pairs}
        rounds.append(pairs)


# ---- rounds


@pytest.mark.parametrize("n", range(3, MOST_MEMBERS + 1))
def test_each_meets_two_different_partners_in_two_rounds_or_three_for_odd_numbers(n: int) -> None:
    rounds = all_rounds(names(n))
    assert len(rounds) == (2 if n % 2 == 0 else 3)
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in rounds)
    for node in names(n):
        assert len({next(x for x in pair if x != node) for pairs in rounds for pair in pairs if node in pair}) == PARTNERS


def test_two_meet_once_and_one_or_none_never() -> None:
    assert all_rounds(["a", "b"]) == [(("a", "b"),)] and all_rounds(["a"]) == [] and all_rounds([]) == []


@given(st.integers(2, 12), st.data())
def test_deaths_at_any_round_end_in_time_and_the_others_still_find_two_partners(n: int, data: st.DataObject) -> None:
    members = names(n)
    dead = data.draw(st.dictionaries(st.sampled_from(members), st.integers(0, 3), max_size=n - 1))
    rounds = all_rounds(members, dead)
    assert len(rounds) <= MOST_ROUNDS
    flat = [frozenset(p) for pairs in rounds for p in pairs]
    assert len(flat) == len(set(flat)), "nobody meets the same partner twice"
    alive = [m for m in members if m not in dead]
    if len(rounds) < MOST_ROUNDS:
        for node in alive:
            assert sum(node in pair for pair in flat) >= min(PARTNERS, len(alive) - 1)


def test_whose_partner_failed_is_paired_with_a_third() -> None:
    members = names(4)
    met = {frozenset(("n00", "n01")): False, frozenset(("n02", "n03")): True}
    second = next_round(members, set(members), met, 1)
    met |= {frozenset(p): True for p in second}
    third = next_round(members, set(members), met, 2)
    assert {n for p in third for n in p} >= {"n00", "n01"} and frozenset(("n00", "n01")) not in map(frozenset, third)


# ---- what a node does next


def seats(*nodes: str, meeting: str = "") -> dict[str, Seat]:
    return {n: Seat(Here(n, f"i-{n}", "127.0.0.1", meeting), i + 1) for i, n in enumerate(nodes)}


def me(node: str) -> Here:
    return Here(node, f"i-{node}", "127.0.0.1")


def at(view: View, node: str, now: float, since: Since = Since(0, 0, 0), pace: Pace = PACE) -> object:
    return step(view, me(node), since, pace, now)


def meeting(*nodes: str, rounds: tuple[Round, ...] = (), told: dict[tuple[int, str], Told] | None = None) -> View:
    found = seats(*nodes, meeting="m")
    return View(found, Roll(tuple(s.here for s in found.values()), 7), rounds, told or {})


def test_who_is_alone_waits_and_then_leaves() -> None:
    assert at(View(seats("a")), "a", 29) == Wait(30)
    left = at(View(seats("a")), "a", 30)
    assert isinstance(left, Leave) and "30 s" in left.reason


def test_two_begin_when_nobody_else_comes_and_at_once_when_all_are_there() -> None:
    view = View(seats("a", "b"))
    assert at(view, "a", 4.9) == Wait(5) and at(view, "a", 5) == Form(view.waiting)
    assert isinstance(at(view, "b", 5), Wait), "the later one leaves it to the earlier"
    assert at(view, "a", 0.0, pace=replace(PACE, expect=2)) == Form(view.waiting)
    assert at(view, "a", 29, pace=replace(PACE, expect=3)) == Wait(30)
    assert at(view, "a", 30, pace=replace(PACE, expect=3)) == Form(view.waiting)


@pytest.mark.parametrize(
    ("n", "first"), [(MOST_MEMBERS, MOST_MEMBERS), (MOST_MEMBERS + 1, MOST_MEMBERS - 1), (MOST_MEMBERS + 5, MOST_MEMBERS)]
)
def test_a_large_crowd_meets_in_parts_and_nobody_is_left_alone(n: int, first: int) -> None:
    act = at(View(seats(*names(n))), "n00", 10)
    assert isinstance(act, Form) and len(act.seats) == first


def test_a_lost_seat_and_one_taken_by_another_process() -> None:
    assert isinstance(at(View({}), "a", 0), Leave)
    taken = View({"a": Seat(Here("a", "other", "127.0.0.1"), 1)})
    left = at(taken, "a", 0)
    assert isinstance(left, Leave) and "another process" in left.reason


def test_appointments_a_dead_partner_and_the_end() -> None:
    first = (Round((("a", "b"),)),)
    view = meeting("a", "b", rounds=first)
    assert at(view, "a", 0) == Meet(0, replace(me("b"), meeting="m"), True)
    assert at(view, "b", 0) == Meet(0, replace(me("a"), meeting="m"), False)
    told = at(replace(view, seats={k: s for k, s in view.seats.items() if k != "b"}), "a", 0)
    assert isinstance(told, Tell) and told.told.failed
    both = replace(view, told={(0, "a"): DONE, (0, "b"): DONE})
    assert at(both, "a", 0) == Close() and at(replace(both, closed=True), "b", 0) == Over()


def test_who_comes_back_as_another_process_is_dead_to_the_meeting() -> None:
    view = meeting("a", "b", rounds=(Round((("a", "b"),)),))
    again = {**view.seats, "b": Seat(Here("b", "new", "127.0.0.1"), 9)}
    assert isinstance(at(replace(view, seats=again), "a", 0), Tell)


def test_a_silent_one_is_waited_for_until_the_round_is_over_and_then_left_out() -> None:
    nodes = ("a", "b", "c", "d")
    told = {(0, "a"): DONE, (0, "b"): DONE, (0, "c"): Told(failed="its partner did not come")}
    view = meeting(*nodes, rounds=(Round((("a", "b"), ("c", "d"))),), told=told)
    assert at(view, "a", 19) == Wait(20)
    act = at(view, "a", 20)
    assert isinstance(act, Open) and "d" not in {n for p in act.pairs for n in p}
    assert present(view) == {"a", "b", "c"}


def test_a_meeting_whose_records_are_gone_is_left() -> None:
    view = View(seats("a", "b", meeting="m"))
    assert at(view, "a", 19) == Wait(20) and isinstance(at(view, "a", 20), Leave)


def test_routes_are_spelled_as_quarantine_spells_them() -> None:
    assert route(("b", "a")) == route(("a", "b")) == "a+b"


# ---- whole meetings: a store of plain data, nodes that come, die and hang at any moment


@dataclass
class World:
    """All nodes' acts on one store, in an order that `rng` draws; a view is never older than the node's own write."""

    rng: random.Random
    dies_at: dict[str, float]
    hangs: frozenset[str]
    now: float = 0.0
    seats: dict[str, Seat] = field(default_factory=dict)
    roll: dict[str, Roll] = field(default_factory=dict)
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    told: dict[str, dict[tuple[int, str], Told]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    since: dict[str, Since] = field(default_factory=dict)
    seen: dict[str, View] = field(default_factory=dict)
    busy: dict[str, tuple[float, int, Told]] = field(default_factory=dict)
    ended: dict[str, View | Leave] = field(default_factory=dict)
    revision: int = 0

    def arrive(self, node: str) -> None:
        self.revision += 1
        self.seats[node] = Seat(me(node), self.revision, self.revision)
        self.since[node] = Since(self.now, self.now, self.now)
        self.seen[node] = View()

    def view(self, node: str) -> View:
        seat = self.seats.get(node)
        key = seat.here.meeting if seat else ""
        if not key:
            return View(dict(self.seats))
        return View(dict(self.seats), self.roll[key], tuple(self.rounds[key]), dict(self.told[key]), {}, key in self.closed)

    def turn(self, node: str) -> None:
        view = self.view(node)
        self.since[node] = noticed(self.since[node], self.seen[node], view, self.now)
        self.seen[node] = view
        key = self.seats[node].here.meeting if node in self.seats else ""
        if node in self.busy:
            until, number, told = self.busy[node]
            if self.now < until:
                return
            del self.busy[node]
            if key not in self.closed:
                self.told[key].setdefault((number, node), told)
            return
        self.do(node, key, step(view, me(node), self.since[node], PACE, self.now))

    def do(self, node: str, key: str, act: object) -> None:
        if isinstance(act, Over):
            self.ended[node] = self.view(node)
            del self.seats[node]
        elif isinstance(act, Leave):
            self.ended[node] = act
            self.seats.pop(node, None)
        elif isinstance(act, Form):
            self.form(act)
        elif isinstance(act, Open) and key not in self.closed and len(self.rounds[key]) == act.number:
            self.rounds[key].append(Round(act.pairs))
        elif isinstance(act, Close):
            self.closed.add(key)
        elif isinstance(act, Tell):
            self.told[key].setdefault((act.number, node), act.told)
        elif isinstance(act, Meet):
            takes, told = self.rng.choice(((3.0, DONE), (8.0, DONE), (20.0, Told(stalled=True)), (1.0, Told(failed="no torch"))))
            self.busy[node] = (self.now + (1e9 if node in self.hangs else takes), act.number, told)

    def form(self, act: Form) -> None:
        if any(self.seats.get(s.here.node) != s for s in act.seats):
            return
        key = f"m{self.revision}"
        for s in act.seats:
            self.revision += 1
            self.seats[s.here.node] = replace(s, here=replace(s.here, meeting=key), revision=self.revision)
        self.roll[key] = Roll(tuple(self.seats[s.here.node].here for s in act.seats))
        self.rounds[key], self.told[key] = [], {}

    def run(self, comes_at: dict[str, float]) -> None:
        while self.now < 1000:
            for node, when in comes_at.items():
                if when <= self.now and node not in self.since:
                    self.arrive(node)
                if self.dies_at.get(node, 1e9) <= self.now:
                    self.seats.pop(node, None)
            live = [n for n in self.since if n not in self.ended and n not in self.hangs and self.dies_at.get(n, 1e9) > self.now]
            if not live and len(self.since) == len(comes_at):
                return
            some = [n for n in self.seats if n in self.hangs]
            for node in self.rng.sample([*live, *some], len(live) + len(some)):
                self.turn(node)
            self.now += 0.5


@settings(max_examples=150)
@given(st.integers(1, 9), st.integers(0, 1 << 32), st.data())
def test_any_order_of_arrival_death_and_hanging_ends(n: int, seed: int, data: st.DataObject) -> None:
    nodes = names(n)
    comes = {node: data.draw(st.sampled_from((0.0, 1.0, 4.0, 12.0, 40.0)), label=node) for node in nodes}
    dies = data.draw(st.dictionaries(st.sampled_from(nodes), st.sampled_from((1.0, 6.0, 11.0, 15.0, 33.0, 60.0)), max_size=n))
    hangs = frozenset(data.draw(st.sets(st.sampled_from(nodes), max_size=2)))
    world = World(random.Random(seed), dies, hangs)
    world.run(comes)
    latest = 40 + PACE.wait_s + MOST_ROUNDS * (PACE.round_s + 5) + 10
    assert world.now <= latest, "everybody has left in time"
    for node in set(nodes) - hangs - set(dies):
        assert node in world.ended
    finals: dict[str, set[str]] = {}
    for end in world.ended.values():
        if isinstance(end, View):
            assert end.closed and len(end.rounds) <= MOST_ROUNDS
            finals.setdefault(repr((end.roll, end.rounds)), set()).add(repr(sorted(end.told.items(), key=str)))
    assert all(len(told) == 1 for told in finals.values()), "all of a meeting judge the same"


def test_a_quiet_world_of_five_measures_all_of_them() -> None:
    class Steady(random.Random):
        def choice(self, seq):  # type: ignore[no-untyped-def]
            return seq[0]

    world = World(Steady(1), {}, frozenset())
    world.run(dict.fromkeys(names(5), 0.0))
    ends = [end for end in world.ended.values() if isinstance(end, View)]
    assert len(ends) == 5 and all(len(end.rounds) == 3 for end in ends)
