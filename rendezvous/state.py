"""The state of one agent's membership, and the table of its phases.

Invariants (checked by `check` after each step in tests and in debug runs):
 - workers exist only in STARTING, RUNNING, HOLDING and STOPPING, and only for `generation`;
 - a phase changes only along `WAYS`;
 - nothing is decided, committed or published at or after `lease_deadline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elastic_health.checkpoints.retention import Keep
from elastic_health.generations import Bounds, Generation, Member, RunSpec, StoreAddress
from elastic_health.incidents import Incident
from elastic_health.policies import OutageChoice, Policies
from elastic_health.rendezvous.events import CommitAsked
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Txn
from elastic_health.rendezvous.view import View, Who
from elastic_health.verdicts import Verdict


class Phase(Enum):
    """Where this agent stands."""

    JOINING = "joining"
    CHECKING = "checking"
    READY = "ready"
    STARTING = "starting"
    RUNNING = "running"
    HOLDING = "holding"
    STOPPING = "stopping"
    LEFT = "left"


WAYS: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.JOINING: {
        Phase.CHECKING: "lease granted, candidate written",
        Phase.LEFT: "run id refused or stopped, node quarantined, stop asked, or join timeout",
    },
    Phase.CHECKING: {
        Phase.READY: "preflight passed",
        Phase.JOINING: "lease lost",
        Phase.LEFT: "preflight failed, quarantined, run ended or stopped, or stop asked",
    },
    Phase.READY: {
        Phase.STARTING: "in the current generation, `member` written behind the fence",
        Phase.JOINING: "lease lost",
        Phase.LEFT: "run ended or stopped, quarantined, stop asked, or too few nodes within the join timeout",
    },
    Phase.STARTING: {
        Phase.RUNNING: "store published, workers spawned",
        Phase.STOPPING: "verdict seen, lease lost, or stop asked",
    },
    Phase.RUNNING: {
        Phase.HOLDING: "rollback verdict seen, workers alive",
        Phase.STOPPING: "verdict seen, lease lost, stop asked, or a drain that is over (checkpoint committed, workers ended, deadline)",
    },
    Phase.HOLDING: {
        Phase.RUNNING: "in-place generation taken up",
        Phase.STOPPING: "in-place rollback given up (a member or its workers gone, no former in time), lease lost, or stop asked",
    },
    Phase.STOPPING: {
        Phase.CHECKING: "workers reaped, lease held: `restart` checks",
        Phase.JOINING: "workers reaped, lease lost: new incarnation",
        Phase.LEFT: "workers reaped, run ended or stopped, or stop asked; or something can't be reaped",
    },
    Phase.LEFT: {},
}


class Workers(Enum):
    """This node's workers of `State.generation`."""

    NONE = "none"
    ASKED = "asked"
    UP = "up"
    DONE = "done"
    STOPPING = "stopping"


class Purpose(Enum):
    """Why a transaction was sent; at most one of a kind is under way."""

    RESUME = "resume"
    JOIN = "join"
    CHECKING = "checking"
    READY = "ready"
    MEMBER = "member"
    REATTACH = "reattach"
    SHARD = "shard"
    FORM = "form"
    VERDICT = "verdict"
    STORE = "store"
    COMMIT = "commit"
    DELETE = "delete"
    FORGET = "forget"
    PUBLISH = "publish"
    LEAVING = "leaving"
    LEAVE = "leave"


RESENT = frozenset(
    {
        Purpose.RESUME,
        Purpose.JOIN,
        Purpose.CHECKING,
        Purpose.READY,
        Purpose.MEMBER,
        Purpose.REATTACH,
        Purpose.FORM,
        Purpose.VERDICT,
        Purpose.STORE,
        Purpose.COMMIT,
        Purpose.LEAVING,
        Purpose.LEAVE,
    }
)
"""Sent again, unchanged, until answered.  Landing twice, or late, is harmless: each compares something that it changes
itself or that has changed by then (the fence), or deletes an incarnation that is over."""


@dataclass(frozen=True)
class Sent:
    """A transaction under way.  `resend_at`: when to send it again, 0 while an answer is awaited."""

    id: int
    purpose: Purpose
    txn: Txn
    generation: int
    tries: int = 1
    resend_at: float = 0.0
    request: int = 0
    commit: CommitAsked | None = None
    verdict: Verdict | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """A member list too long for one key, being written in parts: `names` of them, `done` of which are there."""

    members: tuple[Member, ...]
    names: tuple[str, ...]
    done: int = 0


@dataclass(frozen=True)
class Me:
    """This agent, as it will stand in its candidate.  `name` + `.` + n is an incarnation: n grows when a lease is lost."""

    node: str
    name: str
    address: str
    workers: int
    spec: RunSpec
    role: str = "default"
    topology: str = ""


@dataclass(frozen=True)
class Peer:
    """What this agent knows of a member by link and probe (times: None: no, else since when).  `answers`: the last
    probe found it alive."""

    up_since: float | None = None
    down_since: float | None = None
    probed_at: float | None = None
    dead: bool = False
    answers: bool = False
    reaped: int = 0
    done: int = 0


FEW = 3
"""So many of the oldest candidates hear of all candidates: one forms, the others are there when it doesn't."""


@dataclass(frozen=True)
class Drain:
    """This node is to leave, by `until`; see `events.DrainAsked`.

    `left_at`: when the first of its workers ended after the signal was passed on, `all_left`: all have; `told`: its
    candidate says `leaving`.
    """

    reason: str
    until: float
    saves: bool
    step: int
    left_at: float | None = None
    all_left: bool = False
    told: bool = False


@dataclass(frozen=True)
class Settings:
    """What doesn't change while the agent lives."""

    keys: RunKeys
    me: Me
    policies: Policies = field(default_factory=Policies)
    few: int = FEW

    @property
    def bounds(self) -> Bounds:
        """This agent's time limits; those of a generation that it forms."""
        return self.policies.membership.bounds

    @property
    def outage_s(self) -> float:
        """How long a healthy group trains on without the store; 0 for not at all."""
        outage = self.policies.outage
        return outage.bound_s if outage.choice is OutageChoice.RIDE_THROUGH else 0.0

    @property
    def return_s(self) -> float:
        """After an outage: how long the members' leases and candidates may take to be there again."""
        return self.bounds.lease_s + self.bounds.link_timeout_s

    @property
    def keep(self) -> Keep:
        c = self.policies.checkpoints
        return Keep(c.keep, c.rollback_reach_steps)


@dataclass(frozen=True)
class State:
    """See the module docstring.  All times are this node's monotonic seconds."""

    settings: Settings
    phase: Phase = Phase.JOINING
    since: float = 0.0
    joined_at: float = 0.0
    incarnation: int = 0
    view: View = field(default_factory=View)
    synced: bool = False
    fleet_synced: bool = False
    lease: int = 0
    lease_deadline: float = float("-inf")
    lease_asked_at: float | None = None
    granting: bool = False
    lease_gone: bool = False
    lease_gone_at: float | None = None
    store_lost_since: float | None = None
    store_back_at: float = float("-inf")
    stage: str = "join"
    preflight: bool | None = None
    preflight_asked: bool = False
    preflight_reason: str = ""
    generation: int = 0
    token: int = 0
    workers: Workers = Workers.NONE
    workers_since: float = 0.0
    stop_reason: str = ""
    ended: Verdict | None = None
    was_member: bool = False
    last_started: int = 0
    sent: Mapping[int, Sent] = field(default_factory=dict)
    next_id: int = 1
    quiet_until: Mapping[Purpose, float] = field(default_factory=dict)
    peers: Mapping[Who, Peer] = field(default_factory=dict)
    gone_since: Mapping[Who, float] = field(default_factory=dict)
    lost_since: float | None = None
    formable_since: float | None = None
    listing: Listing | None = None
    formed: int = 0
    ready_since: float | None = None
    verdict_seen: Mapping[int, float] = field(default_factory=dict)
    opened: int = 0
    published: int = 0
    store_address: StoreAddress | None = None
    pending_incident: Incident | None = None
    incident_at: float = 0.0
    peer_verdict: Verdict | None = None
    judged: int = 0
    telling: Who | None = None
    told: bool = False
    held: int = 0
    told_done_at: float = float("-inf")
    created: int = 0
    before: int = 0
    deaths_before: int = 0
    attends: bool = False
    attended_at: float = float("-inf")
    candidate_mod: int = 0
    reattach_over: int = 0
    checking_told: bool = False
    waiting_commits: tuple[CommitAsked, ...] = ()
    unanswered_commits: Mapping[int, float] = field(default_factory=dict)
    commits_refused_since: float | None = None
    scale_wanted_since: float | None = None
    scale_newest_at: float = 0.0
    scale_waiting: frozenset[Who] = frozenset()
    commits: int = 0
    retain_due: bool = False
    removing: frozenset[str] = frozenset()
    files_gone: frozenset[str] = frozenset()
    forget_due: bool = True
    keep: int = 0
    last_commit: str | None = None
    stopping: str | None = None
    stopping_at: float = 0.0
    drain: Drain | None = None
    found_ended: int = 0
    leaving: frozenset[Who] = frozenset()
    wake_at: float = 0.0
    left: tuple[int, str] | None = None

    @property
    def who(self) -> Who:
        me = self.settings.me
        return (me.node, f"{me.name}-{self.incarnation}")

    @property
    def record(self) -> Generation | None:
        """The record of the generation that this agent acts for."""
        return self.view.generations.get(self.generation)

    @property
    def rank(self) -> int | None:
        """This agent's group rank in the generation that it acts for."""
        record = self.record
        member = record.member(*self.who) if record else None
        return member.rank if member else None

    @property
    def older(self) -> int:
        """At least so many older candidates live: those counted at joining, less all that went since."""
        return self.before - (self.view.deaths - self.deaths_before)

    def fresh(self, now: float) -> bool:
        """May this agent decide, commit and publish at `now`?"""
        return now < self.lease_deadline and not self.lease_gone

    def under_way(self, purpose: Purpose) -> Sent | None:
        return next((s for s in self.sent.values() if s.purpose is purpose), None)

    def changed(self, changes: Mapping[str, Any]) -> State:
        """This state with other values for some fields.  Several times a step, so without the cost of
        `dataclasses.replace` (which runs all of `__init__`)."""
        values = {**self.__dict__, **changes}
        if len(values) != len(self.__dict__):
            raise TypeError(f"State has no field {', '.join(sorted(changes.keys() - self.__dict__.keys()))}")
        new = object.__new__(State)
        object.__setattr__(new, "__dict__", values)
        return new
