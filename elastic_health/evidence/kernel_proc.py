"""What the kernel says of one process: state, memory, and where each of its threads sleeps.

Law: only files of /proc that never wait for the process itself are read (not `cmdline`, `environ` or `maps`, which take
its memory lock), and each is bounded.
"""

from __future__ import annotations

import os
from typing import Any

MAX_TASKS = 128
MAX_FILE_BYTES = 16 * 1024
_STATUS_FIELDS = frozenset({"Name", "State", "VmRSS", "VmSwap", "Threads", "SigBlk", "SigIgn", "SigCgt", "TracerPid"})
_STATES = frozenset("RSDTtZXIWKP")


def kernel_facts(pid: int) -> dict[str, Any] | None:
    """JSON-ready facts of `pid`, None when it is gone.

    `state` is the kernel's letter; `wchan`, `syscall` and `stack` (root only) are of the main thread; `tasks` lists
    thread id, name, state letter and wchan of at most `MAX_TASKS` threads.
    """
    status = _status(_text(f"/proc/{pid}/status"))
    if not status:
        return None
    facts: dict[str, Any] = {"state": status.get("State", "")[:1], "status": status}
    for name in ("wchan", "syscall", "stack", "oom_score", "cgroup"):
        facts[name] = _text(f"/proc/{pid}/{name}").strip()
    facts["tasks"] = _tasks(pid)
    return facts


def state_letter(pid: int) -> str:
    """The main thread's state letter, "" when the process is gone."""
    letter = _text(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]
    return letter if letter in _STATES else ""


def _status(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if name in _STATUS_FIELDS}


def _tasks(pid: int) -> list[dict[str, Any]]:
    try:
        tids = sorted(int(t) for t in os.listdir(f"/proc/{pid}/task"))[:MAX_TASKS]
    except OSError:
        return []
    return [_task(f"/proc/{pid}/task/{tid}", tid) for tid in tids]


def _task(folder: str, tid: int) -> dict[str, Any]:
    head, _, rest = _text(f"{folder}/stat").rpartition(")")
    return {"tid": tid, "name": head.partition("(")[2], "state": rest.strip()[:1], "wchan": _text(f"{folder}/wchan")}


def _text(path: str) -> str:
    """The beginning of a file, "" when it is gone, denied or not offered by this kernel."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
