"""Warm processes: handed over at most once, only when nothing is in doubt, and never left behind.

A small stand-in for the bootstrap speaks the same protocol, so that these tests import no torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from elastic_health import variables
from elastic_health.agents import tree_os, warm_proc
from elastic_health.agents.warm_proc import Go, WarmPool, early_differences
from tests.agents.groups import group_of, logs_in, script, spec_of, until

STAND_IN = """
    import json, os, runpy, sys
    if "--warm" in sys.argv:
        fd = int(os.environ["ELASTIC_HEALTH_GO_FD"])
        if os.path.exists(os.environ["OUT"] + "/no_ready"):
            pass
        else:
            os.write(fd, b"ready\\n")
        with open(fd, "rb") as f:
            line = f.readline()
        if not line:
            sys.exit(0)
        go = json.loads(line)
        os.environ.clear()
        os.environ.update(go["env"])
        os.chdir(go["cwd"])
        for number, path in ((1, go["stdout"]), (2, go["stderr"])):
            if path:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
                os.dup2(fd, number)
        words, how = go["argv"], "warm"
    else:
        words, how = sys.argv[sys.argv.index("elastic_health.worker") + 1 :], "cold"
    os.environ["HOW"] = how
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""
TELLS = """
    import os, sys
    print(os.environ["HOW"], os.environ["LOCAL_RANK"], os.getcwd(), *sys.argv[1:], file=sys.stderr, flush=True)
    sys.exit(3)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An "interpreter" that runs the stand-in in place of the bootstrap module."""
    stand_in = script(tmp_path, STAND_IN, "stand_in.py")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *find_spec*) exit 0;; esac\nexec {sys.executable} {stand_in} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(wrapper))
    monkeypatch.setenv("OUT", str(tmp_path))
    return str(wrapper)


@pytest.fixture
def make(python: str) -> Iterator[Callable[..., WarmPool]]:
    pools: list[WarmPool] = []

    def made(nproc: int, **more: object) -> WarmPool:
        pools.append(WarmPool(nproc, python=python, **more))  # type: ignore[arg-type]
        return pools[-1]

    yield made
    for pool in pools:
        pool.close()


def go(**env: str) -> Go:
    return Go({**os.environ, **env}, ("nothing.py",), "/")


def test_a_warm_process_becomes_the_worker(
    tmp_path: Path, make: Callable[..., WarmPool], python: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = make(2)
    assert pool.spawn() == 2 and pool.spawn() == 0
    until(lambda: pool.ready() == 2)
    waiting = {root.pid for root in pool.roots()}
    warm_tokens = pool.tokens()
    spec = spec_of(None, logs_in(tmp_path), 2, ("-u", str(script(tmp_path, TELLS)), "--lr", "1"), python)
    with group_of(spec, warm=pool) as group:
        assert set(group.pids().values()) == waiting
        assert group.tokens() == {spec.envs[0][variables.WORKER_TOKEN], *warm_tokens}
        assert pool.tokens() == frozenset()
        assert group.wait_exited(20)
        tails = {f.local_rank: (f.code, f.tail) for f in group.exits()}
        assert tails == {r: (3, f"warm {r} {os.getcwd()} --lr 1\n") for r in (0, 1)}
        result = group.result()
        assert result is not None and set(result.failures) == {0, 1}
    assert capfd.readouterr().err.count("warm") == 2


def test_without_any_the_workers_start_cold(tmp_path: Path, make: Callable[..., WarmPool], python: str) -> None:
    pool = make(1)
    with group_of(spec_of(None, logs_in(tmp_path), 1, ("-u", str(script(tmp_path, TELLS))), python), warm=pool) as group:
        assert group.wait_exited(20)
        assert group.stderr_tail(0).startswith("cold 0")
    assert pool.last_reason == "none waiting"


def test_the_users_log_files_hold_for_warm_ones_too(
    tmp_path: Path, make: Callable[..., WarmPool], python: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = make(2)
    pool.spawn()
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects={0: Std.ERR}, local_ranks_filter={0})
    with group_of(spec_of(None, logs, 2, ("-u", str(script(tmp_path, TELLS))), python), warm=pool) as group:
        assert group.wait_exited(20)
        assert Path(group.context.stderrs[0]).read_text().startswith("warm 0")
        assert group.stderr_tail(1).startswith("warm 1")
        assert {f.local_rank: f.tail.split()[:2] for f in group.exits()} == {0: ["warm", "0"], 1: ["warm", "1"]}
    assert "warm" not in capfd.readouterr().err


def test_each_is_taken_once(make: Callable[..., WarmPool]) -> None:
    pool = make(1)
    pool.spawn()
    taken = pool.take(0, go())
    assert taken is not None
    assert pool.take(0, go()) is None
    taken.process.kill()
    taken.process.wait()
    taken.close()


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "ended with -9"), (signal.SIGSTOP, "was stopped")])
def test_a_dead_or_stopped_one_is_not_taken(make: Callable[..., WarmPool], number: signal.Signals, reason: str) -> None:
    pool = make(1)
    pool.spawn()
    (root,) = pool.roots()
    os.kill(root.pid, number)
    until(lambda: (p := tree_os.read_proc(root.pid)) is None or p.state in "TZ")
    assert pool.take(0, go()) is None
    assert reason in pool.last_reason
    assert tree_os.read_proc(root.pid) is None
    assert pool.spawn() == 1


def test_one_that_never_gets_ready_is_not_taken(tmp_path: Path, make: Callable[..., WarmPool], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_ready").touch()
    pool = make(1)
    pool.spawn()
    monkeypatch.setattr(warm_proc, "READY_WITHIN_S", 0.0)
    assert pool.take(0, go()) is None
    assert "not ready" in pool.last_reason


def test_one_that_is_still_importing_is_taken(tmp_path: Path, make: Callable[..., WarmPool]) -> None:
    (tmp_path / "no_ready").touch()
    pool = make(1)
    pool.spawn()
    taken = pool.take(0, go())
    assert taken is not None
    taken.process.kill()
    taken.process.wait()
    taken.close()


def test_one_that_gets_ready_after_it_was_taken_works(tmp_path: Path, make: Callable[..., WarmPool], python: str) -> None:
    pool = make(3)
    pool.spawn()
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.ERR)
    with group_of(spec_of(None, logs, 3, ("-u", str(script(tmp_path, TELLS))), python), warm=pool) as group:
        assert group.wait_exited(20)
        assert [f.tail.split()[:1] for f in group.exits()] == [["warm"]] * 3


def test_variables_that_come_too_late_start_cold(make: Callable[..., WarmPool]) -> None:
    pool = make(1)
    pool.spawn()
    assert pool.take(0, go(OMP_NUM_THREADS="17")) is None
    assert "OMP_NUM_THREADS" in pool.last_reason


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONHASHSEED", "MKL_NUM_THREADS", "TORCH_LOGS", "PYTORCH_ALLOC_CONF"])
def test_early_variables(name: str) -> None:
    assert early_differences({}, {name: "1"}) == early_differences({name: "1"}, {}) == (name,)
    assert early_differences({name: "1"}, {name: "1"}) == ()


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_RUN_ID"])
def test_late_variables(name: str) -> None:
    assert early_differences({}, {name: "1"}) == ()


def test_they_wait_without_using_the_processor(make: Callable[..., WarmPool]) -> None:
    pool = make(1)
    pool.spawn()
    until(lambda: pool.ready() == 1)
    (root,) = pool.roots()

    def used() -> int:
        fields = Path(f"/proc/{root.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    time.sleep(0.5)
    assert used() - before <= 2, "clock ticks of 10 ms"


def test_they_end_with_their_agent(tmp_path: Path, python: str) -> None:
    code = f"""
import os
from elastic_health.agents.warm_proc import WarmPool
pool = WarmPool(2, python={python!r})
pool.spawn()
print(*[r.pid for r in pool.roots()], flush=True)
while pool.ready() < 2: pass
print("ready", flush=True)
import time; time.sleep(600)
"""
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert agent.stdout
    pids = [int(p) for p in agent.stdout.readline().split()]
    assert agent.stdout.readline() == "ready\n" and len(pids) == 2
    agent.kill()
    agent.wait()
    agent.stdout.close()
    until(lambda: all((p := tree_os.read_proc(pid)) is None or not p.alive for pid in pids))


def test_closing_ends_them_all(make: Callable[..., WarmPool]) -> None:
    pool = make(3)
    pool.spawn()
    roots, tokens = pool.roots(), pool.tokens()
    assert len(tokens) == 3
    pool.close()
    assert not tree_os.members(tokens, roots)
    assert pool.tokens() == frozenset()
