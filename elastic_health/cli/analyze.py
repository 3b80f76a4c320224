"""`analyze KIND FILE…`: judges what other tools wrote, from any machine, after the fact.

A kind is one line in `KINDS`: what it reads, who judges it, which options of its own it has.  Exit status: 0 for `pass` and
`warn`, `Code.UNFIT` for `fail`, `Code.NOT_MEASURED` for `not_measured`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from elastic_health.cli.codes import Code
from elastic_health.cli.input_os import MAX_BYTES, Input, read_input
from elastic_health.cli.show import few, say, say_json, table
from elastic_health.codec import plain, shown
from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.dcgm import parse_dcgm
from elastic_health.preflight.fleet import FleetFailure, fleet_wide
from elastic_health.preflight.nccl_tests import analyze_nccl_tests
from elastic_health.preflight.nvlink import NvlinkLimits, parse_nvlink
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.preflight.xid import analyze_xid

WORST_FIRST = (Outcome.FAIL, Outcome.NOT_MEASURED, Outcome.WARN, Outcome.SKIPPED, Outcome.PASS)
_STATUS: Mapping[Outcome, Code] = MappingProxyType({Outcome.FAIL: Code.UNFIT, Outcome.NOT_MEASURED: Code.NOT_MEASURED})
_MOST_ROWS = 64
_WIDEST = 100


@dataclass(frozen=True)
class Kind:
    """One kind of input.

    Attributes:
        judge: of a text and the command's arguments.
        options: adds the kind's own options.
        read: of one FILE argument.
    """

    help: str
    judge: Callable[[str, argparse.Namespace], CheckResult]
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    read: Callable[[str], Input] = read_input


def _dcgm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exit-status", type=int, metavar="N", help="with which dcgmi ended (negative: by that signal)")


def _nvlink_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most-errors", type=float, default=0, metavar="N", help="highest error count of a link that is still well (0)")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs that there must be")
    parser.add_argument("--links", type=int, metavar="N", help="links that each GPU must have")


def _nccl_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exit-status", type=int, metavar="N", help="with which the test ended (negative: by that signal)")


def _xid_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--this-boot", action="store_true", help="leave out what stands before the newest start of a kernel")


def _dcgm(text: str, arguments: argparse.Namespace) -> CheckResult:
    return parse_dcgm(text, arguments.exit_status)


def _nvlink(text: str, arguments: argparse.Namespace) -> CheckResult:
    limits = NvlinkLimits(counts=arguments.most_errors)
    return parse_nvlink(text, limits=limits, expected_gpus=arguments.gpus, expected_links=arguments.links)


def _nccl(text: str, arguments: argparse.Namespace) -> CheckResult:
    return analyze_nccl_tests(text, arguments.exit_status)


def _xid(text: str, arguments: argparse.Namespace) -> CheckResult:
    return analyze_xid(text, this_boot=arguments.this_boot)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "dcgm": Kind("output of dcgmi diag or mndiag: JSON or tables, DCGM 2.x to 4.x", _dcgm, _dcgm_options),
        "nvlink": Kind("output of dcgmi nvlink or nvidia-smi nvlink, -s or -e", _nvlink, _nvlink_options),
        "nccl-tests": Kind("output of nccl-tests (all_reduce_perf and its like), any layout", _nccl, _nccl_options),
        "xid": Kind("kernel log: dmesg, journalctl -k, syslog or /dev/kmsg", _xid, _xid_options),
    }
)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `analyze …`."""
    kinds = commands.add_parser("analyze", help="judge what another tool wrote").add_subparsers(required=True, metavar="KIND")
    for name, kind in KINDS.items():
        one = kinds.add_parser(name, help=kind.help)
        one.add_argument("files", nargs="+", metavar="FILE", help="- for standard input; of several files each is taken for a node")
        one.add_argument("--json", action="store_true", help="one JSON object (see docs/OPERATIONS.md)")
        kind.options(one)
        one.set_defaults(do=analyze, kind=name)


def analyze(arguments: argparse.Namespace) -> Code:
    kind = KINDS[arguments.kind]
    results: dict[str, CheckResult] = {}
    for path in arguments.files:
        given = kind.read(path)
        result = kind.judge(given.text, arguments)
        results[given.name] = _cut(result) if given.cut else result
    fleet = fleet_wide(results)
    verdict = min((r.outcome for r in results.values()), key=WORST_FIRST.index)
    if arguments.json:
        say_json(as_object(arguments.kind, verdict, results, fleet))
    else:
        say(as_lines(arguments.kind, results, fleet))
    return _STATUS.get(verdict, Code.OK)


def _cut(result: CheckResult) -> CheckResult:
    """Of a file that is longer than what is read of one: what comes after may be a failure."""
    reason = f"only the first {MAX_BYTES >> 20} MiB were read"
    finding = Finding(FindingKind.NOT_MEASURED, reason, level=Level.WARN, advice="cut out the part that matters")
    outcome = result.outcome if result.outcome is Outcome.FAIL else Outcome.NOT_MEASURED
    return replace(result, outcome=outcome, findings=(*result.findings, finding), summary=f"{result.summary}; {reason}")


# ---- for machines


def as_object(kind: str, verdict: Outcome, results: Mapping[str, CheckResult], fleet: Sequence[FleetFailure]) -> dict[str, object]:
    """The closed form of `--json`; of several files each finding names its file as a node."""
    several = len(results) > 1
    found = [replace(f, nodes=f.nodes or (name,)) if several else f for name, r in results.items() for f in r.findings]
    blamed = [f for f in found if f.level is Level.FAIL]
    worst = next(r for r in results.values() if r.outcome is verdict)
    return {
        "kind": kind,
        "files": list(results),
        "verdict": verdict.value,
        "reason": worst.summary,
        "ranks": sorted({rank for f in blamed for rank in f.ranks}),
        "nodes": list(dict.fromkeys(node for f in blamed for node in f.nodes)),
        "gpus": list(dict.fromkeys(gpu for f in blamed for gpu in f.gpus)),
        "findings": [_finding(f) for f in found],
        "fleet": [{"signature": w.signature, "nodes": list(w.nodes), "of": w.of, "reason": w.reason, "advice": w.advice} for w in fleet],
        "parsed": {name: dict(r.details) for name, r in results.items()} if several else dict(worst.details),
    }


def _finding(f: Finding) -> dict[str, object]:
    keys = ("kind", "level", "reason", "advice", "ranks", "nodes", "gpus", "measured", "required", "unit", "signature", "evidence")
    return {key: plain(getattr(f, key)) for key in keys}


# ---- for people


def as_lines(kind: str, results: Mapping[str, CheckResult], fleet: Sequence[FleetFailure]) -> list[str]:
    lines: list[str] = []
    for name, result in results.items():
        lines += [f"{kind} {shown(name)}: {result.outcome.value}: {shown(result.summary, 4 * _WIDEST)}", *_table(result.findings), ""]
    lines += [f"fleet: {w.reason}; {w.advice}" for w in fleet]
    return lines if fleet else lines[:-1]


def _table(findings: Sequence[Finding]) -> list[str]:
    worst_first = sorted(findings, key=lambda f: (Level.FAIL, Level.WARN, Level.NOTE).index(f.level))
    listed = worst_first[:_MOST_ROWS]
    if not listed:
        return []
    head = ("level", "finding", "where", "measured", "required", "what")
    rows = [_row(f) for f in listed]
    advice = dict.fromkeys(f"do: {f.advice}" for f in listed if f.advice)
    more = [f"{len(findings) - _MOST_ROWS} more; see --json"] if len(findings) > _MOST_ROWS else []
    return [*table(head, rows), *more, *advice]


def _row(f: Finding) -> tuple[str, ...]:
    return f.level.value, f.kind.value, _where(f), _figure(f.measured, f.unit), _figure(f.required, f.unit), _short(f.reason)


def _where(f: Finding) -> str:
    parts = [f"GPU {few(f.gpus)}"] if f.gpus else []
    parts += [f"node {few(f.nodes)}"] if f.nodes else []
    parts += [f"rank {few(f.ranks)}"] if f.ranks else []
    return " ".join(parts)


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:g} {unit}".rstrip()


def _short(text: str) -> str:
    return shown(" ".join(text.split()), _WIDEST)
