"""The order of ranks: dense, by topology, natural, stable for those who stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_health.rendezvous.order import moved, natural, ranked
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


@pytest.mark.spec("R2")
@given(
    st.lists(st.tuples(st.text("ab019", min_size=1, max_size=4), st.integers(1, 8)), max_size=12, unique_by=lambda x: x[0]), st.randoms()
)
def test_ranks_are_dense_and_do_not_depend_on_the_order_of_arrival(nodes: list[tuple[str, int]], r: object) -> None:
    entries = [entry(n, i, workers=w) for i, (n, w) in enumerate(nodes)]
    members = ranked(entries)
    shuffled = list(entries)
    r.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ranked(shuffled) == members
    assert [m.rank for m in members] == list(range(len(nodes)))
    covered = [r for m in members for r in range(m.first_rank, m.first_rank + m.workers)]
    assert covered == list(range(sum(w for _, w in nodes)))


@pytest.mark.spec("R2")
@given(st.lists(st.text("ab12", min_size=1, max_size=3), min_size=2, max_size=8, unique=True), st.data())
def test_neighbours_stay_neighbours(nodes: list[str], data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(nodes))
    before = [m.node for m in ranked(entry(n) for n in nodes)]
    after = [m.node for m in ranked(entry(n) for n in nodes if n != lost)]
    assert after == [n for n in before if n != lost]


@pytest.mark.spec("R2")
def test_a_replacement_under_the_same_name_takes_the_old_rank() -> None:
    """pytorch/pytorch#67615: node-local files go by rank, so a node that is back has the rank that it had."""
    last = generation(1, "n1", "n2", "n3")
    again = ranked([entry("n3"), entry("n1"), entry("n2/1", 99)])
    assert [m.node for m in again] == ["n1", "n2", "n3"]
    assert moved(again, last) == ()


@pytest.mark.spec("R2")
def test_who_moved_is_said() -> None:
    last = generation(1, "n1", "n2", "n3")
    assert moved(ranked([entry("n2"), entry("n3"), entry("n9")]), last) == ("n2: 1 -> 0", "n3: 2 -> 1")


def test_natural_keys_of_any_two_names_compare() -> None:
    assert sorted(["1a", "a1", "", "1", "a"], key=natural) == ["", "1", "1a", "a", "a1"]
