"""The text tables of `dcgmi diag` and `dcgmi mndiag`, DCGM 2.x to 4.x, as a `DiagRun`.

A table is a header (`| Diagnostic | Result |`), sections (`|-----  Deployment  ---…`), rows, and a rule (`+---+---+`) as its foot.
Up to 3.x a row names the GPUs (`Pass - GPUs: 0, 1` and below it, without a name, `Fail - GPU: 2`); since 4.0 a row for the test is
followed by one for each GPU (`GPU0: Pass`).  Messages are rows named Warning, Error or Info (4.x: `Warning: GPU0`), broken after 45
characters and continued in rows without a name.  Sources: NVIDIA/DCGM dcgmi/Diag.cpp and dcgmi/MnDiag.cpp.

Law: a table without its header or its foot, or with a row that was cut, is torn; what it says of failures still counts.  A rule
is a foot if no row follows it; before another header two are needed, for one of them is that header's own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from elastic_health.preflight.dcgm_ids import canonical_test
from elastic_health.preflight.dcgm_runs import DiagError, DiagRun, Status, TestResult, gpu_ids, once, status_of
from elastic_health.preflight.tool_text import unprefixed

_RULE = re.compile(r"\+(-{3,}|={3,})\+(?:-{3,}|={3,})\+\s*$")
_SECTION = re.compile(r"[|+]-{2,}\s{1,8}([A-Za-z][\w /-]{0,40}?)\s{1,8}-{2,}\+-{3,}[|+]\s*$")
_ENTITY = re.compile(r"([A-Za-z][A-Za-z_ ]{0,20}?)\s?(\d{1,4})\s*:(?:\s+(.*))?$")
_MESSAGE = re.compile(r"(warning|error|info)\b(?::\s*(?:gpu\s*)?(\d{1,4})?)?", re.IGNORECASE)
_BEGINS = re.compile(r"(?:pass|fail|warn|skip)\b(?!\w)", re.IGNORECASE)
_PER_HOST = re.compile(r"gpus?:?\s+([\d, ]+)$", re.IGNORECASE)
_HOST = re.compile(r"Host (\d{1,6})(?: \(GPU (\d{1,4})\))?$", re.IGNORECASE)
_PLAIN_ERROR = re.compile(r"\s{0,8}(?:err|error)\s?:\s?(\S.*)", re.IGNORECASE)
_ABORTED = re.compile(r"\s{0,8}Aborting the iterative runs of the diagnostic due to failure:?\s*(.*)", re.IGNORECASE)
_NEW_RUN = re.compile(r"\s{0,8}(?:Successfully ran (?:diagnostic|multi-node)|Running iteration \d)", re.IGNORECASE)
_MULTI_FAILED = re.compile(r"\s{0,8}Multi-node diagnostic failed", re.IGNORECASE)
_MAX_LINE = 4096
_MAX_TEXT = 2000
_MOST_ERRORS = 16
_FULL = 45
"""Characters of a message in one row of a table of the usual width."""


@dataclass
class _Row:
    """`cell`: the value with the blanks that begin it; `fits`: its separators stand where the header's do; `before`: cells of
    another row that ran into this one."""

    name: str
    cell: str
    torn: bool = False
    fits: bool = False
    before: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        return self.cell.strip()


@dataclass
class _Test:
    name: str
    category: str
    host: str = ""
    results: list[TestResult] = field(default_factory=list)
    summary: Status | None = None


class _Table:
    """Reads lines one by one.  Between tables `open` is False."""

    def __init__(self) -> None:
        self.run = DiagRun()
        self.open = False
        self._headed = self._torn = False
        self._widths: tuple[int, int] | None = None
        self._section = ""
        self._test: _Test | None = None
        self._message: tuple[str, list[str]] | None = None  # (GPU or "", parts) of a warning or error; info is passed over
        self._in_message = False
        self._hosts: dict[str, str] = {}
        self._feet = 0
        self._errors: list[str] = []
        self._tests: list[_Test] = []

    # ---- lines

    def line(self, line: str) -> None:
        if "|" not in line and "+" not in line:
            self._plain(line)
            return
        rule, section = _RULE.search(line), _SECTION.search(line)
        for match in (rule, section):
            if match and self.open:
                self._run_into(_others(line[: match.start()].split("|")))
        if rule:
            self._feet += rule[1][0] == "-"
            return
        if section:
            self._enter_section(section[1].strip())
            return
        row = self._row(line)
        if row is None:
            if self.open and not self._feet and "|" in line and (line.rstrip().endswith("|") or "---" in line):
                self._run_into([cell.strip() for cell in line.split("|")])
            self._plain(line)
        elif row.name.lower() == "diagnostic" and row.value.lower() == "result":
            self._begin(line)
        elif self.open or self._orphan(row):
            if not self._feet or row.fits:
                self._take(row)

    def end(self) -> DiagRun:
        self._close(feet=1)
        errors = once(self._errors[:_MOST_ERRORS])
        return replace(self.run, errors=errors)

    def _plain(self, line: str) -> None:
        for form in (line, *unprefixed(line)):
            if _NEW_RUN.match(form):
                self._close(feet=1)
                return
            error, aborted = _PLAIN_ERROR.match(form), _ABORTED.match(form)
            if aborted or _MULTI_FAILED.match(form):
                test = TestResult("iterations" if aborted else "mndiag", "", Status.FAIL, errors=_texts(aborted[1] if aborted else ""))
                self.run = replace(self.run, results=(*self.run.results, test), forms=once((*self.run.forms, "table")))
                return
            if error:
                self._errors.append(error[1].strip()[:_MAX_TEXT])
                return

    def _row(self, line: str) -> _Row | None:
        text = line.rstrip()
        if self._widths and text.endswith("|"):
            left, right = self._widths
            first = len(text) - 1 - right
            if first >= 0 and text[first] == "|" and text[first + left] == "|":
                name, cell = text[first + 1 : first + left].strip(), _cell(text[first + left + 1 : -1])
                return _Row(name, cell, fits=True, before=_others(text[:first].split("|")))
        parts = text.split("|")
        if text.endswith("|") and len(parts) >= 4:
            return _Row(parts[-3].strip(), _cell(parts[-2]), before=_others(parts[:-3]))
        for form in (text, *unprefixed(text)):
            bare = form.strip()
            if bare.startswith("|") and self.open:
                cells = bare[1:].split("|")
                return _Row(cells[0].strip(), cells[1] if len(cells) > 1 else "", torn=True)
        return None

    def _orphan(self, row: _Row) -> bool:
        """A row outside any table: the head of one was cut off, if it speaks as a result does."""
        if row.torn or status_of(row.value)[0] is Status.UNKNOWN or not (row.name or _ENTITY.match(row.value)):
            return False
        self._start(headed=False)
        return True

    # ---- the table as a whole

    def _start(self, *, headed: bool) -> None:
        self._close(feet=2)
        self.open, self._headed, self._torn, self._section, self._hosts = True, headed, False, "", {}
        self._feet, self._full = 0, _FULL

    def _begin(self, line: str) -> None:
        self._start(headed=True)
        text = line.rstrip()
        if text.endswith("|") and text.count("|") >= 3:
            second = text.rindex("|", 0, len(text) - 1)
            first = text.rindex("|", 0, second)
            self._widths = (second - first, len(text) - 1 - first)
            self._full = max(1, len(text) - 1 - second - 4)

    def _close(self, *, feet: int) -> None:
        if not self.open:
            return
        foot = self._feet >= feet
        self._end_test()
        results = tuple(r for t in self._tests for r in _results_of(t))
        missing = [
            text
            for text, gone in (
                ("a table's head is missing", not self._headed),
                ("a table was cut before its end", not foot),
                ("a table has a row that was cut", self._torn),
            )
            if gone
        ]
        made = DiagRun(results, whole=int(not missing), torn=tuple(missing), forms=("table",), hosts=once(self._hosts.values()))
        self.run = self.run.and_also(made)
        self.open, self._tests = False, []

    def _enter_section(self, name: str) -> None:
        if not self.open:
            self._start(headed=False)
        self._end_test()
        self._section, self._feet = name, 0

    # ---- rows

    def _take(self, row: _Row) -> None:
        self._feet = 0
        self._run_into((*row.before, row.name) if _BEGINS.match(row.name) else row.before)
        if row.torn:
            self._torn = True
            if status_of(row.value)[0] is not Status.FAIL:
                return
        section = self._section.lower()
        if section == "metadata" and all(status_of(v)[0] is Status.UNKNOWN for v in (row.value, row.value.rpartition(": ")[2])):
            self._metadata(row)
        elif section == "error summary":
            self._summary_error(row)
        elif section == "host details":
            self._host_row(row)
        elif not row.name:
            self._nameless(row)
        else:
            self._named(row)

    def _run_into(self, cells: Sequence[str]) -> None:
        """Cells of a row whose end another one took."""
        for cell in cells:
            self._torn = True
            self._loose(cell)

    def _loose(self, cell: str) -> None:
        """A cell whose row is damaged: a failure in it still counts."""
        entity = _ENTITY.match(cell)
        status, rest = status_of(entity[3] if entity else cell)
        if status is Status.FAIL or re.match(r"fail\b", cell, re.IGNORECASE):
            gpus = (entity[2],) if entity and entity[1].strip().lower() == "gpu" else gpu_ids(rest)
            made = _Test("unnamed", self._section, results=[TestResult("unnamed", self._section, Status.FAIL, gpus)])
            self._tests.append(made)

    def _metadata(self, row: _Row) -> None:
        name = row.name.lower()
        if name == "dcgm version":
            self.run = replace(self.run, version=self.run.version or row.value[:64])
        elif name.startswith("driver version"):
            self.run = replace(self.run, driver=self.run.driver or row.value[:64])
        elif name in ("host list", "") and re.match(r"\d{1,6}: \S", row.value):
            number, _, host = row.value.partition(": ")
            self._hosts[number] = host[:200]

    def _named(self, row: _Row) -> None:
        message = _MESSAGE.match(row.name)
        if message and (message.end() == len(row.name) or row.name[message.end() :].strip() == ""):
            self._begin_message(message[1].lower(), message[2] or "", row.cell)
            return
        self._end_message()
        status, rest = status_of(row.value)
        if self._test is None or self._test.name != canonical_test(row.name) or self._test.category != self._section:
            self._end_test()
            self._test = _Test(canonical_test(row.name), self._section)
            self._tests.append(self._test)
        self._add(status, rest, first=True)

    def _nameless(self, row: _Row) -> None:
        value = row.value
        entity = _ENTITY.match(value)
        inner = status_of(entity[3] or "")[0] if entity else Status.UNKNOWN
        status, rest = status_of(value)
        if self._test is None:
            self._torn |= status is not Status.UNKNOWN or inner is not Status.UNKNOWN
            self._loose(value)
        elif entity and (inner is not Status.UNKNOWN or not entity[3]):
            self._end_message()
            group, number = entity[1].strip().lower(), entity[2]
            gpus, others = ((number,), ()) if group == "gpu" else ((), (f"{group}{number}",))
            self._test.results.append(TestResult(self._test.name, self._test.category, inner, gpus, others))
        elif status is not Status.UNKNOWN and (not self._in_message or re.match(r"all$|gpus?\b", rest, re.IGNORECASE)):
            self._end_message()
            self._add(status, rest, first=False)
        elif self._message is not None:
            self._message[1].append(row.cell)
        elif not self._in_message and value and not value.startswith("Code:"):  # the return code that 2.x and 3.x add
            self._torn = True

    def _add(self, status: Status, rest: str, *, first: bool) -> None:
        test = self._test
        if test is None:
            return
        gpus = gpu_ids(rest.split(":", 2)[1] if re.match(r"gpus?\s*:", rest, re.IGNORECASE) else rest) if "gpu" in rest.lower() else ()
        said = rest.split(":", 1)[1].strip() if ":" in rest and not re.match(r"gpus?\s*:", rest, re.IGNORECASE) else ""
        if first and not rest:
            test.summary = status if test.summary is None else max(test.summary, status, key=lambda s: s.rank)
        else:
            test.results.append(TestResult(test.name, test.category, status, gpus, errors=_texts(said), host=test.host))

    def _host_row(self, row: _Row) -> None:
        host, status = _HOST.match(row.name), status_of(row.value)[0]
        gpus = _PER_HOST.match(row.name)
        if host:
            self._end_test()
            self._test = _Test("mnubergemm", self._section, self._hosts.get(host[1], host[1]), summary=status)
            self._tests.append(self._test)
        elif gpus and self._test:
            self._end_message()
            name, category = self._test.name, self._test.category
            self._test.results.append(TestResult(name, category, status, gpu_ids(gpus[1]), host=self._test.host))
        elif not row.name and row.value.lower().startswith("error:"):
            self._begin_message("error", "", row.cell)
        elif not row.name and self._message is not None:
            self._message[1].append(row.cell)

    def _summary_error(self, row: _Row) -> None:
        """The error summary of a multi-node run repeats the errors; those of no GPU stand only here."""
        if row.name:
            self._end_test()
            host = _HOST.match(row.name)
            self._test = _Test("mnubergemm", self._section, self._hosts.get(host[1], host[1]) if host else "")
            self._tests.append(self._test)
            gpus = gpu_ids(host[2]) if host else ()
            self._test.results.append(TestResult("mnubergemm", self._section, Status.FAIL, gpus, host=self._test.host))
            self._begin_message("error", "", row.cell)
        elif self._message is not None:
            self._message[1].append(row.cell)

    # ---- messages

    def _begin_message(self, word: str, gpu: str, value: str) -> None:
        self._end_message()
        self._in_message = True
        self._message = None if word == "info" else (gpu, [value])
        if self._message and self._test is None:  # an error under a section's name: the test's own row was cut away
            self._test = _Test(canonical_test(self._section or "unknown"), self._section, summary=Status.FAIL)
            self._tests.append(self._test)
            self._torn = True

    def _end_message(self) -> None:
        message, self._message, self._in_message = self._message, None, False
        if message is None or self._test is None:
            return
        gpu, parts = message
        text = re.sub(r"^Error:\s*", "", _whole(parts, self._full))
        named = (gpu,) if gpu else gpu_ids(" ".join(re.findall(r"^GPU (\d{1,4})\b", text)))
        _attach(self._test, named, DiagError(text[:_MAX_TEXT]))

    def _end_test(self) -> None:
        self._end_message()
        self._test = None


def _others(parts: Sequence[str]) -> tuple[str, ...]:
    """Cells before a row in its line; a launcher's prefix, which may end with a separator, is none."""
    if len(parts) > 1 and not parts[0].strip():
        return tuple(p.strip() for p in parts[1:])
    cells = [p.strip() for p in parts]
    while cells and not cells[-1]:
        cells.pop()
    return tuple(c for c in cells if c) if len(cells) > 1 else ()


def _cell(text: str) -> str:
    """A cell without its padding; blanks of the message that begin it stay."""
    return text.removeprefix(" ").rstrip()


def _whole(parts: Sequence[str], full: int) -> str:
    """Message parts together.  A part that isn't full ended with the blank that its cell lost."""
    text = parts[0] if parts else ""
    for before, part in itertools.pairwise(parts):
        text += part if len(before) >= full or part.startswith(" ") else f" {part}"
    return text.strip()


def _texts(text: str) -> tuple[DiagError, ...]:
    return (DiagError(text.strip()[:_MAX_TEXT]),) if text.strip() else ()


def _attach(test: _Test, gpus: tuple[str, ...], error: DiagError) -> None:
    """To the worst result of those GPUs, else to the worst that names none, else to the test as a whole."""
    fitting = [r for r in test.results if gpus and set(gpus) & set(r.gpus)] or test.results
    if not fitting:
        test.results.append(TestResult(test.name, test.category, test.summary or Status.UNKNOWN, gpus, errors=(error,), host=test.host))
        return
    worst = max(fitting, key=lambda r: r.status.rank)
    at = test.results.index(worst)
    if gpus and len(worst.gpus) > 1 and set(gpus) < set(worst.gpus):  # split it, so that each error keeps its GPU
        left = tuple(g for g in worst.gpus if g not in gpus)
        test.results[at] = replace(worst, gpus=left)
        test.results.append(replace(worst, gpus=gpus, errors=(*worst.errors, error)))
    else:
        test.results[at] = replace(worst, errors=(*worst.errors, error))


def _results_of(test: _Test) -> list[TestResult]:
    """The single results, and the test's own line where it says more than they do."""
    worst = max((r.status.rank for r in test.results), default=-1)
    if test.summary is None:
        return test.results
    if test.results and test.summary is not Status.UNKNOWN and (test.summary.rank <= worst or test.summary.rank < Status.WARN.rank):
        return test.results
    return [*test.results, TestResult(test.name, test.category, test.summary, host=test.host)]


def read_tables(lines: Sequence[str]) -> DiagRun:
    """What the tables in `lines` say, and what dcgmi said in place of one."""
    table = _Table()
    for line in lines:
        table.line(line[:_MAX_LINE])
    return table.end()
