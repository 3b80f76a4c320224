"""Exit statuses of the command line.  Where a meaning is an agent's too, the number is the same."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Code(IntEnum):
    """Exit status of `elastic-health`."""

    OK = 0
    NOT_FOUND = 1
    USAGE = 2
    NOT_MEASURED = 3
    BAD_CONFIG = 64
    NO_INPUT = 66
    STORE_UNREACHABLE = 69
    STORE_FAILED = 74
    STORE_REFUSED = 77
    RUN_REFUSED = 78
    NOT_READY = 79
    UNFIT = 80
    INTERRUPTED = 130


MEANINGS: Mapping[Code, str] = {
    Code.OK: "done; the answer is on standard output",
    Code.NOT_FOUND: "nothing is known of that run or baseline, or nothing of that name is in quarantine",
    Code.USAGE: "the command or its arguments are wrong",
    Code.NOT_MEASURED: "no verdict: no baseline, too little in common, or output that is cut, empty or skipped",
    Code.BAD_CONFIG: "the YAML, the endpoint or another value is wrong",
    Code.NO_INPUT: "a file that was named can't be read",
    Code.STORE_UNREACHABLE: "no etcd endpoint answered in time, or it is not etcd",
    Code.STORE_FAILED: "etcd answered, but did not do it (full, too large, or changed meanwhile): try again or see the message",
    Code.STORE_REFUSED: "etcd refused user, password or certificate",
    Code.RUN_REFUSED: "the run is not in a state in which this can be done",
    Code.NOT_READY: "`doctor`: something here would stop a run; the lines marked FAIL say what",
    Code.UNFIT: "what was judged, compared or checked failed",
    Code.INTERRUPTED: "ended by Ctrl-C",
}
