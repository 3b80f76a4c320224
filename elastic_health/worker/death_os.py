"""Dying with the agent: the parent-death signal, set in the child itself (a hook before exec could deadlock)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int | None) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: pid of the agent, if it told it: exit at once if it ended before the signal was set.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
