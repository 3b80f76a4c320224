"""The bootstrap: from the agent's variables to a watched process that becomes the script.

Order: parent-death signal, page, heartbeat; torch's own parts only when the script imports torch (or at once in a warm
process, which has imported it while it waited).
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from elastic_health import variables
from elastic_health.liveness.facts import Phase
from elastic_health.liveness.page_os import Page
from elastic_health.messages import Hello
from elastic_health.worker import preload
from elastic_health.worker.become_os import become
from elastic_health.worker.current import set_home
from elastic_health.worker.death_os import die_with
from elastic_health.worker.home_os import Home
from elastic_health.worker.hooks_torch import Activity, AfterImport, open_server
from elastic_health.worker.link_net import WorkerLink
from elastic_health.worker.watchdog_os import Watchdog

RECORDER: Mapping[str, str] = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
}
"""Switched on in every worker; a value that the user set always wins.  The older name of the buffer size
(TORCH_NCCL_TRACE_BUFFER_SIZE) is left alone: the torch versions that we support warn about it."""
_PRIVATE = (variables.PAGE, variables.LINK, variables.SERVER, variables.GO_FD, variables.PRELOAD)
_keep: list[Any] = []
"""What must live as long as the process: the worker server, the page."""


def main(words: Sequence[str]) -> None:
    """Entry of `python -m elastic_health.worker`: `--warm`, or `[-m] script args…`."""
    die_with(os.getppid())
    warm = list(words) == ["--warm"]
    if warm:
        words = wait_for_go(os.environ)
    elif not words:
        sys.exit("expected [-m] script and its arguments; found none; this module is started by the agent")
    watch(os.environ, warm)
    become(words)


def wait_for_go(environ: MutableMapping[str, str]) -> list[str]:
    """Import ahead, say `ready`, and wait for the one line that makes this process a worker; exit silently at EOF."""
    for name in ("torch", "torch.distributed", *filter(None, environ.get(variables.PRELOAD, "").split(","))):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.exit(0)  # a cold start will show the script's own error
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


def _line(channel: socket.socket) -> bytes:
    got = b""
    while not got.endswith(b"\n"):
        more = channel.recv(65536)
        if not more:
            return b""
        got += more
    return got


def watch(environ: MutableMapping[str, str], warm: bool) -> None:
    """Start everything that looks at this process; without a page (no agent) nothing is started."""
    for name, value in RECORDER.items():
        environ.setdefault(name, value)
    if not faulthandler.is_enabled():
        faulthandler.enable()
    path, server = environ.get(variables.PAGE), environ.get(variables.SERVER, "")
    link, token_env = environ.get(variables.LINK, ""), {k: environ[k] for k in _PRIVATE if k in environ}
    for name in token_env:
        del environ[name]
    if not path:
        return
    page, activity = Page(path), Activity()
    page.phase(Phase.SCRIPT)
    dog = Watchdog(page, activity)
    generation, local = int(environ.get(variables.GENERATION, "0")), int(environ.get("LOCAL_RANK", "0"))
    set_home(Home(page, WorkerLink(link, Hello(local, os.getpid(), generation)), environ.get(variables.RUN, ""), generation, local))
    at_start = dict(environ)

    def torch_is_here() -> None:
        if not warm:
            dog.warmable = int(preload.warmable(at_start, environ))
        activity.install()
        _keep.append(open_server(server))

    if warm:
        torch_is_here()
    elif "torch" in sys.modules:  # imported by a site hook, before any script could set anything
        torch_is_here()
    else:
        AfterImport("torch", torch_is_here).install()
    dog.start(lambda: preload.mask(sys.modules))
