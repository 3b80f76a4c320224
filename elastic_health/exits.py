"""The exit statuses of an agent (and so of `torchrun`), one table for people, schedulers and tests.

0 and 1 keep torchrun's own meaning.  The others lie in 64–113, away from shells' 126–165 and Python's 1 and 2.
`requeue` says what a scheduler should do with the whole job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of `torchrun --rdzv-backend=healthy-etcd`."""

    OK = 0
    WORKERS_FAILED = 1
    BAD_CONFIG = 64
    STORE_UNREACHABLE = 69
    STORE_REFUSED = 77
    RUN_REFUSED = 78
    UNFIT_NODE = 80
    QUARANTINED = 81
    CAPPED = 82
    NO_CHECKPOINT = 83
    STOPPED = 84
    NOT_FORMED = 85
    REPLACED = 86


@dataclass(frozen=True)
class ExitMeaning:
    """One row of the table."""

    status: ExitStatus
    meaning: str
    requeue: bool


EXIT_TABLE: tuple[ExitMeaning, ...] = (
    ExitMeaning(ExitStatus.OK, "training finished on all nodes", False),
    ExitMeaning(ExitStatus.WORKERS_FAILED, "a worker failed and no restart was allowed (torchrun prints its table)", False),
    ExitMeaning(ExitStatus.BAD_CONFIG, "YAML, --rdzv-conf, run id, script, address, port or checkpoint folder is wrong", False),
    ExitMeaning(ExitStatus.STORE_UNREACHABLE, "no etcd endpoint answered in time, or it is not etcd, or full", True),
    ExitMeaning(ExitStatus.STORE_REFUSED, "etcd refused user, password or certificate", False),
    ExitMeaning(ExitStatus.RUN_REFUSED, "the run id is finished, capped, unreadable, or of another script, size or version", False),
    ExitMeaning(ExitStatus.UNFIT_NODE, "this node failed its preflight", False),
    ExitMeaning(ExitStatus.QUARANTINED, "this node is in quarantine", False),
    ExitMeaning(ExitStatus.CAPPED, "a restart or rollback cap was reached: a person must look", False),
    ExitMeaning(ExitStatus.NO_CHECKPOINT, "no usable checkpoint and starting over is not allowed: a person must look", False),
    ExitMeaning(ExitStatus.STOPPED, "stopped on request before training finished (this node, or so many that fewer than MIN stay)", True),
    ExitMeaning(ExitStatus.NOT_FORMED, "fewer than MIN fit nodes came within the join timeout", True),
    ExitMeaning(ExitStatus.REPLACED, "this agent lost its lease and could not rejoin in time", True),
)
