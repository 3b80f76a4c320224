"""The agent's private room on its node: sockets in a short folder, progress pages in shared memory; gone when it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from elastic_health.liveness.page_os import Page

_SOCKET_LIMIT = 100
"""A Unix socket's path ends at 107 bytes."""


class Room:
    """Two folders, mode 0700: `path` for sockets, `shared` for pages."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        if len(base) > _SOCKET_LIMIT - 40 or not os.access(base, os.W_OK):
            base = "/tmp"
        self.path = tempfile.mkdtemp(prefix="eh-", dir=base)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else base
        self.shared = tempfile.mkdtemp(prefix="eh-", dir=memory)
        self._pages: list[Page] = []

    @property
    def link(self) -> str:
        return f"{self.path}/link"

    def server(self, generation: int, local_rank: int) -> str:
        return f"{self.path}/s{generation}.{local_rank}"

    def pages(self, generation: int, nproc: int) -> list[Page]:
        """Fresh pages for a generation's workers; the ones before are closed and removed."""
        self.close_pages()
        self._pages = [Page.create(f"{self.shared}/g{generation}.{i}") for i in range(nproc)]
        return self._pages

    def close_pages(self) -> None:
        for page in self._pages:
            page.close()
            with contextlib.suppress(OSError):
                os.unlink(page.path)
        self._pages = []

    def close(self) -> None:
        """Remove both folders."""
        self.close_pages()
        for folder in (self.path, self.shared):
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def evidence(configured: str, log_dir: str) -> str:
        """Where incident folders go: as configured, else below torchrun's log folder, else the temporary folder."""
        folder = configured or (f"{log_dir}/elastic-health" if log_dir else f"{tempfile.gettempdir()}/elastic-health")
        return str(Path(folder))


def prune_evidence(folder: str, keep: int = 100) -> int:
    """Remove the oldest incident folders beyond the newest `keep`; returns how many went."""
    try:
        found = sorted((e for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)), key=lambda e: e.stat().st_mtime)
    except OSError:
        return 0
    old = found[: max(0, len(found) - keep)]
    for entry in old:
        shutil.rmtree(entry.path, ignore_errors=True)
    return len(old)
