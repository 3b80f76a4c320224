"""Commands on a real etcd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.cli.codes import Code
from elastic_health.cli.main import main
from elastic_health.ids import ulid
from elastic_health.incidents import Incident, Record
from elastic_health.records_etcd import prune, write_incident, write_record
from elastic_health.recovery.snapshot import RunState, snapshot
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, Txn
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from elastic_health.windows import Window
from tests.etcd_fixture import EtcdCluster, etcd_cluster, free_port, wait_until
from tests.recovery.test_story import KEYS, keys_of_a_capped_run, kv

pytestmark = pytest.mark.spec("U3")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def session(etcd: EtcdCluster) -> Iterator[EtcdSession]:
    store = EtcdSession.connect(etcd.endpoints)
    yield store
    etcd.ctl("del", "--prefix", "/elastic-health/")
    store.close()


@pytest.fixture
def capped(session: EtcdSession) -> EtcdSession:
    session.txn(Txn((), tuple(Put(k.key, k.value) for k in keys_of_a_capped_run())))
    return session


def run(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments, "--endpoint", etcd.endpoints[0]])
    out, err = capsys.readouterr()
    return code, out, err


def test_list_show_why_records(etcd: EtcdCluster, capped: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(etcd, capsys, "runs", "list")
    assert code == 0 and "demo  capped" in out
    assert json.loads(run(etcd, capsys, "runs", "list", "--json")[1])["runs"][0]["checkpoint_step"] == 40
    code, out, _ = run(etcd, capsys, "runs", "show", "demo")
    assert code == 0 and "node-a" in out and "gone" in out
    code, out, _ = run(etcd, capsys, "why", "demo")
    assert code == 0 and "named: rank 3 on node node-b" in out
    told = json.loads(run(etcd, capsys, "why", "demo", "--json")[1])
    assert [g["generation"]["number"] for g in told["generations"]] == [1, 2] and told["state"] == "capped"
    code, out, _ = run(etcd, capsys, "records", "demo")
    assert code == 0 and "worker_killed" in out
    assert json.loads(run(etcd, capsys, "records", "demo", "--json")[1])["records"][0]["id"] == "01A"
    assert json.loads(run(etcd, capsys, "status", "demo", "--json")[1])["budget"]["restarts"] == 3


@pytest.mark.parametrize("command", [["why"], ["status"], ["records"], ["runs", "show"], ["runs", "reopen"]])
def test_an_unknown_run(command: list[str], etcd: EtcdCluster, session: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(etcd, capsys, *command, "nosuch")
    assert (code, out) == (Code.NOT_FOUND, "") and "nosuch" in err and err.count("\n") == 1


@pytest.mark.spec("R4")
def test_skip_is_idempotent_and_reads_like_a_hand_written_one(
    etcd: EtcdCluster, capped: EtcdSession, capsys: pytest.CaptureFixture[str]
) -> None:
    etcd.ctl("put", KEYS.skip("mine"), '{"start": 100, "end": 200, "reason": "by hand"}')
    code, out, _ = run(etcd, capsys, "runs", "skip", "demo", "300", "400", "--reason", "bad shard", "--json")
    told = json.loads(out)
    assert code == 0 and told["recorded"]
    stored = json.loads(etcd.ctl("get", "--print-value-only", told["key"]))
    assert {k: stored[k] for k in ("start", "end", "reason", "v")} == {"start": 300, "end": 400, "reason": "bad shard", "v": 1}
    assert stored["at"].endswith("Z") and "@" in stored["by"]
    for start, end in (("300", "400"), ("110", "190")):
        again = json.loads(run(etcd, capsys, "runs", "skip", "demo", start, end, "--reason", "x", "--json")[1])
        assert not again["recorded"]
    found = snapshot(KEYS, capped.range(KEYS.root).kvs)
    assert found.skips == (Window(10, 20, "bad shard"), Window(100, 200, "by hand"), Window(300, 400, "bad shard"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("demo", "20", "10", "--reason", "x"), Code.BAD_CONFIG, "0 <= start < end"),
        (("demo", "-5", "10", "--reason", "x"), Code.BAD_CONFIG, "0 <= start < end"),
        (("no/run", "1", "2", "--reason", "x"), Code.BAD_CONFIG, "run id"),
        (("nosuch", "1", "2", "--reason", "x"), Code.NOT_FOUND, "--new"),
    ],
)
def test_skip_refuses(
    arguments: tuple[str, ...], code: Code, says: str, etcd: EtcdCluster, capped: EtcdSession, capsys: pytest.CaptureFixture[str]
) -> None:
    got, _, err = run(etcd, capsys, "runs", "skip", *arguments)
    assert got == code and says in err
    assert not capped.range(RunKeys("nosuch").root).kvs
    assert run(etcd, capsys, "runs", "skip", "nosuch", "1", "2", "--reason", "x", "--new")[0] == Code.OK


@pytest.mark.spec("R6")
def test_reopen(etcd: EtcdCluster, capped: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    etcd.ctl("put", KEYS.paged, "{}")
    code, out, _ = run(etcd, capsys, "runs", "reopen", "demo", "--reason", "disk replaced")
    assert code == 0 and "open again" in out
    after = snapshot(KEYS, capped.range(KEYS.root).kvs)
    assert (after.state, after.budget.restarts) == (RunState.RESTARTING, 0) and capped.get(KEYS.paged) is None
    assert after.records[-1].action == "reopen"
    code, _, err = run(etcd, capsys, "runs", "reopen", "demo")
    assert code == Code.RUN_REFUSED and "nothing to reopen" in err


def test_status_watch_follows_until_the_run_ends(etcd: EtcdCluster, capped: EtcdSession, tmp_path: Path) -> None:
    running = [k for k in keys_of_a_capped_run() if k.key != KEYS.verdict(2)]
    etcd.ctl("del", KEYS.verdict(2))
    assert snapshot(KEYS, running).state is RunState.LOST
    command = [sys.executable, "-m", "elastic_health.cli.main", "status", "demo", "--watch", "--json", "--every", "0.05"]
    environment = {**os.environ, "ELASTIC_HEALTH_ENDPOINT": etcd.endpoints[0]}
    lines = tmp_path / "lines"
    with lines.open("wb") as out:
        watching = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_until(lambda: lines.read_text().count("\n") == 1, "a first line", 30)
        capped.txn(Txn((), (Put(KEYS.progress, b'{"step": 77}'),)))
        wait_until(lambda: '"step": 77' in lines.read_text(), "the change is told")
        end = kv(KEYS.verdict(2), Verdict(VerdictKind.FINISH, Cause.FINISHED, 2))
        capped.txn(Txn((), (Put(end.key, end.value),)))
        assert watching.wait(timeout=20) == 0
    finally:
        watching.kill()
        watching.wait()
    assert json.loads(lines.read_text().splitlines()[-1])["state"] == "finished"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--endpoint", "bad host:1"], Code.BAD_CONFIG, "endpoint"),
        (["--config", "/nonexistent.yaml"], Code.BAD_CONFIG, "No such file"),
        ([], Code.BAD_CONFIG, "--endpoint"),
    ],
)
def test_bad_addresses(
    arguments: list[str], code: Code, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTIC_HEALTH_ENDPOINT", raising=False)
    if "--config" in arguments:
        arguments = [*arguments, "--endpoint", "127.0.0.1:1"]
    assert main(["runs", "list", *arguments]) == code
    assert says in capsys.readouterr().err


def test_nothing_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = tmp_path / "q.yaml"
    quick.write_text("store: {timeout_s: 0.5}")
    assert main(["runs", "list", "--endpoint", f"127.0.0.1:{free_port()}", "--config", str(quick)]) == Code.STORE_UNREACHABLE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.spec("R5")
def test_records_are_written_once_and_kept_bounded(session: EtcdSession) -> None:
    ids = [ulid(1000.0 + i, os.urandom(10)) for i in range(8)]
    for i, ident in enumerate(ids):
        record = Record(ident, "restart", "", "stall", "stall", i)
        write_record(session, KEYS, record, at="2025-01-01T00:00:00Z", by="n")
        write_record(session, KEYS, record, at="2026-01-01T00:00:00Z", by="late")
    write_incident(session, KEYS, Incident(ids[0], 1, Cause.STALL, "stall", "", 1.0), at="2025-01-01T00:00:00Z", by="n")
    kvs = session.range(KEYS.records).kvs
    assert len(kvs) == 8 and all(b"late" not in k.value for k in kvs)
    assert prune(session, KEYS, kept=3) == 5
    assert [r.id for r in snapshot(KEYS, session.range(KEYS.root).kvs).records] == ids[5:]
    assert session.get(KEYS.incident(ids[0])) is not None
