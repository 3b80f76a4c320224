"""What a state of the model is, and which rules and faults there are: plain tuples, no moves.

Time is counted in ticks, as what is left of a deadline or has passed since an event, so that states at different times
are one state.  What has to happen by now happens before anything else of now (faults apart): an end of workers at its
deadline goes before a formation that waited for that deadline.

 - an agent's lease ends by its own clock LEASE ticks after the last renewal, and in the store not before that;
 - a silent link counts as broken after LINK ticks; that of a killed agent at once;
 - workers that are told to end are gone after GRACE ticks, those of a stopped agent at the deadline on their page;
 - a group trains on without the store for OUTAGE ticks at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

LEASE, LINK, GRACE, OUTAGE = 1, 1, 1, 4
BACK = 10
"""`Node.out` from here on: ticks since the agent has known that its lease is gone (it puts its candidate back)."""

PHASES = ("joining", "checking", "ready", "starting", "running", "holding", "stopping", "left")
HOME = frozenset(("starting", "running", "holding"))
"""Phases in which an agent acts for a generation; `stopping` ends them."""

RESENT = frozenset(("join", "ready", "member", "reattach", "form", "verdict", "commit"))
"""Transactions sent again, unchanged, until they are answered (rule 6)."""
TRANSACTIONS = RESENT | {"delete"}
LEFT_OUT: Mapping[str, str] = {
    "checking": "the same candidate as `join` wrote, told again to a full group: no rule reads it twice",
    "store": "an address behind the fence; a member that waits for it waits as one that has not spawned yet",
    "publish": "a fenced put that nothing reads back; `commit` is behind the same fence",
    "leaving": "`member` once more, with a mark that only those read who count who stays",
    "shard": "a part of a member list too long for one key, under a name of its own: nothing refers to it before `form`",
    "forget": "behind the same fence as `delete`, on records whose files are gone already",
    "resume": "a person starts an ended run again, when no member is left: another run, which begins with a verdict",
    "leave": "taken together with leaving: it deletes an incarnation that is over",
}
"""The product's other transactions, and why the model has none of their own."""

RULES: Mapping[str, str] = {
    "1": "any ready candidate may end a generation that lost a member",
    "2": "whoever forms next carries a rollback out",
    "3": "a rollback compares its target's record",
    "4": "no collective of an in-place generation before all members have taken it up",
    "5": "a member without workers ends its generation",
    "6": "an unanswered write is sent again until it is answered",
    "7 page": "workers end by the deadline on their page",
    "7 wait": "a former waits until no missing member can still run workers",
    "7 links": "a broken link ends ride-through",
    "8": "the own newest committed checkpoint, else the plan's, else the nearest committed ancestor",
    "9 rank 0": "only the rank-0 agent commits",
    "9 member": "`member` is written behind the fence before workers are spawned",
    "9 reaped": "an agent joins again only after its workers are reaped",
    "fence current": "a fenced write compares `current`",
    "fence verdict": "a fenced write compares the absence of the verdict",
    "first writer": "a verdict is created, never overwritten",
    "late member": "`member` compares the candidate as `ready` left it",
}
"""What `Config.off` may leave out.  The numbers are those of docs/ARCHITECTURE.md."""

FAULTS = (
    "agent killed",
    "agent stopped",
    "node frozen",
    "host lost",
    "cut from the store",
    "cut from peers",
    "cut from all",
    "store outage",
    "no answer",
    "worker exits",
    "asked to stop",
    "old verdict deleted",
)
SPECIAL = frozenset(("old verdict deleted",))
"""Not part of an ordinary exploration: a person deletes keys."""


class Broken(Exception):
    """An invariant does not hold; the text begins with its name."""


class Node(NamedTuple):
    """A host with its agent and workers.

    life: R runs, P agent stopped (its workers are not), Z frozen (agent and workers), D agent dead, H host down.
    cut: 1 from the store, 2 from peers, 3 both.   g: generation that it acts for.   inc: incarnation.
    cand: its candidate in the store: (state, incarnation), or None.
    work: its workers: (generation, position, mask of consumed positions, held), or None.
    own, store: ticks left of its lease by its own clock and by the store's.   page: ticks left to its workers, if ending.
    out: ticks without the store; from BACK on: putting its candidate back.   link: ticks until its links count as broken.
    gone: ticks since its candidate vanished from the store while it was a member.   answered: it answered a probe since.
    last: generation for which it last started workers.   asked: told to leave.
    excused: its workers may outlive the next formation (see `world.overlap`).
    """

    life: str = "R"
    cut: int = 0
    phase: str = "joining"
    g: int = 0
    inc: int = 0
    cand: tuple[str, int] | None = None
    work: tuple[int, int, int, bool] | None = None
    own: int = LEASE
    store: int = LEASE
    page: int = 0
    out: int = 0
    link: int = LINK
    gone: int = 0
    answered: bool = False
    last: int = 0
    asked: bool = False
    excused: bool = False


class Gen(NamedTuple):
    """A generation; `members` in rank order as (node, incarnation), `plan` an index into `State.ckpts` or -1.
    verdict: None, or (kind, target, windows) of kind restart, rollback or finish."""

    kind: str
    comm: int
    members: tuple[tuple[int, int], ...]
    plan: int
    windows: int
    verdict: tuple[str, int, int] | None


class Ckpt(NamedTuple):
    """state: committed, abandoned or deleting.   left: on a branch that a rollback verdict leaves."""

    gen: int
    parent: int
    pos: int
    mask: int
    state: str
    left: bool


Txn = tuple[Any, ...]
"""(purpose, node, …): see `store.land`."""
Entry = tuple[int, Txn]
"""A transaction under way: 0 nobody waits for it, 1 its sender does, 2 its sender will send it again (it may have landed)."""


class State(NamedTuple):
    nodes: tuple[Node, ...]
    gens: tuple[Gen, ...] = ()
    ckpts: tuple[Ckpt, ...] = ()
    net: tuple[Entry, ...] = ()
    up: bool = True
    faults: int = 0
    rollbacks: int = 0

    @property
    def cur(self) -> int:
        return len(self.gens)


@dataclass(frozen=True)
class Config:
    """The size of what is explored.

    warm: begin with all nodes ready.   brief: end with the verdict "finished", or when generation `gens` has formed.
    coarse: from 1 on, what an agent writes of its own candidate lands at once, unless a fault keeps it under way, and
    workers are there as soon as `member` is; with 2 all that it writes does.   off: rules that are left out.
    """

    nodes: int = 1
    steps: int = 1
    gens: int = 2
    faults: int = 1
    rollbacks: int = 0
    keep: int = 2
    least: int = 1
    most: int = 2
    warm: bool = False
    brief: bool = False
    coarse: int = 0
    kinds: frozenset[str] = frozenset(FAULTS) - SPECIAL
    off: frozenset[str] = frozenset()

    def start(self) -> State:
        node = Node(phase="ready", cand=("ready", 0)) if self.warm else Node()
        return State((node,) * self.nodes, faults=self.faults, rollbacks=self.rollbacks)


def line(ckpts: tuple[Ckpt, ...], i: int) -> list[int]:
    """Checkpoint `i` and its ancestors, newest first."""
    found = []
    while i >= 0:
        found.append(i)
        i = ckpts[i].parent
    return found


def top(s: State, g: int) -> int:
    """The newest checkpoint on generation g's line: its own newest that is not abandoned, else its plan's."""
    own = [i for i, c in enumerate(s.ckpts) if c.gen == g and c.state != "abandoned"]
    return max(own, key=lambda i: s.ckpts[i].pos) if own else s.gens[g - 1].plan
