"""The order of ranks: dense, by topology, natural, stable for those who stay."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, strategies as st

from elastic_health.generations import Generation, Member
from elastic_health.rendezvous.order import levels, moved, natural, picked, ranked
from elastic_health.rendezvous.view import Entry
from tests.rendezvous.shapes import entry, generation


def names(*entries: object) -> str:
    return " ".join(m.node for m in ranked(entries))  # type: ignore[arg-type]


@pytest.mark.spec("R2")
@pytest.mark.parametrize(
    ("words", "expect"),
    [
        ("node10 node2 node1", "node1 node2 node10"),
        ("rack2-n1 rack10-n1 rack2-n10", "rack2-n1 rack2-n10 rack10-n1"),
        ("b 2 a", "2 a b"),
        ("gpu-9 gpu-10 gpu", "gpu gpu-9 gpu-10"),
    ],
)
def test_numbers_in_names_count_as_numbers(words: str, expect: str) -> None:
    assert names(*(entry(n, i) for i, n in enumerate(words.split()))) == expect


@pytest.mark.spec("R2")
def test_topology_comes_before_names() -> None:
    assert names(entry("a", topology="sw2"), entry("b", topology="sw10"), entry("c", topology="sw2")) == "a c b"


@pytest.mark.spec("R2")
def test_agents_of_one_name_go_by_age() -> None:
    one, other = entry("n/0", 7), entry("n/1", 3)
    assert [m.incarnation for m in ranked([one, other])] == ["x-1", "x-0"]


@pytest.mark.spec("R2")
def test_first_ranks_follow_the_workers_of_each() -> None:
    members = ranked([entry("a", workers=8), entry("b", workers=1), entry("c", workers=4)])
    assert [(m.rank, m.first_rank) for m in members] == [(0, 0), (1, 8), (2, 9)]


# ---- properties, over last generations and newcomers drawn at random
PLACES = ("", "r1", "r2", "r10", "p1.r1", "p1.r2", "p2.r1")
DRAWN = st.lists(
    st.tuples(st.text("ab019", min_size=1, max_size=3), st.sampled_from(PLACES), st.integers(1, 4)),
    min_size=1,
    max_size=10,
    unique_by=lambda x: x[0],
)


def group(members: tuple[Member, ...]) -> Generation:
    return dataclasses.replace(generation(1, "x"), members=members)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Generation, list[Entry]]:
    """A last generation in its order, and who is ready for the next one: some that stay, some that are new."""
    nodes = draw(DRAWN)
    entries = [entry(n, i, topology=t, workers=w) for i, (n, t, w) in enumerate(nodes)]
    was = draw(st.lists(st.sampled_from(entries), min_size=1, unique_by=lambda e: e.who))
    last = group(ranked(was))
    now = draw(st.lists(st.sampled_from(entries), min_size=1, unique_by=lambda e: e.who))
    return last, now


def blocks(members: tuple[Member, ...], level: int) -> list[tuple[str, ...]]:
    """The places at a level, each time that one begins."""
    places = [levels(m.topology)[: level + 1] for m in members]
    return [p for i, p in enumerate(places) if len(p) > level and (i == 0 or places[i - 1] != p)]


@pytest.mark.spec("R2")
@given(changes(), st.randoms())
def test_ranks_are_dense_and_do_not_depend_on_the_order_of_arrival(drawn: tuple[Generation, list[Entry]], r: Random) -> None:
    last, now = drawn
    members = ranked(now, last)
    shuffled = list(now)
    r.shuffle(shuffled)
    assert ranked(shuffled, last) == members
    assert [m.rank for m in members] == list(range(len(now)))
    assert len({m.who for m in members}) == len(now)
    covered = [r for m in members for r in range(m.first_rank, m.first_rank + m.workers)]
    assert covered == list(range(sum(e.candidate.workers for e in now)))


@pytest.mark.spec("R2")
@given(changes())
def test_those_of_one_place_stand_together_at_each_level(drawn: tuple[Generation, list[Entry]]) -> None:
    last, now = drawn
    for level in (0, 1):
        begun = blocks(ranked(now, last), level)
        assert len(begun) == len(set(begun))


@pytest.mark.spec("R2")
@given(changes())
def test_neighbours_stay_neighbours(drawn: tuple[Generation, list[Entry]]) -> None:
    """Whoever stays keeps its order, whatever else comes and goes."""
    last, now = drawn
    after = [m.who for m in ranked(now, last)]
    assert [w for w in after if last.member(*w)] == [m.who for m in last.members if m.who in after]


@pytest.mark.spec("R2")
@given(DRAWN, st.data())
def test_without_a_topology_no_other_order_moves_fewer(nodes: list[tuple[str, str, int]], data: st.DataObject) -> None:
    """Against every order that keeps those who stay in theirs."""
    entries = [entry(n, i) for i, (n, _, _) in enumerate(nodes[:6])]
    was = data.draw(st.lists(st.sampled_from(entries), min_size=1, unique_by=lambda e: e.who))
    now = data.draw(st.lists(st.sampled_from(entries), min_size=1, unique_by=lambda e: e.who))
    last = group(ranked(was))
    old = {m.who: m.rank for m in last.members}

    def still(order: Sequence[tuple[str, str]]) -> int:
        return sum(old.get(w) == i for i, w in enumerate(order))

    orders = itertools.permutations(e.who for e in now)
    keeping = [o for o in orders if sorted((w for w in o if w in old), key=lambda w: old[w]) == [w for w in o if w in old]]
    assert still([m.who for m in ranked(now, last)]) == max(map(still, keeping))


@pytest.mark.spec("R2")
@given(changes(), st.integers(1, 10))
def test_who_takes_part_when_more_are_ready_than_fit_in(drawn: tuple[Generation, list[Entry]], most: int) -> None:
    last, now = drawn
    chosen = {e.who for e in picked(now, last, most)}
    assert len(chosen) == min(most, len(now))
    staying = {e.who for e in now if last.member(*e.who)}
    assert chosen <= staying or staying <= chosen, "nobody who was a member gives way to a newcomer"


# ---- examples
@pytest.mark.spec("R2")
def test_a_spare_takes_the_place_that_was_vacated_and_nobody_moves() -> None:
    """verl-project/verl#500, pytorch/pytorch#67615: files that go by rank stay where they are looked for."""
    last = generation(1, "n1", "n2", "n3", "n4")
    again = ranked([entry("n1"), entry("spare9", 9), entry("n3"), entry("n4")], last)
    assert [m.node for m in again] == ["n1", "spare9", "n3", "n4"]
    assert moved(again, last) == ()


@pytest.mark.spec("R2")
def test_spares_go_where_their_rack_is() -> None:
    racks = {"a1": "r1", "a2": "r1", "a3": "r1", "b1": "r2", "b2": "r2", "b3": "r2", "s1": "r2", "s2": "r1"}

    def at(*nodes: str) -> list[Entry]:
        return [entry(n, i, topology=racks[n]) for i, n in enumerate(nodes)]

    last = group(ranked(at("a1", "a2", "a3", "b1", "b2", "b3")))
    again = ranked(at("a1", "a3", "b1", "b3", "s1", "s2"), last)
    assert [m.node for m in again] == ["a1", "s2", "a3", "b1", "s1", "b3"] and moved(again, last) == ()
    # One of rack 2 in place of one of rack 1: the racks stay whole, and still nobody of rack 2 moves.
    other = ranked(at("a1", "a2", "b1", "b2", "b3", "s1"), last)
    assert [m.node for m in other] == ["a1", "a2", "s1", "b1", "b2", "b3"] and moved(other, last) == ()


@pytest.mark.spec("R2")
def test_of_many_spares_the_one_nearest_to_the_lost_node_is_taken() -> None:
    last = group(ranked([entry("a", topology="p1.r1"), entry("b", topology="p1.r2"), entry("c", topology="p2.r1")]))
    here = [entry("a", topology="p1.r1"), entry("c", topology="p2.r1")]
    spares = [entry("old", 5, topology="p2.r1"), entry("same_pod", 6, topology="p1.r9"), entry("same_rack", 7, topology="p1.r2")]
    assert [e.candidate.node for e in picked([*here, *spares], last, 3)] == ["a", "c", "same_rack"]
    assert [e.candidate.node for e in picked([*here, *spares[:2]], last, 3)] == ["a", "c", "same_pod"]
    assert [e.candidate.node for e in picked([*here, *spares], None, 3)] == ["a", "c", "old"]


@pytest.mark.spec("R2")
def test_a_group_that_grows_moves_nobody() -> None:
    last = generation(1, "n2", "n4")
    more = ranked([entry("n2"), entry("n4"), entry("n1", 7), entry("n3", 8)], last)
    assert [m.node for m in more] == ["n2", "n4", "n1", "n3"] and moved(more, last) == ()


@pytest.mark.spec("R2")
def test_a_node_that_was_started_again_takes_the_old_rank() -> None:
    """pytorch/pytorch#67615: node-local files go by rank, so a node that is back has the rank that it had."""
    last = generation(1, "n1", "n2", "n3")
    again = ranked([entry("n3"), entry("n1"), entry("n2/1", 99)], last)
    assert [m.node for m in again] == ["n1", "n2", "n3"]
    assert moved(again, last) == ()


@pytest.mark.spec("R2")
def test_who_moved_is_said() -> None:
    last = generation(1, "n1", "n2", "n3")
    assert moved(ranked([entry("n2"), entry("n3"), entry("n9")], last), last) == ()
    assert moved(ranked([entry("n2"), entry("n3")], last), last) == ("n2: 1 -> 0 (workers 2-3 -> 0-1)", "n3: 2 -> 1 (workers 4-5 -> 2-3)")
    uneven = ranked([entry("n1", workers=3), entry("n2", workers=1)], last)
    assert moved(uneven, last) == ("n1: 0 -> 0 (workers 0-1 -> 0-2)", "n2: 1 -> 1 (workers 2-3 -> 3)")


def test_natural_keys_of_any_two_names_compare() -> None:
    assert sorted(["1a", "a1", "", "1", "a"], key=natural) == ["", "1", "1a", "a", "a1"]
    assert natural("node\u00b2") and natural("n\u0662") == ((1, "n"), (0, 2))
