"""Somebody else writes below the prefix while real agents run: they go on, or stop with one message and status 78."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from elastic_health.cli.main import main
from elastic_health.exits import ExitStatus
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, Txn
from tests.etcd_fixture import EtcdCluster, etcd_cluster
from tests.rendezvous.hostile import BAD, kinds
from tests.torchrun.runs import PLENTY, Agent, Run, a_run

pytestmark = [pytest.mark.spec("R1", "R6", "U3"), pytest.mark.timeout(900), pytest.mark.slow]
KEYS = RunKeys("job")
ENDS = ("current", "generation", "verdict")
LONG = 240.0
"""Seconds; a start takes two on an idle machine."""


def put(etcd: EtcdCluster, key: str, value: bytes) -> None:
    session = EtcdSession.connect(etcd.endpoints)
    session.txn(Txn((), (Put(key, value),)))
    session.close()


def members(etcd: EtcdCluster) -> list[str]:
    listed = etcd.ctl("get", "--prefix", "--keys-only", KEYS.candidates).split()
    return [key[len(KEYS.candidates) :] for key in listed]


def left(agent: Agent, key: str) -> None:
    assert agent.wait(LONG) == ExitStatus.RUN_REFUSED, agent.text()
    text = agent.text()
    assert "Traceback" not in text and text.count("healthy-etcd: ") == 1, text
    assert key in text.partition("healthy-etcd: ")[2], text


def test_a_running_group_goes_on_whatever_is_written_beside_it(run: Run, one_etcd: EtcdCluster) -> None:
    agents = [run.start(n, nnodes="2", config=PLENTY) for n in ("a", "b")]
    first = run.wait_group(2, within_s=LONG)
    node, _, incarnation = members(one_etcd)[0].partition(".")
    layout = kinds(KEYS, 1, (node, incarnation))
    for kind, bad in (("own candidate", "broken"), ("a candidate", "no text"), ("store", "empty"), ("a skip", "not an object")):
        put(one_etcd, layout[kind], BAD[bad])
    for kind in ("a record", "an incident", "paged", "progress", "summary", "an older layout", "a strange number", "quarantine"):
        for bad in ("deep", "huge", "another schema"):
            put(one_etcd, layout[kind], BAD[bad])
    etcd_said = time.time()
    run.wait(lambda: time.time() > etcd_said + 8, "longer than a lease")
    assert len(run.events("boot")) == 2 and all(run.alive_until(e["pid"]) > etcd_said + 7 for e in first), run.story()
    for kind in ("own candidate", "a candidate", "a skip", "a strange number", "quarantine"):
        assert all(layout[kind] in a.text() for a in agents), kind
    # It can still restart: nothing of what was written is needed for that.
    run.order(f"die.{first[1]['pid']}", "4")
    run.wait_group(2, after=1, within_s=LONG)
    run.finish(*agents, within_s=LONG)
    assert all("Traceback" not in a.text() for a in agents)


@pytest.mark.parametrize("kind", ENDS)
def test_a_running_group_stops_when_its_fence_or_record_is_gone(kind: str, run: Run, one_etcd: EtcdCluster) -> None:
    agents = [run.start(n, nnodes="2", config=PLENTY) for n in ("a", "b")]
    run.wait_group(2, within_s=LONG)
    put(one_etcd, kinds(KEYS, 1)[kind], BAD["broken"])
    for agent in agents:
        left(agent, kinds(KEYS, 1)[kind])
    assert len(run.events("boot")) == 2


def test_who_joins_is_told_which_key_and_leaves(run: Run, one_etcd: EtcdCluster) -> None:
    """The run had ended without a verdict, as when all its machines lose power."""
    first = run.start("a", config=PLENTY)
    run.wait_group(1, within_s=LONG)
    first.kill_node()
    run.wait(lambda: not members(one_etcd), "the lease ends", LONG)
    session = EtcdSession.connect(one_etcd.endpoints)
    layout = {**kinds(KEYS, 1), "deletion": KEYS.deleting}
    for kind in ("current", "budget", "secret", "deletion"):
        before = session.get(layout[kind])
        put(one_etcd, layout[kind], BAD["wrong types"])
        left(run.start("b", config=PLENTY), layout[kind])
        if before is None:
            one_etcd.ctl("del", layout[kind])
        else:
            put(one_etcd, layout[kind], before.value)
    put(one_etcd, FleetKeys().quarantined_node("c"), b"its fan is broken")
    barred = run.start("c", config=PLENTY)
    assert barred.wait(LONG) == ExitStatus.QUARANTINED and FleetKeys().quarantined_node("c") in barred.text()
    session.close()
    again = run.start("b", config=PLENTY)  # all is put right: it goes on where it was
    run.wait_group(1, after=1, within_s=LONG)
    run.finish(again, within_s=LONG)


def test_a_reopened_run_goes_on(run: Run, one_etcd: EtcdCluster) -> None:
    """Its last verdict is no longer the one that was written first."""
    stopped = run.start("a", config="restarts: {total: 1, backoff_s: [0.0]}\n")
    for n in range(2):
        (e,) = run.wait_group(1, after=n, within_s=LONG)
        run.order(f"die.{e['pid']}", "4")
    assert stopped.wait(LONG) == ExitStatus.CAPPED
    assert main(["runs", "reopen", "job", "--endpoint", one_etcd.endpoints[0]]) == 0
    again = run.start("a", config="restarts: {total: 1}\n")
    run.wait_group(1, after=2, within_s=LONG)
    run.finish(again, within_s=LONG)


# ---- a full etcd
def fill(etcd: EtcdCluster) -> None:
    """Write beside the prefix until etcd raises its NOSPACE alarm."""
    session = EtcdSession.connect(etcd.endpoints)
    try:
        for i in range(200):
            session.txn(Txn((), (Put(f"/somebody/else/{i}", b"x" * 400_000),)))
        pytest.fail("it took 80 MB")
    except Exception as e:
        assert "database space exceeded" in str(e), e
    finally:
        session.close()


def make_room(etcd: EtcdCluster) -> None:
    """What docs/OPERATIONS.md says."""
    etcd.ctl("del", "--prefix", "/somebody/else/")
    (status,) = json.loads(etcd.ctl("endpoint", "status", "--write-out=json"))
    etcd.ctl("compact", str(status["Status"]["header"]["revision"]))
    etcd.ctl("defrag")
    etcd.ctl("alarm", "disarm")


def test_a_full_etcd_is_waited_for(tmp_path: Path) -> None:
    """During formation and while a group runs; each time the key and the remedy are said, and it goes on."""
    with etcd_cluster(1, ("--quota-backend-bytes=4194304",)) as etcd, a_run(tmp_path / "run", etcd.endpoints[0]) as run:
        fill(etcd)
        agents = [run.start(n, nnodes="2", config=PLENTY) for n in ("a", "b")]
        for a in agents:
            run.wait(lambda a=a: KEYS.secret in a.text() and "disarm its alarm" in a.text(), "the key and what to do", LONG)
        assert all(a.process.poll() is None for a in agents) and not run.events()
        make_room(etcd)
        first = run.wait_group(2, within_s=LONG)
        fill(etcd)
        run.wait(lambda: any(KEYS.progress in a.text() for a in agents), "the key that can't be written", LONG)
        full = time.time()
        run.wait(lambda: time.time() > full + 8, "longer than a lease")
        assert all(run.alive_until(e["pid"]) > full + 7 for e in first), "renewing a lease takes no space"
        late = run.start("c", nnodes="2", config=PLENTY)
        run.wait(lambda: "no lease for" in late.text() and "disarm its alarm" in late.text(), "a spare waits too", LONG)
        run.order(f"die.{first[1]['pid']}", "4")
        run.wait(lambda: any(KEYS.verdict(1) in a.text() for a in agents), "the verdict that can't be written", LONG)
        assert len(run.events("boot")) == 2
        make_room(etcd)
        run.wait_group(2, after=1, within_s=LONG)
        run.order("finish")
        assert [a.wait(LONG) for a in (*agents, late)] == [0, 0, 0], run.story()
        assert all("Traceback" not in a.text() for a in (*agents, late))
