"""The benchmark leaves nothing behind, kills whole trees, and reads its workers' log line by line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.processes import TOKEN, Agent, end_all, etcd, listens, new_token
from benchmarks.trial import Launcher, Setting, Trial, calibrate

SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(600)']"
CHILD = f"import subprocess, sys, time; subprocess.Popen({SLEEPER}); time.sleep(600)"
ORPHAN = f"import subprocess, sys; subprocess.Popen({SLEEPER}, start_new_session=True)"


def grown(pid: int) -> psutil.Process:
    """The child of `pid`, once it is there."""
    deadline = time.monotonic() + 10
    while not (children := psutil.Process(pid).children()):
        assert time.monotonic() < deadline, "no child within 10 s"
        time.sleep(0.01)
    return children[0]


def test_a_killed_node_takes_its_tree_along(tmp_path: Path) -> None:
    room = tmp_path / "eh-room"
    room.mkdir()
    page = {"ELASTIC_HEALTH_PAGE": str(room / "page")}
    agent = Agent([sys.executable, "-c", CHILD], {**os.environ, **page}, tmp_path / "log", tmp_path)
    child = grown(agent.process.pid)
    agent.kill_tree()
    assert agent.ended
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not room.exists()


def test_orphans_are_found_by_their_token_and_others_are_left(tmp_path: Path) -> None:
    token, other = new_token(), new_token()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, TOKEN: other})
    try:
        subprocess.run([sys.executable, "-c", ORPHAN], env={**os.environ, TOKEN: token}, check=True)
        assert end_all(token) == 1
        assert end_all(token) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_its_etcd_answers_and_goes(tmp_path: Path) -> None:
    with etcd(tmp_path) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        assert listens(port)
    assert not listens(port)


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    trial = Trial(Launcher("ours", ()), Setting(), tmp_path)
    log = trial.folder / "events.jsonl"
    log.write_text('{"ev": "boot", "pid": 1}\n{"ev": "st')
    trial.look()
    assert [e["ev"] for e in trial.events] == ["boot"]
    with open(log, "a") as f:
        f.write('ep", "pid": 1}\n')
    trial.look()
    trial.look()
    assert [e["ev"] for e in trial.events] == ["boot", "step"]


def test_a_group_is_back_when_all_its_ranks_go_on(tmp_path: Path) -> None:
    trial = Trial(Launcher("ours", ()), Setting(settle_steps=2), tmp_path)

    def steps(pid: int, n: int, t: float) -> None:
        trial.events += [{"ev": "step", "pid": pid, "agent": 0, "t": t, "world": 2, "step": i} for i in range(n)]

    steps(1, 5, 1.0)
    assert not trial.back({1, 2}, 2.0)
    steps(3, 2, 3.0)
    steps(4, 1, 3.0)
    assert not trial.back({1, 2}, 2.0), "one of two ranks has stopped after its first step"
    steps(4, 1, 4.0)
    assert trial.back({1, 2}, 2.0)


def test_calibration_is_a_time() -> None:
    assert calibrate() > 0
