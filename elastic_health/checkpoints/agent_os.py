"""What an agent does with a checkpoint on disk: look, mark, set aside, delete.  It decides nothing.

Law: the marker is renamed into place only over a manifest whose hash and whose every file's size were looked at, and
nothing that lies outside a checkpoint's folder is ever removed.  Plain blocking functions: call them from a thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_health.checkpoints.files_os import explained, measure, read_bounded, sync_folder, write_durably
from elastic_health.checkpoints.layout import (
    DELETING,
    MANIFEST,
    MARKER,
    MAX_MANIFEST_BYTES,
    NONCE,
    OURS,
    FileEntry,
    Manifest,
    aside_name,
    decode_manifest,
    decode_marker,
    digest,
    encode,
    inside,
    marker_of,
    newest_first,
    parse_folder,
    run_of_nonce,
)
from elastic_health.errors import CheckpointError, CheckpointFolderError
from elastic_health.generations import checkpoint_name

SHOWN = 20
"""How many wrong files a report names."""
LOST = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO})
"""Errors that mean that a checkpoint's bytes are gone; all others (no permission, stale handle …) speak of the mount."""


@dataclass(frozen=True)
class Probe:
    """A folder that can be written; `free_bytes` as a user without privileges sees it."""

    path: Path
    free_bytes: int


def probe_folder(path: str | os.PathLike[str]) -> Probe:
    """Make the folder if need be, and prove that a file can be written, renamed and removed in it.

    Raises:
        CheckpointFolderError: it can't; the message says why and what to do.
    """
    folder = Path(os.path.abspath(path))
    try:
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            trial = folder / f".probe-{os.getpid()}-{secrets.token_hex(4)}"
            try:
                write_durably(trial, b"probe")
            finally:
                trial.unlink(missing_ok=True)
            room = os.statvfs(folder)
    except CheckpointError as e:
        raise CheckpointFolderError(e.expected, e.found, e.do) from e
    return Probe(folder, room.f_bavail * room.f_frsize)


def verify_files(folder: str, nonce: str, files: Sequence[tuple[str, int, str]], hashes: bool = False) -> tuple[str, ...]:
    """What is not as a worker says: the nonce, or a file's presence or size (with `hashes`: its SHA-256 too).

    Sizes find what a full disk or a dead client leaves; the hashes are checked before a restore loads anything.
    """
    root = Path(folder)
    if not root.is_absolute() or not root.is_dir():
        return (f"{folder}: not a folder on this node",)
    wrong = []
    if _nonce(root) != nonce:
        wrong.append(f"{NONCE}: not what rank 0 wrote: this node sees another folder under this path")
    for path, size, sha256 in files:
        try:
            why = _wrong(root, FileEntry(path, size, sha256), hashes)
        except OSError as e:
            why = e.strerror or str(e)
        if why:
            wrong.append(f"{path}: {why}")
    return tuple(wrong[:SHOWN])


def _nonce(root: Path) -> str | None:
    try:
        return read_bounded(root / NONCE, 4096).decode(errors="replace")
    except (OSError, CheckpointError):
        return None


def owner_of(folder: str | os.PathLike[str]) -> str | None:
    """The run that began a checkpoint here ("": one without an agent), None if there is no nonce."""
    nonce = _nonce(Path(folder))
    return None if nonce is None else run_of_nonce(nonce)


def orphans(root: Path, run: str, generation: int, known: Collection[str]) -> tuple[Path, ...]:
    """Folders of `run` from generations before `generation` that no record names (`known`: record names).

    An interrupted save left them, or a commit that was fenced out: nothing will ever restore them.
    """
    if not root.is_dir():
        return ()
    ours = [(at, root / n) for n in os.listdir(root) if (at := parse_folder(n)) is not None]
    return tuple(sorted(p for (step, g), p in ours if g < generation and checkpoint_name(step, g) not in known and owner_of(p) == run))


def _wrong(root: Path, want: FileEntry, hashes: bool) -> str:
    if not inside(want.path):
        return "leaves the folder"
    try:
        size = (root / want.path).stat().st_size
        if size != want.size:
            return f"{size} bytes instead of {want.size}"
        if hashes and measure(root, want.path).sha256 != want.sha256:
            return "other content than its SHA-256 says"
    except OSError as e:
        if e.errno not in LOST:
            raise
        return e.strerror or str(e)
    return ""


def wrong_files(root: Path, files: Sequence[FileEntry]) -> tuple[str, ...]:
    """Which of `files` are missing, have another size or other content, as `path: why`.

    Raises:
        OSError: the file system does not answer as it should; that says nothing about the checkpoint.
    """
    found = ((f.path, _wrong(root, f, hashes=True)) for f in files)
    return tuple(f"{path}: {why}" for path, why in found if why)[:SHOWN]


def read_manifest(folder: str | os.PathLike[str], sha256: str) -> Manifest:
    """The manifest, after its hash was found to be `sha256`.

    Raises:
        CheckpointError: it is missing, or another one.
    """
    path = Path(folder) / MANIFEST
    with explained(path):
        raw = read_bounded(path, MAX_MANIFEST_BYTES)
    if digest(raw) != sha256:
        found = f"{path} has SHA-256 {digest(raw)[:12]}…, not {sha256[:12]}…"
        raise CheckpointError("the manifest that was committed", found, "use another checkpoint")
    return decode_manifest(raw, str(path))


def check_manifest(folder: str, sha256: str) -> tuple[str, ...]:
    """What is wrong with a folder that is about to be committed: manifest hash, nonce, every file's size; empty if nothing."""
    try:
        manifest = read_manifest(folder, sha256)
    except CheckpointError as e:
        return (e.found,)
    if not manifest.files:
        return (f"{MANIFEST}: lists no file",)
    return verify_files(folder, manifest.nonce, [(f.path, f.size, f.sha256) for f in manifest.files])


def prepare_commit(folder: str, sha256: str) -> tuple[str, ...]:
    """All that an agent does on disk before the transaction that commits: look at everything, then rename the marker.

    Returns:
        What is wrong, empty if the record may be written now.  Nothing is marked if anything is wrong.
    """
    wrong = check_manifest(folder, sha256)
    if wrong:
        return wrong
    try:
        rename_marker(folder, sha256)
    except CheckpointError as e:
        return (e.found,)
    return ()


def rename_marker(folder: str, sha256: str) -> Manifest:
    """Put the marker in place over the manifest with this hash.  Doing it again changes nothing.

    Raises:
        CheckpointError: the manifest is another one, or the disk refused.
    """
    manifest = read_manifest(folder, sha256)
    root = Path(folder)
    with explained(root):
        write_durably(root / MARKER, encode(marker_of(manifest, (root / MANIFEST).read_bytes())))
        sync_folder(root.parent)
    return manifest


def complete(folder: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a folder whose marker is in place and fits it, else None (files not looked at)."""
    root = Path(folder)
    try:
        marker = decode_marker(read_bounded(root / MARKER, 65536), str(root / MARKER))
        return read_manifest(root, marker.manifest)
    except (OSError, CheckpointError):
        return None


def complete_folders(root: Path) -> tuple[str, ...]:
    """Names of the complete checkpoints in `root`, newest first."""
    if not root.is_dir():
        return ()
    return tuple(n for n in newest_first(os.listdir(root)) if complete(root / n) is not None)


def set_aside(folder: str | os.PathLike[str], why: str = "torn") -> Path | None:
    """Rename to `<folder>.<why>-<n>`, so that no one restores it and people can look at it; None if it is gone already.

    Raises:
        CheckpointError: the disk refused.
    """
    path = Path(folder)
    with explained(path):
        if not path.is_dir():
            return None
        aside = path.with_name(aside_name(path.name, why, os.listdir(path.parent)))
        path.rename(aside)
        sync_folder(path.parent)
        return aside


def delete(folder: str | os.PathLike[str]) -> None:
    """Delete a checkpoint: rename first, so that no one can begin to read it.  Doing it again goes on where it stopped.

    A folder whose name is not one of ours was chosen by the user: only the files that its manifest lists go, and the
    folder itself only if nothing else is in it.

    Raises:
        CheckpointError: the disk refused.
    """
    path = Path(folder)
    with explained(path):
        if parse_folder(path.name) is None:
            _delete_listed(path)
            return
        dying = path.with_name(path.name + DELETING)
        if path.is_dir():
            if dying.exists():
                shutil.rmtree(dying)
            path.rename(dying)
            sync_folder(path.parent)
        if dying.is_dir():
            shutil.rmtree(dying)


def _delete_listed(root: Path) -> None:
    (root / MARKER).unlink(missing_ok=True)
    try:
        raw = read_bounded(root / MANIFEST, MAX_MANIFEST_BYTES)
        listed = [f.path for f in decode_manifest(raw, str(root / MANIFEST)).files]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in (*listed, *sorted(OURS - {MANIFEST}), MANIFEST):
        (root / name).unlink(missing_ok=True)
    for folder in sorted({(root / p).parent for p in listed} | {root}, key=lambda p: -len(p.parts)):
        if folder.is_dir() and not os.listdir(folder):
            folder.rmdir()
