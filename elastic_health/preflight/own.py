"""Judges own checks: executables (exit status, and JSON on stdout if they like) and Python entry points.

An executable passes by exit status 0 and fails by any other.  To say more it prints one JSON object, as all of its stdout or
as its last line:

    {"outcome": "pass|warn|fail|skipped|not_measured",
     "findings": [{"reason": "…", "measured": 3.1, "required": 4.0, "unit": "GB/s", "advice": "…", "gpus": ["…"]}]}

Laws:
 - where exit status and JSON disagree, the worse one holds and the result says so;
 - what begins like JSON and can't be read is not taken for silence: with exit status 0 it is `not_measured`;
 - an entry point that raises, ends its process or returns something else has measured nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_health.codec import build, shown
from elastic_health.errors import BadValue
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.commands import Ran
from elastic_health.preflight.results import CheckResult, Outcome, not_measured

MAX_FINDINGS = 64
"""More than this nobody reads; the rest is counted."""
_REASON_CHARS = 400
_WORSE = (Outcome.PASS, Outcome.WARN, Outcome.SKIPPED, Outcome.NOT_MEASURED, Outcome.FAIL)
_LEVEL_OF: Mapping[Outcome, Level] = {Outcome.FAIL: Level.FAIL, Outcome.WARN: Level.WARN, Outcome.NOT_MEASURED: Level.WARN}


@dataclass(frozen=True)
class _Said:
    """What its JSON says.  `broken`: why it can't be read, "" if it can; `spoke`: there is some."""

    spoke: bool = False
    broken: str = ""
    outcome: Outcome | None = None
    findings: tuple[Finding, ...] = ()


def judge_own(name: str, ran: Ran) -> CheckResult:
    """The result of an own executable."""
    said, failed = _said(ran.stdout), ran.status not in (0, None)  # None: it was cut short, which `tool.judged` tells
    outcome = Outcome.FAIL if failed else _of_said(said)
    findings = _disagreement(said, ran) + said.findings if failed else said.findings
    if said.broken:
        findings = (_finding(FindingKind.NOT_MEASURED, f"its JSON can't be read: {said.broken}", Level.WARN), *findings)
    if failed and not any(f.level is Level.FAIL for f in findings):
        findings = (_finding(FindingKind.OWN_CHECK, _failure(ran), Level.FAIL), *findings)
    elif not findings and outcome is not Outcome.PASS:
        level = _LEVEL_OF.get(outcome, Level.NOTE)
        findings = (_finding(FindingKind.OWN_CHECK, f"it says {outcome.value}, and no more", level),)
    return CheckResult(name, outcome, findings, _summary(outcome, findings, ran))


def _of_said(said: _Said) -> Outcome:
    """The outcome of an executable that ended with 0."""
    if said.broken:
        return Outcome.NOT_MEASURED
    found = [said.outcome or Outcome.PASS]
    found += [Outcome.FAIL for f in said.findings if f.level is Level.FAIL]
    found += [Outcome.WARN for f in said.findings if f.level is Level.WARN]
    return max(found, key=_WORSE.index)


def _disagreement(said: _Said, ran: Ran) -> tuple[Finding, ...]:
    if said.outcome in (None, Outcome.FAIL):
        return ()
    reason = f"its JSON says {said.outcome.value}, but it {_end(ran)}: the worse one holds" if said.outcome else ""
    return (_finding(FindingKind.OWN_CHECK, reason, Level.FAIL),)


def _failure(ran: Ran) -> str:
    last = _last_line(ran.stderr) or _last_line(ran.stdout)
    return f"it {_end(ran)}" + (f": {shown(last, _REASON_CHARS)}" if last else "")


def _end(ran: Ran) -> str:
    return f"was ended by signal {ran.signal}" if ran.signal else f"ended with status {ran.exit_status}"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _summary(outcome: Outcome, findings: tuple[Finding, ...], ran: Ran) -> str:
    if findings:
        worst = next((f for f in findings if f.level is Level.FAIL), findings[0])
        return worst.reason
    return shown(_last_line(ran.stdout), _REASON_CHARS) if not _candidate(ran.stdout) else outcome.value


# ---- its JSON


def _candidate(stdout: str) -> str:
    """The part of stdout that is meant as JSON, "" if none is."""
    text = stdout.strip()
    last = _last_line(text)
    if text.startswith("{"):
        return last if last.startswith("{") and last.endswith("}") and _object(text) is None else text
    return last if last.startswith("{") else ""


def _object(text: str) -> dict[str, object] | None:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _said(stdout: str) -> _Said:
    text = _candidate(stdout)
    if not text:
        return _Said()
    body = _object(text)
    if body is None:
        return _Said(True, shown(text))
    try:
        outcome = Outcome(body["outcome"]) if "outcome" in body else None
    except ValueError:
        return _Said(True, f"no such outcome: {shown(repr(body['outcome']))}")
    rows = body.get("findings", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return _Said(True, "findings is no list of objects", outcome)
    level = _LEVEL_OF.get(outcome or Outcome.PASS, Level.NOTE)
    found = tuple(_read(row, level) for row in rows[:MAX_FINDINGS])
    if len(rows) > MAX_FINDINGS:
        found = (*found, _finding(FindingKind.NOTE, f"{len(rows) - MAX_FINDINGS} more findings are left out", Level.NOTE))
    return _Said(True, "", outcome, found)


def _read(row: Mapping[str, object], level: Level) -> Finding:
    gpus = row.get("gpus", ())
    said = row.get("level")
    return Finding(
        FindingKind.OWN_CHECK,
        _text(row.get("reason")) or "it gives no reason",
        gpus=tuple(_text(gpu) for gpu in gpus[:MAX_FINDINGS]) if isinstance(gpus, list) else (),
        measured=_figure(row.get("measured")),
        required=_figure(row.get("required")),
        unit=_text(row.get("unit")),
        level=Level(said) if said in [known.value for known in Level] else level,
        advice=_text(row.get("advice")),
    )


def _text(value: object) -> str:
    return shown(value, _REASON_CHARS) if isinstance(value, str) else ""


def _figure(value: object) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        figure = float(value)
    except OverflowError:
        return None
    return figure if math.isfinite(figure) else None


def _finding(kind: FindingKind, reason: str, level: Level) -> Finding:
    return Finding(kind, reason, level=level)


# ---- entry points

RESULT, SKIPPED, UNMEASURED = "result", "skipped", "unmeasured"
"""The words under which `entry_proc` tells what came of an entry point, on the last line of its stdout."""


def judge_entry(name: str, ran: Ran) -> CheckResult:
    """The result of a Python entry point that ran in a process of its own."""
    body = _object(_last_line(ran.stdout)) or {}
    if isinstance(body.get(UNMEASURED), str):
        return _entry_unmeasured(name, str(body[UNMEASURED]))
    if isinstance(body.get(SKIPPED), str):
        reason = f"skipped: {body[SKIPPED]}"
        return CheckResult(name, Outcome.SKIPPED, (_finding(FindingKind.NOTE, reason, Level.NOTE),), reason)
    result = body.get(RESULT)
    if result is None:
        return _entry_unmeasured(name, f"it {_end(ran)} without a result: {shown(_last_line(ran.stderr), _REASON_CHARS) or 'no message'}")
    if isinstance(result, bool):
        return _yes_or_no(name, result)
    try:
        return _consistent(build(CheckResult, result, name))
    except BadValue as error:
        return _entry_unmeasured(name, f"its result can't be read: {error.found}")


def _entry_unmeasured(name: str, reason: str) -> CheckResult:
    return not_measured(name, shown(reason, _REASON_CHARS), advice="correct the check, or take it out of the YAML")


def _yes_or_no(name: str, fit: bool) -> CheckResult:
    if fit:
        return CheckResult(name, Outcome.PASS)
    finding = _finding(FindingKind.OWN_CHECK, "it returned False", Level.FAIL)
    return CheckResult(name, Outcome.FAIL, (finding,), finding.reason)


def _consistent(result: CheckResult) -> CheckResult:
    """A result whose own findings fail it has failed, whatever outcome it was given."""
    failed = next((f for f in result.findings if f.level is Level.FAIL), None)
    if failed is None or result.outcome is Outcome.FAIL:
        return result
    return dataclasses.replace(result, outcome=Outcome.FAIL, summary=failed.reason)
