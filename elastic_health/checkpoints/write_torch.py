"""The commit of one checkpoint: folder, nonce, shards, manifest, marker, record, in this order and on all ranks.

Law: every step leaves either nothing that a restore would take, or the whole checkpoint.  A failure before the agent is
asked removes the folder; a failure after that leaves it alone, since its record may have landed.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from elastic_health.checkpoints.agent_os import complete, delete, owner_of, rename_marker, set_aside
from elastic_health.checkpoints.files_os import (
    contents,
    explain,
    measure,
    read_bounded,
    sync_file,
    sync_folder,
    wait_for_content,
    write_durably,
)
from elastic_health.checkpoints.group_torch import Group, alone_is_meant
from elastic_health.checkpoints.home import Home
from elastic_health.checkpoints.layout import (
    DCP_METADATA,
    FORMAT,
    MANIFEST,
    MARKER,
    NONCE,
    FileEntry,
    Manifest,
    digest,
    encode,
    folder_name,
    new_nonce,
    shares,
)
from elastic_health.errors import CheckpointError, CheckpointFolderError
from elastic_health.generations import checkpoint_name
from elastic_health.messages import AskCommit, AskVerify, CommitReply

log = logging.getLogger("elastic_health.checkpoints")
SHARED_WAIT_S = 10.0
"""How long a new file may take to show on another node of a network file system (NFS caches names for seconds)."""


class CommitStep(Enum):
    """The boundaries of a commit, in order; each is passed when its part is durable."""

    FOLDER = "folder"
    NONCE = "nonce"
    SHARDS = "shards"
    VERIFIED = "verified"
    MANIFEST = "manifest"
    COMMITTED = "committed"


Observer = Callable[[CommitStep], None]


@dataclass(frozen=True)
class Place:
    """Where and when a checkpoint is written.  `form`: `dcp` or `files`; `parent`: name of the one before it."""

    folder: Path
    run: str
    generation: int
    step: int
    position: int
    parent: str | None
    form: str = "dcp"
    keep: int = 0

    @property
    def name(self) -> str:
        return checkpoint_name(self.step, self.generation)


@dataclass(frozen=True)
class Outcome:
    """How a save ended.  Not `committed` and not `known`: the agent's answer was lost, its record may exist.

    `waits`: all files are there and the agent has the commit, which it makes when the store answers again.
    """

    committed: bool
    name: str
    reason: str = ""
    known: bool = True
    waits: bool = False


def place_of(root: Path, run: str, generation: int, step: int, position: int, parent: str | None, keep: int = 0) -> Place:
    """The place of a checkpoint in our own layout."""
    return Place(root / folder_name(step, generation), run, generation, step, position, parent, "dcp", keep)


def commit_state(group: Group, home: Home | None, place: Place, state: dict[str, Any], observe: Observer) -> Outcome:
    """Write `state` as sharded files and commit them.  Collective; never raises for what a disk or an agent does.

    Args:
        state: as `torch.distributed.checkpoint.save` takes it (nested dicts, tensors, picklable values).
    """

    def write(nonce: str) -> tuple[str, ...]:
        _save_shards(group, place.folder, state)
        prefix = f"__{group.rank}_"
        own = [p for p in contents(place.folder) if p.startswith(prefix) and p.endswith(".distcp")]
        return (*own, DCP_METADATA) if group.rank == 0 else tuple(own)

    return _commit(group, home, place, write, observe)


def commit_files(group: Group, home: Home | None, place: Place, observe: Observer) -> Outcome:
    """Commit a folder whose files the user has written, in any format.  Collective; as `commit_state`."""

    def share(nonce: str) -> tuple[str, ...]:
        group.gather(None)  # every rank has written its files
        sizes = group.first(lambda: [(p, (place.folder / p).stat().st_size) for p in contents(place.folder)])
        return tuple(f.path for f in shares([FileEntry(p, n, "") for p, n in sizes], group.world)[group.rank])

    return _commit(group, home, place, share, observe)


def _commit(group: Group, home: Home | None, place: Place, write: Callable[[str], tuple[str, ...]], observe: Observer) -> Outcome:
    try:
        nonce = group.first(lambda: _open_folder(home, place, observe))
        check_shared(group, place.folder / NONCE, nonce.encode())
        observe(CommitStep.NONCE)
        own = write(nonce)
        observe(CommitStep.SHARDS)
        manifest = _verified(group, home, place, nonce, own)
        observe(CommitStep.VERIFIED)
        sha256 = group.first(lambda: _write_manifest(place, manifest))
        observe(CommitStep.MANIFEST)
    except CheckpointError as e:
        _clean_up(group, place)
        return Outcome(False, place.name, str(e))
    try:
        reply = group.first(lambda: _ask(home, place, group.world, sha256))
    except CheckpointError as e:
        if home is None:
            _clean_up(group, place)
        return Outcome(False, place.name, str(e), known=home is None)
    if not reply.waits:
        observe(CommitStep.COMMITTED)
    return Outcome(reply.committed, place.name, reply.reason, waits=reply.waits)


def _open_folder(home: Home | None, place: Place, observe: Observer) -> str:
    """Rank 0: make the folder anew and write the nonce."""
    folder = place.folder
    if place.form == "dcp":
        _make_way(home, place)
        folder.mkdir(parents=True)
        sync_folder(folder.parent)
    elif (folder / MARKER).exists() and complete(folder) is not None:
        raise CheckpointError("a folder that is not committed yet", f"{folder} holds {MARKER}", "give each checkpoint a folder of its own")
    observe(CommitStep.FOLDER)
    nonce = new_nonce(place.run, secrets.token_hex(16))
    write_durably(folder / NONCE, nonce.encode())
    return nonce


def _make_way(home: Home | None, place: Place) -> None:
    """Remove what an interrupted save of ours left under this name."""
    folder = place.folder
    if not folder.exists():
        return
    # Under an agent a marked folder may have a record, and one of another run may be in use: never touch them.
    owner = owner_of(folder)
    if home is not None and ((folder / MARKER).exists() or owner not in (None, place.run)):
        found = f"{folder}, written by run {owner!r}"
        raise CheckpointError("no checkpoint of this step yet", found, "give each run a checkpoint folder of its own")
    if (folder / MARKER).exists():
        set_aside(folder, "replaced")
    else:
        delete(folder)


def check_shared(group: Group, path: Path, content: bytes, wait_s: float = SHARED_WAIT_S) -> None:
    """Prove that every rank reads in `path` what rank 0 wrote there.  Collective.

    Raises:
        CheckpointFolderError: on all ranks, naming the nodes that see another folder.
    """
    if group.world == 1:
        return
    seen = group.gather((group.host, wait_for_content(path, content, wait_s)))
    blind = [rank for rank, (_, ok) in enumerate(seen) if not ok]
    if blind:
        nodes = ", ".join(sorted({seen[r][0] for r in blind}))
        raise CheckpointFolderError(
            "a checkpoint folder that all nodes share",
            f"{path.parent} of rank 0 ({seen[0][0]}) is not what ranks {_few(blind)} see (nodes {nodes})",
            "put it on a shared file system, mounted at the same path on every node",
        )


def _few(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")


def _save_shards(group: Group, folder: Path, state: dict[str, Any]) -> None:
    """torch's own sharded save.  It carries one rank's failure to all, as a BaseException: make it one of ours."""
    try:
        with alone_is_meant():
            save(state, storage_writer=FileSystemWriter(folder), process_group=group.pg, no_dist=group.pg is None)
    except CheckpointException as e:
        raise _explain_dcp(e, folder) from e


def _explain_dcp(error: CheckpointException, folder: Path) -> CheckpointError:
    rank, (cause, _) = min(error.failures.items())
    chain: BaseException | None = cause
    while chain is not None:
        if isinstance(chain, OSError):
            told = explain(chain, folder)
            return CheckpointError(told.expected, f"on rank {rank}: {told.found}", told.do)
        chain = chain.__cause__ or chain.__context__
    full = _full(folder)
    if full is not None:  # torch's zip writer says only "failed writing file"
        return CheckpointError(full.expected, f"on rank {rank}: {full.found}", full.do)
    found = f"on rank {rank}: {type(cause).__name__}: {cause}"
    return CheckpointError("a state that can be saved", found, "correct the state given to Checkpoints")


def _full(folder: Path) -> CheckpointError | None:
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize >= 1024 * 1024:
        return None
    return explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), folder)


def _verified(group: Group, home: Home | None, place: Place, nonce: str, own: tuple[str, ...]) -> Manifest:
    """Each rank makes its files durable and hashes them, its agent looks at them; all get the manifest."""

    def measured() -> tuple[FileEntry, ...]:
        for p in own:
            sync_file(place.folder / p)
        for folder in {(place.folder / p).parent for p in own}:
            sync_folder(folder)
        files = tuple(measure(place.folder, p) for p in own)
        if home is not None:
            wrong = home.verify(AskVerify(str(place.folder), nonce, tuple((f.path, f.size, f.sha256) for f in files))).wrong
            if wrong:
                raise CheckpointError("files on disk as they were written", "; ".join(wrong), "look at this node's mounts and kernel log")
        return files

    files = tuple(sorted((f for part in group.together(measured) for f in part), key=lambda f: f.path))
    if not files:
        raise CheckpointError("a checkpoint with files", f"{place.folder} is empty", "write the files before committing the folder")
    return Manifest(
        FORMAT, place.form, place.run, place.generation, place.step, place.position, group.world, place.parent, nonce, files
    )


def _write_manifest(place: Place, manifest: Manifest) -> str:
    if read_bounded(place.folder / NONCE, 4096).decode(errors="replace") != manifest.nonce:
        raise CheckpointError(f"this save's {NONCE}", f"{place.folder} was taken over by another writer", "let one job write to a folder")
    raw = encode(manifest)
    write_durably(place.folder / MANIFEST, raw)
    return digest(raw)


def _ask(home: Home | None, place: Place, world: int, sha256: str) -> CommitReply:
    if home is None:
        rename_marker(str(place.folder), sha256)
        return CommitReply(True)
    ask = AskCommit(str(place.folder), place.step, place.position, world, sha256, place.keep, place.generation)
    return home.commit(ask)


def _clean_up(group: Group, place: Place) -> None:
    """Remove what a failed save left, so that it does not hold the space that the next one needs."""
    if group.rank != 0 or place.form != "dcp" or (place.folder / MARKER).exists():
        return
    try:
        delete(place.folder)
    except CheckpointError as e:
        log.warning("could not remove an unfinished checkpoint: %s", e)
