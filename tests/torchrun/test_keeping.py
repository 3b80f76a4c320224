"""What a run leaves in etcd while it goes on: bounded checkpoint records, a summary that `status` shows."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from elastic_health.cli.main import main
from elastic_health.exits import ExitStatus
from elastic_health.generations import CheckpointState
from elastic_health.recovery.snapshot import RunSnapshot, snapshot
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import PLENTY, Run, program

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
KEYS = RunKeys("job")
LONG = 240.0
SHORT = "checkpoints: {keep: 2, rollback_reach_steps: 6}\nstore: {timeout_s: 30, outage: {bound_s: 2}}\nmembership: {lease_s: 3}\n"


def look(etcd: EtcdCluster) -> RunSnapshot:
    session = EtcdSession.connect(etcd.endpoints)
    try:
        return snapshot(KEYS, session.range(KEYS.root).kvs)
    finally:
        session.close()


def names(etcd: EtcdCluster) -> set[str]:
    return {c.name for c in look(etcd).checkpoints}


def newest_before(run: Run, generation: int) -> int:
    return max(e["step"] for e in run.events("step") if e["generation"] <= generation)


@pytest.mark.spec("R3", "R10")
def test_records_of_retired_checkpoints_go_and_a_dead_leader_leaves_none(run: Run, one_etcd: EtcdCluster) -> None:
    a = run.start("a", nnodes="1:2", script=program("commits"), config=PLENTY + SHORT)
    run.wait(lambda: run.events("step", node="a"), "the first steps", LONG)
    b = run.start("b", nnodes="1:2", script=program("commits"), config=PLENTY + SHORT)
    run.wait(lambda: run.events("step", node="b"), "both train", LONG)
    plan = look(one_etcd).generation
    first = names(one_etcd) - {plan.plan.checkpoint if plan else None}
    run.wait(lambda: len(run.events("step", node="b")) > 40, "twenty commits later", LONG)
    run.wait(lambda: not first & names(one_etcd), "the first records are gone", LONG)
    # The leader dies over what it was to remove; the next one takes it up.
    going = {c.name for c in look(one_etcd).checkpoints if c.state is CheckpointState.DELETING}
    a.kill_node()
    after = run.wait_group(1, after=run.events("step")[-1]["generation"], within_s=LONG)[0]["generation"]
    run.wait(lambda: len(run.events("step", node="b", generation=after)) > 30, "it commits again", LONG)
    run.wait(lambda: not going & names(one_etcd), "what the dead leader began is ended", LONG)
    run.order("slow", "1.0")
    run.wait(lambda: len(names(one_etcd)) <= 10, "few records are left", LONG)  # 2 newest, a plan's, 6 steps' reach, some on their way
    left = look(one_etcd).checkpoints
    usable = [c for c in left if c.state is CheckpointState.COMMITTED]
    assert min(c.step for c in usable) <= max(c.step for c in usable) - 6, "a rollback's target stays"
    assert all(Path(c.path).is_dir() for c in usable), "and its files"
    folders = {f.name for f in (run.folder / "ckpt").iterdir()}
    assert len(folders) <= 14, folders
    # From what is left the run goes on: the line is whole.
    (e,) = run.wait_group(1, after=after - 1, within_s=LONG)
    run.order(f"die.{e['pid']}", "4")
    run.wait(lambda: run.events("step", generation=after + 1), "it goes on from there", LONG)
    assert run.events("step", generation=after + 1)[0]["step"] > newest_before(run, after) - 4
    run.finish(b, within_s=LONG)


@pytest.mark.spec("U3")
def test_status_shows_each_node_and_the_pace(run: Run, one_etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
    agents = [run.start(n, nnodes="2", script=program("commits"), config=PLENTY) for n in ("a", "b")]
    run.wait(lambda: run.events("step", node="b", step=20), "twenty steps", LONG)

    def told() -> str:
        """What `status` says, once there is all of it."""
        assert main(["status", "job", "--endpoint", one_etcd.endpoints[0]]) == 0
        out = capsys.readouterr().out
        return out if "nodes: 2 well" in out and "s a step" in out else ""

    text = run.wait(told, "a summary", LONG)
    assert re.search(r"^run job: running, generation 1 with 2 nodes \(world 2\)", text, re.M), text
    assert re.search(r"^progress: newest step \d+, 0\.\d+ s a step \(median\), oldest heartbeat [\d.]+ s; generation 1, world 2", text, re.M), text
    assert re.search(r"^a +0 +0-0 +member +well +\w+ +\d+ +[\d.]+ +\S+:\d+$", text, re.M), text
    assert len(text.splitlines()) <= 24
    value = json.loads(one_etcd.ctl("get", "--print-value-only", KEYS.summary))
    assert {"v", "at", "by", "generation", "world", "counts", "nodes"} <= set(value) and value["by"] == "a"
    run.finish(*agents, within_s=LONG)


SKEWED = """
import time
_real = time.time
time.time = lambda: _real() + {hours} * 3600.0
"""


@pytest.mark.spec("R6")
def test_nodes_whose_clocks_are_hours_apart(run: Run, one_etcd: EtcdCluster) -> None:
    """The hourly cap counts what happened, whoever charged it and whoever judges; nothing waits for hours."""
    config = "restarts: {total: null, per_hour: 3, per_node: null, per_signature: null, without_commit: null, early_exits: null, backoff_s: [0.0]}\nstore: {timeout_s: 30}\n"
    config += "preflight: {host: {clock_fail_s: 1000000.0}}\n"  # such a clock keeps a node out by default; here it warns
    agents = []
    for node, hours in (("a", 5), ("b", 12)):  # ahead: gRPC takes its deadlines from `time.time`
        folder = run.folder / f"clock-{node}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SKEWED.format(hours=hours))
        paths = f"{folder}:{run.environment(node)['PYTHONPATH']}"
        agents.append(run.start(node, nnodes="2", config=config, env={"PYTHONPATH": paths}))
    for i in range(4):
        group = run.wait_group(2, after=i, within_s=LONG)
        run.order(f"die.{group[i % 2]['pid']}", "4")
    assert [a.wait(LONG) for a in agents] == [ExitStatus.CAPPED, ExitStatus.CAPPED], run.story()
    stamps = [json.loads(v)["at"] for v in one_etcd.ctl("get", "--prefix", "--print-value-only", KEYS.generations).splitlines()]
    now = time.time()
    assert all(abs(datetime.fromisoformat(at).timestamp() - now) > 3 * 3600 for at in stamps), "their clocks were really off"
