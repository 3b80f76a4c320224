"""The collective frontier out of what recorders say, real and invented."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from elastic_health.liveness.facts import GroupFrontier
from elastic_health.liveness.frontier import Dump, frontier, groups, moved, nameless, read_dump, shown

CASES = os.environ.get("ELASTIC_HEALTH_CASES", "")


def dump(status: dict[str, tuple[int, int]], *entries: tuple[int, str, int, str], under_way: tuple[int, ...] = ()) -> bytes:
    """In the recorder's form; entries are (local id, name, sequence, operation); those in `under_way` by place aren't retired."""
    said = {k: {"last_enqueued_collective": str(e), "last_completed_collective": str(c)} for k, (e, c) in status.items()}
    told = [
        {"pg_id": i, "process_group": [n, "undefined"], "collective_seq_id": s, "profiling_name": o, "retired": at not in under_way}
        for at, (i, n, s, o) in enumerate(entries)
    ]
    return json.dumps({"version": "2.10", "pg_config": {"": {}}, "pg_status": said, "entries": told}).encode()


def test_one_group_has_one_name_whatever_its_local_id() -> None:
    """Rank 1 is in both subgroups, rank 2 only in the second: the same group is its 2nd there and its 1st here."""
    of_rank_1 = frontier(
        dump({"0": (1, 1), "1": (1, 1), "2": (4, 3)}, (1, "1", 1, "gloo:all_reduce"), (2, "2", 4, "gloo:all_gather"), under_way=(1,))
    )
    of_rank_2 = frontier(dump({"0": (1, 1), "1": (3, 3)}, (1, "2", 3, "gloo:all_gather")))
    assert of_rank_1[2] == GroupFrontier("2", 4, 3, "gloo:all_gather")
    assert of_rank_2[1] == GroupFrontier("2", 3, 3, "gloo:all_gather")


def test_a_completion_noted_too_late_does_not_make_a_group_look_waited_in() -> None:
    """gloo's threads note completions in any order: seen for real, the status stayed at 1 of 2 with both entries retired."""
    full = read_dump(dump({"0": (2, 1)}, (0, "0", 1, "gloo:all_reduce"), (0, "0", 2, "gloo:all_gather")))
    assert groups(full)[0].completed == 2
    later = read_dump(dump({"0": (2, 1)}))
    assert groups(later, retired=full.retired)[0].completed == 2
    assert groups(read_dump(dump({"0": (3, 1)})), retired=full.retired)[0].completed == 2
    behind = dump({"0": (3, 1)}, *((0, "0", n, "gloo:all_reduce") for n in (1, 2, 3)), under_way=(1,))
    assert groups(read_dump(behind))[0].completed == 1


def test_names_once_learned_serve_dumps_without_entries() -> None:
    learned = read_dump(dump({"0": (1, 1), "1": (1, 1)}, (1, "7", 1, "gloo:broadcast")))
    later = read_dump(dump({"0": (9, 8), "1": (5, 5), "2": (1, 0)}))
    assert nameless(later, learned.names) == ("0", "2")
    found = groups(later, learned.names, {"7": (0, 4)})
    assert found == (GroupFrontier("0", 9, 8), GroupFrontier("7", 5, 5, "", (0, 4)), GroupFrontier("?2", 1, 0))


def test_a_group_that_has_launched_nothing_is_not_there_but_the_default_one_is() -> None:
    assert frontier(dump({"0": (-1, -1), "1": (-1, -1)})) == (GroupFrontier("0", -1, -1),)


def test_too_many_groups_leave_those_that_are_waited_in() -> None:
    many = [GroupFrontier(str(i), 5, 5) for i in range(30)]
    many[17] = GroupFrontier("17", 6, 5)
    kept = [g.group for g in shown(many, {str(i): i for i in range(30)}, 4)]
    assert kept == ["17", "27", "28", "29"]


def test_moved_looks_at_sequences_only() -> None:
    assert not moved((GroupFrontier("0", 1, 1),), (GroupFrontier("0", 1, 1, "named", (0, 1)),))
    assert moved((GroupFrontier("0", 1, 1),), (GroupFrontier("0", 2, 1),))


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda c: st.dictionaries(
    st.sampled_from(("pg_status", "entries", "0", "pg_id", "process_group", "last_enqueued_collective")), c
) | st.lists(c, max_size=3)).map(lambda v: json.dumps(v).encode()))  # fmt: skip
def test_any_input_gives_a_frontier(raw: bytes) -> None:
    assert all(isinstance(g, GroupFrontier) for g in frontier(raw))
    assert isinstance(read_dump(raw), Dump)


@pytest.mark.skipif(not CASES, reason="ELASTIC_HEALTH_CASES names no folder of real dumps")
@pytest.mark.spec("L3")
def test_real_gloo_dumps_show_who_is_behind() -> None:
    """F05: rank 2 left out the fifth all_reduce."""
    folder = Path(CASES) / "flight_recorder"
    ranks = [frontier((folder / f"gloo213_rank{r}.json").read_bytes()) for r in range(3)]
    world = [next(g for g in found if g.group == "0") for found in ranks]
    assert [g.enqueued for g in world] == [5, 5, 4]
    assert world[0].op == "gloo:all_reduce"
    for r in range(3):
        raw = (folder / f"gloo213_rank{r}.json").read_bytes()
        for cut in range(0, len(raw), 997):
            assert frontier(raw[:cut]) == ()
