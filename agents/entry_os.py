"""Is what the workers shall run there at all?  Looked at before this node joins, so that a typing error costs no restart.

Law: only what is certainly missing is refused; nothing of the user's is imported or executed to find out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

from elastic_health.errors import ConfigError


def check_entry(entrypoint: object, args: Sequence[object]) -> None:
    """As torchrun passes them: a Python interpreter with `-u [-m] NAME …`, a program, or a function.

    Raises:
        ConfigError: script, module or program does not exist on this node.
    """
    words = [str(a) for a in args]
    if not isinstance(entrypoint, str):
        if getattr(entrypoint, "__name__", "") == "run_script_path" and words:
            _script(words[0])
    elif words[:2] == ["-u", "-m"] and len(words) > 2:
        if entrypoint == sys.executable:
            _module(words[2])
    elif words[:1] == ["-u"] and len(words) > 1:
        _script(words[1])
    else:
        _program(entrypoint)


def _script(path: str) -> None:
    # "-" is standard input, "-c" code; a macro becomes a path only in the worker.
    if path.startswith("-") or "${" in path:
        return
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        raise ConfigError("a script to run", f"the folder {path}, without a __main__.py", "name the script itself")
    if not os.path.exists(path):
        raise ConfigError("a script to run", f"nothing at {path} (seen from {os.getcwd()})", "correct the path; it must exist on every node")  # noqa: E501


def _module(name: str) -> None:
    top = name.partition(".")[0]
    if PathFinder.find_spec(top, [os.getcwd()]) is None and importlib.util.find_spec(top) is None:
        raise ConfigError("a module to run with -m", f"no {name} here", "install it on every node, or start torchrun in its parent folder")


def _program(name: str) -> None:
    if "${" not in name and shutil.which(name) is None:
        raise ConfigError("a program to run with --no-python", f"no executable {name}", "correct its path, or make it executable")
