"""The bootstrap: from the agent's variables to a watched process that runs the script.

Order: parent-death signal, recorder's variables, page, heartbeat; torch's own parts only when the script has imported
torch (in a warm process: at once), and what only the worker API needs when it asks.  Whatever only this process may use
leaves the environment, so that no child of the script takes itself for the worker; the token stays, since a teardown
finds the worker's whole tree by it.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from elastic_health import variables
from elastic_health.liveness.facts import Phase
from elastic_health.liveness.page_os import Page
from elastic_health.worker.current import set_home
from elastic_health.worker.death_os import die_with
from elastic_health.worker.watchdog_os import Watchdog

if TYPE_CHECKING:
    from elastic_health.worker.home_os import Home

RECORDER: Mapping[str, str] = MappingProxyType(
    {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_ENABLE_MONITORING": "1"}
)
"""Switched on in every worker; a value that the user set always wins."""
OLDER: Mapping[str, str] = MappingProxyType({"TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE"})
"""Older names that torch still reads (and warns about): where the user set one, the current name is left alone, since it
would win."""
_PRIVATE = (variables.PAGE, variables.LINK, variables.SERVER, variables.GO_FD, variables.PRELOAD, variables.AGENT_PID, variables.LOCAL)


def cold(before: frozenset[str]) -> None:
    """In the site hook of a fresh process, before its script.

    Args:
        before: names of modules that Python had imported by itself.
    """
    watch(os.environ)
    _make_way(before)


def warm() -> NoReturn:
    """A process that waits with its imports done, and then becomes the script."""
    die_with(_agent(os.environ))
    from elastic_health.worker.become_os import become

    words = wait_for_go(os.environ)
    watch(os.environ)
    become(words)


def wait_for_go(environ: MutableMapping[str, str]) -> list[str]:
    """Import ahead, say `ready`, and wait for the one line that makes this process a worker; exit silently at EOF."""
    for name in ("torch", "torch.distributed", *filter(None, environ.get(variables.PRELOAD, "").split(","))):
        try:
            importlib.import_module(name)
        except BaseException:  # whatever it raises: nobody waits for this process, and a cold start will show the script's own error
            os._exit(0)
    import json
    import socket

    channel = socket.socket(fileno=int(environ[variables.GO_FD]))
    try:
        channel.sendall(b"ready\n")
        line = _line(channel)
    except OSError:
        line = b""
    channel.close()
    if not line:
        os._exit(0)
    go = json.loads(line)
    environ.clear()
    environ.update(go["env"])
    os.chdir(go["cwd"])
    for fd, path in ((1, go.get("stdout")), (2, go.get("stderr"))):
        if path:
            new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            os.dup2(new, fd)
            os.close(new)
    return list(go["argv"])


def _line(channel: Any) -> bytes:
    got = b""
    while not got.endswith(b"\n"):
        more = channel.recv(65536)
        if not more:
            return b""
        got += more
    return got


def watch(environ: MutableMapping[str, str]) -> None:
    """Start everything that looks at this process; without a page (no agent) nothing is started."""
    environ.update({name: value for name, value in RECORDER.items() if name not in environ and OLDER.get(name, name) not in environ})
    told = {name: environ.pop(name, "") for name in _PRIVATE}
    path = told[variables.PAGE]
    if not path:
        return
    die_with(_agent(told))
    if not faulthandler.is_enabled():
        faulthandler.enable()
    page = Page(path)
    page.phase(Phase.SCRIPT)
    run, pid = environ.get(variables.RUN, ""), os.getpid()
    generation, local = int(environ.get(variables.GENERATION, "0")), int(told[variables.LOCAL] or environ.get("LOCAL_RANK", "0"))
    set_home(lambda: _home(page, told[variables.LINK], run, generation, local, pid))
    os.register_at_fork(after_in_child=lambda: _in_child(page))
    # The first one registered runs last: all that the script does at its end is behind it.
    atexit.register(page.phase, Phase.DONE)
    Watchdog(page, told[variables.SERVER]).start()


def _home(page: Page, path: str, run: str, generation: int, local_rank: int, pid: int) -> Home:
    from elastic_health.messages import Hello
    from elastic_health.worker.home_os import Home
    from elastic_health.worker.link_net import WorkerLink

    return Home(page, WorkerLink(path, Hello(local_rank, pid, generation)), run, generation, local_rank)


def _agent(told: Mapping[str, str]) -> int | None:
    pid = told.get(variables.AGENT_PID, "")
    return int(pid) if pid else None


def _in_child(page: Page) -> None:
    page.silence()
    set_home(None)


def _make_way(before: frozenset[str]) -> None:
    """Forget what the bootstrap has imported where the script's folder has a module of that name: the script would get
    its own one, which comes first on its path."""
    folder = _script_folder()
    if folder is None:
        return
    try:
        entries = {entry.partition(".")[0] for entry in os.listdir(folder)}
    except OSError:  # a zip file, or the script isn't there: Python will say so
        return
    for name in tuple(sys.modules):
        top = name.partition(".")[0]
        if name not in before and top in entries and top != "elastic_health":
            del sys.modules[name]


def _script_folder() -> str | None:
    """What Python will put in front of sys.path, if it will."""
    words = sys.orig_argv[2:]
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated or not words:
        return None
    if words[0] == "-m":
        return os.getcwd()
    return words[0] if os.path.isdir(words[0]) else os.path.dirname(os.path.realpath(words[0]))
