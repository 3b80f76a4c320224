"""What a checkpoint looks like on disk: names, manifest and marker.

    step-000001000.gen-0007/        one folder a checkpoint
        NONCE                       run and random text, written first: proves that all nodes see the same folder
        …                           the shards, in whatever format
        manifest.json               every file with size and SHA-256, and where the checkpoint stands
        COMMITTED.json              the marker, renamed into place last; holds the manifest's SHA-256
        LOADING.json                only while a restore is loading: how many tries did not end

Invariant: a folder is complete only with a marker whose hash is that of the manifest, and a manifest whose every file
has its size and hash.  Under an agent even that is not enough: only the record in etcd commits.  Names that end in
`.torn-<n>`, `.replaced-<n>` or `.deleting` are never looked at for restoring.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from elastic_health.codec import build, plain
from elastic_health.errors import BadValue, CheckpointError

FORMAT = 1
NONCE = "NONCE"
MANIFEST = "manifest.json"
MARKER = "COMMITTED.json"
LOADING = "LOADING.json"
OURS = frozenset({NONCE, MANIFEST, MARKER, LOADING})
TEMPORARY = ".part"
DELETING = ".deleting"
MAX_MANIFEST_BYTES = 512 * 1024 * 1024
DCP_METADATA = ".metadata"
_FOLDER = re.compile(r"step-(\d{9,15})\.gen-(\d{4,10})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """One file: path relative to the folder with `/`, size in bytes, SHA-256 hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`.

    Attributes:
        form: `dcp` (torch.distributed.checkpoint) or `files` (written by the user).
        run, generation: who wrote it; "" and 0 without an agent.
        position: global sample position at `step`.
        world: number of ranks that wrote it.
        parent: name of the checkpoint that it goes on from, None for the beginning.
        nonce: what the folder's NONCE file holds.
        files: in path order.
    """

    format: int
    form: str
    run: str
    generation: int
    step: int
    position: int
    world: int
    parent: str | None
    nonce: str
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class Marker:
    """`COMMITTED.json`: enough to know the checkpoint, and the hash that its manifest must have."""

    format: int
    manifest: str
    step: int
    generation: int
    position: int
    world: int


D = TypeVar("D", Manifest, Marker)


def folder_name(step: int, generation: int) -> str:
    """`step-000001000.gen-0007`."""
    return f"step-{step:09d}.gen-{generation:04d}"


def parse_folder(name: str) -> tuple[int, int] | None:
    """(step, generation) of a folder's name, None if it is not one of ours or was set aside."""
    found = _FOLDER.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def aside_name(name: str, why: str, taken: Collection[str]) -> str:
    """`<name>.<why>-<n>` with the first free n; `why` is `torn` or `replaced`."""
    n = 1
    while f"{name}.{why}-{n}" in taken:
        n += 1
    return f"{name}.{why}-{n}"


def new_nonce(run: str, randomness: str) -> str:
    """What a NONCE file holds: whose folder this is, even before there is a manifest, and something never used before."""
    return f"{run}/{randomness}"


def run_of_nonce(nonce: str) -> str:
    """The run that wrote it ("" without an agent)."""
    return nonce.rpartition("/")[0]


def digest(raw: bytes) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(raw).hexdigest()


def encode(value: Manifest | Marker) -> bytes:
    """JSON with sorted keys: the same manifest always has the same hash."""
    return (json.dumps(plain(value), sort_keys=True, indent=1) + "\n").encode()


def decode_manifest(raw: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        CheckpointError: not JSON, a wrong or missing field, a newer format, or a path that leaves the folder.
    """
    manifest = _decode(Manifest, raw, where)
    wrong = [f.path for f in manifest.files if not inside(f.path) or f.size < 0 or not _SHA256.fullmatch(f.sha256)]
    if wrong:
        raise CheckpointError("files inside the folder, with size and SHA-256", f"{where}: {wrong[0]!r}", "use another checkpoint")
    return manifest


def decode_marker(raw: bytes, where: str) -> Marker:
    """Read a marker.

    Raises:
        CheckpointError: as `decode_manifest`.
    """
    return _decode(Marker, raw, where)


def _decode(cls: type[D], raw: bytes, where: str) -> D:
    try:
        value = build(cls, json.loads(raw), where)
    except (ValueError, BadValue) as e:
        raise CheckpointError("a complete checkpoint", f"{where}: {e}", "use another checkpoint") from e
    if value.format > FORMAT:
        raise CheckpointError(f"format <= {FORMAT}", f"{where}: {value.format}", "use the newer elastic-health that wrote it")
    return value


def inside(path: str) -> bool:
    """A relative path that stays in its folder and is not one of our own files."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and path not in OURS and "\0" not in path


def marker_of(manifest: Manifest, raw: bytes) -> Marker:
    """The marker of the manifest whose encoded bytes are `raw`."""
    return Marker(FORMAT, digest(raw), manifest.step, manifest.generation, manifest.position, manifest.world)


def shares(files: Sequence[FileEntry], world: int) -> tuple[tuple[FileEntry, ...], ...]:
    """Split files over `world` ranks so that each reads about as many bytes: biggest first, to the least loaded."""
    load = [(0, rank) for rank in range(world)]
    out: list[list[FileEntry]] = [[] for _ in range(world)]
    for f in sorted(files, key=lambda f: (-f.size, f.path)):
        size, rank = load[0]
        out[rank].append(f)
        # Opening a file costs about as much as reading a few hundred kB: many small files spread out too.
        heapq.heapreplace(load, (size + f.size + 256 * 1024, rank))
    return tuple(tuple(x) for x in out)


def newest_first(names: Collection[str]) -> tuple[str, ...]:
    """Those names that are checkpoint folders, by step and then generation, newest first."""
    known = [(at, n) for n in names if (at := parse_folder(n)) is not None]
    return tuple(n for _, n in sorted(known, reverse=True))
