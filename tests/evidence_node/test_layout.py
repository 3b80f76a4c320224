"""What a worker says is untrusted: whatever JSON comes, the document is JSON, the summary small, the path inside the folder."""

from __future__ import annotations

import json
import posixpath
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.evidence.layout import (
    MAX_TRACE_BYTES,
    Item,
    ItemStatus,
    RankEvidence,
    groups_of,
    main_stack,
    node_folder,
    rank_document,
    read_stacks,
    read_trace,
    safe_name,
    summary,
)

pytestmark = pytest.mark.spec("E4")
NAMES = ["pg_status", "entries", "process_group", "pg_id", "frames", "thread_name", "0", "x"]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(ANY_JSON)
def test_any_trace_and_any_stacks_are_survived(said: Any) -> None:
    body = json.dumps(said).encode()
    groups, why = read_trace(body)
    threads, _ = read_stacks(body)
    items = (
        Item("flight_recorder", ItemStatus.OK, 1.0, data=groups, raw=body if not why else b""),
        Item("python_stacks", ItemStatus.OK, 1.0, data=threads),
        Item("kernel", ItemStatus.OK, 1.0, data={"state": "S"}),
    )
    evidence = RankEvidence(3, 1, 42, items)
    document = json.loads(rank_document(evidence, incident="i", node="n"))
    assert (document["rank"], set(document["items"])) == (3, {i.name for i in items})
    if not why:
        assert document["items"]["flight_recorder"]["data"] == said
    short = summary((evidence,), incident="i", node="n", folder="f", took_s=0.1, written=True, note="")
    assert len(json.dumps(short)) < 40_000


def test_groups_by_name_number_and_operation() -> None:
    trace = {
        "pg_status": {
            "0": {"last_enqueued_collective": "7", "last_completed_collective": "6"},
            "1": {"last_enqueued_collective": -1, "last_completed_collective": "many"},
        },
        "entries": [
            {"pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "gloo:broadcast"},
            {"pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce"},
        ],
    }
    assert groups_of(trace) == [
        {"group": "0", "enqueued": 7, "completed": 6, "op": "gloo:all_reduce"},
        {"group": "1", "enqueued": -1, "completed": -1, "op": ""},
    ]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff{}", b"[" * 100_000, b'"' + b"x" * MAX_TRACE_BYTES + b'"'])
def test_what_is_no_trace_is_refused_with_a_reason(body: bytes) -> None:
    groups, why = read_trace(body)
    assert groups == [] and why


@given(st.text(max_size=300))
def test_no_name_leaves_the_folder(name: str) -> None:
    assert "/" not in safe_name(name)
    path = node_folder("/base/evidence", name, name)
    assert posixpath.normpath(path) == path and path.startswith("/base/evidence/")


def test_the_main_thread_of_a_traceback_is_its_last() -> None:
    other = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n'
    said = f'{other}\nThread 0x02 (most recent call first):\n  File "b.py", line 2 in g\n'
    assert main_stack(said) == ['File "b.py", line 2 in g']
    assert main_stack("") == main_stack(None) == []
