"""The running worker's handle on its agent, for the worker API; None where there is no agent.

Set once by the bootstrap, before the script, and taken away in every forked child; a spawned one never has it.  It is made
when it is first asked for: a script that doesn't ask pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_health.worker.home_os import Home


@dataclass
class _Current:
    make: Callable[[], Home] | None = None
    home: Home | None = None


_current = _Current()


def set_home(make: Callable[[], Home] | None) -> None:
    """How this process gets its home; None: it has none (any more)."""
    _current.make, _current.home = make, None


def here() -> Home | None:
    """This process's home; None without our agent, and in any other process than the worker itself."""
    if _current.home is None and _current.make is not None:
        _current.home = _current.make()
    return _current.home
