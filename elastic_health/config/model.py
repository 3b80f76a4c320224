"""The YAML's form: one model a section, with types, ranges and the sentence that documents each key.

Defaults come from `elastic_health.policies`, which is what decisions receive: there is one place for each default.
Times are seconds.  `null` stands for "no such cap" where a type allows it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from elastic_health.config.fields import DAY_S, VARIABLE, Count, Seconds, Section, Short, SomeSeconds, Word, fields_of
from elastic_health.config.preflight_model import PreflightSection
from elastic_health.generations import Bounds
from elastic_health.policies import (
    Automatic,
    Caps,
    CheckpointPolicy,
    DrainPolicy,
    EvidencePolicy,
    MembershipPolicy,
    OutageChoice,
    OutagePolicy,
    PagePolicy,
    Policies,
    RecoveryPolicy,
    ScaleUp,
    StallPolicy,
    TeardownPolicy,
    Warm,
)
from elastic_health.rendezvous.keys import DEFAULT_PREFIX

URL = r"^(https?://.*)?$"
Cap = Count | None
SomeTimes = Annotated[int, Field(ge=1, le=1000)]
M, R, L, B = MembershipPolicy(), Caps(), StallPolicy(), Bounds()


class Tls(Section):
    ca: Word | None = Field(default=None, description="PEM file with the authorities that sign etcd's certificate; null: the system's")
    cert: Word | None = Field(default=None, description="PEM file with this client's certificate, where etcd asks for one")
    key: Word | None = Field(default=None, description="PEM file with its key")
    server_name: Word | None = Field(default=None, description="name to expect in etcd's certificate; null: the endpoint's host")


class Outage(Section):
    policy: OutageChoice = Field(default=OutagePolicy().choice, description="what a healthy group does while no etcd endpoint answers")
    bound_s: Seconds = Field(default=OutagePolicy().bound_s, description="it rides through for at most this long")


class StoreSection(Section):
    prefix: Word = Field(default=DEFAULT_PREFIX, pattern=r"^/([A-Za-z0-9._:@-]+/)+$", description="every key starts with this")
    tls: Tls | None = Field(default=None, description="null: plain text, or what https:// in the endpoint asks for")
    user: Word | None = Field(default=None, pattern=r"^[^:]+$", description="etcd user, where authentication is on")
    password_file: Word | None = Field(default=None, description="file that holds the password, and nothing else")
    password_env: Word | None = Field(default=None, pattern=f"^{VARIABLE}$", description="or the variable that holds it")
    timeout_s: SomeSeconds = Field(default=5.0, description="deadline of one request")
    connect_s: SomeSeconds = Field(default=60.0, description="an agent that starts tries for so long to reach etcd")
    outage: Outage = Outage()


class MembershipSection(Section):
    join_timeout_s: SomeSeconds = Field(default=M.join_timeout_s, description="wait for MIN fit nodes for so long, then give up")
    last_call_s: Seconds = Field(default=M.last_call_s, description="with MIN but not MAX ready at the first formation: wait for more")
    lease_s: Annotated[float, Field(ge=2.0, le=600.0)] = Field(default=B.lease_s, description="a silent agent counts as gone after this")
    link_timeout_s: Annotated[float, Field(ge=0.5, le=600.0)] = Field(default=B.link_timeout_s, description="a silent agent link is broken")
    kill_grace_s: Annotated[float, Field(ge=0.5, le=600.0)] = Field(default=B.kill_grace_s, description="from order to stop to reaped")
    start_s: SomeSeconds = Field(default=B.start_s, description="to publish the generation's store and to link up")
    former_delay_s: SomeSeconds = Field(default=M.former_delay_s, description="the next candidate forms after each such delay")
    scale_up: ScaleUp = Field(default=M.scale_up, description="when a newcomer enters a group that is not full")
    gather_s: Short = Field(default=M.gather_s, description="grow only when no further node has come for so long (4 times that at most)")


class DrainSection(Section):
    deadline_s: Annotated[float, Field(ge=0.0, le=DAY_S)] = Field(
        default=DrainPolicy().deadline_s, description="after SIGTERM: leave once a checkpoint is committed, or after so long without"
    )


class RestartsSection(Section):
    total: Cap = Field(default=R.total, description="restarts of the whole run; 0 forbids them (`max_restarts` is the same key)")
    per_hour: Cap = Field(default=R.per_hour, description="within any 3600 s")
    per_node: Cap = Field(default=R.per_node, description="in which one node was named")
    per_signature: Cap = Field(default=R.per_signature, description="with one and the same signature")
    without_commit: Cap = Field(default=R.without_commit, description="in a row without a new committed checkpoint")
    early_exits: SomeTimes | None = Field(default=R.early_exits, description="first-seconds exits in a row that stop the run")
    early_exit_s: Seconds = Field(default=R.early_exit_s, description="an exit this soon after the start, with no step done, is early")
    mismatches: Cap = Field(default=R.mismatches, description="after mismatched collectives, a program error")
    rollbacks_per_day: Cap = Field(default=R.rollbacks_per_day, description="deliberate rollbacks within any 86400 s; they are no restarts")
    backoff_s: Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=20)] = Field(
        default=R.backoff_s, description="wait before forming again, by number of repeats; the last one stays"
    )
    repeat_within_s: Seconds = Field(default=R.repeat_within_s, description="the same signature within this time is a repeat")


class LivenessSection(Section):
    stall_after_s: Annotated[float, Field(ge=0.5, le=DAY_S)] = Field(default=L.stall_after_s, description="no marker, CPU or I/O moves")
    busy_after_s: Annotated[float, Field(ge=0.5, le=DAY_S)] = Field(default=L.busy_after_s, description="no marker moves, CPU or I/O does")
    start_after_s: Annotated[float, Field(ge=1.0, le=DAY_S)] = Field(default=L.start_after_s, description="until the first progress")
    heartbeat_s: Annotated[float, Field(ge=0.05, le=60.0)] = Field(default=L.heartbeat_s, description="how often the heartbeat beats")
    adapt_factor: Annotated[float, Field(ge=0.0, le=100.0)] = Field(default=L.adapt_factor, description="bound over longest healthy gap")


class EvidenceSection(Section):
    folder: Word = Field(default=EvidencePolicy().folder, description='where incident folders go; "": below torchrun\'s log folder')
    time_limit_s: Short = Field(default=EvidencePolicy().time_limit_s, description="for the whole collection")
    stacks: bool = Field(default=EvidencePolicy().stacks, description="collect the stacks of the workers")


class TeardownSection(Section):
    grace_s: Short = Field(default=TeardownPolicy().grace_s, description="from SIGTERM to SIGKILL")
    commit_wait_s: Short = Field(default=TeardownPolicy().commit_wait_s, description="first, for an update or rename in progress")


class WorkersSection(Section):
    warm: Warm = Field(default=Warm.AUTO, description="keep idle processes imported for the next generation")


class CheckpointsSection(Section):
    keep: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=CheckpointPolicy().keep, description="newest committed checkpoints kept, where the script says nothing"
    )
    start_over: bool = Field(default=CheckpointPolicy().start_over, description="no usable checkpoint: begin at position 0, or stop")
    rollback_reach_steps: Count = Field(default=CheckpointPolicy().rollback_reach_steps, description="a rollback goes at least so far back")


class PageSection(Section):
    command: tuple[Word, ...] = Field(default=PagePolicy().command, description="program and arguments; the message is on its stdin")
    webhook: Word = Field(default=PagePolicy().webhook, pattern=URL, description="URL that gets the message as JSON by POST")
    webhook_env: Word = Field(default=PagePolicy().webhook_env, pattern=f"^({VARIABLE})?$", description="variable holding the URL")
    timeout_s: Annotated[float, Field(ge=0.1, le=600.0)] = Field(default=PagePolicy().timeout_s, description="for command or request")


class TopologySection(Section):
    env: Word | None = Field(default=None, pattern=f"^{VARIABLE}$", description="variable that holds this node's place, e.g. pod1.rack7")
    racks: dict[Word, Word] = Field(default={}, description="place by pattern (* and ?) of the node's name; the first that fits")
    slurm: bool = Field(default=True, description="else the switches in SLURM_TOPOLOGY_ADDR")


class PortsSection(Section):
    listen: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="TCP port of this agent's links; 0: any free one")


class Config(Section):
    """The whole file."""

    store: StoreSection = StoreSection()
    membership: MembershipSection = MembershipSection()
    drain: DrainSection = DrainSection()
    restarts: RestartsSection = RestartsSection()
    liveness: LivenessSection = LivenessSection()
    evidence: EvidenceSection = EvidenceSection()
    teardown: TeardownSection = TeardownSection()
    workers: WorkersSection = WorkersSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    page: PageSection = PageSection()
    observe_only: tuple[Automatic, ...] = Field(default=(), description="automatic actions that are decided and recorded, not done")
    preflight: PreflightSection = PreflightSection()
    topology: TopologySection = TopologySection()
    ports: PortsSection = PortsSection()

    def policies(self) -> Policies:
        """The plain data that decisions receive."""
        return Policies(
            membership=self._membership(),
            outage=OutagePolicy(self.store.outage.policy, self.store.outage.bound_s),
            drain=DrainPolicy(self.drain.deadline_s),
            recovery=RecoveryPolicy(
                Caps(**fields_of(self.restarts)), self.membership.scale_up, self.checkpoints.start_over, frozenset(self.observe_only)
            ),
            stall=StallPolicy(**fields_of(self.liveness)),
            evidence=EvidencePolicy(**fields_of(self.evidence)),
            teardown=TeardownPolicy(**fields_of(self.teardown)),
            checkpoints=CheckpointPolicy(**fields_of(self.checkpoints)),
            page=PagePolicy(**fields_of(self.page)),
            warm=self.workers.warm,
            preflight=self.preflight.policy(),
        )

    def _membership(self) -> MembershipPolicy:
        m = self.membership
        bounds = Bounds(m.lease_s, m.link_timeout_s, m.kill_grace_s, m.start_s)
        return MembershipPolicy(m.join_timeout_s, m.last_call_s, m.former_delay_s, m.scale_up, bounds, m.gather_s)
