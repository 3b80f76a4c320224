"""From a finished command to the result of its check: what the command itself proves, before and after its judge speaks.

Laws:
 - a tool that is not on this machine is `skipped`; one that is there and could not be run has measured nothing;
 - a command that was cut short passes nobody: its judge may still find a failure in what was said until then;
 - a process that SIGKILL can't end fails the node whatever the tool said.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass

from elastic_health.codec import plain
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.checks import CheckSpec, Context
from elastic_health.preflight.commands import Ended, Ran, Stuck, text_of
from elastic_health.preflight.results import CheckResult, Outcome, not_measured, outcome_of

Judge = Callable[[Ran], CheckResult]
"""Judges what a tool said; it may leave to `judged` all that concerns how the tool ended."""


@dataclass(frozen=True)
class Tool:
    """An external tool as a check: what to run, and who judges what it said.

    Attributes:
        command: program and arguments for a specification.
        judge: of its output; `by_text` makes one of a parser.
    """

    command: Callable[[CheckSpec, Context], tuple[str, ...]]
    judge: Judge


def by_text(parse: Callable[[str, int | None], CheckResult]) -> Judge:
    """A judge from a function of (text, exit status; negative for a signal, None for a command that was cut short)."""
    return lambda ran: parse(text_of(ran), ran.status)


def told(spec: CheckSpec, context: Context) -> str:
    """What an external check finds in `variables.CHECK`: one JSON object."""
    said = {"check": spec.name, **plain(context), "parameters": plain(spec.parameters)}
    return json.dumps(said, separators=(",", ":"), ensure_ascii=True)


def judged(spec: CheckSpec, ran: Ran, judge: Judge) -> CheckResult:
    """The result of a check that ran a command."""
    result = _unstarted(spec, ran) if not ran.ended.started else _bounded(spec, ran, judge(ran))
    stuck = tuple(_stuck(process) for process in ran.stuck)
    return dataclasses.replace(
        result,
        check=spec.name,
        outcome=Outcome.FAIL if stuck else result.outcome,
        findings=(*stuck, *result.findings),
        summary=stuck[0].reason if stuck else result.summary,
        seconds=ran.seconds,
        details={**result.details, "command": list(ran.argv), **_how(ran)},
    )


def skipped(spec: CheckSpec, reason: str, advice: str = "") -> CheckResult:
    """The result of a check for which this machine has nothing to measure with."""
    finding = Finding(FindingKind.NOTE, f"skipped: {reason}", level=Level.NOTE, advice=advice)
    return CheckResult(spec.name, Outcome.SKIPPED, (finding,), finding.reason)


def _unstarted(spec: CheckSpec, ran: Ran) -> CheckResult:
    if ran.ended is Ended.MISSING:
        return skipped(spec, ran.detail, "install it, or take this check out of the YAML")
    reason = f"could not be started: {ran.detail}"
    finding = Finding(FindingKind.MISCONFIGURED, reason, level=Level.WARN, advice="correct the command of this check in the YAML")
    return CheckResult(spec.name, outcome_of((finding,), measured=False), (finding,), reason)


def _bounded(spec: CheckSpec, ran: Ran, result: CheckResult) -> CheckResult:
    """A judge's result, less what it may not say of a command that is not whole."""
    if ran.whole or result.outcome in (Outcome.FAIL, Outcome.SKIPPED):
        return result
    reason, advice = _cut(spec, ran)
    cut = not_measured(spec.name, reason, advice=advice)
    kept = tuple(f for f in result.findings if f.kind is not FindingKind.NOT_MEASURED)
    return dataclasses.replace(result, outcome=Outcome.NOT_MEASURED, findings=(*cut.findings, *kept), summary=reason)


def _cut(spec: CheckSpec, ran: Ran) -> tuple[str, str]:
    if ran.ended is Ended.TIME_LIMIT:
        return f"did not end within {spec.time_limit_s:g} s", "look at what it waits for; raise time_limit_s if it is only slow"
    if ran.ended is Ended.CANCELLED:
        return "ended before its time: the agent was told to stop", ""
    if ran.ended is Ended.LOST:
        return f"ended from outside: {ran.detail}", "look for the kernel's out-of-memory killer in its log"
    return f"wrote so much that {ran.omitted} bytes were left out", "make it say less"


def _stuck(process: Stuck) -> Finding:
    where = f" in {process.wchan}" if process.wchan else ""
    return Finding(
        FindingKind.LEFTOVER_PROCESS,
        f"process {process.pid} ({process.name}) can't be killed: it is in state {process.state}{where}",
        level=Level.FAIL,
        advice="a driver holds it: look at the kernel log, then reboot the node",
        evidence={"pid": process.pid, "state": process.state, "wchan": process.wchan},
    )


def _how(ran: Ran) -> dict[str, object]:
    said: dict[str, object] = {"ended": ran.ended.value, "exit_status": ran.exit_status}
    more = {"signal": ran.signal, "omitted_bytes": ran.omitted, "strays": ran.strays, "detail": ran.detail}
    return said | {name: value for name, value in more.items() if value}
