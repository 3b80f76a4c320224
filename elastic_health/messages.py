"""Messages of the two links, as plain data; one JSON object a line, `op` names the type.

Worker link (Unix socket, worker asks, agent answers; `id` pairs them).  Agent link (TCP, authenticated, both ways).
Limits: a line is at most `MAX_LINE_BYTES`; an unknown `op` is answered with an error and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_health.generations import CheckpointRecord, RestorePlan
from elastic_health.liveness.facts import RankFacts
from elastic_health.verdicts import Verdict

MAX_LINE_BYTES = 4 * 1024 * 1024


# ---- worker link: worker -> agent
@dataclass(frozen=True)
class Hello:
    """First on the wire.  The agent checks peer uid and that `pid` belongs to the worker tree of `local_rank`."""

    local_rank: int
    pid: int
    generation: int


@dataclass(frozen=True)
class AskPlan:
    """Which generation is this and where does it start?  Answered by `PlanReply`."""


@dataclass(frozen=True)
class AskVerify:
    """Are this rank's files on disk as the worker says?  `nonce` must be what the folder's nonce file holds.

    `files`: (path relative to folder, size in bytes, SHA-256 hex).  Answered by `VerifyReply`.
    """

    folder: str
    nonce: str
    files: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class AskCommit:
    """Rank 0 only: all ranks' files are verified and listed in `folder`'s manifest; rename the marker, commit.

    Answered by `CommitReply`.  `keep`: how many the script wants kept (0: what the YAML says).  `generation`:
    whose state this is (0: not said); an agent that has moved on refuses, it may be a branch that a rollback left.
    """

    folder: str
    step: int
    position: int
    world: int
    manifest: str
    keep: int = 0
    generation: int = 0


@dataclass(frozen=True)
class TellUnusable:
    """The checkpoint of the plan could not be loaded (torn, corrupt, or it crashed): restart one further back."""

    checkpoint: str
    reason: str


@dataclass(frozen=True)
class TellHalt:
    """All ranks agreed to halt after `step`: roll back to a checkpoint at or before `before_step`, skip the window."""

    step: int
    before_step: int
    start: int
    end: int
    reason: str
    signature: str = ""


WorkerMessage = Hello | AskPlan | AskVerify | AskCommit | TellUnusable | TellHalt


# ---- worker link: agent -> worker
@dataclass(frozen=True)
class PlanReply:
    """`keep` is how many committed checkpoints retention keeps; `fresh`: this run has no checkpoint to restore."""

    run: str
    generation: int
    plan: RestorePlan
    rank: int
    world: int


@dataclass(frozen=True)
class VerifyReply:
    """`wrong` lists what is not as said, empty if all is well."""

    wrong: tuple[str, ...]


@dataclass(frozen=True)
class CommitReply:
    """`committed`, or why not (fenced, refused, folder wrong).  `waits`: not yet, it is made when the store answers again."""

    committed: bool
    reason: str = ""
    record: CheckpointRecord | None = None
    waits: bool = False


@dataclass(frozen=True)
class Told:
    """A `Tell…` message was taken."""


@dataclass(frozen=True)
class Refused:
    """The request broke the protocol or can't be served; expected, found, do."""

    expected: str
    found: str
    do: str


AgentReply = PlanReply | VerifyReply | CommitReply | Told | Refused


# ---- agent link (after the handshake), member <-> rank-0 agent
@dataclass(frozen=True)
class Progress:
    """A member's workers, a few times a second."""

    generation: int
    ranks: tuple[RankFacts, ...]


@dataclass(frozen=True)
class Started:
    """This member has spawned its workers."""

    generation: int


@dataclass(frozen=True)
class Reaped:
    """This member's workers of `generation` are gone, all of them (rule 7)."""

    generation: int


@dataclass(frozen=True)
class WorkersDone:
    """All workers of this member ended with status 0."""

    generation: int


@dataclass(frozen=True)
class VerdictSeen:
    """An echo of a verdict that the sender read from the store (rides through an outage of others' store)."""

    verdict: Verdict


@dataclass(frozen=True)
class Suspect:
    """Someone's link broke: dial this agent now."""

    node: str
    incarnation: str


@dataclass(frozen=True)
class Ping:
    """Keeps an idle link proven; sent when nothing else was for a third of the link timeout."""

    n: int = 0


@dataclass(frozen=True)
class Goodbye:
    """The sender leaves on purpose and its workers are reaped."""

    generation: int


LinkMessage = Progress | Started | Reaped | WorkersDone | VerdictSeen | Suspect | Ping | Goodbye
