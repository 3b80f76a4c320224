"""What starts in a worker once the *script* has imported torch: the worker server and the optimizer count.

The bootstrap imports nothing of torch by itself, since a script may set variables first that torch reads while it is
imported; a finder in front of `sys.meta_path` waits for that import instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Activity:
    """Counts optimizer steps of this process: also those that `found_inf` skipped, and each optimizer of a GAN."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        return self.count

    def install(self) -> None:
        """Hook every optimizer there will be."""
        register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        if register is not None:
            register(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.count += 1


def open_server(path: str) -> Any:
    """Start torch's worker server (a C++ thread on a Unix socket); keep the result as long as it shall serve.

    Returns None where this torch has none.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    server = getattr(c10d, "_WorkerServer", None)
    if server is None or not path:
        return None
    with _quiet():  # it would announce itself on the script's stderr
        opened = server(path, -1)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened))  # never destroyed: that, too, would be announced
    return opened


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What is written to descriptor 2 for the moment goes nowhere."""
    sys.stderr.flush() if sys.stderr is not None else None
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class AfterImport:
    """Calls `then` once, right after the import of module `name` has succeeded; invisible otherwise."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def install(self) -> None:
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)  # type: ignore[assignment]
        return spec


class _Loader:
    """Stands in for a module's loader during its import only."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader, self._after = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after()
