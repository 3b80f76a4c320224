"""How often the kernel has killed a process of this agent's memory cgroup for want of memory.

The count is of the cgroup that the agent (and so its workers) is in: v2 `memory.events`, v1 `memory.oom_control`.
In the root cgroup, where neither exists, it is the host's count in /proc/vmstat.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def oom_kills(root: Path = ROOT) -> int:
    """Kills so far, 0 if no counter can be found.  Only differences mean anything.

    Args:
        root: where `proc` and `sys` lie (tests give a folder).
    """
    for file in _counters(root):
        count = _field(file, "oom_kill")
        if count is not None:
            return count
    return 0


def _counters(root: Path) -> list[Path]:
    cgroups = root / "sys/fs/cgroup"
    found: list[Path] = []
    inside = False
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = path.lstrip("/")
        inside = inside or (bool(relative) and (controllers == "" or "memory" in controllers.split(",")))
        # In a container the path may be the host's: then the mount's own root is ours.
        if "memory" in controllers.split(","):
            found += [cgroups / "memory" / relative / "memory.oom_control", cgroups / "memory/memory.oom_control"]
        elif controllers == "":
            found += [cgroups / relative / "memory.events", cgroups / "memory.events"]
    return found if inside or any(f.exists() for f in found) else [root / "proc/vmstat"]


def _field(file: Path, name: str) -> int | None:
    for line in _lines(file):
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
