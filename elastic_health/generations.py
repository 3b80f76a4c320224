"""What etcd says about a run: candidates, generations with their members and restore plan, checkpoints, budget.

All of it immutable plain data.  A generation record never changes once written; its number and the mod revision of
`runs/<run>/current` change together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from elastic_health.codec import rest
from elastic_health.errors import DataError
from elastic_health.windows import Window


@dataclass(frozen=True)
class RunSpec:
    """What every agent of a run must agree on.  `script` is a digest of entry point and arguments."""

    min_nodes: int
    max_nodes: int
    script: str
    script_name: str = ""
    max_restarts: int = 0


class CandidateState(Enum):
    """Only `ready` counts for forming."""

    CHECKING = "checking"
    READY = "ready"
    MEMBER = "member"


@dataclass(frozen=True)
class Candidate:
    """`runs/<run>/candidates/<node>.<incarnation>`, written by that agent under its lease.

    Attributes:
        address: `host:port` where this agent listens for its whole life (links, probes).
        workers: local world size.
        topology: sort key for rank order, "" if unknown.
        generation: the generation it is a member of (state `member`), else 0.
        deadline_s: seconds that `checking` may last.
        version: of the package that this agent runs.
        leaving: this member was asked to leave and will soon be gone.
    """

    node: str
    incarnation: str
    state: CandidateState
    address: str
    workers: int
    spec: RunSpec
    role: str = "default"
    topology: str = ""
    generation: int = 0
    deadline_s: float = 0.0
    version: str = ""
    leaving: bool = False


@dataclass(frozen=True)
class Member:
    """One agent in a generation.  `rank` is its group rank; its workers have global ranks `first_rank` … +workers."""

    node: str
    incarnation: str
    address: str
    rank: int
    first_rank: int
    workers: int
    role: str = "default"
    topology: str = ""

    @property
    def who(self) -> tuple[str, str]:
        return (self.node, self.incarnation)


@dataclass(frozen=True)
class RestorePlan:
    """Where a generation starts: `checkpoint` is a `CheckpointRecord.name`, or None for the very beginning.

    `windows` is cumulative, in normal form.  `position` is the position stored with the checkpoint (0 without one).
    `manifest` is the SHA-256 that its manifest must have, hex ("": not known).
    """

    checkpoint: str | None = None
    path: str = ""
    step: int = 0
    position: int = 0
    windows: tuple[Window, ...] = ()
    manifest: str = ""


class GenerationKind(Enum):
    FORMED = "formed"
    IN_PLACE = "in_place"


@dataclass(frozen=True)
class Bounds:
    """The time limits that all members of a generation share, in seconds (rule 7).

    `lease_s`: granted lease; `link_timeout_s`: silence after which a link is broken; `kill_grace_s`: from the order
    to stop to the last worker reaped; `start_s`: to publish the store and to link up.
    """

    lease_s: float = 5.0
    link_timeout_s: float = 3.0
    kill_grace_s: float = 3.0
    start_s: float = 60.0


@dataclass(frozen=True)
class Generation:
    """`runs/<run>/generations/<g>`, immutable.

    Attributes:
        communicator: number of the `formed` generation whose processes and store this one uses.
        restarts: restarts spent by the whole run when it formed (TORCHELASTIC_RESTART_COUNT).
        moved: nodes whose rank is not the one that they had before, `node: 3 -> 2 (workers 24-31 -> 16-23)`, for people.
        shards: where `members` would make the record too long for the store, the names of the `members/` keys that hold
            them, in order of rank; in the store `members` is empty then.
    """

    number: int
    kind: GenerationKind
    previous: int
    communicator: int
    members: tuple[Member, ...]
    plan: RestorePlan
    spec: RunSpec
    bounds: Bounds = field(default_factory=Bounds)
    restarts: int = 0
    moved: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        return sum(m.workers for m in self.members)

    @cached_property
    def _by_who(self) -> Mapping[tuple[str, str], Member]:
        return {m.who: m for m in self.members}

    def member(self, node: str, incarnation: str) -> Member | None:
        return self._by_who.get((node, incarnation))


@dataclass(frozen=True)
class MemberShard:
    """`runs/<run>/members/<name>`: a part of a long member list, written before the generation that names it."""

    members: tuple[Member, ...]


def whole(g: Generation, shards: Mapping[str, MemberShard]) -> Generation:
    """A generation as the store holds it, with its members put together.

    Raises:
        DataError: a shard is not there.
    """
    missing = [name for name in g.shards if name not in shards]
    if missing:
        raise DataError("every part of a generation's member list", f"{missing[0]} is missing", "restore that key, or end this generation")
    return replace(g, members=tuple(m for name in g.shards for m in shards[name].members)) if g.shards else g


@dataclass(frozen=True)
class StoreAddress:
    """`runs/<run>/stores/<g>`: the TCPStore of a communicator and the rank-0 agent's link listener, `host` and ports."""

    host: str
    port: int
    links: str


class CheckpointState(Enum):
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    DELETING = "deleting"


@dataclass(frozen=True)
class CheckpointRecord:
    """`runs/<run>/checkpoints/<step>.<g>`: only this record commits a checkpoint.

    `parent` is the name of the checkpoint that this one's history goes on from, None for the beginning.
    `manifest` is the SHA-256 of the manifest file, hex.  `why` says why it was abandoned.
    """

    step: int
    generation: int
    path: str
    position: int
    world: int
    parent: str | None
    manifest: str
    state: CheckpointState = CheckpointState.COMMITTED
    why: str = ""
    rest: Mapping[str, Any] = rest()

    @property
    def name(self) -> str:
        return checkpoint_name(self.step, self.generation)


def checkpoint_name(step: int, generation: int) -> str:
    """`<step>.<g>`, zero-padded: byte order is step order."""
    return f"{step:012d}.{generation:06d}"


@dataclass(frozen=True)
class Spent:
    """One restart or rollback that was carried out.  `early`: a worker ended within its first seconds, no step done."""

    at: float
    cause: str
    signature: str
    generation: int
    nodes: tuple[str, ...] = ()
    rollback: bool = False
    early: bool = False
    rest: Mapping[str, Any] = rest()


@dataclass(frozen=True)
class Budget:
    """`runs/<run>/budget`: what the whole run has spent; changed only in the transaction that forms a generation.

    `spent` keeps at most the newest 256 entries; `restarts` and `rollbacks` count all.  `since_commit` counts
    restarts in a row without a new committed checkpoint (`last_checkpoint` is the newest name seen).
    `torch_max_restarts` is the first generation's `--max-restarts` (0: the YAML's caps hold).
    `by_node`, `by_signature`, `by_cause` count restarts for the whole run, as sorted (name, count) pairs.
    """

    restarts: int = 0
    rollbacks: int = 0
    since_commit: int = 0
    last_checkpoint: str | None = None
    torch_max_restarts: int = 0
    spent: tuple[Spent, ...] = ()
    by_node: tuple[tuple[str, int], ...] = ()
    by_signature: tuple[tuple[str, int], ...] = ()
    by_cause: tuple[tuple[str, int], ...] = ()
    rest: Mapping[str, Any] = rest()
