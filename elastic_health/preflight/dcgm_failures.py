"""From a run's results to findings: one for each test and error, naming every GPU that has it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from elastic_health.findings import Finding, Level
from elastic_health.preflight.dcgm_ids import Origin
from elastic_health.preflight.dcgm_meanings import Meaning, meaning_of
from elastic_health.preflight.dcgm_runs import DiagError, Status, TestResult, once

_NAMED = re.compile(r"\bGPU (\d{1,4})\b")
_N = r"(-?\d+(?:\.\d+)?)"
# Figures in DCGM's messages: measured, then required.
_FIGURES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(words, re.IGNORECASE), unit)
    for words, unit in (
        (rf" of {_N} did not exceed minimum required bandwidth of {_N}", "GB/s"),
        (rf" value {_N} exceeded maximum allowed latency of {_N}", "us"),
        (rf"max power of {_N} did not reach desired power minimum \S{{0,60}} ?of {_N}", "W"),
        (rf"max stress level of {_N} did not reach desired stress level of {_N}", ""),
        (rf"memory bandwidth of {_N} GB/s, failing to meet {_N} GB/s", "GB/s"),
        (rf"PCI link generation {_N}, which is below .{{0,40}}? of {_N}", "generation"),
        (rf"PCI link width {_N}X?, which is below .{{0,40}}? of {_N}", "lanes"),
        (rf"temperature {_N} of GPU \d+ exceeded .{{0,40}}? temperature {_N}", "C"),
        (rf"thermal violations totaling {_N} seconds", "s"),
    )
)


@dataclass
class _Group:
    """Results that say the same."""

    result: TestResult
    meaning: Meaning
    level: Level
    text: str
    gpus: list[str] = field(default_factory=list)
    entities: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)


def failures(results: Iterable[TestResult]) -> list[Finding]:
    """Findings of what failed, warned, or recorded an error although it passed (NVIDIA/DCGM#284)."""
    groups: dict[tuple[object, ...], _Group] = {}
    everyone: dict[str, set[str]] = {}
    for r in results:
        everyone.setdefault(r.test, set()).update(r.gpus)
        errors: tuple[DiagError | None, ...] = r.errors or ((None,) if r.status in (Status.FAIL, Status.WARN) else ())
        for error in errors:
            meaning = meaning_of(error, r.test)
            level = _level(r.status, meaning)
            if level is None:
                continue
            text = error.text if error else ""
            gpus = r.gpus or tuple(_NAMED.findall(text)[:1])
            everyone[r.test].update(gpus)
            key = (r.test, r.status, level, meaning.error_id if meaning.error_id is not None else re.sub(r"\d+", "#", text)[:120])
            group = groups.setdefault(key, _Group(r, meaning, level, text))
            group.gpus += gpus
            group.entities += r.entities
            group.hosts += [r.host] if r.host else []
    return [_finding(group, everyone[group.result.test]) for group in groups.values()]


def _level(status: Status, meaning: Meaning) -> Level | None:
    if meaning.isolate:
        return Level.FAIL  # DCGM asks for isolation, whatever the test's status says
    if status is Status.FAIL:
        return Level.WARN if meaning.harmless else Level.FAIL
    return Level.WARN if status in (Status.WARN, Status.PASS) else None


def _finding(group: _Group, everyone: set[str]) -> Finding:
    r, meaning, gpus = group.result, group.meaning, once(group.gpus)
    where = f" on GPU {','.join(gpus)}" if gpus else f" on {','.join(once(group.entities))}" if group.entities else ""
    where += f" of {','.join(once(group.hosts))}" if group.hosts else ""
    verb = {Status.FAIL: "failed", Status.WARN: "warns"}.get(r.status, "passed, but recorded an error")
    said = group.text or meaning.name.replace("_", " ").lower()
    alike = len(gpus) > 1 and set(gpus) == everyone
    hint = "every GPU fails alike: suspect driver, CUDA or DCGM packages first; " if alike and meaning.origin is Origin.HARDWARE else ""
    measured, required, unit = _figures(group.text)
    evidence: dict[str, object] = {
        "test": r.test,
        "category": r.category,
        "status": r.status.value,
        "origin": meaning.origin.value,
        "error_id": meaning.error_id,
        "error": meaning.name,
        "severity": meaning.severity,
        "error_category": meaning.category,
        "every_gpu": alike,
    }
    if group.entities:
        evidence["entities"] = list(once(group.entities))
    return Finding(
        meaning.kind,
        f"{r.test} {verb}{where}{f': {said[:400]}' if said else ''}",
        nodes=once(group.hosts),
        gpus=gpus,
        measured=measured,
        required=required,
        unit=unit,
        level=group.level,
        advice=hint + meaning.advice,
        evidence=evidence,
        signature=f"dcgm:{r.test}:{meaning.error_id if meaning.error_id is not None else meaning.kind.value}",
    )


def _figures(text: str) -> tuple[float | None, float | None, str]:
    for words, unit in _FIGURES:
        match = words.search(text)
        if match:
            return float(match[1]), float(match[2]) if match.lastindex == 2 else 0.0, unit
    return None, None, ""
