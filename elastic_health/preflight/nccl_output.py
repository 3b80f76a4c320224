"""What an nccl-tests program (or its launcher) printed, as typed figures.

Law: `parse_nccl_tests` is total: any text, behind any launcher's prefix, with NCCL's own log lines between, cut anywhere, gives an
`NcclTests` and never raises.  `closed` is True only when each run that began has printed its whole summary.

Forms: github NVIDIA/nccl-tests (src/common.h, src/common.cu, src/util.cu), releases of 2018 to 2.21; Open MPI, PMIx, Slurm.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

from elastic_health.preflight.nccl_rows import Row, header_of, row_of
from elastic_health.preflight.text_lines import lines_of

MOST_KEPT = 64
LONGEST_TEXT = 300
LONGEST_LINE = 1 << 13


@dataclass(frozen=True)
class Rank:
    """One line of the device list; -1 or "" where the layout doesn't say."""

    rank: int
    host: str = ""
    pid: int = -1
    device: int = -1
    bus: str = ""
    name: str = ""
    group: int = 0


@dataclass(frozen=True)
class Failure:
    """The program's own error line, e.g. `node-a: Test NCCL failure common.cu:1005 'unhandled cuda error'`.

    Attributes:
        text: what failed, in the program's words; "" for the traces that follow a failure.
    """

    host: str
    where: str
    text: str


@dataclass(frozen=True)
class Summary:
    """Closing lines of one run.

    Attributes:
        out_of_bounds: None where the line is absent or cut; `oob_ok`: what the program says of it.
        average: GB/s over all sizes, None where absent, cut or not a number; `average_ok`: False when below NCCL_TESTS_MIN_BW.
    """

    out_of_bounds: int | None = None
    oob_ok: bool | None = None
    average: float | None = None
    average_ok: bool | None = None
    bitwise_mismatches: int | None = None
    closed: bool = False


@dataclass(frozen=True)
class NcclTests:
    """All that was read.

    Attributes:
        world_size: ranks that worked together in the last run; None where no device list was seen.
        runs: how many runs the text holds; `independent`: how many of them ran side by side, each with a rank 0 of its own.
        closed: each run that began printed its whole summary.
        launch_errors: lines of mpirun, srun or the shell that say why nothing (or not all) ran.
        unfit: (line from 1, why, text) of rows that don't fit their header.
        elided: rows were replaced by `...` by whoever stored the text.
    """

    rows: tuple[Row, ...] = ()
    ranks: tuple[Rank, ...] = ()
    world_size: int | None = None
    runs: int = 0
    independent: int = 1
    summaries: tuple[Summary, ...] = ()
    closed: bool = False
    failures: tuple[Failure, ...] = ()
    launch_errors: tuple[str, ...] = ()
    nccl_warnings: tuple[str, ...] = ()
    unfit: tuple[tuple[int, str, str], ...] = ()
    elided: bool = False
    programs: tuple[str, ...] = ()
    nccl_version: str = ""
    exit_status: int | None = None

    @property
    def average_busbw(self) -> float | None:
        """GB/s over all sizes, of the last run that tells it."""
        told = [s.average for s in self.summaries if s.average is not None]
        return told[-1] if told else None

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.host for r in self.ranks if r.host))

    @property
    def validated(self) -> bool | None:
        """Whether results were compared with the right ones; None without rows."""
        return any(half.validated for row in self.rows for half in row.halves) if self.rows else None


_I = re.IGNORECASE
_RANK = re.compile(
    r"\bRank\s{1,8}(\d{1,7})\s{1,8}(?:Group\s{1,8}(\d{1,7})\s{1,8})?(?:Pid\s{1,10}(\d{1,10})\s{1,8})?(?:on\s{1,40}(\S{1,255})|uses)"
    r"\s{1,40}device\s{1,8}(\d{1,5})\s{1,4}\[([0-9a-fx:.]{1,20})\] ?([^\r\n]{0,80})",
    _I,
)
_LAUNCH = re.compile(r"\bnThread \d{1,6} nGpus \d{1,6} minBytes ", _I)
_STARTING = re.compile(r"Collective test starting: (\S{1,80})", _I)
_CONCLUDED = re.compile(r"Collective test concluded: (\S{1,80})", _I)
_BOUNDS = re.compile(r"Out of bounds values\s{0,8}:\s{0,4}(\d{1,18})(?:\s{1,4}(OK|FAILED)\b)?", _I)
_BITWISE = re.compile(r"Bitwise mismatches\s{0,8}:\s{0,4}(\d{1,18})\b", _I)
_AVERAGE = re.compile(r"Avg bus bandwidth\s{0,8}:\s{0,4}(-?(?:[\d.]{1,24}(?:e[+-]?\d{1,3})?|nan|inf))(?=\s|$)(?:\s{1,4}(OK|FAILED)\b)?", _I)
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{1,40})", _I)
_FAILED = re.compile(r"\b(?:Test )?(?:NCCL|CUDA|HIP|CuRAND|MPI) failure (\S{1,80}:\d{1,6}) '([^'\r\n]{0,200})", _I)
_TIMEOUT = re.compile(r"\bTest (timeout) \(\d{1,9}i?s\)", _I)
_TRACE = re.compile(r"\bTest failure (\S{1,80}:\d{1,6})", _I)
_HOST = re.compile(r"([\w.-]{1,255})(?: pid \d{1,10})?: ?$")
LONGEST_HOST = 300
_NCCL_LOG = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ABORT|VERSION)\b", _I)
_NCCL_WARN = re.compile(r"\bNCCL WARN ", _I)
_ELIDED = re.compile(r"(?:^|[\s:>\]|])\.{3,80}\s{0,80}$")
# Say that processes did not start or were ended from outside, whatever else was printed.
_FATAL = re.compile(
    r"not enough slots available|(?:mpirun|mpiexec|orterun|prterun|prte) (?:was unable to|noticed that|detected that)"
    r"|ORTE (?:was unable|has lost)|a daemon .{0,40}died|exited on signal|returned a non-zero exit code|invoked MPI_ABORT|srun: error:"
    r"|srun: (?:Job step aborted|Force Terminated)|Unable to create step|Invalid number of GPUs|ssh: (?:connect to|Could not resolve)"
    r"|Host key verification failed|Permission denied \(|torch\.distributed\.elastic\.multiprocessing\.errors|DUE TO TIME LIMIT|oom.kill"
    r"|error while loading shared libraries|symbol lookup error|Segmentation fault|OCI runtime|CrashLoopBackOff",
    _I,
)
# Count only where the program printed no whole summary.
_WEAK = re.compile(
    r"PMIX ERROR|slurmstepd: error:|command not found|No such file or directory|cannot open shared object|Killed$|core dumped"
    r"|USAGE: \S{1,80}_perf|cannot execute",
    _I,
)


@dataclass
class _Run:
    """One run (or several side by side) while it is read."""

    begun: list[int] = field(default_factory=lambda: [0, 0, 0])
    programs: list[str] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    columns: tuple[str, ...] | None = None
    rows: int = 0
    summary: Summary = Summary()
    concluded: list[str] = field(default_factory=list)

    @property
    def has_any(self) -> bool:
        return bool(any(self.begun) or self.ranks or self.rows or self.summary != Summary())

    @property
    def side_by_side(self) -> int:
        numbers = [rank.rank for rank in dict.fromkeys(self.ranks)]
        return max((numbers.count(number) for number in numbers[:1]), default=1)

    @property
    def closed(self) -> bool:
        whole = self.summary.closed and self.summary.oob_ok is not None and max(self.begun) <= 1
        return whole and {p.lower() for p in self.programs} <= {p.lower() for p in self.concluded}


@dataclass
class _Reading:
    """The whole text while it is read."""

    runs: list[_Run] = field(default_factory=lambda: [_Run()])
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unfit: list[tuple[int, str, str]] = field(default_factory=list)
    elided: bool = False
    version: str = ""

    @property
    def run(self) -> _Run:
        """The run that the next line belongs to: a new one after a summary."""
        if self.runs[-1].summary.closed:
            self.runs.append(_Run(columns=self.runs[-1].columns))
        return self.runs[-1]

    @property
    def begun(self) -> _Run:
        """The run that a program's first lines belong to: a new one after a table, even one that was never closed."""
        if self.runs[-1].begun[2] or self.runs[-1].rows:
            self.runs.append(_Run())
        return self.run


def parse_nccl_tests(output: str, exit_status: int | None = None) -> NcclTests:
    """Figures, device list, summary and errors of one stored output; several programs may have written it.

    Args:
        output: stdout, with or without stderr.
        exit_status: of the program or its launcher; None where nobody knows it.
    """
    lines = lines_of(output)
    reading = _Reading()
    for number, text in enumerate(lines.texts, start=1):
        last = not lines.whole and number == len(lines.texts)
        _read(reading, text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE // 2]} {text[-LONGEST_LINE // 2 :]}", number, cut=last)
    return _finish(reading, exit_status)


def _read(reading: _Reading, line: str, number: int, *, cut: bool) -> None:
    if not line:
        return
    if _read_summary(reading, line, cut=cut) or _read_head(reading, line) or _read_failure(reading, line):
        return
    if _NCCL_LOG.search(line):
        _keep(reading.warnings, line, when=_NCCL_WARN.search(line) is not None)
        return
    if cut:  # its last field may be a part of a number
        return
    made = row_of(line, reading.runs[-1].columns, number=number)
    if isinstance(made, Row):
        reading.run.rows += 1
        reading.rows.append(replace(made, run=len(reading.runs) - 1))
    elif made is not None:
        if len(reading.unfit) < MOST_KEPT:
            reading.unfit.append((number, made, line.strip()[:LONGEST_TEXT]))
    elif _ELIDED.search(line):
        reading.elided = True
    else:
        _keep(reading.fatal, line, when=_FATAL.search(line) is not None)
        _keep(reading.weak, line, when=_WEAK.search(line) is not None)


def _read_summary(reading: _Reading, line: str, *, cut: bool) -> bool:
    if found := _BOUNDS.search(line):
        run, count = reading.run, int(found.group(1))
        said = found.group(2)
        verdict = False if count or (said and said.upper() == "FAILED") else True if said else None
        run.summary = replace(run.summary, out_of_bounds=count if said or not cut else None, oob_ok=verdict)
        return True
    if found := _BITWISE.search(line):
        run = reading.run
        run.summary = replace(run.summary, bitwise_mismatches=int(found.group(1)))
        return True
    if found := _AVERAGE.search(line):
        run, value = reading.run, float(found.group(1)) if _is_number(found.group(1)) else math.nan
        said = (found.group(2) or "").upper()
        whole = not cut or said != ""
        average = value if whole and math.isfinite(value) else None
        run.summary = replace(run.summary, average=average, average_ok=said == "OK" if said else None, closed=whole)
        return True
    if found := _CONCLUDED.search(line):
        reading.runs[-1].concluded.append(found.group(1))
        return True
    return False


def _read_head(reading: _Reading, line: str) -> bool:
    if found := _STARTING.search(line):
        run = reading.begun
        run.programs.append(found.group(1))
        run.begun[0] += 1
        return True
    if _LAUNCH.search(line):
        reading.begun.begun[1] += 1
        return True
    if found := _RANK.search(line):
        reading.run.ranks.append(_rank(found))
        return True
    columns = header_of(line)
    if columns is not None:
        run = reading.run
        run.columns = columns
        run.begun[2] += 1
        return True
    if (found := _VERSION.search(line)) and not reading.version:
        reading.version = found.group(1)
    return False


def _read_failure(reading: _Reading, line: str) -> bool:
    if _NCCL_LOG.search(line):
        return False
    found = _FAILED.search(line) or _TIMEOUT.search(line) or _TRACE.search(line)
    if found is None:
        return False
    host = _HOST.search(line[max(0, found.start() - LONGEST_HOST) : found.start()])
    text = found.group(2) if found.re is _FAILED else "timeout" if found.re is _TIMEOUT else ""
    where = "" if found.re is _TIMEOUT else found.group(1)
    reading.failures.append(Failure(host.group(1) if host else "", where, text))
    return True


def _finish(reading: _Reading, exit_status: int | None) -> NcclTests:
    runs = [run for run in reading.runs if run.has_any]
    independent = max((run.side_by_side for run in runs), default=1)
    listed = next((run.ranks for run in reversed(runs) if run.ranks), [])
    closed = bool(runs) and independent == 1 and all(run.closed for run in runs)
    weak = [] if closed else reading.weak
    return NcclTests(
        rows=tuple(reading.rows),
        ranks=tuple(dict.fromkeys(listed)),
        world_size=len({rank.rank for rank in listed}) or None,
        runs=sum(max(run.side_by_side, *run.begun) for run in runs if any(run.begun) or run.ranks) or len(runs),
        independent=independent,
        summaries=tuple(run.summary for run in runs if run.summary != Summary()),
        closed=closed,
        failures=tuple(dict.fromkeys(reading.failures)),
        launch_errors=tuple(dict.fromkeys((*reading.fatal, *weak))),
        nccl_warnings=tuple(dict.fromkeys(reading.warnings)),
        unfit=tuple(reading.unfit),
        elided=reading.elided,
        programs=tuple(dict.fromkeys(program for run in runs for program in run.programs)),
        nccl_version=reading.version,
        exit_status=exit_status,
    )


def _rank(found: re.Match[str]) -> Rank:
    rank, group, pid, host, device, bus, name = found.groups()
    return Rank(int(rank), host or "", int(pid) if pid else -1, int(device), bus.lower(), name.strip(), int(group or 0))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?(?:\d{1,24}(?:\.\d{0,24})?(?:e[+-]?\d{1,3})?|nan|inf)", text, _I) is not None


def _keep(kept: list[str], line: str, *, when: bool) -> None:
    if when and len(kept) < MOST_KEPT:
        kept.append(line.strip()[:LONGEST_TEXT])
