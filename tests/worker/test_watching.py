"""What a real worker's page says, and when its watchdog ends it: real processes, real gloo, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.liveness.facts import GroupFrontier, Phase
from elastic_health.liveness.page import Order
from elastic_health.worker import preload
from elastic_health.worker.watchdog_os import Word, judge
from tests.worker.processes import Watched, told, until, watched, write

NEVER = 10**9


def ask(server: str, handler: str) -> bytes:
    """One request to torch's worker server: HTTP over a Unix socket, POST only."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(server)
        s.sendall(f"POST /handler/{handler} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        raw = b"".join(iter(lambda: s.recv(65536), b""))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    return body


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ---- a script without torch


def test_beats_from_the_first_line_to_the_last_atexit_handler(tmp_path: Path) -> None:
    source = """
        import atexit, os, sys, time
        def late():
            print("late", flush=True)
            sys.stdin.read(1)
        atexit.register(late)
        print("on", flush=True)
        sys.stdin.readline()
    """
    with watched(tmp_path, [write(tmp_path, source)]) as worker:
        assert worker.process.stdout is not None
        assert worker.process.stdin is not None
        assert worker.process.stdout.readline() == b"on\n"
        until(lambda: worker.page.look().beat.beat_at > 0)
        first = worker.page.look()
        assert first.beat.pid == worker.process.pid
        assert (first.mark.phase, first.mark.steps, first.beat.warmable) == (Phase.SCRIPT, -1, -1)
        until(lambda: worker.page.look().beat.beat_at > first.beat.beat_at and worker.page.look().beat.running)
        worker.process.stdin.write(b"\n")
        worker.process.stdin.flush()
        assert worker.process.stdout.readline() == b"late\n"
        until(lambda: not worker.page.look().beat.running)
        assert worker.page.look().mark.phase is Phase.SCRIPT
        assert worker.outcome().code == 0
        assert worker.page.look().mark.phase is Phase.DONE, "said last of all, before the interpreter goes"


def test_a_page_outlives_sigstop_and_sigkill(tmp_path: Path) -> None:
    source = """
        import time
        from elastic_health.worker.current import here
        home = here()
        home.page.phase(home.page.look().mark.phase.__class__.STEP)
        for n in range(10**9):
            home.page.step(n, n * 8)
            time.sleep(0.001)
    """
    with watched(tmp_path, [write(tmp_path, source)]) as worker:
        until(lambda: worker.page.look().mark.steps > 10)
        os.kill(worker.process.pid, signal.SIGSTOP)
        until(lambda: state(worker.process.pid) == "T")
        stopped = worker.page.look()
        assert stopped.mark.position == stopped.mark.steps * 8
        worker.process.kill()
        worker.process.wait(10)
        assert worker.page.look().mark == stopped.mark


def test_children_of_a_script_are_not_the_worker(tmp_path: Path) -> None:
    source = """
        import os, subprocess, sys
        from elastic_health.worker.current import here
        home = here()
        home.page.step(5)
        pid = os.fork()
        if not pid:
            home.page.step(99)
            os._exit(0 if here() is None else 1)
        print(os.waitpid(pid, 0)[1])
        code = "from elastic_health.worker.current import here; import os; print(here(), os.environ['ELASTIC_HEALTH_WORKER_TOKEN'])"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="")
    """
    with watched(tmp_path, [write(tmp_path, source)]) as worker:
        assert worker.outcome().out == "0\nNone token\n"
        assert worker.page.look().mark.steps == 5


# ---- who ends a worker

SLEEPER = "import subprocess, sys, time\np = subprocess.Popen(['sleep', '600'])\nprint(p.pid, flush=True)\ntime.sleep(600)"


def gone(pid: int) -> bool:
    try:
        return state(pid) == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.spec("R10")
def test_a_deadline_that_has_passed_ends_the_worker_with_its_session(tmp_path: Path) -> None:
    with watched(tmp_path, [write(tmp_path, SLEEPER)]) as worker:
        assert worker.process.stdout is not None
        child = int(worker.process.stdout.readline())
        now = time.monotonic_ns()
        worker.page.order(Order(now, now + int(2e9), 1))
        until(lambda: worker.process.poll() is not None, 10)
        assert time.monotonic_ns() - now >= 2e9
        assert worker.process.returncode == -signal.SIGKILL
        assert worker.process.stderr is not None
        assert b"past its deadline" in worker.process.stderr.read()
        until(lambda: gone(child), 10)


def test_a_deadline_that_is_pushed_on_ends_nothing(tmp_path: Path) -> None:
    with watched(tmp_path, [write(tmp_path, SLEEPER)]) as worker:
        until(lambda: worker.page.look().beat.beat_at > 0)
        for _ in range(15):
            now = time.monotonic_ns()
            worker.page.order(Order(now, now + int(1.5e9), 1))
            time.sleep(0.2)
        assert worker.process.poll() is None


@pytest.mark.spec("R10")
def test_a_stopped_worker_that_wakes_up_after_its_deadline_ends(tmp_path: Path) -> None:
    with watched(tmp_path, [write(tmp_path, SLEEPER)]) as worker:
        until(lambda: worker.page.look().beat.beat_at > 0)
        os.kill(worker.process.pid, signal.SIGSTOP)
        now = time.monotonic_ns()
        worker.page.order(Order(now, now + 1, 1))
        time.sleep(2.5)
        assert worker.process.poll() is None
        os.kill(worker.process.pid, signal.SIGCONT)
        until(lambda: worker.process.poll() is not None, 10)


def test_the_judgement_gives_the_agent_one_beat_after_a_pause_of_ones_own() -> None:
    second = 10**9
    assert judge(5 * second, 4 * second, 0) is Word.NONE
    assert judge(5 * second, 4 * second, 6 * second) is Word.HOLDS
    assert judge(7 * second, 6 * second, 6 * second) is Word.OVER
    assert judge(90 * second, 5 * second, 6 * second) is Word.WAIT
    assert judge(7 * second, 0, 6 * second) is Word.OVER


AGENT = """
import os, subprocess, sys
env = {**os.environ, "ELASTIC_HEALTH_AGENT_PID": str(os.getpid())}
p = subprocess.Popen([sys.executable, "-u", "-m", "elastic_health.worker", *sys.argv[1:]], env=env, start_new_session=True)
print(p.pid, flush=True)
p.wait()
"""


@pytest.mark.parametrize("body", ["import time; time.sleep(600)", "import ctypes; ctypes.PyDLL(None).sleep(600)"], ids=["idle", "GIL held"])
def test_a_worker_dies_with_its_agent_even_while_it_holds_the_gil(tmp_path: Path, body: str) -> None:
    """GaTech-RL2/EgoVerse#682: workers survived a killed agent and held their GPUs."""
    page, env = told(tmp_path)
    script = write(tmp_path, f"from pathlib import Path\nPath('began').touch()\n{body}\n")
    agent = subprocess.Popen([sys.executable, "-c", AGENT, script], cwd=tmp_path, env=env, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    try:
        pid = int(agent.stdout.readline())
        until(lambda: (tmp_path / "began").exists())
    finally:
        agent.kill()
        agent.wait(10)
        agent.stdout.close()
        os.unlink(page.path)
    until(lambda: gone(pid), 10)


def test_a_worker_whose_agent_is_already_gone_does_not_begin(tmp_path: Path) -> None:
    with watched(tmp_path, [write(tmp_path, "print('ran')")], ELASTIC_HEALTH_AGENT_PID=str(2**22 - 1)) as worker:
        outcome = worker.outcome()
    assert (outcome.code, outcome.out) == (-signal.SIGKILL, "")


# ---- a script with torch

RANK = """
    import ctypes, os, sys, time
    import torch, torch.distributed as dist
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=3)
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    x = torch.ones(4)
    for n in range(3):
        dist.all_reduce(x)
    if rank in (0, 1): dist.all_reduce(x, group=first)
    if rank in (1, 2): dist.all_reduce(x, group=second); dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4), group=second)
    if rank == 2:
        print("away", flush=True)
        ctypes.PyDLL(None).sleep(600)  # holds the GIL and never enters the barrier
    dist.barrier()
"""


@contextlib.contextmanager
def three(folder: Path, script: str) -> Iterator[list[Watched]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(watched(folder, [script], RANK=str(r))) for r in range(3)]


@pytest.mark.spec("L1", "L3")
def test_the_frontier_names_groups_alike_and_shows_what_is_waited_for(tmp_path: Path) -> None:
    with three(tmp_path, write(tmp_path, RANK)) as workers:
        pages = [w.page for w in workers]
        until(lambda: all(any(g.op == "gloo:barrier" for g in p.look().beat.groups) for p in pages[:2]))
        seen = [{g.group: g for g in p.look().beat.groups} for p in pages]
        assert seen[0]["0"] == seen[1]["0"] == GroupFrontier("0", 4, 3, "gloo:barrier", (0, 1, 2))
        assert (seen[0]["1"].completed, seen[0]["1"].ranks) == (1, (0, 1))
        assert (seen[1]["2"].completed, seen[1]["2"].ranks) == (2, (1, 2))
        # Rank 2 holds the GIL for good: its heart stands still, but torch's own server still answers.
        assert workers[2].process.stdout is not None
        assert workers[2].process.stdout.readline() == b"away\n"
        stopped = pages[2].look().beat.beat_at
        until(lambda: pages[0].look().beat.beat_at - stopped > 2e9)
        assert pages[2].look().beat.beat_at == stopped
        dump = json.loads(ask(workers[2].server, "fr_trace_json"))
        assert dump["pg_status"]["0"]["last_enqueued_collective"] == "3"
        assert ask(workers[2].server, "ping") == b"pong"
        counters = json.loads(ask(workers[0].server, "wait_counter_values"))
        assert counters["pytorch.wait_counter.c10d.init_process_group"]["total_calls"] == 1
        assert all(p.look().beat.warmable == 1 for p in pages[:2])


LOOP = """
    import os, sys
    {before}
    import torch, torch.distributed as dist
    {between}
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    def once():
        p.grad = torch.ones(2)
        optimizer.step()
    once()
    print("on", flush=True)
    for line in sys.stdin:
        once()
        print("stepped", flush=True)
"""


@pytest.mark.spec("L4")
@pytest.mark.parametrize("between", ["", "os.environ['TORCHINDUCTOR_CACHE_DIR'] = '/nowhere'"], ids=["plain", "environment after torch"])
def test_a_cold_start_counts_optimizer_steps_and_tells_what_a_warm_one_may_import(tmp_path: Path, between: str) -> None:
    """An optimizer imports torch._dynamo; a variable set in between forbids importing that one earlier, but not torch."""
    source = LOOP.replace("{before}", "import numpy").replace("{between}", between)
    with watched(tmp_path, [write(tmp_path, source)]) as worker:
        assert worker.process.stdout is not None
        assert worker.process.stdin is not None
        assert worker.process.stdout.readline() == b"on\n"
        for _ in range(5):
            worker.process.stdin.write(b"\n")
            worker.process.stdin.flush()
            worker.process.stdout.readline()
        until(lambda: worker.page.look().beat.activity == 6)
        beat = worker.page.look().beat
        assert beat.warmable == 1
        names = preload.names(beat.modules)
        assert ("torch._dynamo" in names) == (not between)
        assert {"torch", "torch.distributed", "numpy", "torch.optim"} <= set(names)
        assert "torch.distributed.checkpoint" not in names
        worker.process.stdin.close()
        worker.process.stdin = None
        assert worker.process.wait(20) == 0
        assert worker.process.stderr is not None
        assert worker.process.stderr.read() == b""


@pytest.mark.parametrize(
    ("before", "warmable"),
    [
        ("pass", 1),
        ("import json, threading, sqlite3", 1),
        ("sys.path.insert(1, '/nowhere')", 1),
        ("os.environ['ANY'] = '1'", 0),
        ("warnings.simplefilter('ignore')", 0),
        ("sys.modules['yaml'] = None", 0),
        ("sys.meta_path.append(object())", 0),
        ("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", int(len(os.sched_getaffinity(0)) == 1)),
        ("logging.setLoggerClass(type('L', (logging.Logger,), {}))", 0),
        ("os.mkdir('own'); open('own/sympy.py', 'w').close(); sys.path.insert(1, 'own')", 0),
        ("os.mkdir('own'); open('own/mine.py', 'w').close(); sys.path.insert(1, 'own')", 1),
    ],
)
def test_what_a_script_does_before_it_imports_torch_decides_about_warm_starts(tmp_path: Path, before: str, warmable: int) -> None:
    """With a stand-in for torch that imports a sympy, since only what comes before the import matters."""
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("import sympy\n")
    (tmp_path / "lib" / "sympy.py").touch()
    source = f"import logging, os, sys, warnings\n{before}\nimport torch\nsys.stdin.read()\n"
    with watched(tmp_path, [write(tmp_path, source)], PYTHONPATH=str(tmp_path / "lib")) as worker:
        until(lambda: worker.page.look().beat.warmable >= 0)
        assert worker.page.look().beat.warmable == warmable


def test_a_shadowed_module_forbids_a_warm_start() -> None:
    start = preload.Moment({})
    assert preload.hindrance(start, start, {"sympy"}, {"sympy.core", "torch"}) is preload.Hindrance.SHADOWED
    assert preload.hindrance(start, start, {"sympy"}, {"torch"}) is None
    assert preload.hindrance(start, preload.Moment({}, native=frozenset({"cv2.cv2"}))) is preload.Hindrance.NATIVE
    assert preload.names(preload.mask(preload.MODULES)) == preload.MODULES
