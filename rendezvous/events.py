"""What can happen to an agent's membership, and what it asks its shell to do: plain data both ways.

`membership.step(state, event, clock)` turns one event into effects.  The shell (or the simulator) carries effects out
and reports back by events; it decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_health.generations import CheckpointRecord, Generation, StoreAddress
from elastic_health.incidents import Incident
from elastic_health.messages import LinkMessage
from elastic_health.rendezvous.store import Txn, TxnResult, WatchBatch
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Verdict


@dataclass(frozen=True)
class Clock:
    """`now`: monotonic seconds of this node; `wall`: seconds since the epoch (only for records and budgets)."""

    now: float
    wall: float


# ---- events
@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class StoreChanged:
    """A watch batch (the first one is the snapshot) of the run, or with `fleet` of the quarantine."""

    batch: WatchBatch
    fleet: bool = False


@dataclass(frozen=True)
class TxnDone:
    id: int
    result: TxnResult


@dataclass(frozen=True)
class TxnFailed:
    """`ambiguous`: it may have landed, or still may; else it surely didn't.  `fatal`: asking again can't help.
    `lease_gone`: it put under a lease that has ended.  `full`: the store is over its quota; people can make room."""

    id: int
    ambiguous: bool
    reason: str = ""
    fatal: bool = False
    lease_gone: bool = False
    full: bool = False


@dataclass(frozen=True)
class LeaseHeld:
    """Granted or renewed.  `sent_at` is when the request was *sent*, by this node's monotonic clock."""

    lease: int
    sent_at: float
    ttl_s: float


@dataclass(frozen=True)
class LeaseFailed:
    """`gone`: the store says that this lease has ended; else no answer."""

    lease: int
    gone: bool


@dataclass(frozen=True)
class PreflightDone:
    fit: bool
    reason: str = ""


@dataclass(frozen=True)
class StoreOpened:
    """The TCPStore that this rank-0 agent hosts for a generation listens."""

    generation: int
    address: StoreAddress


@dataclass(frozen=True)
class WorkersUp:
    """All workers of the generation are spawned."""

    generation: int


@dataclass(frozen=True)
class WorkersDone:
    """All workers of this node ended with status 0."""

    generation: int


@dataclass(frozen=True)
class WorkersReaped:
    """No process of this node's workers is left; `stuck` names what can't be reaped (the node must leave then)."""

    generation: int
    stuck: str = ""


@dataclass(frozen=True)
class Judged:
    """A judge of this agent found something final about the generation whose processes it observed."""

    incident: Incident


@dataclass(frozen=True)
class LinkUp:
    who: Who


@dataclass(frozen=True)
class LinkDown:
    who: Who
    reason: str = ""


@dataclass(frozen=True)
class PeerSaid:
    who: Who
    message: LinkMessage


@dataclass(frozen=True)
class Probed:
    """What became of `Probe`.  `dead`: the connection was refused, or another incarnation answers there.  `answers`: the agent
    itself answered; false when nothing came back (a silent host, a stopped process), which proves nothing."""

    who: Who
    dead: bool
    answers: bool = True


@dataclass(frozen=True)
class CommitAsked:
    """Rank 0's worker asks to commit; `request` pairs the answer.  `keep`: how many the script wants kept (0: as the YAML says)."""

    request: int
    record: CheckpointRecord
    keep: int = 0


@dataclass(frozen=True)
class DeleteAsked:
    """Retention: mark these checkpoints `deleting`."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class FilesGone:
    """Nothing of this checkpoint, whose record says `deleting`, is left on disk."""

    name: str


@dataclass(frozen=True)
class PublishAsked:
    """Rank-0 agent: put a fenced key (progress, summary).  Dropped when it can't be written now."""

    key: str
    value: bytes


@dataclass(frozen=True)
class StopAsked:
    """A signal or a command: this node leaves."""

    reason: str


@dataclass(frozen=True)
class DrainAsked:
    """A signal with a deadline: this node leaves once a checkpoint is committed, at monotonic second `until` at the latest.

    `saves`: its workers save when they are asked to; else the signal is passed on to them.  `step`: newest completed
    step known here, -1 if none: an older checkpoint is not enough.
    """

    reason: str
    until: float
    saves: bool = False
    step: int = -1


@dataclass(frozen=True)
class WorkersLeft:
    """After the signal was passed on: the first of this node's workers has ended, or (`all`) the last one."""

    generation: int
    all: bool


@dataclass(frozen=True)
class Held:
    """In-place rollback: this node's workers hold after the step of the halt (or can't: `ok` false)."""

    generation: int
    ok: bool = True


Event = (
    Tick
    | StoreChanged
    | TxnDone
    | TxnFailed
    | LeaseHeld
    | LeaseFailed
    | PreflightDone
    | StoreOpened
    | WorkersUp
    | WorkersDone
    | WorkersReaped
    | Judged
    | LinkUp
    | LinkDown
    | PeerSaid
    | Probed
    | CommitAsked
    | DeleteAsked
    | FilesGone
    | PublishAsked
    | StopAsked
    | DrainAsked
    | WorkersLeft
    | Held
)


# ---- effects
@dataclass(frozen=True)
class Send:
    """Send a transaction; answer with TxnDone or TxnFailed of the same id."""

    id: int
    txn: Txn


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
