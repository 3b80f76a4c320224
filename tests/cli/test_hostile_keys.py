"""Commands over keys that nobody of us wrote: every command answers, names what it could not read, and never fails."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from elastic_health.cli.codes import Code
from elastic_health.cli.main import main
from elastic_health.codec import dump
from elastic_health.generations import Candidate, CandidateState
from elastic_health.incidents import Record
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, Txn
from tests.etcd_fixture import EtcdCluster, etcd_cluster
from tests.recovery.test_story import KEYS, SPEC, keys_of_a_capped_run
from tests.rendezvous.hostile import BAD, kinds

pytestmark = pytest.mark.spec("U3")
KINDS = kinds(KEYS, 2, ("node-a", "i0"))
SILENT = frozenset({"paged", "secret", "an incident", "an older layout", "unknown to the fleet", "a run without keys", "quarantine"})
"""No command of these reads them."""
COMMANDS = (("runs", "list"), ("runs", "show", "demo"), ("status", "demo"), ("why", "demo"), ("records", "demo"))


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


def said(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main([*arguments, "--endpoint", etcd.endpoints[0]])
    out, err = capsys.readouterr()
    assert (code, err) == (Code.OK, ""), (arguments, err)
    return out


@pytest.mark.parametrize("bad", ["wrong types", *(pytest.param(b, marks=pytest.mark.slow) for b in BAD if b != "wrong types")])
def test_every_key_at_once(bad: str, etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    for key in KINDS.values():
        store.txn(Txn((), (Put(key, BAD[bad]),)))
    for command in COMMANDS:
        text = said(etcd, capsys, *command)
        assert max(map(len, text.splitlines())) < 4000 and len(text) < 40_000
        assert json.loads(said(etcd, capsys, *command, "--json"))
    unreadable = "\n".join(json.loads(said(etcd, capsys, "status", "demo", "--json"))["unreadable"])
    for kind, key in KINDS.items():
        # Fields that these do not have are ignored, as a newer version's would be.
        valid = (bad == "huge" and kind in ("budget", "progress", "summary")) or (bad == "huge number" and kind in ("budget", "current"))
        if kind not in SILENT and not valid and not (kind in ("progress", "summary") and bad == "huge number"):
            assert key in unreadable, f"{kind}: {unreadable[:2000]}"
    lines = said(etcd, capsys, "status", "demo").splitlines()
    assert len(lines) <= 40, "one screen"


def test_times_that_no_calendar_has(etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    for i, at in enumerate(("1e300", "NaN", "-1e18", "Infinity")):
        raw = dump(Record(f"0{i}", "restart", "", "stall", "stall", 1), at="yesterday", by="n").replace(b'"at":0.0', f'"at":{at}'.encode())
        store.txn(Txn((), (Put(KEYS.record(f"0{i}"), raw),)))
    assert said(etcd, capsys, "records", "demo").count("restart") >= 4
    said(etcd, capsys, "status", "demo")


def test_keys_and_values_that_would_move_a_terminal(etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> None:
    candidate = dump(Candidate("\x1b[31mred", "i0", CandidateState.READY, "a:1", 1, SPEC), at="", by="")
    lease = store.grant(60)
    store.txn(Txn((), (Put(KEYS.candidate("\x1b[2Jx", "i0"), candidate, lease.id), Put(KEYS.skip("\udcfe\n\x1b[2J"), b"{"))))
    for command in COMMANDS:
        assert "\x1b" not in said(etcd, capsys, *command)
        json.loads(said(etcd, capsys, *command, "--json"))
