"""Watches what the script imports, without standing in its way: a finder that never finds anything.

Law: no module is imported, delayed, wrapped or changed, and no frame of ours is on the stack while one is executed (so
a failing import shows the script's own traceback).  Whether an import has ended is looked up from another thread.
"""

from __future__ import annotations

import importlib.machinery
import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType

from elastic_health.worker.preload import MODULES, NEEDED_BY_TORCH, Hindrance, Moment, hindrance, mask

_KEPT_BY_TORCH = NEEDED_BY_TORCH | sys.stdlib_module_names


class Imports:
    """From `install` on.

    Args:
        on_import: called on the importing thread when the import of a heavy module begins; must be quick.
    """

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import
        self._start = self._at_torch = Moment({})
        self._shadowing: frozenset[str] = frozenset()
        self._tainted: set[str] = set()
        self._begun: set[str] = set()
        self._warmable = -1
        self.why: Hindrance | None = None

    def install(self) -> None:
        """Begin, right before the script."""
        self._start = moment()
        sys.meta_path.insert(0, self)

    # ---- the finder protocol, on the importing thread
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name in MODULES and name not in self._begun:
            self._begin(name)
        return None

    def _begin(self, name: str) -> None:
        outermost = not any(_initializing(other) for other in self._begun)
        self._begun.add(name)
        if name == "torch":
            self._at_torch = moment()
            self._shadowing = _shadowing([p for p in self._at_torch.path if p not in self._start.path])
        elif outermost and dict(os.environ) != self._start.environ:
            self._tainted.add(name)
        self._on_import()

    # ---- from the heartbeat thread
    @property
    def pending(self) -> bool:
        """The import of a heavy module goes on."""
        return any(_initializing(name) for name in self._begun)

    def imported(self, name: str) -> bool:
        return sys.modules.get(name) is not None and not _initializing(name)

    @property
    def modules(self) -> int:
        """Bits of `MODULES`: imported by the script, and nothing forbids importing it earlier."""
        return mask(name for name in MODULES if name not in self._tainted and self.imported(name))

    @property
    def warmable(self) -> int:
        """1: a process that has imported torch before may take this script over; 0: no (`why`); -1: not known yet."""
        if self._warmable < 0 and self.imported("torch"):
            seen = tuple(sys.modules)
            self.why = hindrance(self._start, self._at_torch, self._shadowing, seen) if "torch" in self._begun else None
            self._warmable = int(self.why is None)
        return self._warmable


def moment() -> Moment:
    """Now."""
    return Moment(
        environ=dict(os.environ),
        # numpy, itself one of torch's imports, adds filters for its own warnings.
        filters=tuple(f for f in warnings.filters if "numpy" not in (getattr(f[1], "pattern", "")[:5], f[2].__module__[:5])),
        finders=tuple(id(f) for f in (*sys.meta_path, *sys.path_hooks) if not isinstance(f, Imports)),
        hidden=frozenset(name for name, module in tuple(sys.modules.items()) if module is None),
        native=_native(),
        affinity=frozenset(os.sched_getaffinity(0)),
        loggers=id(logging.getLoggerClass()),
        path=tuple(sys.path),
    )


def _native() -> frozenset[str]:
    """Extension modules that don't come with Python."""
    own = sysconfig.get_config_var("DESTSHARED") or ""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    found = ((name, getattr(module, "__file__", None)) for name, module in tuple(sys.modules.items()))
    return frozenset(
        name for name, file in found if isinstance(file, str) and file.endswith(suffixes) and not (own and file.startswith(own))
    )


def _shadowing(folders: Sequence[str]) -> frozenset[str]:
    """Names in these folders that would be taken for modules that importing torch needs."""
    found: set[str] = set()
    for folder in folders:
        try:
            found.update(entry.partition(".")[0] for entry in os.listdir(folder or "."))
        except OSError:  # a zip file or a folder that isn't there: its names are not known, so all may be in it
            found.update(NEEDED_BY_TORCH if os.path.exists(folder) else ())
    return frozenset(found & _KEPT_BY_TORCH)


def _initializing(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))
