"""Durable file operations: what is written is on the disk, under its final name, before the call returns.

Every failure of the file system becomes one `CheckpointError` that says what to do; nothing else is caught.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elastic_health.checkpoints.layout import OURS, TEMPORARY, FileEntry
from elastic_health.errors import CheckpointError

READ_BYTES = 4 * 1024 * 1024
_SAFE = "the last committed checkpoint is safe, the next save tries again"
_DO: Mapping[int, tuple[str, str]] = {
    errno.ENOSPC: ("free space in the checkpoint folder", f"free some space: {_SAFE}"),
    errno.EDQUOT: ("quota left for the checkpoint folder", f"raise the quota: {_SAFE}"),
    errno.EFBIG: ("a file size within the limit", f"raise the file size limit (ulimit -f): {_SAFE}"),
    errno.EACCES: ("a checkpoint folder that this user can write", "correct its owner or mode, or choose another folder"),
    errno.EPERM: ("a checkpoint folder that this user can write", "correct its owner or mode, or choose another folder"),
    errno.EROFS: ("a checkpoint folder on a writable file system", "mount it read-write, or choose another folder"),
    errno.EEXIST: ("a checkpoint folder", "a file has this name: choose another folder"),
    errno.ENOTDIR: ("a checkpoint folder", "a part of this path is a file: choose another folder"),
    errno.ENOENT: ("a file that was there a moment ago", "see whether something else cleans up this folder"),
    errno.EIO: ("a disk that answers", "look at this node's kernel log: the device reports errors"),
    errno.ESTALE: ("a file that was there a moment ago", "see whether the shared file system was mounted anew"),
}


def explain(error: OSError, path: str | os.PathLike[str]) -> CheckpointError:
    """One clear message for a failure of the file system."""
    expected, do = _DO.get(error.errno or 0, ("a working file system", "look at this node's kernel log and mounts"))
    return CheckpointError(expected, f"{os.fspath(error.filename or path)}: {error.strerror or error}", do)


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an `OSError` of the block into a `CheckpointError`."""
    try:
        yield
    except OSError as e:
        raise explain(e, path) from e


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make a file's content durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, raw: bytes) -> None:
    """Write a whole file so that under its name there is either nothing, or the old content, or all of `raw`."""
    part = path.with_name(path.name + TEMPORARY)
    try:
        with open(part, "wb") as f:
            f.write(raw)
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Read a file that must not be bigger than `limit_bytes`.

    Raises:
        CheckpointError: it is bigger.
    """
    with open(path, "rb") as f:
        raw = f.read(limit_bytes + 1)
    if len(raw) > limit_bytes:
        raise CheckpointError(f"at most {limit_bytes} bytes", f"{path} is bigger", "use another checkpoint")
    return raw


def measure(folder: Path, path: str) -> FileEntry:
    """Size and SHA-256 of one file, read back from the file system (releases the GIL while hashing)."""
    total, h, buffer = 0, hashlib.sha256(), bytearray(READ_BYTES)
    view = memoryview(buffer)
    with open(folder / path, "rb", buffering=0) as f:
        while n := f.readinto(buffer):
            h.update(view[:n])
            total += n
    return FileEntry(path, total, h.hexdigest())


def contents(folder: Path) -> tuple[str, ...]:
    """All files below `folder` but our own, as sorted relative paths.

    Raises:
        CheckpointError: something in it is neither a file nor a folder (a link may lead out of it).
    """
    out: list[str] = []
    todo = [folder]
    while todo:
        for entry in os.scandir(todo.pop()):
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                todo.append(path)
            elif entry.is_file(follow_symlinks=False):
                out.append(path.relative_to(folder).as_posix())
            else:
                raise CheckpointError("plain files only", f"{path} is a link or device", "write the checkpoint's files into its folder")
    return tuple(sorted(p for p in out if p not in OURS))


def wait_for_content(path: Path, raw: bytes, wait_s: float) -> bool:
    """Whether `path` shows `raw` within `wait_s`: a network file system may show another node's new file late."""
    until = time.monotonic() + wait_s
    while True:
        try:
            if path.read_bytes() == raw:
                return True
        except (FileNotFoundError, NotADirectoryError):
            pass
        if time.monotonic() >= until:
            return False
        # A network file system sends no event for what another node writes; listing the folder drops stale entries.
        time.sleep(0.05)
        if path.parent.is_dir():
            os.listdir(path.parent)
