"""The gate in real agents: of three nodes one is made bad by a stand-in for each check; the two good ones train, the bad one
says what it is, with its exit status, its table and its record."""

from __future__ import annotations

import json
import os
import signal
import stat
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elastic_health.cli.main import main
from elastic_health.exits import ExitStatus
from elastic_health.incidents import Record
from elastic_health.preflight.canary_etcd import Fleet, check_canary
from elastic_health.preflight.canary_torch import measure_cpu
from elastic_health.preflight.standing import Standing
from elastic_health.preflight.standing_etcd import read
from elastic_health.recovery.snapshot import snapshot
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from tests.etcd_fixture import EtcdCluster
from tests.preflight import nccl_text
from tests.preflight.dcgm_outputs import Said, object_4
from tests.torchrun.runs import PLENTY, Agent, Run, gone

pytestmark = [pytest.mark.spec("P7"), pytest.mark.timeout(600)]
LONG = 120.0
"""Seconds; a start takes two on an idle machine."""
KEYS, FLEET = RunKeys("job"), FleetKeys()
TYPE = "preflight: {node_type: test-box"


def config(rest: str = "") -> str:
    return f"{PLENTY}{TYPE}{', ' if rest else ''}{rest}}}\n"


def stand_in(folder: Path, name: str, body: str) -> Mapping[str, str]:
    """An executable of that name, first on PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def printing(text: str, folder: Path, name: str, status: int = 0) -> Mapping[str, str]:
    folder.mkdir(exist_ok=True)
    said = folder / f"{name}.txt"
    said.write_text(text)
    return stand_in(folder, name, f"cat {said}\nexit {status}")


def records(endpoint: str) -> list[Record]:
    with closing(EtcdSession.connect(endpoint)) as store:
        return [r for r in snapshot(KEYS, store.range(KEYS.root).kvs).records if r.action == "preflight"]


def standing(endpoint: str, node: str) -> Standing | None:
    with closing(EtcdSession.connect(endpoint)) as store:
        return read(store, FLEET, node)


def refused(run: Run, agent: Agent, *said: str) -> Record:
    """It left with its status, its table and its record, without ever being ready."""
    assert agent.wait(LONG) == ExitStatus.UNFIT_NODE, run.story()
    text = agent.text()
    assert "Traceback" not in text and "checking -> ready" not in text, text
    assert "what to do" in text and text.rstrip().endswith("(exit status 80)"), text
    assert all(word in text for word in said), text
    found = [r for r in records(run.endpoint) if r.nodes == (agent.node,)]
    assert len(found) == 1 and found[0].done and found[0].decision == "refuse" and found[0].details["stage"] == "join"
    return found[0]


# ---- one bad node of three, by each check

Bad = tuple[str, Mapping[str, str]]
"""What its YAML says of preflight, and its environment."""


def low_disk(folder: Path, endpoint: str) -> Bad:
    return "host: {disk_bytes: 1.0e+17}", {}


def xid_79(folder: Path, endpoint: str) -> Bad:
    folder.mkdir()
    log = folder / "kern.log"
    log.write_text(
        "[    0.000000] Linux version 6.1.0 (gcc)\n"
        "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
    )
    return f"host: {{kernel_log: {log}}}", {}


def own(folder: Path, endpoint: str) -> Bad:
    stand_in(folder, "check-raid", "echo 'raid is degraded'; exit 3")
    return f"own: [{{name: raid, command: [{folder / 'check-raid'}]}}]", {}


def dcgm(folder: Path, endpoint: str) -> Bad:
    return "", printing(json.dumps(object_4([Said("memory", ("Pass", "Fail"), "memory errors")])), folder, "dcgmi", 226)


def bandwidth(folder: Path, endpoint: str) -> Bad:
    """A baseline from three good runs; here it is half of that."""
    runs = []
    for i in range(3):
        good = folder.with_name(f"good.{i}")
        good.write_text(nccl_text.output(scale=1.0 + i / 100))
        runs.append(str(good))
    assert main(["baseline", "record", *runs, "--node-type", "test-box", "--endpoint", endpoint]) == 0
    return "", printing(nccl_text.output(scale=0.5), folder, "all_reduce_perf")


def canary(folder: Path, endpoint: str) -> Bad:
    """Three nodes have voted before; here the bytes that are hashed have one bit more."""
    with closing(EtcdSession.connect(endpoint)) as store:
        for node in ("p", "q", "r"):
            check_canary(Fleet(store, FLEET), measure_cpu(), node, at="2026-01-01T00:00:00Z")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        textwrap.dedent("""\
            import ctypes, hashlib
            real = hashlib.sha256
            hashlib.sha256 = lambda data=b"", **k: real(bytes(data) + b"\\x01" if isinstance(data, ctypes.Array) else data, **k)
        """)
    )
    return "", {"PYTHONPATH": os.pathsep.join((str(folder), *filter(None, (os.environ.get("PYTHONPATH"),))))}


CASES: Mapping[str, tuple[Callable[[Path, str], Bad], tuple[str, ...]]] = {
    "low disk": (low_disk, ("host", "GiB free", "93132257 GiB")),
    "Xid 79": (xid_79, ("host", "Xid 79")),
    "own check": (own, ("raid", "raid is degraded")),
    "dcgmi fails": (dcgm, ("dcgm", "memory")),
    "slow": (bandwidth, ("bandwidth", "of the baseline")),
    "wrong bytes": (canary, ("canary", "silent corruption")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_good_nodes_start_without_a_bad_one(case: str, run: Run, one_etcd: EtcdCluster, tmp_path: Path) -> None:
    make, said = CASES[case]
    rest, env = make(tmp_path / "bad", one_etcd.endpoints[0])
    good = [run.start(node, nnodes="2:3", config=config()) for node in ("n1", "n2")]
    bad = run.start("n3", nnodes="2:3", config=config(rest), env=env)
    run.wait_group(2, within_s=LONG)
    found = refused(run, bad, *said)
    assert found.reason and found.signature and found.details["checks"]
    now = standing(one_etcd.endpoints[0], "n3")
    assert now is not None and (now.failures, now.verdict, now.quarantined) == (1, "refuse", False)
    assert {e["node"] for e in run.events("boot")} == {"n1", "n2"}
    run.finish(*good, within_s=LONG)


def test_a_node_that_fails_never_enters(run: Run, one_etcd: EtcdCluster, tmp_path: Path) -> None:
    """The quick one: alone, with a failing own check and a tool that is required and not there."""
    rest, _ = own(tmp_path / "bad", "")
    bad = run.start("n1", config=config(f"{rest}, dcgm: {{required: true}}"))
    found = refused(run, bad, "raid", "skipped (required)", "no dcgmi on PATH")
    assert {c["check"] for c in found.details["checks"] if c["why"] in ("failed", "required_but_skipped")} == {"raid", "dcgm"}
    assert not run.events("boot")


@pytest.mark.slow
def test_observe_only_lets_it_in_and_says_so(run: Run, one_etcd: EtcdCluster, tmp_path: Path) -> None:
    rest, _ = own(tmp_path / "bad", "")
    node = run.start("n1", config=config(f"mode: observe_only, {rest}"))
    run.wait_group(1, within_s=LONG)
    run.finish(node, within_s=LONG)
    assert "would be refused" in node.text() and "raid is degraded" in node.text()
    (found,) = records(one_etcd.endpoints[0])
    assert (found.decision, found.done) == ("admit_observed", False)


@pytest.mark.slow
def test_mode_off_runs_no_check(run: Run, one_etcd: EtcdCluster, tmp_path: Path) -> None:
    rest, _ = own(tmp_path / "bad", "")
    node = run.start("n1", config=config(f"mode: off, {rest}"))
    run.wait_group(1, within_s=LONG)
    run.finish(node, within_s=LONG)
    assert "preflight" not in node.text() and standing(one_etcd.endpoints[0], "n1") is None


# ---- checks that take their time


def hangs(folder: Path) -> str:
    stand_in(folder, "hangs", f"echo $$ > {folder}/pid; trap '' TERM; while :; do sleep 1000; done")
    return f"own: [{{name: slow, command: [{folder / 'hangs'}], time_limit_s: 300.0}}]"


def pid_in(run: Run, folder: Path) -> int:
    path = folder / "pid"
    return int(run.wait(lambda: path.exists() and path.read_text().strip(), "the check has begun", LONG))


@pytest.mark.slow
def test_a_check_that_hangs_delays_nobody_and_keeps_its_lease(run: Run, one_etcd: EtcdCluster, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    slow = run.start("n3", nnodes="2:3", config=config(hangs(folder)))
    pid_in(run, folder)
    good = [run.start(node, nnodes="2:3", config=config()) for node in ("n1", "n2")]
    run.wait_group(2, within_s=LONG)
    until = time.monotonic() + 12.0  # two lives of a lease
    while time.monotonic() < until:
        left = one_etcd.ctl("get", "--prefix", f"{KEYS.candidates}n3.")
        assert '"checking"' in left and slow.process.poll() is None, run.story()
        time.sleep(0.5)
    assert "joining again" not in slow.text()
    run.finish(*good, within_s=LONG)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_preflight_ends_all_of_it(number: signal.Signals, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    node = run.start("n1", config=config(hangs(folder)))
    pid = pid_in(run, folder)
    began = time.monotonic()
    node.signal(number)
    assert node.wait(LONG) == ExitStatus.STOPPED, run.story()
    assert time.monotonic() - began < 5.0
    tree = [pid, *(p.pid for p in node.tree())]
    assert not gone(tree, 10.0), run.story()
    assert not records(run.endpoint)


@pytest.mark.slow
def test_a_check_that_hangs_is_ended_and_refuses_by_its_own_rule(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    node = run.start("n1", config=config(hangs(folder).replace("300.0", "1.0")))
    found = refused(run, node, "did not end within 1 s")
    assert found.signature == "slow:not_measured_refuses" and not gone([pid_in(run, folder)], 10.0)


# ---- coming back


@pytest.mark.slow
def test_who_comes_back_unblamed_runs_the_restart_stage_in_no_time(run: Run, tmp_path: Path) -> None:
    stand_in(tmp_path / "tools", "log-stage", 'echo "$ELASTIC_HEALTH_CHECK" >> ' + str(tmp_path / "stages"))
    every = f"own: [{{name: stage, command: [{tmp_path / 'tools' / 'log-stage'}], stages: [join, restart, after_repair]}}]"
    node = run.start("n1", config=config(every))
    (first,) = run.wait_group(1, within_s=LONG)
    run.order(f"die.{first['pid']}", "9")
    run.wait_group(1, after=first["generation"], within_s=LONG)
    run.finish(node, within_s=LONG)
    stages = [json.loads(line)["stage"] for line in (tmp_path / "stages").read_text().splitlines()]
    assert stages == ["join", "restart"]


@pytest.mark.slow
def test_a_node_that_was_in_quarantine_is_checked_as_after_a_repair(run: Run, one_etcd: EtcdCluster, tmp_path: Path) -> None:
    """Two failures in a row put it on the list; released and repaired, it runs `after_repair` once, then `join` again."""
    rest, _ = own(tmp_path / "bad", "")
    twice = config(f"{rest}, quarantine: {{failures: 2, for_s: 3600.0}}")
    for _ in range(2):
        assert run.start("n1", config=twice).wait(LONG) == ExitStatus.UNFIT_NODE, run.story()
    assert run.start("n1", config=twice).wait(LONG) == ExitStatus.QUARANTINED, run.story()
    entry: dict[str, Any] = json.loads(one_etcd.ctl("get", "--print-value-only", FLEET.quarantined_node("n1")))
    assert entry["automatic"] and entry["signature"] == "raid:own_check" and "2 preflights in a row" in entry["reason"]
    assert main(["quarantine", "release", "n1", "--endpoint", one_etcd.endpoints[0]]) == 0
    for stage in ("after_repair", "join"):
        node = run.start("n1", config=config())
        run.wait(lambda node=node, stage=stage: f"preflight {stage} of n1: admitted" in node.text(), stage, LONG)
        node.signal(signal.SIGINT)
        node.wait(LONG)


# ---- two by two


@pytest.mark.slow
@pytest.mark.spec("P3")
def test_nodes_measure_each_other_before_they_train(run: Run, one_etcd: EtcdCluster, tmp_path: Path) -> None:
    """The built-in benchmark over gloo, against a baseline that this machine reaches whatever else it does."""
    sizes = [65536, 262144, 1048576]
    runs = []
    for i in range(3):
        figures = tmp_path / f"run{i}.json"
        figures.write_text(json.dumps({"unit": "GB/s", "values": {str(s): 0.02 for s in sizes}}))
        runs.append(str(figures))
    assert main(["baseline", "record", *runs, "--check", "pair", "--node-type", "test-box", "--endpoint", one_etcd.endpoints[0]]) == 0
    rest = f"pair: {{stages: [join], required: true, when_not_measured: refuse, sizes: {sizes}, iterations: 3, warmup: 1, min_ratio: 0.05}}"
    nodes = [run.start(node, nnodes="3:3", config=config(rest)) for node in ("n1", "n2", "n3")]
    run.wait_group(3, within_s=LONG)
    run.finish(*nodes, within_s=LONG)
    for node in nodes:
        assert "pair pass" in node.text(), node.text()
    with closing(EtcdSession.connect(one_etcd.endpoints[0])) as store:
        left = [kv.key for kv in store.range(f"{FLEET.pairs_root}").kvs if "/here/" in kv.key]
    assert not left, "seats are given up"


@pytest.mark.slow
@pytest.mark.spec("P3")
def test_a_node_that_must_be_measured_and_meets_nobody_is_not_let_in(run: Run, one_etcd: EtcdCluster) -> None:
    node = run.start("n1", config=config("pair: {stages: [join], when_not_measured: refuse, wait_s: 1.0, settle_s: 1.0, expect: 2}"))
    found = refused(run, node, "pair", "not_measured")
    assert [c["why"] for c in found.details["checks"] if c["check"] == "pair"] == ["not_measured_refuses"]
