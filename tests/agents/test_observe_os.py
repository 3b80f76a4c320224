"""Looking at real processes: computing, idle, stopped, ended, and what their children do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_health.agents.observe_os import Observer, read_cpu_s, read_io_bytes
from elastic_health.agents.rank_facts import Watched
from elastic_health.liveness.facts import GroupFrontier, Phase, ProcState, RankFacts
from elastic_health.liveness.page import Beat
from elastic_health.liveness.page_os import Page

pytestmark = pytest.mark.spec("L1")
PATIENCE_S = 20.0
SPIN = "while True: pass"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
BREATHES = "import threading, time\nthreading.Thread(target=lambda: [time.sleep(0.5) for _ in iter(int, 1)], daemon=True).start()\n" + SLEEP


@contextmanager
def worker(code: str) -> Iterator[tuple[subprocess.Popen[str], Observer]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        if "print" in code:
            assert process.stdout is not None and process.stdout.readline()
        watched = Watched(0, 0, process.pid, 1, time.monotonic())
        yield process, Observer("n", [watched], lambda _: None)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def look_until(observer: Observer, wanted: Callable[[RankFacts], bool]) -> RankFacts:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (facts,) = observer.observe()
        if wanted(facts):
            return facts
        assert time.monotonic() < deadline, facts
        time.sleep(0.05)


def test_an_idle_worker_with_a_heartbeat_ages_and_a_computing_one_does_not() -> None:
    with worker(BREATHES) as (_, idle), worker(SPIN) as (_, busy):
        busy.observe()
        look_until(idle, lambda f: f.busy_age_s > 2.5)
        facts = look_until(busy, lambda f: f.cpu_s > 1.0)
        assert facts.busy_age_s < 2.0
        assert facts.proc in (ProcState.RUNNING, ProcState.SLEEPING)


def test_a_stopped_worker_is_stopped_and_ages() -> None:
    with worker(SPIN) as (process, observer):
        look_until(observer, lambda f: f.cpu_s > 0.2)
        process.send_signal(signal.SIGSTOP)
        look_until(observer, lambda f: f.proc is ProcState.STOPPED and f.busy_age_s > 1.5)
        process.send_signal(signal.SIGCONT)
        look_until(observer, lambda f: f.proc is not ProcState.STOPPED and f.busy_age_s < 0.5)


def test_what_a_child_does_is_the_workers_work() -> None:
    """A loader process, found while the main process sleeps."""
    code = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {SPIN!r}])\n{SLEEP}"
    with worker(code) as (process, observer):
        facts = look_until(observer, lambda f: f.cpu_s > 0.5)
        assert facts.busy_age_s < 2.0
        own = read_cpu_s(process.pid)
        assert own is not None and own < 0.5


def test_what_ended_children_did_is_kept() -> None:
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'sum(range(4 * 10**7))'])\n{SLEEP}"
    with worker(code) as (process, observer):
        own = read_cpu_s(process.pid)
        assert own is not None
        (facts,) = observer.observe()
        assert facts.cpu_s >= own > 0.1


def test_reading_and_writing_is_work() -> None:
    code = "import time\nprint('up', flush=True)\nwhile True:\n  open('/dev/zero','rb').read(1 << 20); time.sleep(0.5)"
    with worker(code) as (_, observer):
        (first,) = observer.observe()
        facts = look_until(observer, lambda f: f.io_bytes - first.io_bytes > 3 << 20)
        assert facts.busy_age_s < 1.5


def test_the_cost_of_evidence_is_not_work() -> None:
    with worker(SPIN) as (_, observer):
        (first,) = observer.observe()
        with observer.evidence():
            facts = look_until(observer, lambda f: f.cpu_s - first.cpu_s > 0.3)
        assert facts.busy_age_s > 0.2
        (facts,) = observer.observe()
        assert facts.busy_age_s > 0.2
        look_until(observer, lambda f: f.busy_age_s < 0.1)


def test_an_ended_worker_is_a_zombie_then_gone_and_its_pid_is_nobody_elses() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    observer = Observer("n", [Watched(0, 0, process.pid, 1, time.monotonic())], lambda _: None)
    process.kill()
    look_until(observer, lambda f: f.proc is ProcState.ZOMBIE)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    look_until(observer, lambda f: f.proc is ProcState.GONE)
    observer._roots[os.getpid()] = -1  # started at another time: a recycled pid
    observer._workers = (Watched(0, 0, os.getpid(), 1, 0.0),)
    observer._trees[os.getpid()] = set()
    assert observer.observe()[0].proc is ProcState.GONE


@pytest.mark.spec("L3", "L4")
def test_a_real_page_is_read_and_a_scribbled_one_is_no_page(tmp_path: Path) -> None:
    path = str(tmp_path / "page")
    page = Page.create(path)
    observer = Observer("n", [Watched(3, 0, os.getpid(), 1, time.monotonic())], lambda _: page.look())
    assert observer.observe()[0].heartbeat_age_s is None
    page.phase(Phase.STEP, bound_hint_s=2.0)
    page.step(5, 640)
    page.beat(Beat(os.getpid(), time.monotonic_ns(), groups=(GroupFrontier("0", 3, 2, "gloo:all_reduce"),)))
    (facts,) = observer.observe()
    assert (facts.steps, facts.phase, facts.bound_hint_s, facts.waiting) == (5, Phase.STEP, 2.0, True)
    assert facts.heartbeat_age_s is not None and facts.heartbeat_age_s < PATIENCE_S and facts.step_age_s < PATIENCE_S
    with open(path, "r+b") as f:
        f.write(b"scribble")
    assert observer.observe()[0].steps == -1
    page.close()


def test_counters_of_a_process_that_is_not_there() -> None:
    assert read_cpu_s(2**22 + 1) is None
    assert read_io_bytes(2**22 + 1) == 0
