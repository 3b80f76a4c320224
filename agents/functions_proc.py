"""The wrapper that a *function* starts through in its worker process (`elastic_launch(config, function)`).

It does there what `Popen` and the bootstrap do for a script: a session of its own, death with the agent, stderr on the
agent's tap, page, watchdog and worker server.  It must stay picklable, and it runs after torch has set the worker's
environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from elastic_health import variables
from elastic_health.worker.boot_os import watch


class FunctionWorker:
    """A callable that becomes `function` in the worker.

    Args:
        function: the user's function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__qualname__ = getattr(function, "__qualname__", repr(function))
        self.__name__ = getattr(function, "__name__", repr(function))

    def __call__(self, *args: Any) -> Any:
        own_session()
        die_with_agent()
        path = os.environ.pop(variables.STDERR_TAP, "")
        if path:
            onto_tap(path)
        # A fork server's children have it for their parent, not the agent; the death signal is set already.
        os.environ.pop(variables.AGENT_PID, None)
        watch(os.environ)
        return self.function(*args)


def own_session() -> None:
    """Leave the agent's session, as a program started by `Popen` does."""
    if os.getsid(0) != os.getpid():
        if os.getpgid(0) == os.getpid():
            return  # a group leader can't leave; its group is signalled anyway
        os.setsid()


def die_with_agent() -> None:
    """SIGKILL when the agent's starting thread has ended; torch asks for SIGINT, which native code can put off."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def onto_tap(path: str) -> None:
    """Make the tap at `path` this process's stderr.  Without the agent there is no tap: keep what we have."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return
    sys.stderr.flush()
    os.dup2(fd, 2)
    os.close(fd)
