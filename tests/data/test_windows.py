"""Windows against a naive twin that spells positions out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from elastic_health.errors import DataError
from elastic_health.windows import Window, advance, normal, outside

pytestmark = pytest.mark.spec("R4")
some = st.lists(st.builds(lambda s, n, r: Window(s, s + n, r), st.integers(0, 60), st.integers(1, 20), st.sampled_from("ab")), max_size=6)


def inside(windows: list[Window]) -> set[int]:
    return {p for w in windows for p in range(w.start, w.end)}


@given(windows=some, order=st.randoms(use_true_random=False))
def test_normal_form_is_one_answer_whatever_the_order(windows: list[Window], order: object) -> None:
    form = normal(windows)
    shuffled = list(windows)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [(w.start, w.end) for w in normal(shuffled)] == [(w.start, w.end) for w in form]
    assert inside(list(form)) == inside(windows)
    assert all(a.end < b.start for a, b in itertools.pairwise(form))
    assert normal((*form, *windows[:1])) == form, "recording one again changes nothing"


@given(windows=some, position=st.integers(0, 90), count=st.integers(0, 40))
def test_advance_gives_the_next_positions_outside(windows: list[Window], position: int, count: int) -> None:
    runs, after = advance(position, count, normal(windows))
    free = [p for p in range(position, 300) if p not in inside(windows)]
    assert [p for a, b in runs for p in range(a, b)] == free[:count]
    assert after == free[count]
    assert outside(position, normal(windows)) == free[0]


def test_a_window_must_hold_something() -> None:
    for start, end in ((3, 3), (4, 3), (-1, 2)):
        with pytest.raises(DataError, match="0 <= start < end"):
            Window(start, end)
