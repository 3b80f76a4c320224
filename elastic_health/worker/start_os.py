"""From the agent's command to the script's own: `python -u [-m] script args…`, with a hook that Python's `site` runs.

Law: the interpreter runs the script by its own means, so that everything about it is stock: `__main__`, tracebacks,
frames, exit, children.  The hook is found through PYTHONPATH, which is put back before the script's first line.

Imports as little as possible: this is the first of two interpreter starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from elastic_health import variables

HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site_hook")


def hooked(environ: Mapping[str, str], pid: int | None = None) -> dict[str, str]:
    """The environment in which `python -u [-m] script args…` is a worker.

    Args:
        pid: of the process that shall run the hook; None: the first one that comes to it.
    """
    env = {**environ, variables.HOOKED: "any" if pid is None else str(pid)}
    own = environ.get("PYTHONPATH")
    if own is not None:
        env[variables.PYTHONPATH] = own
    env["PYTHONPATH"] = HOOK + (os.pathsep + own if own else "")
    return env


def start(words: Sequence[str]) -> NoReturn:
    """Become `[-m] script args…` under this interpreter; ends as that ends."""
    if not words:
        sys.exit("expected [-m] script and its arguments; found none; this module is started by the agent")
    name = sys.orig_argv[0] if sys.orig_argv else sys.executable
    os.execve(sys.executable, [name, "-u", *words], hooked(os.environ, os.getpid()))
