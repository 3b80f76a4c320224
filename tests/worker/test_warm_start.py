"""A process that has done its imports becomes the script: what the script then sees is what a cold start would show."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health import variables
from tests.worker.processes import Outcome, Watched, blotted, ended, stock, told, until, waiting, watched, write

# What torch's state, the process and the interpreter look like at a script's first line and after its imports.
LOOK = """
    import os, sys, threading, warnings
    print(__name__, __file__, __spec__, __package__, sys.argv, sys.path, sys.orig_argv, os.getcwd())
    print(sorted(k for k in os.environ if not k.startswith("ELASTIC_HEALTH_TEST")), os.environ.get("PYTHONPATH"))
    print(threading.enumerate(), sys.getrecursionlimit(), sys.flags)
    import torch, torch.distributed, torch._dynamo, numpy, random, logging
    print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
    print(torch.initial_seed() != 0, torch.manual_seed(5) is not None, torch.rand(2), torch.cuda.is_initialized())
    print(warnings.filters, logging.root.handlers, logging.root.level, sorted(logging.root.manager.loggerDict)[:20])
    print(os.environ.get("OMP_NUM_THREADS"), sorted(map(str, sys.meta_path))[:0], torch.backends.mkldnn.is_available())
    # Threads of Python's own; torch's worker server starts its threads beside the script, sooner or later.
    print(threading.active_count(), os.getsid(0) == os.getpid(), sys.stdin.read())
    torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
    x = torch.ones(2)
    torch.distributed.all_reduce(x)
    print(x, [p for p in ("torch", "numpy") if not getattr(sys.modules[p], "__file__", None)])
    sys.exit(3)
"""
SAME = {
    "exception": "def f(): raise ValueError('x')\nf()",
    "syntax error": "x = (\n",
    "exit text": "import sys; sys.exit('bye')",
    "interrupt": "import atexit; atexit.register(print, 'late')\nraise KeyboardInterrupt",
    "broken hook": "import sys\ndef hook(t, v, tb): raise RuntimeError('in hook')\nsys.excepthook = hook\n1 / 0",
    "pickle in atexit": """
        import atexit, pickle, sys
        class A: pass
        atexit.register(lambda: print(type(pickle.loads(pickle.dumps(A()))) is A, sys.modules["__main__"].A is A))
        print("done")
    """,
    "late thread": """
        import pickle, threading, time
        class A: pass
        def late(): time.sleep(0.2); print(pickle.loads(pickle.dumps(A())).__class__)
        threading.Thread(target=late).start()
        print("end of main")
    """,
    "children": """
        import multiprocessing as mp, sys
        print("import", __name__, flush=True)
        def f(q): q.put((__name__, sys.modules["__main__"].__name__, sys.argv))
        if __name__ == "__main__":
            for how in ("fork", "spawn"):
                ctx = mp.get_context(how)
                q = ctx.Queue(); p = ctx.Process(target=f, args=(q,)); p.start()
                print(how, q.get()); p.join(); print(p.exitcode)
    """,
    "globals": "'doc'\nimport sys\nprint(__doc__, __spec__, __package__, __file__, __cached__, __builtins__, sorted(globals()))",
    "signals": "import signal; print({s: str(signal.getsignal(s)) for s in signal.valid_signals()})",
}


@contextlib.contextmanager
def warmed(folder: Path, words: list[str], preload: str = "", stdin: bytes = b"", **environ: str) -> Iterator[Watched]:
    """A warm process that has been told to be this script, with its output in files as an agent would have it."""
    page, env = told(folder, **environ)
    with waiting(**({variables.PRELOAD: preload} if preload else {}), **environ) as process:
        assert process.ready()
        with ended(process.process, page, env[variables.SERVER]) as worker:
            process.go(folder, words, env, str(folder / "out"), str(folder / "err"))
            assert process.process.stdin is not None
            process.process.stdin.write(stdin)
            process.process.stdin.flush()
            yield worker


@pytest.fixture
def quick(tmp_path: Path) -> str:
    """PYTHONPATH with a stand-in for torch, for what doesn't depend on it."""
    (tmp_path / "lib" / "torch" / "distributed").mkdir(parents=True)
    for package in ("torch", "torch/distributed"):
        (tmp_path / "lib" / package / "__init__.py").touch()
    return str(tmp_path / "lib")


def outcome(folder: Path, worker: Watched) -> Outcome:
    worker.outcome()
    out, err = ((folder / name).read_bytes() for name in ("out", "err"))
    return Outcome(worker.process.returncode, blotted(out), blotted(err))


def test_nothing_that_a_script_looks_at_tells_warm_from_cold(tmp_path: Path) -> None:
    script = write(tmp_path, LOOK)
    (tmp_path / "out").touch()
    (tmp_path / "err").touch()
    ends = []
    with watched(tmp_path, [script, "-x"], stdin=b"text", OMP_NUM_THREADS="1") as worker:
        ends.append(worker.outcome())
    (tmp_path / "store").unlink(missing_ok=True)
    with warmed(tmp_path, [script, "-x"], "torch._dynamo,numpy", b"text", OMP_NUM_THREADS="1") as worker:
        ends.append(outcome(tmp_path, worker))
        assert worker.page.look().beat.warmable == 1
        assert worker.page.look().beat.pid == worker.process.pid
    cold, warm = ends
    assert cold.code == 3, cold.err
    assert warm == cold


@pytest.mark.parametrize("name", SAME)
def test_a_warm_script_ends_and_prints_as_under_plain_python(tmp_path: Path, name: str, quick: str) -> None:
    script = write(tmp_path, SAME[name])
    plain = stock(tmp_path, [script, "a", "-b"], PYTHONPATH=quick)
    with warmed(tmp_path, [script, "a", "-b"], PYTHONPATH=quick) as worker:
        assert outcome(tmp_path, worker) == plain


def test_a_warm_module_and_a_missing_script(tmp_path: Path, quick: str) -> None:
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg", "import sys\nprint(__name__, __spec__.name, __package__, sys.argv, sys.path[0])\n1 / 0", "train.py")
    for words in (["-m", "pkg.train", "x"], ["nothing.py"], ["-m", "no_such_module"]):
        plain = stock(tmp_path, words, PYTHONPATH=quick)
        with warmed(tmp_path, words, PYTHONPATH=quick) as worker:
            assert outcome(tmp_path, worker) == plain


def test_one_that_is_never_needed_ends_silently(quick: str) -> None:
    with waiting(PYTHONPATH=quick) as process:
        assert process.ready()
        process.ours.close()
        assert process.process.wait(20) == 0
        assert process.process.communicate() == (b"", b"")


def test_a_half_told_one_ends_silently(quick: str) -> None:
    with waiting(PYTHONPATH=quick) as process:
        assert process.ready()
        process.ours.sendall(b'{"env": {')
        process.ours.close()
        assert process.process.wait(20) == 0


def test_a_waiting_one_obeys_sigterm(quick: str) -> None:
    with waiting(PYTHONPATH=quick) as process:
        assert process.ready()
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(20) == -signal.SIGTERM


def test_watching_goes_on_in_a_warm_worker(tmp_path: Path) -> None:
    source = """
        import os, sys, time
        import torch, torch.distributed as dist
        from elastic_health.worker.current import here
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
        p = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([p], lr=0.1)
        for n in range(1, 10**9):
            p.grad = torch.ones(2)
            dist.all_reduce(p.grad)
            optimizer.step()
            here().page.step(n)
            time.sleep(0.01)
    """
    with warmed(tmp_path, [write(tmp_path, source)], "torch._dynamo") as worker:
        until(lambda: worker.page.look().beat.activity > 20)
        seen = worker.page.look()
        assert seen.mark.steps >= seen.beat.activity > 0
        assert [g.group for g in seen.beat.groups] == ["0"]
        assert os.path.exists(worker.server)
        assert (tmp_path / "err").read_bytes() == b""
