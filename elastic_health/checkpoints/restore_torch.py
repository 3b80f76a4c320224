"""Restoring one checkpoint: prove every byte first, load then.

Law: nothing of a folder is interpreted before its manifest has the expected hash and its files have theirs.  DCP's
`.metadata` is a pickle, and a pickle runs what it holds; each rank reads it, so each rank proves it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from elastic_health.checkpoints.agent_os import LOST, read_manifest, wrong_files
from elastic_health.checkpoints.files_os import read_bounded, write_durably
from elastic_health.checkpoints.group_torch import Group, alone_is_meant
from elastic_health.checkpoints.layout import DCP_METADATA, LOADING, MARKER, Manifest, decode_marker, shares
from elastic_health.errors import CheckpointError

MAX_TRIES = 3
"""Loads of one checkpoint that may end in a crash before it counts as unusable."""
PLANNING = "plan"
"""The step in which torch compares keys and shapes with the checkpoint, before it reads any data."""


class State(Protocol):
    """What is saved and restored: nested dicts of tensors and picklable values.

    A state with parts that belong to one rank alone (random states) may also have `to_save()`, which is saved then, and
    `to_load(world)`, the form to load what `world` ranks saved; without them both are `state_dict()`.
    """

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state_dict: dict[str, object]) -> object: ...


@dataclass(frozen=True)
class Restored:
    """Where training goes on: completed steps, and the global sample position.

    `folder` is the checkpoint that was restored, None at the very beginning.
    """

    step: int
    position: int
    folder: Path | None = None


class Torn(CheckpointError):
    """Not what its manifest says: only for use inside, all ranks get it alike."""


def prove(group: Group, folder: Path, sha256: str) -> Manifest:
    """Check marker, manifest and all files; the files are shared out, so that each byte is read once.  Collective.

    Args:
        sha256: the manifest's expected hash; "" takes the marker's word for it.

    Raises:
        Torn: bytes are missing or wrong, on all ranks alike.
        CheckpointError: a file system does not answer as it should, on all ranks alike.
    """

    def look() -> Manifest | str:
        try:
            return _proven(folder, sha256, group.rank, group.world)
        except OSError as e:
            if e.errno not in LOST:
                raise
            return f"{e.filename or folder}: {e.strerror}"
        except CheckpointError as e:
            cause = e.__cause__
            if isinstance(cause, OSError) and cause.errno not in LOST:
                raise
            return e.found

    seen = group.together(look)
    torn = [(rank, s) for rank, s in enumerate(seen) if isinstance(s, str)]
    if torn:
        raise Torn("a checkpoint as its manifest says", f"on rank {torn[0][0]}: {torn[0][1]}", "another checkpoint is used")
    mine = seen[group.rank]
    assert isinstance(mine, Manifest)
    return mine


def _proven(folder: Path, sha256: str, rank: int, world: int) -> Manifest:
    marker = decode_marker(read_bounded(folder / MARKER, 65536), str(folder / MARKER))
    manifest = read_manifest(folder, sha256 or marker.manifest)
    mine = {f.path for f in shares(manifest.files, world)[rank]} | {DCP_METADATA}
    wrong = wrong_files(folder, [f for f in manifest.files if f.path in mine])
    if wrong:
        raise CheckpointError("files as the manifest lists them", f"{folder}: {'; '.join(wrong)}", "another checkpoint is used")
    return manifest


def to_save(state: State) -> dict[str, Any]:
    """What this rank saves."""
    made: dict[str, Any] = getattr(state, "to_save", state.state_dict)()
    return made


def load_state(group: Group, folder: Path, state: State, world: int) -> None:
    """Load a proven DCP folder into `state`, which `world` ranks wrote.  Collective.

    Raises:
        Torn: it crashed `MAX_TRIES` times while loading.
        CheckpointError: it does not fit `state`: on all ranks alike.
    """
    tries = group.first(lambda: _count_try(folder))
    if tries > MAX_TRIES:
        raise Torn("a checkpoint that loads", f"{folder}: {tries - 1} loads of it did not end", "another checkpoint is used")
    form = getattr(state, "to_load", None)
    target = form(world) if form is not None else state.state_dict()
    try:
        with alone_is_meant():
            load(target, storage_reader=FileSystemReader(folder), process_group=group.pg, no_dist=group.pg is None)
        group.together(lambda: _take(folder, state, target))
    except CheckpointException as e:
        rank, (cause, _) = min(e.failures.items())
        found = f"on rank {rank}: {type(cause).__name__}: {cause}"
        if e.args[0] != PLANNING:
            # Proven bytes that can't be read: written wrong.  The tries stay counted, so that it is left behind in the end.
            raise CheckpointError(f"{folder} to load", found, f"after {MAX_TRIES} such tries the checkpoint before it is used") from e
        group.first(lambda: _forget_tries(folder))
        raise _unfit(folder, found) from e
    except CheckpointError:
        group.first(lambda: _forget_tries(folder))
        raise
    group.first(lambda: _forget_tries(folder))


def _take(folder: Path, state: State, target: dict[str, object]) -> None:
    try:
        state.load_state_dict(target)
    except (RuntimeError, ValueError, KeyError, TypeError) as e:  # what torch raises for a state that does not fit
        raise _unfit(folder, f"{type(e).__name__}: {e}") from e


def _unfit(folder: Path, found: str) -> CheckpointError:
    # Not the checkpoint's fault, and older ones would fit no better: none is given up for it.
    return CheckpointError(f"a model and optimizer that fit {folder}", found, "use the code that wrote it, or another checkpoint folder")


def _count_try(folder: Path) -> int:
    """Write down that a load begins: a load that kills the process can say nothing afterwards."""
    path = folder / LOADING
    try:
        tries = int(json.loads(read_bounded(path, 4096))["tries"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        tries = 0
    try:
        write_durably(path, json.dumps({"tries": tries + 1}).encode())
    except OSError:  # a folder that can only be read, or a full disk: restoring matters more than counting
        return 1
    return tries + 1


def _forget_tries(folder: Path) -> None:
    try:
        (folder / LOADING).unlink(missing_ok=True)
    except OSError:
        return
