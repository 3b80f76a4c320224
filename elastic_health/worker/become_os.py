"""Becoming the script in place (a warm process): what `python script.py` or `python -m module` would have been, in the
real `__main__`.  What still tells it from a cold start: torch is imported already, and a script that looks down its stack
finds the bootstrap's frames below its own.

`runpy.run_path` puts the caller back as `__main__` afterwards, so that pickling in atexit handlers and late threads
breaks; here the script's module stays `__main__` until the process ends.
"""

from __future__ import annotations

import atexit
import builtins
import os
import runpy
import signal
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn


def become(words: Sequence[str]) -> NoReturn:
    """Run `[-m] script args…` as the main program; ends as that would end.

    Raises:
        SystemExit: always, or what the script raises as such.
    """
    end = _End()
    atexit.register(end.at_exit)  # registered first, so it runs last
    if words[0] == "-m":
        name, args = words[1], words[2:]
        sys.argv[:] = ["-m", *args]
        _set_path0(os.getcwd())
        _set_original(["-m", name, *args])
        _fresh_main()
        _guarded(lambda: runpy._run_module_as_main(name), end)  # type: ignore[attr-defined]
    script, args = words[0], words[1:]
    sys.argv[:] = [script, *args]
    _set_original([script, *args])
    main = _fresh_main()
    if os.path.isdir(script) or zipfile.is_zipfile(script):
        _set_path0(script)
        _guarded(lambda: runpy._run_module_as_main("__main__", alter_argv=False), end)  # type: ignore[attr-defined]
    _set_path0(os.path.dirname(os.path.realpath(script)))
    source, script = _read(script), os.path.abspath(script)
    main.__file__, main.__cached__ = script, None  # type: ignore[attr-defined]
    main.__loader__ = SourceFileLoader("__main__", script)

    def run() -> None:
        code = compile(source, script, "exec", dont_inherit=True)
        _execute(code, main.__dict__)

    _guarded(run, end)


def _execute(code: CodeType, namespace: dict[str, Any]) -> None:
    exec(code, namespace)  # the script itself: running it is what this program is for


def _read(script: str) -> bytes:
    try:
        with open(script, "rb") as f:
            return f.read()
    except OSError as e:
        path = os.path.abspath(script)
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {e.errno}] {e.strerror}\n")
        sys.exit(2)


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __spec__=None, __package__=None, __doc__=None)
    sys.modules["__main__"] = main
    return main


def _set_original(words: list[str]) -> None:
    sys.orig_argv[:] = [sys.orig_argv[0], "-u", *words]


def _set_path0(folder: str) -> None:
    """The first entry of sys.path is the script's folder, where Python would have put it (not under -P or -I)."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    sys.path[0:1] = [folder]


def _guarded(run: Callable[[], None], end: _End) -> NoReturn:
    """Run the script; print what escapes it as the interpreter does, without a frame of ours; then exit."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as e:  # the interpreter's own place of last resort: shown by the hook, then status 1
        e.__traceback__ = _script_frames(e.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(e), e, e.__traceback__
        end.interrupted = isinstance(e, KeyboardInterrupt)
        _show(e)
        e = None  # type: ignore[assignment]
        sys.exit(1)
    sys.exit(0)


def _script_frames(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    return tb


def _show(e: BaseException) -> None:
    """Through the script's hook; one that fails itself is shown together with the original, as Python does it."""
    try:
        sys.excepthook(type(e), e, e.__traceback__)
    except SystemExit:
        raise
    except BaseException as failed:  # whatever a hook raises ends here
        if sys.stderr is not None:
            sys.stderr.write("Error in sys.excepthook:\n")
            failed.__context__, failed.__traceback__ = None, _script_frames(failed.__traceback__)
            sys.__excepthook__(type(failed), failed, failed.__traceback__)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(type(e), e, e.__traceback__)


@dataclass
class _End:
    """How the process ends: an uncaught KeyboardInterrupt ends Python by that signal, so that a shell sees it."""

    interrupted: bool = False

    def at_exit(self) -> None:
        if self.interrupted:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
