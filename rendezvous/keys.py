"""The key layout in etcd: one class that spells every key, and the splitters that read them back.

Segments never hold `/`; node names and run ids are checked when they enter.  `<n>` and `<g>` are zero-padded to ten
digits so that etcd's byte order is numeric order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_health.errors import ConfigError

DEFAULT_PREFIX = "/elastic-health/"
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,252}")


def check_segment(what: str, name: str) -> str:
    """Return `name` if it can stand in a key.

    Raises:
        ConfigError: it is empty, too long, or holds a character outside letters, digits and `._:@-`.
    """
    if not _SEGMENT.fullmatch(name):
        raise ConfigError(f"a {what} of letters, digits and ._:@- (253 at most)", repr(name), f"choose another {what}")
    return name


def number(n: int) -> str:
    """Zero-padded so that byte order is numeric order."""
    return f"{n:010d}"


@dataclass(frozen=True)
class FleetKeys:
    """Keys shared by every job of the fleet."""

    prefix: str = DEFAULT_PREFIX

    @property
    def quarantine(self) -> str:
        return f"{self.prefix}quarantine/"

    def quarantined_node(self, node: str) -> str:
        return f"{self.prefix}quarantine/nodes/{node}"

    def quarantined_gpu(self, uuid: str) -> str:
        return f"{self.prefix}quarantine/gpus/{uuid}"

    def quarantined_nic(self, node: str, nic: str) -> str:
        return f"{self.prefix}quarantine/nics/{node}/{nic}"

    def quarantined_route(self, a: str, b: str) -> str:
        """Between two nodes, whichever is named first; `+` is in no segment."""
        return f"{self.prefix}quarantine/routes/{min(a, b)}+{max(a, b)}"

    @property
    def quarantine_turn(self) -> str:
        """Rewritten with every automatic entry, so that two agents never write one from the same look at the list."""
        return f"{self.prefix}quarantine/turn"

    @property
    def baselines(self) -> str:
        return f"{self.prefix}baselines/"

    def baseline(self, node_type: str, check: str) -> str:
        """Both must have passed `check_segment`."""
        return f"{self.baselines}{node_type}/{check}"

    @property
    def preflights(self) -> str:
        return f"{self.prefix}preflights/"

    def preflight(self, node: str) -> str:
        """What its last preflight came to."""
        return f"{self.preflights}{node}"

    @property
    def canary_root(self) -> str:
        return f"{self.prefix}canary/"

    def canary(self, fingerprint: str) -> str:
        """Everything about one fingerprint; `fingerprint` is `Fingerprint.segment`."""
        return f"{self.canary_root}{fingerprint}/"

    def canary_fingerprint(self, fingerprint: str) -> str:
        """The fields that `fingerprint` is a hash of, for people."""
        return f"{self.canary(fingerprint)}fingerprint"

    def canary_votes(self, fingerprint: str) -> str:
        return f"{self.canary(fingerprint)}votes/"

    def canary_vote(self, fingerprint: str, node: str) -> str:
        return f"{self.canary_votes(fingerprint)}{node}"

    def canary_learned(self, fingerprint: str) -> str:
        """Created once, by the check of a node whose own vote wasn't needed for it."""
        return f"{self.canary(fingerprint)}learned"

    @property
    def pairs_root(self) -> str:
        return f"{self.prefix}pairs/"

    def pairs(self, pool: str) -> str:
        """Where nodes of one pool meet for the pair check; `pool` must have passed `check_segment`."""
        return f"{self.prefix}pairs/{pool}/"

    def pairs_here(self, pool: str) -> str:
        """Who is there, each under its own lease."""
        return f"{self.pairs(pool)}here/"

    def pair_here(self, pool: str, node: str) -> str:
        return f"{self.pairs_here(pool)}{node}"

    def pair_meeting(self, pool: str, meeting: str) -> str:
        """All records of one meeting, under its lease: `roll`, `rounds/<k>`, `offers/<k>.<node>`, `told/<k>.<node>`, `closed`."""
        return f"{self.pairs(pool)}meetings/{meeting}/"

    def pair_roll(self, pool: str, meeting: str) -> str:
        return f"{self.pair_meeting(pool, meeting)}roll"

    def pair_round(self, pool: str, meeting: str, k: int) -> str:
        return f"{self.pair_meeting(pool, meeting)}rounds/{number(k)}"

    def pair_offer(self, pool: str, meeting: str, k: int, node: str) -> str:
        """Where the host of a pair is to be reached."""
        return f"{self.pair_meeting(pool, meeting)}offers/{number(k)}.{node}"

    def pair_told(self, pool: str, meeting: str, k: int, node: str) -> str:
        """What a node tells of its appointment."""
        return f"{self.pair_meeting(pool, meeting)}told/{number(k)}.{node}"

    def pair_closed(self, pool: str, meeting: str) -> str:
        """There when the meeting has ended; nothing is told afterwards."""
        return f"{self.pair_meeting(pool, meeting)}closed"

    @property
    def runs(self) -> str:
        return f"{self.prefix}runs/"


@dataclass(frozen=True)
class RunKeys:
    """Keys of one run.  `run` must have passed `check_segment`."""

    run: str
    prefix: str = DEFAULT_PREFIX

    @property
    def root(self) -> str:
        return f"{self.prefix}runs/{self.run}/"

    @property
    def candidates(self) -> str:
        return f"{self.root}candidates/"

    def candidate(self, node: str, incarnation: str) -> str:
        return f"{self.root}candidates/{node}.{incarnation}"

    @property
    def current(self) -> str:
        return f"{self.root}current"

    @property
    def secret(self) -> str:
        """The run's link secret, created once."""
        return f"{self.root}secret"

    @property
    def generations(self) -> str:
        return f"{self.root}generations/"

    def generation(self, g: int) -> str:
        return f"{self.root}generations/{number(g)}"

    @property
    def members(self) -> str:
        """Parts of member lists that are too long for one key; `name` is `<g>.<former>.<n>`."""
        return f"{self.root}members/"

    def member_shard(self, name: str) -> str:
        return f"{self.members}{name}"

    def store(self, g: int) -> str:
        return f"{self.root}stores/{number(g)}"

    @property
    def verdicts(self) -> str:
        return f"{self.root}verdicts/"

    def verdict(self, g: int) -> str:
        return f"{self.root}verdicts/{number(g)}"

    @property
    def checkpoints(self) -> str:
        return f"{self.root}checkpoints/"

    def checkpoint(self, name: str) -> str:
        """`name` is `<step>.<g>` as in `CheckpointRecord.name`."""
        return f"{self.root}checkpoints/{name}"

    @property
    def skips(self) -> str:
        return f"{self.root}skips/"

    def skip(self, n: str) -> str:
        return f"{self.root}skips/{n}"

    @property
    def budget(self) -> str:
        return f"{self.root}budget"

    @property
    def records(self) -> str:
        return f"{self.root}records/"

    def record(self, ulid: str) -> str:
        return f"{self.root}records/{ulid}"

    def incident(self, ulid: str) -> str:
        return f"{self.root}incidents/{ulid}"

    @property
    def paged(self) -> str:
        """Created once, by whoever pages a human."""
        return f"{self.root}paged"

    @property
    def deleting(self) -> str:
        """There while `runs delete` removes this run: nobody joins."""
        return f"{self.root}deleting"

    @property
    def progress(self) -> str:
        return f"{self.root}progress"

    @property
    def summary(self) -> str:
        return f"{self.root}summary"


def last_segment(key: str) -> str:
    """The part behind the last slash."""
    return key.rsplit("/", 1)[1]
