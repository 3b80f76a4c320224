"""What a run of `dcgmi diag` said, whatever its generation and form: the currency between its readers and its judge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

MAX_ID = 4095
"""Higher GPU ids are sentinels for "none"."""


class Status(Enum):
    """Of one test, on some GPUs or as a whole; later ones are worse, except that UNKNOWN says nothing."""

    UNKNOWN = "unknown"
    PASS = "pass"
    NOT_RUN = "not_run"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        return tuple(Status).index(self)

    @property
    def measured(self) -> bool:
        return self in (Status.PASS, Status.WARN, Status.FAIL)


_STATUS = re.compile(r"(pass|fail|warn|skip|not[ _-]?run)(?:ed|ped|ing|ure)?\s{0,8}(?:[-:](.*))?$", re.IGNORECASE | re.DOTALL)
_WORDS: Mapping[str, Status] = {"pass": Status.PASS, "fail": Status.FAIL, "warn": Status.WARN, "skip": Status.SKIP}


def status_of(text: object) -> tuple[Status, str]:
    """The status that a word spells, in any case, and what follows it ("All", "GPUs: 0, 1"); UNKNOWN for anything else."""
    match = _STATUS.match(text.strip()) if isinstance(text, str) and len(text) < 4096 else None
    if match is None:
        return Status.UNKNOWN, ""
    return _WORDS.get(match[1].lower(), Status.NOT_RUN), (match[2] or "").strip()


@dataclass(frozen=True)
class DiagError:
    """One error (DCGM also calls it a warning) of a test; None where the output has no such field.

    Attributes:
        error_id, severity, category: DCGM's numbers (`elastic_health.preflight.dcgm_ids`).
    """

    text: str
    error_id: int | None = None
    severity: int | None = None
    category: int | None = None


@dataclass(frozen=True)
class TestResult:
    """One test on some entities.

    Attributes:
        test: canonical name (`dcgm_ids.canonical_test`).
        gpus: ids as text; empty where the output doesn't say, or speaks of the test as a whole.
        entities: other things than GPUs, e.g. "cpu0".
        host: of a multi-node run, else "".
    """

    __test__ = False  # pytest: no test class

    test: str
    category: str
    status: Status
    gpus: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    errors: tuple[DiagError, ...] = ()
    host: str = ""


@dataclass(frozen=True)
class DiagRun:
    """All that a text says.

    Attributes:
        whole: documents or tables that were seen from their first to their last character.
        torn: why the text can't be taken for complete; empty if nothing is missing as far as one can see.
        errors: what dcgmi said in place of results (`runtime_error`, lines that begin with "Error:").
        notes: warnings about the run as a whole.
        listed: GPUs that the output lists as present.
    """

    results: tuple[TestResult, ...] = ()
    whole: int = 0
    torn: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""
    driver: str = ""
    forms: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    hosts: tuple[str, ...] = field(default=())

    def and_also(self, other: DiagRun) -> DiagRun:
        """Both, as one."""
        return replace(
            self,
            results=self.results + other.results,
            whole=self.whole + other.whole,
            torn=once(self.torn + other.torn),
            errors=once(self.errors + other.errors),
            notes=once(self.notes + other.notes),
            version=self.version or other.version,
            driver=self.driver or other.driver,
            forms=once(self.forms + other.forms),
            listed=once(self.listed + other.listed),
            hosts=once(self.hosts + other.hosts),
        )


def once(words: Iterable[str]) -> tuple[str, ...]:
    """Each word once, in order."""
    return tuple(dict.fromkeys(words))


def gpu_ids(value: object) -> tuple[str, ...]:
    """GPU ids out of `0`, `"0,1"`, `["0", 1]`, `"GPUs: 0, 1"`; nothing for "All", sentinels and anything else."""
    if isinstance(value, bool) or value is None:
        return ()
    if isinstance(value, int):
        return (str(value),) if 0 <= value <= MAX_ID else ()
    if isinstance(value, str):
        return once(str(int(n)) for n in re.findall(r"(?<![\d-])\d{1,9}(?!\d)", value[:4096]) if int(n) <= MAX_ID)
    if isinstance(value, list | tuple):
        return once(i for v in value[:1024] if not isinstance(v, list | tuple) for i in gpu_ids(v))
    return ()
