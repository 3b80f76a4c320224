"""The YAML's section `preflight`, and the gate's policy made from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from elastic_health.codec import plain
from elastic_health.config.fields import DAY_S, Count, Seconds, Section, SomeSeconds, Word, fields_of
from elastic_health.preflight.breaker import BreakerPolicy
from elastic_health.preflight.checks import GPU_LANE, CheckSpec, Kind, Stage, Unmeasured
from elastic_health.preflight.host_facts import Part
from elastic_health.preflight.host_limits import HostLimits
from elastic_health.preflight.pair_bench import PairRules
from elastic_health.preflight.policy import (
    ADMISSION,
    BANDWIDTH,
    BANDWIDTH_LIMIT_S,
    CANARY,
    CANARY_LIMIT_S,
    DCGM_LEVELS,
    DCGM_LIMITS_S,
    HOST_LIMIT_S,
    KERNEL_LOG,
    PAIR_LIMIT_S,
    RESTART_PARTS,
    Mode,
    PreflightPolicy,
    QuarantineAfter,
    dcgm_specs,
    host_specs,
)

H, K, P, Q, R = HostLimits(), BreakerPolicy(), PreflightPolicy(), QuarantineAfter(), PairRules()
Limit = Annotated[float, Field(ge=0.1, le=DAY_S)]
Ratio = Annotated[float, Field(gt=0.0, le=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Amount = Annotated[float, Field(ge=0.0, le=1e18)]
Names = Annotated[tuple[Word, ...], Field(max_length=256)]
Parts = Annotated[tuple[Part, ...], Field(max_length=len(Part))]
Stages = Annotated[tuple[Stage, ...], Field(max_length=len(Stage))]
Level = Annotated[int, Field(ge=0, le=4)]
CheckName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,62}$")]
BUILT_IN = ("host", "canary", "dcgm", "bandwidth", "pair")
_UNMEASURED = "what it means for the node that this could not be measured: admit, refuse"
_REQUIRED = "skipped (no such tool here) refuses the node"
_LIMIT = "then it is ended, with all that it started"


class CheckSection(Section):
    """What checks have in common."""

    stages: Stages = Field(default=tuple(s for s in Stage if s in ADMISSION), description="when it runs: join, restart, after_repair")
    required: bool = Field(default=False, description=_REQUIRED)
    when_not_measured: Unmeasured = Field(default=Unmeasured.ADMIT, description=_UNMEASURED)
    time_limit_s: Limit = Field(default=CANARY_LIMIT_S, description=_LIMIT)

    def spec(self, name: str, kind: Kind, lane: str, parameters: dict[str, Any]) -> CheckSpec:
        return CheckSpec(name, kind, frozenset(self.stages), self.required, self.when_not_measured, self.time_limit_s, lane, parameters)


class HostSection(Section):
    stages: Stages = Field(default=tuple(Stage), description="when it runs: join, restart, after_repair")
    when_not_measured: Unmeasured = Field(default=Unmeasured.ADMIT, description=_UNMEASURED)
    time_limit_s: Limit = Field(default=HOST_LIMIT_S, description="a mount or driver that is silent for so long is not measured")
    parts: Parts = Field(default=H.parts, description="what is looked at")
    restart_parts: Parts = Field(default=RESTART_PARTS, description="and where a node merely comes back")
    memory_bytes: Amount = Field(default=H.memory_bytes, description="less available memory fails")
    memory_comfort_bytes: Amount = Field(default=H.memory_comfort_bytes, description="less warns")
    memory_fraction: Share = Field(default=H.memory_fraction, description="and so does a smaller part of all")
    paths: Names = Field(default=H.paths, description="whose file systems are looked at, besides /dev/shm")
    disk_bytes: Amount = Field(default=H.disk_bytes, description="less free space fails")
    disk_comfort_bytes: Amount = Field(default=H.disk_comfort_bytes, description="less warns")
    disk_fraction: Share = Field(default=H.disk_fraction, description="and so does a smaller part of all")
    inode_fraction: Share = Field(default=H.inode_fraction, description="a smaller free part of the inodes warns")
    shm_bytes: Amount = Field(default=H.shm_bytes, description="less free /dev/shm fails")
    shm_comfort_bytes: Amount = Field(default=H.shm_comfort_bytes, description="less warns")
    open_files: Count = Field(default=H.open_files, description="a lower hard limit fails")
    open_files_comfort: Count = Field(default=H.open_files_comfort, description="a lower one warns")
    locked_bytes: Amount = Field(default=H.locked_bytes, description="with RDMA, a lower limit of locked memory warns")
    clock_s: SomeSeconds = Field(default=H.clock_s, description="a larger offset against etcd's machine warns")
    clock_fail_s: SomeSeconds = Field(default=H.clock_fail_s, description="a larger one fails")
    nics: Names = Field(default=H.nics, description="patterns of interfaces that must be up")
    nic_mbps: Annotated[int, Field(ge=0, le=10_000_000)] = Field(default=H.nic_mbps, description="at least at this rate; 0: any")
    rdma_ports: Names = Field(default=H.rdma_ports, description="patterns of device or device:port that must be active")
    rdma_gbps: Amount = Field(default=H.rdma_gbps, description="at least at this rate; 0: as fast as the fastest here")
    gpus: Annotated[int, Field(ge=0, le=1024)] = Field(default=H.gpus, description="so many GPUs there must be; 0: any number")
    gpu_processes: Names = Field(default=H.gpu_processes, description="patterns of processes that may be on a GPU")
    gpu_process_bytes: Amount = Field(default=H.gpu_process_bytes, description="one that holds less is no leftover")
    retired_pages: Count = Field(default=H.retired_pages, description="so many on a GPU fail")
    nvlinks: Annotated[int, Field(ge=0, le=36)] | None = Field(default=H.nvlinks, description="active links of a GPU; 0: as the best")
    kernel_log: Word = Field(default=KERNEL_LOG, description="where the kernel's messages are read")

    def specs(self) -> tuple[CheckSpec, ...]:
        own = ("stages", "when_not_measured", "time_limit_s", "restart_parts")
        said = {name: value for name, value in fields_of(self).items() if name not in own}
        spec = CheckSpec("host", Kind.HOST, frozenset(), False, self.when_not_measured, self.time_limit_s, "", plain(said))
        return host_specs(frozenset(self.stages), self.restart_parts, spec)


class CanarySection(CheckSection):
    wait_s: Seconds = Field(default=CANARY.wait_s, description="wait so long for other nodes' votes while too few have voted")


class LevelsSection(Section):
    join: Level = Field(default=DCGM_LEVELS[Stage.JOIN], description="dcgmi diag -r LEVEL at this stage; 0: not run")
    restart: Level = Field(default=DCGM_LEVELS[Stage.RESTART], description="dcgmi diag -r LEVEL at this stage; 0: not run")
    after_repair: Level = Field(default=DCGM_LEVELS[Stage.AFTER_REPAIR], description="dcgmi diag -r LEVEL at this stage; 0: not run")


class DcgmSection(Section):
    levels: LevelsSection = LevelsSection()
    time_limits_s: Annotated[tuple[Limit, ...], Field(min_length=4, max_length=4)] = Field(
        default=tuple(DCGM_LIMITS_S.values()), description="of levels 1 to 4"
    )
    required: bool = Field(default=False, description=_REQUIRED)
    when_not_measured: Unmeasured = Field(default=Unmeasured.ADMIT, description=_UNMEASURED)

    def specs(self) -> tuple[CheckSpec, ...]:
        levels = {stage: getattr(self.levels, stage.value) for stage in Stage}
        limits_s = dict(enumerate(self.time_limits_s, start=1))
        return dcgm_specs(levels, limits_s, required=self.required, when_not_measured=self.when_not_measured)


class BandwidthSection(CheckSection):
    time_limit_s: Limit = Field(default=BANDWIDTH_LIMIT_S, description=_LIMIT)
    command: Annotated[Names, Field(min_length=1)] = Field(default=BANDWIDTH.command, description="nccl-tests; {gpus} is their number")
    check: CheckName = Field(default=BANDWIDTH.check, description="the baseline's name, as in `elastic-health baseline record --check`")
    file: Word = Field(default=BANDWIDTH.file, description='the baseline is in this file; "": in etcd')
    min_ratio: Ratio = Field(default=BANDWIDTH.min_ratio, description="of the baseline's median")


class PairSection(CheckSection):
    """The fields of `pair_bench.PairRules`."""

    stages: Stages = Field(default=(), description="when it runs: join, after_repair")
    time_limit_s: Limit = Field(default=PAIR_LIMIT_S, description="for the whole meeting")
    wait_s: SomeSeconds = Field(default=R.wait_s, description="wait so long for another node to come")
    settle_s: SomeSeconds = Field(default=R.settle_s, description="once two are there, wait so long for further ones")
    expect: Count = Field(default=R.expect, description="don't wait once so many are there; 0: the MIN of --nnodes")
    round_s: SomeSeconds = Field(default=R.round_s, description="of one measurement of one pair")
    sizes: Annotated[tuple[Annotated[int, Field(ge=4, le=1 << 34)], ...], Field(min_length=1, max_length=64)] = Field(
        default=R.sizes, description="of messages, in bytes, rising"
    )
    iterations: Annotated[int, Field(ge=1, le=1_000_000)] = Field(default=R.iterations, description="of each size")
    warmup: Count = Field(default=R.warmup, description="of each size, before them")
    backend: Annotated[str, Field(pattern=r"^(gloo|nccl)?$")] = Field(default=R.backend, description='"": nccl where a GPU is, else gloo')
    min_ratio: Ratio = Field(default=R.min_ratio, description="of the baseline's median")
    meeting_ratio: Ratio = Field(default=R.meeting_ratio, description="without a baseline: of the median of the other pairs")
    fewest_sizes: Annotated[int, Field(ge=1, le=64)] = Field(default=R.fewest_sizes, description="that must be comparable with it")
    command: Names = Field(default=R.command, description="in place of the built-in benchmark")
    ranks: Count = Field(default=R.ranks, description="GPUs that take part in command; 0: any number")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=R.port, description="at which the first of a pair is met; 0: a free one")
    pool: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,252})?$")] = Field(
        default=R.pool, description='nodes of one pool meet; "": those of one run and node type'
    )

    def specs(self) -> tuple[CheckSpec, ...]:
        """None where it runs at no stage.  An unblamed node that comes back is never measured again."""
        common = set(CheckSection.model_fields)
        said = {name: value for name, value in fields_of(self).items() if name not in common}
        one = self.spec("pair", Kind.PAIR, GPU_LANE, plain(said))
        return (replace(one, stages=one.stages & ADMISSION),) if one.stages & ADMISSION else ()


class OwnSection(CheckSection):
    """One own check: exactly one of `command` and `entry`."""

    name: CheckName = Field(description="as the table and the record spell it")
    when_not_measured: Unmeasured = Field(default=Unmeasured.REFUSE, description="it was added to be heard")
    command: Names = Field(default=(), description="program and arguments; exit status 0 passes, JSON on stdout may say more")
    entry: Word = Field(default="", description="or a Python entry point of the group elastic_health.checks")
    uses_gpus: bool = Field(default=False, description="never at the same time as another check that does")
    keep_env: Names = Field(default=(), description="variables to pass on although they look like secrets")
    parameters: dict[str, Any] = Field(default={}, description="handed to it in ELASTIC_HEALTH_CHECK")

    def own_spec(self) -> CheckSpec:
        said = dict(self.parameters) | {"keep_env": list(self.keep_env)}
        said |= {"command": list(self.command)} if self.command else {"entry": self.entry}
        return self.spec(self.name, Kind.OWN if self.command else Kind.ENTRY, GPU_LANE if self.uses_gpus else "", said)


class QuarantineSection(Section):
    failures: Annotated[int, Field(ge=0, le=1000)] = Field(default=Q.failures, description="failed preflights in a row; 0: never")
    for_s: SomeSeconds = Field(default=Q.for_s, description="the entry ends after this")


class BreakerSection(Section):
    window_s: SomeSeconds = Field(default=K.window_s, description="failures within this time count together")
    nodes: Annotated[int, Field(ge=2, le=100_000)] = Field(default=K.nodes, description="so many different nodes that failed alike")
    share: Share = Field(default=K.share, description="and this part of those that were checked")


class PreflightSection(Section):
    mode: Mode = Field(default=P.mode, description="enforce; observe_only: let all in, say and record what would keep a node out; off")
    total_s: Limit = Field(default=P.total_s, description="for all checks of a stage together")
    node_type: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,252})?$")] = Field(
        default=P.node_type, description='under which baselines of like nodes are kept; "": derived from the hardware'
    )
    host: HostSection = HostSection()
    canary: CanarySection = CanarySection()
    dcgm: DcgmSection = DcgmSection()
    bandwidth: BandwidthSection = BandwidthSection()
    pair: PairSection = PairSection()
    own: Annotated[tuple[OwnSection, ...], Field(max_length=64)] = Field(default=(), description="own checks")
    quarantine: QuarantineSection = QuarantineSection()
    breaker: BreakerSection = BreakerSection()

    def policy(self) -> PreflightPolicy:
        """The plain data that the gate receives."""
        b = self.bandwidth
        checks = (
            *self.host.specs(),
            self.canary.spec("canary", Kind.CANARY, GPU_LANE, {"wait_s": self.canary.wait_s}),
            *self.dcgm.specs(),
            b.spec("bandwidth", Kind.BANDWIDTH, GPU_LANE, plain({n: getattr(b, n) for n in ("command", "check", "file", "min_ratio")})),
            *self.pair.specs(),
            *(one.own_spec() for one in self.own),
        )
        quarantine, breaker = QuarantineAfter(**fields_of(self.quarantine)), BreakerPolicy(**fields_of(self.breaker))
        return PreflightPolicy(checks, self.total_s, self.mode, self.node_type, quarantine, breaker)
