"""Keys of a run -> what people are told: the whole story, the state, skips, reopening.  Nothing unreadable hides the rest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.codec import dump
from elastic_health.errors import BadValue, RunRefused
from elastic_health.exits import ExitStatus
from elastic_health.generations import (
    Budget,
    Candidate,
    CandidateState,
    CheckpointRecord,
    CheckpointState,
    Generation,
    GenerationKind,
    Member,
    RestorePlan,
    RunSpec,
    Spent,
    checkpoint_name,
)
from elastic_health.incidents import Record
from elastic_health.recovery.budget import charge
from elastic_health.recovery.reopen import Who, reopen
from elastic_health.recovery.skips import covers, parse_skip, read_skips
from elastic_health.recovery.snapshot import RunSnapshot, RunState, snapshot
from elastic_health.recovery.story import duration, story
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import KeyValue, Put, Txn
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from elastic_health.windows import Window

KEYS = RunKeys("demo")
SPEC = RunSpec(1, 3, "digest", "train.py")


def kv(key: str, value: object, at: str = "2025-03-01T12:00:00Z", mod: int = 5) -> KeyValue:
    raw = value if isinstance(value, bytes) else dump(value, at=at, by="node-a")
    return KeyValue(key, raw, mod, mod, 1, 9 if key.startswith(KEYS.candidates) else 0)


def member(node: str, rank: int, workers: int = 2) -> Member:
    return Member(node, "i0", f"{node}:1", rank, rank * workers, workers)


def generation(n: int, *nodes: str, plan: RestorePlan = RestorePlan(), kind: GenerationKind = GenerationKind.FORMED) -> Generation:
    return Generation(n, kind, n - 1, n, tuple(member(node, i) for i, node in enumerate(nodes)), plan, SPEC)


KILLED = Verdict(
    VerdictKind.RESTART,
    Cause.WORKER_KILLED,
    1,
    "worker_killed:SIGKILL",
    "rank 3 was killed by SIGKILL",
    ranks=(3,),
    nodes=("node-b",),
    step=41,
)
CAPPED = Verdict(
    VerdictKind.ABORT, Cause.STALL, 2, "stall", "cap reached: 3 restarts within the last hour", exit_status=int(ExitStatus.CAPPED)
)


def keys_of_a_capped_run() -> list[KeyValue]:
    name = checkpoint_name(40, 1)
    record = Record("01A", "restart", "", "worker_killed", "worker_killed:SIGKILL", 1, decision="the whole group restarts", who="node-a.i0")
    return [
        kv(KEYS.current, json.dumps({"generation": 2}).encode(), mod=9),
        kv(KEYS.generation(1), generation(1, "node-a", "node-b")),
        kv(KEYS.verdict(1), KILLED, at="2025-03-01T12:03:20Z"),
        kv(KEYS.generation(2), generation(2, "node-a", plan=RestorePlan(name, "/c", 40, 1280))),
        kv(KEYS.verdict(2), CAPPED, mod=11),
        kv(KEYS.record("01A"), record),
        kv(KEYS.checkpoint(name), CheckpointRecord(40, 1, "/c", 1280, 4, None, "00")),
        kv(KEYS.checkpoint("x"), CheckpointRecord(50, 1, "/d", 1600, 4, name, "00", CheckpointState.ABANDONED, "torn")),
        kv(KEYS.skip("a"), b'{"start": 10, "end": 20, "reason": "bad shard"}'),
        kv(
            KEYS.budget,
            Budget(restarts=3, since_commit=2, torch_max_restarts=3, last_checkpoint=name, spent=(Spent(1, "stall", "s", 1),)),
            mod=10,
        ),
    ]


@pytest.mark.spec("U3", "R5")
def test_the_story_of_a_capped_run() -> None:
    assert story(snapshot(KEYS, keys_of_a_capped_run())) == (
        "run demo: ended, a person must look, generation 2 with 1 node (world 2), "
        "newest committed checkpoint at step 40, 3 restarts, 0 rollbacks",
        "skipped: positions [10, 20) (bad shard)",
        "",
        "generation 1 formed 2025-03-01T12:00:00Z: 2 nodes, world 4",
        "  members: node-a (ranks 0-1), node-b (ranks 2-3)",
        "  started at the very beginning",
        "  ended 2025-03-01T12:03:20Z after 3 min 20 s: worker_killed -> restart",
        "    why: rank 3 was killed by SIGKILL",
        "    named: rank 3 on node node-b",
        "    newest completed step: 41",
        "    decided: restart: the whole group restarts (by node-a.i0)",
        "  checkpoints: steps 40, 50; abandoned: 50 (torn)",
        "",
        "generation 2 formed 2025-03-01T12:00:00Z: 1 node, world 2",
        "  members: node-a (ranks 0-1)",
        f"  started from checkpoint {checkpoint_name(40, 1)} (step 40, position 1280)",
        "  ended 2025-03-01T12:00:00Z after 0 s: stall -> abort",
        "    why: cap reached: 3 restarts within the last hour",
        "    exit status 82",
    )


def test_a_rollback_tells_where_to_and_what_is_skipped() -> None:
    v = Verdict(VerdictKind.ROLLBACK, Cause.NUMERIC_HALT, 1, target="t", windows=(Window(3, 9),))
    lines = story(
        snapshot(KEYS, [kv(KEYS.current, b'{"generation": 1}'), kv(KEYS.generation(1), generation(1, "a")), kv(KEYS.verdict(1), v)])
    )
    assert "    back to t, past positions [3, 9)" in lines


STATES = {
    "empty": ([], RunState.EMPTY),
    "only a candidate": ([kv(KEYS.candidate("a", "i0"), Candidate("a", "i0", CandidateState.READY, "a:1", 1, SPEC))], RunState.FORMING),
    "no agent left": ([kv(KEYS.current, b'{"generation": 1}'), kv(KEYS.generation(1), generation(1, "a"))], RunState.LOST),
    "verdict": ([kv(KEYS.current, b'{"generation": 1}'), kv(KEYS.verdict(1), KILLED)], RunState.RESTARTING),
    "finished": (
        [kv(KEYS.current, b'{"generation": 1}'), kv(KEYS.verdict(1), Verdict(VerdictKind.FINISH, Cause.FINISHED, 1))],
        RunState.FINISHED,
    ),
    "stopped": (
        [kv(KEYS.current, b'{"generation": 1}'), kv(KEYS.verdict(1), Verdict(VerdictKind.ABORT, Cause.STOP_SIGNAL, 1, exit_status=84))],
        RunState.STOPPED,
    ),
    "drained": (
        [kv(KEYS.current, b'{"generation": 1}'), kv(KEYS.verdict(1), Verdict(VerdictKind.STOP, Cause.DRAIN, 1, exit_status=84))],
        RunState.PAUSED,
    ),
    "capped": (keys_of_a_capped_run(), RunState.CAPPED),
}


@pytest.mark.parametrize("name", STATES)
def test_state(name: str) -> None:
    kvs, state = STATES[name]
    snap = snapshot(KEYS, kvs)
    assert snap.state is state and story(snap)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 9), st.binary(max_size=30) | st.sampled_from([b"[]", b"{}", b'{"generation":"x"}', b"null"]))
def test_a_spoilt_value_is_named_and_hides_nothing_else(which: int, raw: bytes) -> None:
    kvs = keys_of_a_capped_run()
    kvs[which] = kv(kvs[which].key, raw)
    snap = snapshot(KEYS, kvs)
    text = "\n".join(story(snap))
    if kvs[which].key in text:
        assert "could not be read" in text
    assert ("node-b" in text) or which == 1


def test_other_runs_and_unknown_kinds_are_passed_over() -> None:
    assert snapshot(KEYS, [kv("/elastic-health/runs/demo2/budget", Budget(9)), kv(KEYS.root + "later/x", b"{}")]) == RunSnapshot(
        KEYS, at={KEYS.root + "later/x": ""}, mods={KEYS.root + "later/x": 5}
    )


@pytest.mark.parametrize(("seconds", "text"), [(4.25, "4.25 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (100_000, "1 d 3 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.spec("R4")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"start": 1}',
        b'{"start": 5, "end": 5}',
        b'{"start": -1, "end": 5}',
        b'{"start": "1", "end": 2}',
        b'{"start": 1.5, "end": 2}',
    ],
)
def test_a_skip_that_makes_no_sense_is_named_by_its_key(raw: bytes) -> None:
    with pytest.raises(BadValue, match="skips/x"):
        parse_skip(kv(KEYS.skip("x"), raw))
    windows, bad = read_skips([kv(KEYS.skip("x"), raw), kv(KEYS.skip("y"), b'{"start": 1, "end": 2}')])
    assert windows == (Window(1, 2),) and len(bad) == 1


@pytest.mark.spec("R4")
def test_skips_by_hand_and_by_command_read_alike() -> None:
    """facebookresearch/metaseq#500: windows are of absolute positions, so recording one twice skips nothing twice."""
    by_hand = kv(KEYS.skip("1"), b'{"start": 4, "end": 7, "reason": "bad"}')
    by_command = kv(KEYS.skip("2"), Window(4, 7, "bad"))
    assert parse_skip(by_hand) == parse_skip(by_command) == Window(4, 7, "bad")
    assert read_skips([by_hand, by_command])[0] == (Window(4, 7, "bad"),)
    assert covers([by_hand], 5, 7) == by_hand.key and covers([by_hand], 5, 8) is None


WHO = Who("ada@desk", "2025-03-02T00:00:00Z", 1740873600.0, "the disk was full")


def applied(txn: Txn, kvs: list[KeyValue]) -> list[KeyValue]:
    puts = {op.key: op.value for op in txn.then if isinstance(op, Put)}
    return [kv(k.key, puts.pop(k.key, k.value)) for k in kvs] + [kv(k, v) for k, v in puts.items()]


@pytest.mark.spec("R6")
def test_reopening_keeps_the_fence_shut_and_forgives() -> None:
    before = snapshot(KEYS, keys_of_a_capped_run())
    txn, record = reopen(before, "01B", WHO)
    assert {(c.key, c.value) for c in txn.compare} == {(KEYS.current, 9), (KEYS.verdict(2), 11), (KEYS.budget, 10)}
    after = snapshot(KEYS, applied(txn, keys_of_a_capped_run()))
    assert after.state is RunState.RESTARTING and after.verdict is not None
    assert (after.verdict.cause, after.verdict.generation, after.verdict.exit_status) == (Cause.REQUESTED, 2, 0)
    assert (after.budget.restarts, after.budget.torch_max_restarts) == (0, 3)
    assert charge(after.budget, after.verdict, 1.0, None).restarts == 0
    assert record in after.records and "the disk was full" in record.decision


@pytest.mark.spec("R6")
def test_what_is_not_reopened() -> None:
    for name in ("empty", "verdict", "finished", "no agent left"):
        with pytest.raises(RunRefused):
            reopen(snapshot(KEYS, STATES[name][0]), "01B", WHO)
    alive = kv(KEYS.candidate("node-a", "i0"), Candidate("node-a", "i0", CandidateState.MEMBER, "a:1", 1, SPEC))
    with pytest.raises(RunRefused, match="node-a"):
        reopen(snapshot(KEYS, [*keys_of_a_capped_run(), alive]), "01B", WHO)
