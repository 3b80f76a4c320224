"""The running worker's handle on its agent, for the worker API; None where there is no agent.

Set once by the bootstrap, before the script, and taken away in every forked child; a spawned one never has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_health.worker.home_os import Home


@dataclass
class _Current:
    home: Home | None = None


_current = _Current()


def set_home(home: Home | None) -> None:
    _current.home = home


def here() -> Home | None:
    """This process's home; None without our agent, and in any other process than the worker itself."""
    return _current.home
