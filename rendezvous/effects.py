"""What an agent's membership asks its shell to do, as plain data; `events` passes all of these on as its own."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_health.generations import CheckpointRecord, Generation, StoreAddress
from elastic_health.messages import LinkMessage
from elastic_health.rendezvous.store import Txn
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Verdict


@dataclass(frozen=True)
class Send:
    """Send a transaction; answer with TxnDone or TxnFailed of the same id."""

    id: int
    txn: Txn


@dataclass(frozen=True)
class Attend:
    """From now on hear of every candidate: a snapshot of all, then one watch of all."""


@dataclass(frozen=True)
class GrantLease:
    ttl_s: float


@dataclass(frozen=True)
class RenewLease:
    lease: int


@dataclass(frozen=True)
class RevokeLease:
    lease: int


@dataclass(frozen=True)
class RunPreflight:
    """`stage`: join, restart or after_repair."""

    stage: str


@dataclass(frozen=True)
class OpenStore:
    generation: Generation


@dataclass(frozen=True)
class StartWorkers:
    generation: Generation
    rank: int
    store: StoreAddress


@dataclass(frozen=True)
class StopWorkers:
    """Evidence, then teardown of everything of `generation`; answer with WorkersReaped.  `verdict` None: the agent
    itself may not go on (lease lost, stop asked).  `until`: workers that were passed a signal may take till then."""

    generation: int
    verdict: Verdict | None
    reason: str
    until: float = 0.0


@dataclass(frozen=True)
class WishCheckpoint:
    """Have this node's workers ask all ranks to save after the running step."""

    generation: int


@dataclass(frozen=True)
class PassSignal:
    """Pass the signal to leave on to this node's workers; answer with WorkersLeft as they end."""

    generation: int


@dataclass(frozen=True)
class HoldWorkers:
    """In-place rollback: see that the workers hold; answer with Held."""

    generation: int


@dataclass(frozen=True)
class TakeUp:
    """In-place generation: hand the workers its number and plan."""

    generation: Generation


@dataclass(frozen=True)
class Connect:
    """Keep a link to this agent (the rank-0 agent of the generation)."""

    who: Who
    address: str
    generation: int


@dataclass(frozen=True)
class CloseLinks:
    """Drop all links of that generation (the listener stays)."""

    generation: int


@dataclass(frozen=True)
class Tell:
    """Send over the link to `who`, or with None to everyone linked."""

    who: Who | None
    message: LinkMessage


@dataclass(frozen=True)
class Probe:
    who: Who
    address: str


@dataclass(frozen=True)
class CommitAnswered:
    """`waits`: the store doesn't answer; the commit stays in its queue, and training may go on.  A second answer follows."""

    request: int
    committed: bool
    reason: str
    record: CheckpointRecord | None = None
    waits: bool = False


@dataclass(frozen=True)
class RemoveFiles:
    """A checkpoint's record says `deleting`, in a fenced transaction: its files may go."""

    record: CheckpointRecord


@dataclass(frozen=True)
class WriteRecord:
    """Something automatic was done: see that a record exists (it went into the verdict's transaction where possible)."""

    what: str
    verdict: Verdict | None = None


@dataclass(frozen=True)
class PageHuman:
    verdict: Verdict


@dataclass(frozen=True)
class Say:
    """A line for the log; the shell logs it when it differs from the last one.  `what` is a stable word."""

    what: str
    text: str
    warn: bool = False


@dataclass(frozen=True)
class Leave:
    """The end for this agent: exit with this status."""

    status: int
    text: str


Effect = (
    Send
    | Attend
    | GrantLease
    | RenewLease
    | RevokeLease
    | RunPreflight
    | OpenStore
    | StartWorkers
    | StopWorkers
    | WishCheckpoint
    | PassSignal
    | HoldWorkers
    | TakeUp
    | Connect
    | CloseLinks
    | Tell
    | Probe
    | CommitAnswered
    | RemoveFiles
    | WriteRecord
    | PageHuman
    | Say
    | Leave
)
