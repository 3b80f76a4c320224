"""What `doctor` says, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Mark(Enum):
    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Topic(Enum):
    """Closed list; docs name each."""

    PLUGIN = "plugin"
    TORCH = "torch"
    TORCHRUN = "torchrun"
    CONFIG = "config"
    NODE = "node"
    ETCD = "etcd"
    MEMBERS = "members"
    LATENCY = "latency"
    LOGIN = "login"
    RIGHTS = "rights"
    SPACE = "space"
    COMPACTION = "compaction"
    CLOCK = "clock"
    QUARANTINE = "quarantine"
    HOST = "host"
    GPU = "gpu"
    TOOLS = "tools"
    OPEN_FILES = "open_files"
    SHARED_MEMORY = "shared_memory"
    STAGE = "stage"


@dataclass(frozen=True)
class Line:
    topic: Topic
    mark: Mark
    found: str
    do: str = ""


def version_of(text: str) -> tuple[int, ...] | None:
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", text)
    return tuple(int(n) for n in found.groups(default="0")) if found else None
