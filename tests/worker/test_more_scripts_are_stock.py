"""Further ways in which scripts are started and in which they look at themselves: as under plain `python -u`."""

from __future__ import annotations

import os
import textwrap
import zipfile
from pathlib import Path

import pytest

from elastic_health.liveness.facts import Phase
from tests.worker.processes import Outcome, stock, until, watched, write

pytestmark = pytest.mark.spec("U1")

SHOWS_ITSELF = """
    import __main__, inspect, pickle, sys
    class A: pass
    def f(): return 1
    def source():
        try: return inspect.getsource(f)
        except OSError as e: return repr(e)
    print(__file__, __name__, __package__, sys.argv, sys.path[:1], source(), inspect.getfile(f), A.__module__)
    print(pickle.loads(pickle.dumps(A())).__class__ is A, __main__.f is f, type(__spec__).__name__, getattr(__spec__, "name", None))
    raise LookupError("the end")
"""
SCRIPTS = {
    "exception group": """
        def f(): raise ExceptionGroup("many", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])
        try: f()
        except Exception as e: e.add_note("a note"); raise RuntimeError("outer")
    """,
    "suppressed context": "try: 1 / 0\nexcept Exception: raise KeyError('only this') from None",
    "quiet interrupt": "import sys\ntry: raise KeyboardInterrupt\nexcept KeyboardInterrupt: sys.exit(130)",
    "killed by each": """
        import os, signal, sys
        os.kill(os.getpid(), signal.SIGKILL if len(sys.argv) > 9 else signal.SIGQUIT)
        signal.pause()
    """,
    "pool": """
        from concurrent.futures import ProcessPoolExecutor
        import multiprocessing as mp
        def square(x): return x * x, __name__
        class Point:
            def __init__(self, x): self.x = x
        def made(x): return Point(x)
        if __name__ == "__main__":
            for how in ("fork", "spawn"):
                with ProcessPoolExecutor(1, mp_context=mp.get_context(how)) as pool:
                    print(how, list(pool.map(square, range(3))), type(pool.submit(made, 3).result()) is Point)
    """,
    "types": """
        from __future__ import annotations
        import dataclasses, enum, typing
        class Kind(enum.Enum): A = 1
        @dataclasses.dataclass
        class D:
            x: list[Kind]
            y: D | None = None
        class T(typing.NamedTuple): d: D
        print(typing.get_type_hints(D), typing.get_type_hints(T), D([Kind.A]), Kind.A, dataclasses.fields(D)[0].type)
    """,
    "asyncio": """
        import asyncio, signal
        async def main():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: print("term"))
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
            p = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
            print((await p.communicate())[0], p.returncode)
            await asyncio.gather(fail(), asyncio.sleep(0))
        async def fail(): raise ValueError("in a task")
        asyncio.run(main())
    """,
    "warnings": """
        import warnings
        warnings.warn("mine"); warnings.warn("old", DeprecationWarning)
        def f(): warnings.warn("callers", stacklevel=2)
        f(); eval(compile("1 is 1", "<s>", "eval"))
        warnings.simplefilter("error")
        f()
    """,
    "daemon thread": """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print("end")
    """,
    "logging": "import logging; logging.warning('w'); print(logging.root.handlers, logging.getLogger().level, logging.lastResort)",
    "alarm and children": """
        import os, signal, subprocess
        signal.alarm(0)
        signal.signal(signal.SIGCHLD, lambda s, f: print("child ended"))
        pid = os.fork()
        if pid == 0: os._exit(3)
        print(os.waitpid(pid, 0)[1] >> 8, subprocess.call(["sh", "-c", "exit 4"]))
    """,
    "tracing": """
        import sys, threading
        print(sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), threading.gettrace() if hasattr(threading, "gettrace") else None)
        print(sys.displayhook, sys.excepthook, sys.unraisablehook, sys.breakpointhook, threading.excepthook)
    """,
    "own modules": "import sys; print('torch' in sys.modules, 'elastic_health' in vars(), [k for k in vars() if 'eh' in k])",
    "collector": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), gc.get_freeze_count())",
    "nested event loop of a debugger": "import pdb, io; pdb.Pdb(stdin=io.StringIO('c\\n')).set_trace(); print('after')",
}


def both(folder: Path, words: list[str]) -> tuple[Outcome, Outcome]:
    plain = stock(folder, words)
    with watched(folder, words) as worker:
        assert worker.process.stdin is not None
        return plain, worker.outcome()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(tmp_path: Path, name: str) -> None:
    plain, ours = both(tmp_path, [write(tmp_path, SCRIPTS[name])])
    assert ours == plain


def test_a_crash_in_native_code_shows_where_python_stood(tmp_path: Path) -> None:
    """The one difference on purpose: `faulthandler` is on, so that the evidence of a crash has a stack."""
    plain, ours = both(tmp_path, [write(tmp_path, "import os; print('a'); os.abort()")])
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert plain.err == "" and ours.err.startswith("Fatal Python error: Aborted\n") and 'script.py", line 1 in <module>' in ours.err


def test_scripts_by_every_kind_of_path(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    write(below, SHOWS_ITSELF)
    (tmp_path / "link.py").symlink_to("below/script.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as z:
        z.writestr("__main__.py", textwrap.dedent(SHOWS_ITSELF))
    for path in ("below/script.py", "./below/../below/script.py", str(below / "script.py"), "link.py", "app.zip"):
        plain, ours = both(tmp_path, [path, "x"])
        assert ours == plain, path
        assert "LookupError: the end" in plain.err


def test_packages_and_relative_imports(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    write(pack, "print('init', __name__)", "__init__.py")
    write(pack, "value = 7", "other.py")
    write(pack, "from .other import value\nfrom . import other\nprint(value, other.__name__)\n" + textwrap.dedent(SHOWS_ITSELF), "train.py")
    write(pack, "from .train import f\nprint(f())", "__main__.py")
    for words in (["-m", "pack.train", "x"], ["-m", "pack"], ["-m", "pack.missing"], ["pack"], ["-m", "pack.other.deeper"]):
        plain, ours = both(tmp_path, words)
        assert ours == plain, words


@pytest.mark.spec("L6")
def test_threads_set_by_the_script_before_torch_are_used_and_forbid_a_warm_start(tmp_path: Path) -> None:
    script = write(
        tmp_path, "import os, sys\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\nsys.stdin.read()"
    )
    with watched(tmp_path, [script], OMP_NUM_THREADS="2") as worker:
        until(lambda: worker.page.look().beat.warmable >= 0)
        assert worker.page.look().beat.warmable == 0
        assert worker.outcome().out == "1\n"


def test_a_script_without_torch_never_gets_it(tmp_path: Path) -> None:
    script = write(tmp_path, "import sys\nsys.stdin.read()\nprint('torch' in sys.modules)")
    with watched(tmp_path, [script]) as worker:
        until(lambda: worker.page.look().beat.beat_at > 0)
        first = worker.page.look()
        until(lambda: worker.page.look().beat.beat_at > first.beat.beat_at)
        assert (first.mark.phase, first.beat.warmable, first.beat.modules) == (Phase.SCRIPT, -1, 0)
        assert not os.path.exists(worker.server)
        assert worker.outcome().out == "False\n"
