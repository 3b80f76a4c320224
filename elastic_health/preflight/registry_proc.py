"""Who runs which kind of check, put together once by whoever runs a stage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from elastic_health.preflight.checks import Kind, Registry, Runner
from elastic_health.preflight.clock import ClockSample
from elastic_health.preflight.host import JudgeLog
from elastic_health.preflight.host_proc import host_runner
from elastic_health.preflight.tool import Tool
from elastic_health.preflight.tool_proc import entry_runner, own_runner, tool_runner


def registry(
    *,
    tools: Mapping[Kind, Tool],
    runners: Mapping[Kind, Runner],
    clock: Callable[[], tuple[ClockSample, ...]] | None = None,
    xid: JudgeLog | None = None,
    secrets: Collection[str] = (),
) -> Registry:
    """Runners of all kinds.

    Args:
        tools: the kinds that are one external command and a judge of its output (DCGM, nccl-tests).
        runners: the kinds that need more than that (canary, pairs).
        clock: looks at the store's clock, for the host check.
        xid: judges the kernel's messages, for the host check.
        secrets: names of variables that no check may see.
    """
    return {
        Kind.HOST: host_runner(clock=clock, xid=xid),
        Kind.OWN: own_runner(secrets),
        Kind.ENTRY: entry_runner(secrets),
        **{kind: tool_runner(tool, secrets) for kind, tool in tools.items()},
        **runners,
    }
