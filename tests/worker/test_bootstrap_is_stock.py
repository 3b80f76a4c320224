"""A script behaves through the bootstrap as under plain `python -u`: same output, same errors, same exit status.

Each script is run twice, stock and watched, and the two are compared as they are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.processes import Outcome, stock, watched, write

pytestmark = pytest.mark.spec("U1")

SCRIPTS = {
    "globals": """
        "a docstring"
        import sys
        print(__name__, __spec__, __package__, __file__, __doc__, __cached__, __loader__.__class__, __builtins__, sorted(globals()))
        print(sys.argv, sys.path, sys.orig_argv, sys.flags, sys.warnoptions, sys._xoptions, __annotations__)
        import __main__
        print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__)
    """,
    "chained exception": """
        def f(): raise ValueError("x")
        try: f()
        except ValueError as e: raise KeyError("y") from e
    """,
    "syntax error": "x = (\ndef f():\n",
    "exit 3": "import sys; sys.exit(3)",
    "exit 300": "import sys; sys.exit(300)",
    "exit text": "import sys; sys.exit('bye')",
    "exit None": "import sys; sys.exit(None)",
    "exit object": "import sys; sys.exit([1, 2])",
    "exit class": "class E(SystemExit): code = 4\nraise E()",
    "os._exit": "import os; print('a'); os._exit(7)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); signal.pause()",
    "interrupted": """
        import atexit, os, signal
        atexit.register(print, "atexit ran")
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    """,
    "own handler": """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda s, f: (print("got it"), sys.exit(9)))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    """,
    "signal handlers": "import signal; print({s: str(signal.getsignal(s)) for s in signal.valid_signals()})",
    "own hook": """
        import sys, traceback
        def hook(t, v, tb): print("hook", t, v, [f.name for f in traceback.extract_tb(tb)])
        sys.excepthook = hook
        def g(): 1 / 0
        g()
    """,
    "broken hook": """
        import sys
        def hook(t, v, tb): raise RuntimeError("in hook")
        sys.excepthook = hook
        1 / 0
    """,
    "stack": """
        import inspect, sys, traceback, warnings
        def f(): traceback.print_stack(); print(len(inspect.stack()), inspect.stack()[-1].filename)
        f()
        warnings.warn("deeper than the stack", stacklevel=9)
        def depth(n):
            try: return depth(n + 1)
            except RecursionError: return n
        print(depth(0))
    """,
    "pickle in atexit": """
        import atexit, pickle, sys
        class A: pass
        def late(): print(type(pickle.loads(pickle.dumps(A()))) is A, sys.modules["__main__"].A is A)
        atexit.register(late)
        print("done")
    """,
    "late thread": """
        import pickle, threading, time
        class A: pass
        def late(): time.sleep(0.2); print(pickle.loads(pickle.dumps(A())).__class__)
        threading.Thread(target=late).start()
        print("end of main")
    """,
    "failing thread and atexit": """
        import atexit, threading
        def f(): 1 / 0
        atexit.register(f)
        t = threading.Thread(target=f); t.start(); t.join()
    """,
    "threads": "import threading; print(threading.enumerate(), threading.active_count(), threading.current_thread())",
    "last exception": """
        import atexit, sys
        atexit.register(lambda: print(sys.last_type, sys.last_traceback.tb_frame.f_code.co_name))
        1 / 0
    """,
    "destructor": "class A:\n    def __del__(self): print('gone')\na = A()",
    "streams": """
        import sys
        print(repr(sys.stdin.read()), sys.stdin, sys.stdout, sys.stderr, sys.stdout.line_buffering, sys.stdout.write_through)
        sys.stderr = None
        1 / 0
    """,
    "failing import of torch": """
        import sys
        from pathlib import Path
        Path("torch").mkdir(exist_ok=True)
        Path("torch/__init__.py").write_text("def f(): 1 / 0\\nf()\\n")
        sys.path.insert(0, ".")
        import torch
    """,
    "annotations": "from __future__ import annotations\ndef f(x: nope): pass\nprint(f.__annotations__)",
    "children": """
        import multiprocessing as mp, os, subprocess, sys
        print("import", __name__, flush=True)
        def f(q): q.put((__name__, sys.modules["__main__"].__name__, sys.argv, sys.orig_argv[0], len(sys.path)))
        if __name__ == "__main__":
            for how in ("fork", "spawn", "forkserver"):
                ctx = mp.get_context(how)
                q = ctx.Queue(); p = ctx.Process(target=f, args=(q,)); p.start()
                print(how, q.get()); p.join(); print(p.exitcode)
            code = "import os, sys; print(sys.path, os.environ.get('PYTHONPATH'), 'elastic_health' in sys.modules)"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))
    """,
}


def both(folder: Path, words: list[str], direct: bool = False, **environ: str) -> tuple[Outcome, Outcome]:
    plain = stock(folder, words, stdin=b"some input\n", **environ)
    with watched(folder, words, stdin=b"some input\n", direct=direct, **environ) as worker:
        return plain, worker.outcome()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_by_path(tmp_path: Path, name: str) -> None:
    plain, ours = both(tmp_path, [write(tmp_path, SCRIPTS[name]), "a", "-b", "--c=d"])
    assert ours == plain


@pytest.mark.parametrize("name", ["globals", "chained exception", "stack", "pickle in atexit", "exit 3", "children"])
def test_a_module(tmp_path: Path, name: str) -> None:
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg", SCRIPTS[name], "train.py")
    plain, ours = both(tmp_path, ["-m", "pkg.train", "a", "-b"])
    assert ours == plain


def test_a_folder_a_missing_script_and_a_missing_module(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    write(tmp_path / "app", "import sys; print(__name__, __spec__, sys.argv, sys.path[0])", "__main__.py")
    for words in (["app", "x"], ["nothing.py"], ["-m", "no_such_module"]):
        plain, ours = both(tmp_path, words)
        assert ours == plain


@pytest.mark.parametrize("pythonpath", ["", "lib", "lib:other"])
def test_the_users_pythonpath_and_sitecustomize_are_kept(tmp_path: Path, pythonpath: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text("print('own site', __name__, __file__)\n")
    source = """
        import os, subprocess, sys
        print(sys.path, os.environ.get("PYTHONPATH"), "sitecustomize" in sys.modules)
        print(subprocess.run([sys.executable, "-c", "import sys; print(sys.path)"], capture_output=True, text=True).stdout)
    """
    plain, ours = both(tmp_path, [write(tmp_path, source)], direct=True, PYTHONPATH=pythonpath)
    assert ours == plain
    assert ("own site" in ours.out) == bool(pythonpath)
    # By the module there are two interpreter starts, and so two runs of the user's sitecustomize.
    _, twice = both(tmp_path, [write(tmp_path, source)], PYTHONPATH=pythonpath)
    assert twice.out.splitlines()[-3:] == ours.out.splitlines()[-3:]


def test_a_failing_sitecustomize_of_the_user_fails_alike(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text("1 / 0\n")
    plain, ours = both(tmp_path, [write(tmp_path, "print('ran')")], direct=True, PYTHONPATH="lib")
    assert ours == plain


def test_safe_path_is_respected(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, [write(tmp_path, "import sys; print(sys.path, sys.flags)")], PYTHONSAFEPATH="1")
    assert ours == plain


def test_the_scripts_own_modules_win_over_what_the_bootstrap_imports(tmp_path: Path) -> None:
    """The bootstrap needs json, socket and ctypes; a script's folder may have modules of these names."""
    for name in ("json", "socket", "ctypes", "mmap"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    source = "import ctypes, json, mmap, socket, threading\nprint([m.mine for m in (ctypes, json, mmap, socket)], threading.active_count())"
    plain, ours = both(tmp_path, [write(tmp_path, source)])
    assert ours == plain
    assert ours.out.startswith("[True, True, True, True]")


def test_the_environment_gains_the_recorders_settings_and_keeps_the_users(tmp_path: Path) -> None:
    source = "import os\nprint(sorted(f'{k}={v}' for k, v in os.environ.items() if k.startswith(('TORCH', 'ELASTIC', 'PYTHON'))))"
    script = write(tmp_path, source)
    with watched(tmp_path, [script]) as worker:
        seen = worker.outcome().out
    assert "TORCH_FR_BUFFER_SIZE=2000" in seen
    assert "ELASTIC_HEALTH_WORKER_TOKEN=token" in seen
    assert "_PAGE=" not in seen
    assert "_LINK=" not in seen
    assert "PYTHON" not in seen
    with watched(tmp_path, [script], TORCH_FR_BUFFER_SIZE="7", TORCH_NCCL_DUMP_ON_TIMEOUT="0") as worker:
        seen = worker.outcome().out
    assert "TORCH_FR_BUFFER_SIZE=7" in seen
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT=0" in seen
    with watched(tmp_path, [script], TORCH_NCCL_TRACE_BUFFER_SIZE="9") as worker:
        seen = worker.outcome().out
    assert "TORCH_FR_BUFFER_SIZE" not in seen, "torch lets the current name win over the older one that the user set"


TORCH = """
    import os
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch, torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.utils.data import DataLoader, Dataset

    class Items(Dataset):
        def __len__(self): return 4
        def __getitem__(self, i): return i, __name__

    @record
    def main():
        torch.manual_seed(1)
        print(torch.get_num_threads(), torch.rand(2), torch.__spec__.loader)
        for how in ("fork", "spawn"):
            print(how, list(DataLoader(Items(), batch_size=2, num_workers=1, multiprocessing_context=how)))
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
        x = torch.ones(2)
        dist.all_reduce(x)
        p = torch.nn.Parameter(x)
        optimizer = torch.optim.SGD([p], lr=0.1)
        p.sum().backward()
        optimizer.step()
        dist.destroy_process_group()
        raise RuntimeError("boom")

    if __name__ == "__main__":
        main()
"""


@pytest.mark.spec("L6")
def test_a_torch_script_with_loaders_group_optimizer_and_error_file(tmp_path: Path) -> None:
    script = write(tmp_path, TORCH)
    ends = []
    for run in (stock, None):
        (tmp_path / "store").unlink(missing_ok=True)
        error = tmp_path / "error.json"
        error.unlink(missing_ok=True)
        if run:
            ends.append(run(tmp_path, [script], TORCHELASTIC_ERROR_FILE=str(error)))
        else:
            with watched(tmp_path, [script], TORCHELASTIC_ERROR_FILE=str(error)) as worker:
                ends.append(worker.outcome())
        assert '"boom' in error.read_text() or "boom" in error.read_text()
    plain, ours = ends
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert ours.err == plain.err
