"""`runs delete` on a real etcd: never a living run, all keys of a dead one, in transactions that etcd takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from elastic_health.cli import deleting
from elastic_health.cli.codes import Code
from elastic_health.cli.main import main
from elastic_health.codec import dump
from elastic_health.errors import RunRefused
from elastic_health.generations import Candidate, CandidateState
from elastic_health.recovery.deletion import DELETES_A_TXN, Which, check, transactions
from elastic_health.recovery.snapshot import RunState, snapshot
from elastic_health.rendezvous.fence import Stamp, join
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, Txn, TxnResult
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from tests.etcd_fixture import EtcdCluster, etcd_cluster
from tests.recovery.test_story import KEYS, SPEC, generation, keys_of_a_capped_run, kv

pytestmark = pytest.mark.spec("U3")
ALIVE = Candidate("node-a", "i0", CandidateState.MEMBER, "a:1", 2, SPEC)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def store(etcd: EtcdCluster) -> Iterator[EtcdSession]:
    session = EtcdSession.connect(etcd.endpoints)
    session.txn(Txn((), tuple(Put(k.key, k.value) for k in keys_of_a_capped_run())))
    yield session
    etcd.ctl("del", "--prefix", "/elastic-health/")
    session.close()


def run(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["runs", "delete", *arguments, "--endpoint", etcd.endpoints[0]])
    out, err = capsys.readouterr()
    return code, out, err


def finished(run: str, at: str) -> tuple[Put, ...]:
    keys = RunKeys(run)
    return (
        Put(keys.current, dump({"generation": 1}, at=at, by="n")),
        Put(keys.generation(1), dump(generation(1, "node-a"), at=at, by="n")),
        Put(keys.verdict(1), dump(Verdict(VerdictKind.FINISH, Cause.FINISHED, 1), at=at, by="n")),
    )


def test_a_dead_run_goes_with_every_key_and_its_files_stay(
    etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(0, 700, 100):
        store.txn(Txn((), tuple(Put(KEYS.record(f"{i + j:026d}"), b"x" * 5000) for j in range(100))))
    etcd.ctl("put", f"{KEYS.root}members/old layout", "not ours")
    kept = RunKeys("demo2")
    store.txn(Txn((), (Put(kept.current, b"{}"),)))
    sizes = []
    shipped = EtcdSession.txn

    def counted(self: EtcdSession, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        sizes.append(len(txn.then))
        return shipped(self, txn, timeout_s=timeout_s)

    monkeypatch.setattr(EtcdSession, "txn", counted)
    code, out, err = run(etcd, capsys, "demo")
    assert (code, err) == (0, "") and "run demo deleted: 711 keys" in out
    assert "checkpoints on disk are not touched: /" in out
    assert not store.range(KEYS.root).kvs and store.range(kept.root).kvs, "only this run's, and not one whose name begins alike"
    assert max(sizes) <= DELETES_A_TXN and len(sizes) >= 8


def test_a_living_run_is_refused_and_nothing_of_it_is_touched(
    etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = store.grant(60)
    store.txn(join(KEYS, ALIVE, lease.id, Stamp("", "node-a")))
    before = store.range(KEYS.root).kvs
    code, out, _ = run(etcd, capsys, "demo")
    assert code == Code.RUN_REFUSED
    assert all(word in out for word in ("expected", "found run demo held by node-a.i0", "stop its torchruns first"))
    assert store.range(KEYS.root).kvs == before
    told = json.loads(run(etcd, capsys, "demo", "--json")[1])["runs"]
    assert [(o["run"], o["deleted"]) for o in told] == [("demo", False)]
    store.revoke(lease.id)
    assert run(etcd, capsys, "demo")[0] == 0


def test_a_candidate_that_no_lease_holds_is_nobody(etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    etcd.ctl("put", KEYS.candidate("node-a", "i0"), dump(ALIVE, at="", by="n").decode())
    assert run(etcd, capsys, "demo")[0] == 0 and not store.range(KEYS.root).kvs


def test_an_agent_that_comes_while_it_is_marked_joins_nothing(store: EtcdSession) -> None:
    deleting._mark(store, KEYS)
    lease = store.grant(60)
    done = store.txn(join(KEYS, ALIVE, lease.id, Stamp("", "node-a")))
    assert not done.succeeded and store.get(KEYS.candidate("node-a", "i0")) is None
    assert snapshot(KEYS, store.range(KEYS.root).kvs).state is RunState.DELETING


def test_an_agent_that_came_between_the_look_and_the_mark_is_seen(
    etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = store.grant(60)
    shipped = deleting._mark

    def late(session: EtcdSession, keys: RunKeys) -> None:
        store.txn(join(KEYS, ALIVE, lease.id, Stamp("", "node-a")))
        shipped(session, keys)

    monkeypatch.setattr(deleting, "_mark", late)
    code, out, _ = run(etcd, capsys, "demo")
    assert code == Code.RUN_REFUSED and "node-a.i0" in out
    assert store.get(KEYS.deleting) is None and store.get(KEYS.current) is not None


def test_an_interrupted_deletion_is_taken_up(etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    deleting._mark(store, KEYS)
    kvs = store.range(KEYS.root).kvs
    store.txn(transactions(snapshot(KEYS, kvs), kvs[:4])[0])
    assert "being deleted" in "".join(as_text(etcd, capsys, "runs", "show", "demo"))
    assert run(etcd, capsys, "demo")[0] == 0 and not store.range(KEYS.root).kvs


def as_text(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--endpoint", etcd.endpoints[0]]) == 0
    return capsys.readouterr().out


def test_a_finished_run_bars_itself_to_the_end(etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    """No mark is needed: whatever of it is left says that it has finished; and one that changes meanwhile is let be."""
    keys = RunKeys("done")
    store.txn(Txn((), (*finished("done", ""), *(Put(keys.record(f"{i:03d}"), b"{}") for i in range(101)))))
    kvs = store.range(keys.root).kvs
    first, *others = transactions(snapshot(keys, kvs), kvs)
    assert store.txn(first).succeeded
    assert snapshot(keys, store.range(keys.root).kvs).state is RunState.FINISHED
    reopened = finished("done", "2030-01-01T00:00:00Z")[2]
    store.txn(Txn((), (reopened,)))
    assert not any(store.txn(part).succeeded for part in others)
    assert run(etcd, capsys, "done")[0] == 0 and not store.range(keys.root).kvs


def test_filters_pick_and_pass_over(etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.fromtimestamp(time.time(), timezone.utc).isoformat()
    store.txn(Txn((), (*finished("old", "2024-01-01T00:00:00Z"), *finished("new", now), *finished("timeless", ""))))
    told = json.loads(run(etcd, capsys, "--finished", "--older-than", "30d", "--json", "--dry-run")[1])
    assert {o["run"]: o["deleted"] for o in told["runs"]} == {"old": True, "new": False, "timeless": False, "demo": False}
    assert store.get(RunKeys("old").current) is not None, "a dry run"
    assert run(etcd, capsys, "--finished", "--older-than", "30d")[0] == 0
    assert store.get(RunKeys("old").current) is None and store.get(RunKeys("new").current) is not None
    assert run(etcd, capsys, "demo", "--finished")[0] == Code.RUN_REFUSED
    assert run(etcd, capsys, "demo", "--older-than", "1h")[0] == 0, "its values are of 2025"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), Code.BAD_CONFIG, "--older-than"),
        (("--older-than", "soon"), Code.BAD_CONFIG, "12h"),
        (("no/run",), Code.BAD_CONFIG, "run id"),
        (("nosuch",), Code.NOT_FOUND, "nosuch"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: tuple[str, ...], code: Code, says: str, etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = run(etcd, capsys, *arguments)
    assert (got, out) == (code, "") and says in err and err.count("\n") == 1


def test_a_lost_run_waits_for_a_group_that_may_be_riding_through_an_outage() -> None:
    from elastic_health.recovery.deletion import settle_s

    lost = snapshot(KEYS, [kv(KEYS.current, b'{"generation": 1}'), kv(KEYS.generation(1), generation(1, "a"))])
    assert (lost.state, settle_s(lost)) == (RunState.LOST, 8.0)
    assert settle_s(snapshot(KEYS, keys_of_a_capped_run())) == 0.0
    with pytest.raises(RunRefused):
        check(lost, (), Which(finished=True), 10.0)
