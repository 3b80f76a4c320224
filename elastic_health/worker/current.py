"""The running worker's handle on its agent, for the worker API; None where there is no agent.

Set once by the bootstrap, before the script; a forked or spawned child of the script never has one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_health.worker.home_os import Home

_home: Home | None = None


def set_home(home: Home | None) -> None:
    global _home
    _home = home


def here() -> Home | None:
    """This process's home; None without our agent, and in any other process than the worker itself."""
    return _home if _home is not None and _home.pid == os.getpid() else None
