"""The host check: facts from a process of its own, the store's clock, the kernel's log; judged by `host`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from elastic_health.codec import build
from elastic_health.errors import BadValue
from elastic_health.preflight.checks import Cancel, CheckSpec, Context, Runner, parameter
from elastic_health.preflight.clock import ClockSample
from elastic_health.preflight.command_proc import run_command
from elastic_health.preflight.commands import Command, Ended, Ran, cleaned
from elastic_health.preflight.host import JudgeLog, judge_host
from elastic_health.preflight.host_facts import Gpus, HostFacts, Limits, Memory, Network, Orphan, Part, Space
from elastic_health.preflight.host_limits import HostLimits
from elastic_health.preflight.host_os import SHM, limits as host_limits, memory
from elastic_health.preflight.kernel_log_os import KMSG, read_kernel_log
from elastic_health.preflight.results import CheckResult
from elastic_health.preflight.tool import judged

MODULE = "elastic_health.preflight.host_main_os"
_READ_AS: Mapping[str, Any] = {
    Part.MEMORY.value: Memory,
    Part.LIMITS.value: Limits,
    Part.ORPHANS.value: tuple[Orphan, ...],
    Part.NETWORK.value: Network,
    Part.GPUS.value: Gpus,
}
QUICK = frozenset((Part.MEMORY, Part.LIMITS, Part.CLOCK, Part.KERNEL_LOG))
"""Parts that never block and cost milliseconds: a check of these alone starts no process."""
NEWEST_BYTES = 128 * 1024
"""Such a check reads so much of the kernel log: what is older was seen when the node joined."""


def host_runner(
    *,
    clock: Callable[[], tuple[ClockSample, ...]] | None = None,
    xid: JudgeLog | None = None,
    facts: Callable[[HostLimits, float, Cancel | None], tuple[HostFacts, Ran]] | None = None,
) -> Runner:
    """The runner of the host check.  Its parameters are the fields of `HostLimits`, and `kernel_log`, a file to read in its place.

    Parts that are all `QUICK` are looked at in this process.

    Args:
        clock: looks at the store's clock; None where there is none.
        xid: judges the kernel's messages.
        facts: reads the host (default: `read_facts`, or `read_here`).
    """

    def run(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        limits = build(HostLimits, dict(spec.parameters), f"check {spec.name}")
        samples = clock() if clock is not None and limits.wants(Part.CLOCK) else None
        quick = QUICK.issuperset(limits.parts)
        read = facts or (read_here if quick else read_facts)
        path, newest_bytes = parameter(spec, "kernel_log", str, KMSG), NEWEST_BYTES if quick else 0
        log = read_kernel_log(path, newest_bytes=newest_bytes) if xid is not None and limits.wants(Part.KERNEL_LOG) else None
        found, ran = read(limits, spec.time_limit_s, cancel)
        result = judge_host(found, limits, clock=samples, log=log, xid=xid)
        whole = dataclasses.replace(ran, ended=Ended.BY_ITSELF, omitted=0)  # what did not answer is named in the facts
        return judged(spec, whole, lambda ran: result)

    return run


def read_here(limits: HostLimits, limit_s: float, cancel: Cancel | None = None) -> tuple[HostFacts, Ran]:
    """The quick parts' facts, read in this process."""
    silent: dict[str, str] = {}
    values: dict[str, Any] = {}
    readers: Mapping[Part, Callable[[], Any]] = {Part.MEMORY: memory, Part.LIMITS: host_limits}
    for part in limits.parts:
        if part in readers:
            try:
                values[part.value] = readers[part]()
            except (OSError, ValueError) as error:
                silent[part.value] = f"{type(error).__name__}: {error}"
    return HostFacts(**values, silent=silent), Ran((), Ended.BY_ITSELF)


def read_facts(limits: HostLimits, limit_s: float, cancel: Cancel | None = None) -> tuple[HostFacts, Ran]:
    """This host's facts, and how it went to read them; what did not answer within `limit_s` is in `HostFacts.silent`."""
    paths = list(dict.fromkeys((*limits.paths, *([SHM] if os.path.isdir(SHM) else []))))
    asked = {"parts": [part.value for part in limits.parts], "paths": paths, "agent": os.getpid()}
    command = Command((sys.executable, "-m", MODULE, json.dumps(asked)), cleaned(os.environ), limit_s)
    ran = run_command(command, cancel)
    return assemble(limits, paths, ran), ran


def assemble(limits: HostLimits, paths: list[str], ran: Ran) -> HostFacts:
    """Facts from the lines that were written."""
    values: dict[str, Any] = {}
    spaces: list[Space] = []
    silent: dict[str, str] = {}
    for said in _lines(ran.stdout):
        part = str(said.get("part"))
        try:
            if "error" in said:
                silent[part] = str(said["error"])
            elif part == Part.SPACE.value:
                spaces.append(build(Space, said.get("value"), part))
            elif part in _READ_AS:
                values[part] = build(_READ_AS[part], said.get("value"), part)
        except BadValue as error:
            silent[part] = str(error)
    why = _why(ran)
    for name in (part.value for part in limits.parts):
        if name in _READ_AS and name not in values:
            silent.setdefault(name, why)
    if limits.wants(Part.SPACE):
        answered = {space.path for space in spaces}
        silent |= {f"space of {path}": why for path in paths if path not in answered}
    return HostFacts(**values, spaces=tuple(sorted(spaces, key=lambda s: s.path)), silent=silent)


def _lines(stdout: str) -> Iterator[Mapping[str, Any]]:
    for line in stdout.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            yield said


def _why(ran: Ran) -> str:
    if ran.ended is Ended.TIME_LIMIT:
        return f"no answer within {ran.seconds:.1f} s"
    last = ran.stderr.strip().splitlines()
    return f"could not be read: {last[-1] if last else ran.detail or ran.ended.value}"
