"""Judges one run of `dcgmi diag`, from its output and its exit status together.

Laws:
 - a test that failed, in whatever category, keeps the result from `pass` (IBM/autopilot#68);
 - an output that was cut, damaged or is empty is `not_measured`, yet a failure that was seen whole still fails;
 - a skipped test was not measured: a run that measured nothing but the installation is `not_measured`, one that skipped a single
   test says which;
 - neither the exit status nor the verdict is believed alone (NVIDIA/DCGM#158).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.dcgm_exits import exit_findings
from elastic_health.preflight.dcgm_failures import failures
from elastic_health.preflight.dcgm_ids import DEPLOYMENT, OPTIONAL, run_names, unknown_tests
from elastic_health.preflight.dcgm_json import read_json
from elastic_health.preflight.dcgm_runs import DiagError, DiagRun, Status, TestResult, once
from elastic_health.preflight.dcgm_text import read_tables
from elastic_health.preflight.results import CheckResult, Outcome, outcome_of
from elastic_health.preflight.tool_text import MAX_TEXT, lines_of

CHECK = "dcgm"
NOT_COVERED = "dcgmi diag does not test whether NVLinks are up (NVIDIA/DCGM#198)"
_LOOK_AT_LINKS = "look at `dcgmi nvlink -s` and `dcgmi nvlink -e`, and measure bandwidth"
_MOST_LISTED = 512
_MOST_INNER = 8
_FAILED_WORD = re.compile(r'"(?:status|entity_status|state|result)"\s*:\s*"\s*fail(?:ed)?(?:\s*-[^"]{0,80})?"', re.IGNORECASE)
_DCGMS = re.compile(r"test_categories|entity_id|gpu_ids?\b|test_summary|DCGM", re.IGNORECASE)


def parse_dcgm(output: str, exit_status: int | None = None, stderr: str = "") -> CheckResult:
    """The verdict on one `dcgmi diag` or `dcgmi mndiag`.

    Args:
        output: what it printed: JSON or tables of any generation, with whatever launchers and logs put around it.
        exit_status: as the shell or `subprocess` tells it (negative: killed by that signal); None if it isn't known.
        stderr: read only for the reason why there are no results.
    """
    run = read_diag(output)
    measured = any(r.status.measured for r in run.results)
    found = [*failures(run.results), *_unmeasured(run)]
    found += exit_findings(run, exit_status, found)
    if measured:
        found.append(Finding(FindingKind.NOTE, NOT_COVERED, level=Level.NOTE, advice=_LOOK_AT_LINKS))
    else:
        found = _say_why(run, output, stderr, found)
    outcome = outcome_of(found, measured=measured)
    return CheckResult(CHECK, outcome, tuple(found), _summary(run, outcome, found), details=_details(run, exit_status))


def read_diag(output: str) -> DiagRun:
    """What an output says, unjudged: per test and per GPU."""
    run, inner = _read(lines_of(output))
    for text in inner[:_MOST_INNER]:
        run = run.and_also(_read(lines_of(text))[0])
    if not run.results and output.count("\n") < 4 and "\\n" in output:  # the text as another program's log quotes it
        run = run.and_also(_read(lines_of(output.replace("\\n", "\n").replace('\\"', '"').replace("\\t", "\t")))[0])
    if len(output) > MAX_TEXT:
        run = run.and_also(DiagRun(torn=(f"only the first {MAX_TEXT >> 20} MiB were read",)))
    return run


def _read(lines: Sequence[str]) -> tuple[DiagRun, tuple[str, ...]]:
    run, inner, counted = read_json(lines)
    tables = read_tables(lines)
    if run.torn or not (run.whole or tables.results):
        words = sum(len(_FAILED_WORD.findall(line)) for line in lines if "ail" in line.lower())
        if words > counted and any(_DCGMS.search(line) for line in lines):
            lost = TestResult("unknown", "", Status.FAIL, errors=(DiagError("a failed result stands in a damaged part of the output"),))
            run = run.and_also(DiagRun((lost,), torn=("a part of the output is damaged",)))
    return run.and_also(tables), inner


# ---- what was not measured


def _not_measured(reason: str, advice: str = "", *, gpus: Iterable[str] = (), signature: str) -> Finding:
    sign = f"{CHECK}:not_measured:{signature}"
    return Finding(FindingKind.NOT_MEASURED, reason, gpus=tuple(gpus), level=Level.WARN, advice=advice, signature=sign)


def _unmeasured(run: DiagRun) -> list[Finding]:
    found = []
    again = "run the diagnostic again and keep its whole output; `dcgmi diag -j` is the safest form"
    if run.torn and run.results:
        found.append(_not_measured(f"the output is not complete: {'; '.join(run.torn)}", again, signature="torn"))
    unread = once(r.test for r in run.results if r.status is Status.UNKNOWN)
    if unread:
        found.append(_not_measured(f"no readable status of {', '.join(unread[:8])}", again, signature="unread"))
    return [*found, *_skips(run)] if any(r.status.measured for r in run.results) else found


def _skips(run: DiagRun) -> list[Finding]:
    """What was skipped of a run that measured something."""
    beyond = [r for r in run.results if r.test not in DEPLOYMENT and (r.status.measured or r.status in (Status.SKIP, Status.NOT_RUN))]
    left = [r for r in run.results if r.status in (Status.SKIP, Status.NOT_RUN)]
    advice = "see `dcgmi diag -v` for the reason; a test may need a package, a licence, or an entry for this GPU (is_allowed)"
    if beyond and not any(r.status.measured for r in beyond):
        names = ", ".join(once(r.test for r in beyond))
        return [_not_measured(f"only the installation was checked: {names} did not run", advice, signature="skipped")]
    found = []
    blind = _blind(run, beyond)
    if blind:
        found.append(_not_measured(f"no test measured GPU {','.join(blind)}", advice, gpus=blind, signature="blind"))
    for test in once(r.test for r in left):
        some = [r for r in left if r.test == test]
        gpus = once(g for r in some for g in r.gpus)
        said = next((e.text for r in some for e in r.errors if e.text), "")
        where = f" on GPU {','.join(gpus)}" if gpus else ""
        reason = f"{test} was skipped{where}: not measured{f' ({said[:200]})' if said else ''}"
        level = Level.NOTE if test in OPTIONAL else Level.WARN
        found.append(Finding(FindingKind.NOTE, reason, gpus=gpus, level=level, advice=advice, evidence={"test": test}))
    return found


def _blind(run: DiagRun, beyond: Sequence[TestResult]) -> tuple[str, ...]:
    """GPUs that are there, and of which nothing was measured while others were."""
    results = beyond or run.results
    if run.hosts or any(r.status.measured and not r.gpus and not r.entities for r in results):
        return ()  # a result without GPUs speaks of all
    seen = {g for r in results if r.status.measured for g in r.gpus}
    named = (*run.listed, *(g for r in results for g in r.gpus))
    return tuple(g for g in once(named) if g not in seen) if seen else ()


def _say_why(run: DiagRun, output: str, stderr: str, found: Sequence[Finding]) -> list[Finding]:
    """The reason for which nothing was measured, first; left out if the exit status tells it and the output says nothing."""
    if any(f.level is Level.FAIL for f in found):
        return list(found)
    reason, advice, own = _no_results(run, output, stderr)
    why = _not_measured(reason, advice, signature="no_results")
    return [why, *found] if own or not any(f.kind is FindingKind.NOT_MEASURED for f in found) else list(found)


def _no_results(run: DiagRun, output: str, stderr: str) -> tuple[str, str, bool]:
    """Why there are no results, what to do, and whether the output itself says so."""
    asked = unknown_tests("\n".join((*run.errors, stderr, output[-65536:])))
    if asked is not None:
        return (*_unknown_tests(asked, run.version), True)
    skipped = once(r.test for r in run.results if r.status in (Status.SKIP, Status.NOT_RUN))
    if skipped:
        advice = "see `dcgmi diag -v` for the reasons; this GPU may not be supported"
        return f"every test was skipped: {', '.join(skipped[:8])}", advice, True
    said = next((" ".join(text.split()) for text in (*run.errors, stderr[:4096]) if text.strip()), "")
    if said:
        return f"dcgmi gave no results: {said[:300]}", "read the message, nv-hostengine.log and nvvs.log; is the host engine running?", True
    if run.torn:
        return f"no test results in the output: {'; '.join(run.torn)}", "run the diagnostic again and keep its whole output", False
    empty = "the output is empty" if not output.strip() else "no test results in the output"
    return empty, "see nv-hostengine.log and nvvs.log", False


def _unknown_tests(asked: Sequence[str], version: str) -> tuple[str, str]:
    names = tuple(n.strip() for a in asked for n in a.split(",") if n.strip())
    told = "".join(f"; for {n!r} try -r {' or '.join(map(repr, run_names(n, version)))}" for n in names[:8])
    advice = (
        "test names changed with DCGM 4.0 (memory_bandwidth, pulse_test, …; the former `software` test is level 1), and the closed tests "
        "came into packages of their own (datacenter-gpu-manager-4-proprietary and -proprietary-cuda<major>): install them and restart "
        f"the host engine{told}"
    )
    listed = f": {', '.join(names)}" if names else ""
    return f"DCGM does not know the requested tests{listed} (NVIDIA/DCGM#296)", advice


# ---- what is told


def _summary(run: DiagRun, outcome: Outcome, found: Sequence[Finding]) -> str:
    tests = _by_test(run.results)
    measured = sum(1 for status in tests.values() if status.measured)
    which = f"DCGM {run.version}: " if run.version else ""
    if not measured:
        return next((f.reason for f in found if f.kind is FindingKind.NOT_MEASURED), "not measured")
    first = {Outcome.FAIL: Level.FAIL, Outcome.WARN: Level.WARN, Outcome.NOT_MEASURED: Level.WARN}.get(outcome)
    reasons = [f.reason for f in found if f.level is first and (outcome is not Outcome.NOT_MEASURED or f.kind is FindingKind.NOT_MEASURED)]
    more = f"; {reasons[0]}" if reasons else ""
    more += f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{which}{measured} of {len(tests)} tests measured{more}"


def _by_test(results: Iterable[TestResult]) -> dict[str, Status]:
    tests: dict[str, Status] = {}
    for r in results:
        tests[r.test] = max(tests.get(r.test, Status.UNKNOWN), r.status, key=lambda s: s.rank)
    return tests


def _details(run: DiagRun, exit_status: int | None) -> Mapping[str, object]:
    return {
        "version": run.version,
        "driver": run.driver,
        "forms": list(run.forms),
        "complete": bool(run.whole) and not run.torn,
        "exit_status": exit_status,
        "gpus": list(once((*run.listed, *(g for r in run.results for g in r.gpus)))),
        "hosts": list(run.hosts),
        "tests": {test: status.value for test, status in _by_test(run.results).items()},
        "results": [_row(r) for r in run.results[:_MOST_LISTED]],
        "not_covered": ["nvlink"],
        "notes": [*run.notes, *run.errors][:16],
    }


def _row(r: TestResult) -> dict[str, object]:
    errors = [{"error_id": e.error_id, "severity": e.severity, "category": e.category, "text": e.text[:300]} for e in r.errors]
    entities = {"entities": list(r.entities)} if r.entities else {}
    host = {"host": r.host} if r.host else {}
    return {"test": r.test, "category": r.category, "status": r.status.value, "gpus": list(r.gpus), **entities, **host, "errors": errors}
