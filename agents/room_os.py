"""The agent's private room on its node: sockets in a short folder, progress pages in shared memory; gone when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
from pathlib import Path

from elastic_health.liveness.page_os import Page

PREFIX, LOCK = "eh-room-", "in-use"
NEW_S = 60.0
_SOCKET_LIMIT = 100
"""A Unix socket's path ends at 107 bytes."""


class Room:
    """Two folders, mode 0700: `path` for sockets, `shared` for pages."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        if len(base) > _SOCKET_LIMIT - 40 or not os.access(base, os.W_OK):
            base = "/tmp"
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else base
        for folder in {base, memory}:
            sweep(folder)
        self.path, self._lock = _own(base)
        self.shared, self._shared_lock = _own(memory)
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
        for folder, lock in ((self.path, self._lock), (self.shared, self._shared_lock)):
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)

    @staticmethod
    def evidence(configured: str, log_dir: str) -> str:
        """Where incident folders go: as configured, else below torchrun's log folder, else the temporary folder."""
        folder = configured or (f"{log_dir}/elastic-health" if log_dir else f"{tempfile.gettempdir()}/elastic-health")
        return str(Path(folder))


def _own(base: str) -> tuple[str, int]:
    """A new folder and the lock in it that says, while this process lives, that it is in use."""
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=base)
    lock = os.open(f"{folder}/{LOCK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def sweep(base: str) -> int:
    """Remove what agents left that were killed together with their guardians; returns how many folders went.

    Only our own user's folders whose lock nobody holds, and none that is just being made.
    """
    gone = 0
    for folder in glob.glob(f"{base}/{PREFIX}*"):
        try:
            if os.stat(folder, follow_symlinks=False).st_uid != os.getuid() or time.time() - os.stat(folder).st_mtime < NEW_S:
                continue
            lock = os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            gone += 1
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    return gone


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
