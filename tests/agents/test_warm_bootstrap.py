"""Warm processes and the real bootstrap together: what the pool hands over is the worker that a cold start would have been."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from elastic_health import variables
from elastic_health.agents import tree_os
from elastic_health.agents.crew_torch import Crew
from elastic_health.agents.warm_proc import Go, WarmPool
from elastic_health.agents.workers_proc import StartSpec
from elastic_health.liveness.facts import ExitFacts, Phase
from elastic_health.liveness.page import Order
from elastic_health.liveness.page_os import Page
from tests.agents.groups import group_of, logs_in, script, spec_of, until

TELLS = """
    import atexit, json, os, pickle, random, signal, sys, threading, warnings
    import torch, torch.distributed
    import numpy

    class Here: pass

    def handlers():
        return {s.name: str(signal.getsignal(s)) for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)}

    def fds():
        found = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
        return sorted(v.split(":")[0] for k, v in found.items() if int(k) > 2)

    told = {
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "executable": sys.executable, "flags": str(sys.flags),
        "orig_argv": sys.orig_argv,
        "main": {k: str(v).split(" object at")[0] for k, v in vars().items() if k.startswith("__") and k != "__builtins__"},
        "is_main": sys.modules["__main__"].__dict__ is globals(),
        "environ": {k: v for k, v in sorted(os.environ.items())},
        "draw": torch.manual_seed(3) and torch.rand(3).tolist(),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "python_threads": [t.name for t in threading.enumerate()],
        "session": os.getsid(0) == os.getpid(), "umask": os.umask(0o22),
        "handlers": handlers(), "fds": fds(), "filters": str(warnings.filters),
        "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.name, s.mode) for s in (sys.stdin, sys.stdout, sys.stderr)],
        "numpy": str(numpy.random.RandomState(3).rand()), "random": random.Random(3).random(),
        "recursion": sys.getrecursionlimit(), "affinity": sorted(os.sched_getaffinity(0)), "hooks": [str(sys.excepthook)[:20]],
    }
    with open(sys.argv[1], "w") as f:
        json.dump(told, f)
    atexit.register(lambda: print("late", pickle.loads(pickle.dumps(Here())).__class__, file=sys.stderr))

    def fail():
        raise KeyError("the end")

    print("out")
    fail()
"""
BEATS = """
    import sys, time
    import torch, torch.distributed
    print("first line", time.monotonic(), flush=True, file=sys.stderr)
    time.sleep(60)
"""
DIFFERS_BY_RUN = ("ELASTIC_HEALTH_WORKER_TOKEN", "TORCHELASTIC_ERROR_FILE")


@pytest.fixture
def pool() -> Iterator[WarmPool]:
    made = WarmPool(1)
    yield made
    made.close()


def told(spec: StartSpec, folder: Path, page: Page | None = None) -> StartSpec:
    """What the agent tells a worker."""
    spec.envs[0].update({variables.GENERATION: "3", variables.RUN: "run"})
    if page is not None:
        server = f"/tmp/srv-{os.getpid()}-{time.monotonic_ns()}.s"
        spec.envs[0].update({variables.PAGE: page.path, variables.LINK: str(folder / "link"), variables.SERVER: server})
    return spec


def spec_for(folder: Path, words: tuple[str, ...], logs: Any = None, page: Page | None = None) -> StartSpec:
    return told(spec_of(None, logs or logs_in(folder), 1, ("-u", *words)), folder, page)


def ready(pool: WarmPool) -> tree_os.Root:
    pool.spawn()
    until(lambda: pool.ready() == 1, 60, "a warm process")
    (root,) = pool.roots()
    return root


def ended(spec: StartSpec, warm: WarmPool | None = None) -> tuple[int, ExitFacts, str]:
    """(pid, how it ended, what its log files hold)."""
    with group_of(spec, warm=warm) as group:
        assert group.wait_exited(60)
        files = "".join(Path(p).read_text() for p in (group.context.stdouts[0], group.context.stderrs[0]) if p)
        return group.pids()[0], group.exits()[0], files


def say(path: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path.read_text())
    for name in DIFFERS_BY_RUN:
        said["environ"].pop(name, None)
    said.pop("fds")
    said["argv"] = said["argv"][:1]
    said["orig_argv"] = said["orig_argv"][:-1]
    return said


@pytest.mark.spec("R2")
@pytest.mark.parametrize("form", ["path", "module"])
def test_a_warm_start_is_a_cold_start(tmp_path: Path, pool: WarmPool, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, TELLS)
    words = ("script.py",) if form == "path" else ("-m", "script")
    pages = {how: Page.create(str(tmp_path / f"{how}.page")) for how in ("cold", "warm")}
    outcomes = {}
    for how in pages:
        logs = DefaultLogsSpecs(str(tmp_path / how), redirects=Std.ALL)
        spec = spec_for(tmp_path, (*words, str(tmp_path / f"{how}.json")), logs, pages[how])
        root = ready(pool) if how == "warm" else None
        pid, facts, files = ended(spec, pool if root else None)
        assert root is None or pid == root.pid, pool.last_reason
        outcomes[how] = (facts.code, files, facts.tail)
    assert outcomes["warm"] == outcomes["cold"]
    assert (
        outcomes["cold"][0] == 1 and "KeyError: 'the end'" in outcomes["cold"][1] and "late <class '__main__.Here'>" in outcomes["cold"][1]
    )
    # The page and, as soon as torch's server is up, its socket: the channel to the agent is closed.
    fds = {how: json.loads((tmp_path / f"{how}.json").read_text())["fds"] for how in pages}
    assert all(set(found) <= {str(pages[how].path), "socket"} and found.count("socket") <= 1 for how, found in fds.items()), fds
    cold, warm = say(tmp_path / "cold.json"), say(tmp_path / "warm.json")
    assert {k for k in cold if cold[k] != warm[k]} == set(), {k: (cold[k], warm[k]) for k in cold if cold[k] != warm[k]}


@pytest.mark.spec("L1")
def test_a_warm_worker_is_watched_and_ends_at_its_agents_deadline(
    tmp_path: Path, pool: WarmPool, capfd: pytest.CaptureFixture[str]
) -> None:
    page, root = Page.create(str(tmp_path / "page")), ready(pool)
    spec = spec_for(tmp_path, (str(script(tmp_path, BEATS)),), page=page)
    server = spec.envs[0][variables.SERVER]
    began = time.monotonic()
    with group_of(spec, warm=pool) as group:
        line = until(lambda: next((x for x in group.stderr_tail(0).splitlines(True) if x.endswith("\n") and "first line" in x), ""), 60)
        print(f"go to first line: {float(line.split()[-1]) - began:.3f} s")
        assert group.pids()[0] == root.pid
        until(lambda: page.look().beat.pid == root.pid, 60, "a beat")
        until(lambda: os.path.exists(server), 60, "torch's worker server")
        assert page.look().mark.phase is Phase.SCRIPT
        page.order(Order(deadline=1))
        assert group.wait_exited(20)
        assert group.exits()[0].code == -signal.SIGKILL
    os.unlink(server)
    capfd.readouterr()


def test_a_module_that_the_cold_start_showed_is_imported_ahead(tmp_path: Path) -> None:
    pool = WarmPool(1, preload=("torch.optim", "torch.utils.data"))
    try:
        root = ready(pool)
        seen = "import sys\nsys.exit(40 + ('torch.optim' in sys.modules) + 2 * ('torch.utils.data' in sys.modules))"
        pid, facts, _ = ended(spec_for(tmp_path, (str(script(tmp_path, seen)),)), pool)
        assert (pid, facts.code) == (root.pid, 43)
    finally:
        pool.close()


@pytest.mark.parametrize("source", ["1 / 0", "raise SystemExit(3)"])
def test_one_whose_imports_fail_is_silent_and_the_worker_starts_cold(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lib").mkdir()
    script(tmp_path / "lib", source, "failing.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    pool = WarmPool(1, preload=("failing",))
    try:
        pool.spawn()
        (root,) = pool.roots()
        until(lambda: (p := tree_os.read_proc(root.pid)) is None or not p.alive, 60, "its end")
        assert capfd.readouterr().err == ""
        pid, facts, _ = ended(spec_for(tmp_path, (str(script(tmp_path, "import sys; sys.exit(5)")),)), pool)
        assert pid != root.pid and facts.code == 5
        assert "ended with 0" in pool.last_reason
    finally:
        pool.close()


def test_one_whose_agent_lets_go_of_it_exits(pool: WarmPool) -> None:
    ready(pool)
    waiting = pool._waiting[0]
    waiting.socket.close()
    assert waiting.process.wait(20) == 0
    assert waiting.tap.drain() == ""


def test_an_environment_variable_that_only_the_pool_had_is_gone(tmp_path: Path) -> None:
    pool = WarmPool(1, env={"ONLY_WARM": "1"})
    try:
        pool.spawn()
        until(lambda: pool.ready() == 1, 60)
        out = tmp_path / "out"
        out_script = script(tmp_path, f"import os, json; json.dump([*os.environ], open({str(out)!r}, 'w'))")
        taken = pool.take(0, Go({"A": "1"} | early(), (str(out_script),), str(tmp_path)))
        assert taken is not None, pool.last_reason
        assert taken.process.wait(20) == 0
        taken.close()
        names = set(json.loads(out.read_text()))
        assert "A" in names and not {"ONLY_WARM", variables.GO_FD, variables.WORKER_TOKEN, "HOME"} & names
    finally:
        pool.close()


def early() -> dict[str, str]:
    """The variables of this process that a warm one can't shed, because they were read at its start."""
    from elastic_health.agents.warm_proc import early_differences

    return {name: os.environ[name] for name in early_differences(os.environ, {})}


def test_this_interpreter_is_the_pools() -> None:
    assert WarmPool(1).runs(sys.executable)


def test_only_a_script_is_learned_about_and_its_processes_start_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew.__new__(Crew)
    crew.modules, crew.pages = 0, [Page.__new__(Page)]
    monkeypatch.setattr(crew, "warmable", None, raising=False)
    monkeypatch.setattr(crew, "pool", None, raising=False)
    shown = SimpleNamespace(beat=SimpleNamespace(warmable=1, modules=3))
    monkeypatch.setattr(crew, "look", lambda rank: shown, raising=False)
    for entrypoint, warmable in ((early, None), (sys.executable, True)):
        crew._group = SimpleNamespace(spec=SimpleNamespace(entrypoint=entrypoint, local_world_size=2, numa_options="numa"))  # type: ignore[assignment]
        crew.learn()
        assert crew.warmable is warmable
    for name in [n for n in os.environ if n.startswith(("OMP_", "MKL_", "TORCH_NCCL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(WarmPool, "spawn", lambda pool: 0)
    crew.warm_up()
    pool = crew.pool
    assert isinstance(pool, WarmPool)
    crew.adopt(False, 7)
    assert (crew.warmable, crew.modules) == (True, 3), "what was seen here goes before what others saw"
    assert (pool.nproc, pool.python, pool._env, pool._preload, pool._numa) == (
        2,
        sys.executable,
        {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        ("torch", "torch.distributed"),
        "numa",
    )
