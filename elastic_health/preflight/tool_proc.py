"""Runners of the checks that are external commands: vendors' tools, own executables, Python entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection

from elastic_health import variables
from elastic_health.preflight.checks import Cancel, CheckSpec, Context, Runner, words
from elastic_health.preflight.command_proc import run_command
from elastic_health.preflight.commands import Command, Ran, cleaned
from elastic_health.preflight.own import judge_entry, judge_own
from elastic_health.preflight.results import CheckResult
from elastic_health.preflight.tool import Tool, judged, told

ENTRY_MODULE = "elastic_health.preflight.entry_proc"


def run_for(spec: CheckSpec, context: Context, cancel: Cancel, argv: tuple[str, ...], secrets: Collection[str] = ()) -> Ran:
    """Run `argv` on behalf of a check: its limit, a cleaned environment, and `variables.CHECK`."""
    environment = cleaned(os.environ, secrets, words(spec, "keep_env")) | {variables.CHECK: told(spec, context)}
    return run_command(Command(argv, environment, spec.time_limit_s), cancel)


def tool_runner(tool: Tool, secrets: Collection[str] = ()) -> Runner:
    """The runner of a kind of check that is one external tool.

    Args:
        secrets: names of variables that it must not see.
    """

    def run(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        ran = run_for(spec, context, cancel, tool.command(spec, context), secrets)
        return judged(spec, ran, tool.judge)

    return run


def own_runner(secrets: Collection[str] = ()) -> Runner:
    """Own executables: parameter `command`, program and arguments."""
    return _external(lambda spec: words(spec, "command"), judge_own, secrets)


def entry_runner(secrets: Collection[str] = ()) -> Runner:
    """Python entry points of the group `elastic_health.checks`, by the check's parameter `entry` or its name."""

    def argv(spec: CheckSpec) -> tuple[str, ...]:
        return (sys.executable, "-m", ENTRY_MODULE, str(spec.parameters.get("entry") or spec.name))

    return _external(argv, judge_entry, secrets)


def _external(argv: Callable[[CheckSpec], tuple[str, ...]], judge: Callable[[str, Ran], CheckResult], secrets: Collection[str]) -> Runner:
    def run(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        ran = run_for(spec, context, cancel, argv(spec), secrets)
        return judged(spec, ran, lambda ran: judge(spec.name, ran))

    return run
