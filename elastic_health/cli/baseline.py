"""`elastic-health baseline`: record what good nodes measure, show it, compare a node with it."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Iterator, Sequence

from elastic_health.cli.codes import Code
from elastic_health.cli.figures import READERS, read_run
from elastic_health.cli.reach import NotFound, add_arguments, me, reached, utc
from elastic_health.cli.show import say, say_json, table
from elastic_health.errors import BaselineError
from elastic_health.preflight.baselines import (
    LEAST_RUNS,
    MIN_RATIO,
    Baseline,
    Figure,
    Provenance,
    Run,
    combine,
    compare,
    left_out,
    node_type,
    unsteady,
)
from elastic_health.preflight.baselines_etcd import Stored, key_of, read, read_all, write
from elastic_health.preflight.baselines_os import node_facts, read_file, versions, write_file
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.rendezvous.keys import FleetKeys, check_segment

CHECK = "all_reduce"
_STATUS = ((Outcome.FAIL, Code.UNFIT), (Outcome.NOT_MEASURED, Code.NOT_MEASURED))


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `baseline …`."""
    what = "record what good nodes measure, show it, compare a node with it"
    ours = commands.add_parser("baseline", help=what).add_subparsers(required=True, metavar="COMMAND")
    one = ours.add_parser("record", help="make a baseline of the outputs of several runs on a good node")
    one.add_argument("outputs", nargs="+", metavar="OUTPUT", help="one file a run: nccl-tests output, JSON, CSV; - for standard input")
    _add_names(one)
    one.add_argument("--runs", type=int, default=LEAST_RUNS, metavar="N", help=f"refuse fewer runs (default: {LEAST_RUNS})")
    one.add_argument("--node", default="", help="the node that was measured (default: this host)")
    one.add_argument("--command", default="", metavar="TEXT", help="the command that measured, to be kept with the figures")
    one.add_argument("--force", action="store_true", help="replace the one that is there; where it came from is kept")
    _add_form(one)
    one.set_defaults(do=record)
    one = ours.add_parser("show", help="the figures of one baseline; without --node-type and --check a list of all")
    _add_names(one, defaults=False)
    one.set_defaults(do=show)
    one = ours.add_parser("compare", help="compare one run with the baseline; exit status 0, 80 (below it) or 3 (not measured)")
    one.add_argument("outputs", nargs=1, metavar="OUTPUT", help="nccl-tests output, JSON, CSV; - for standard input")
    _add_names(one)
    one.add_argument("--min-ratio", type=float, default=MIN_RATIO, metavar="R", help=f"of the baseline's median (default: {MIN_RATIO})")
    one.add_argument("--node", default="", help="the node that was measured (default: this host)")
    _add_form(one)
    one.set_defaults(do=compare_with)


def _add_names(parser: argparse.ArgumentParser, *, defaults: bool = True) -> None:
    parser.add_argument(
        "--check", default=CHECK if defaults else "", help=f"name of the check (default: {CHECK})" if defaults else "its check"
    )
    parser.add_argument("--node-type", default="", metavar="TYPE", help="the node type (default: derived from this machine's hardware)")
    parser.add_argument("--file", default="", help="the baseline is in this file, not in etcd")
    add_arguments(parser)


def _add_form(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("auto", *READERS), default="auto", help="of the outputs")


# ---- record


def record(arguments: argparse.Namespace) -> Code:
    if arguments.runs < 1:
        raise BaselineError("--runs of at least 1", str(arguments.runs), "write a number of runs")
    kind = _type_of(arguments)
    runs = [read_run(path, arguments.format) for path in _each_once(arguments.outputs)]
    figures = combine(runs, least=arguments.runs)
    at, by = utc(time.time()), me()
    known = {**versions(), **{k: v for run in runs for k, v in run.versions.items()}}
    where = Provenance(arguments.node or socket.gethostname(), at, arguments.command, by, known)
    new = Baseline(arguments.check, kind, runs[0].unit, len(runs), figures, where)
    if arguments.file:
        place, final = arguments.file, write_file(arguments.file, new, at=at, by=by, force=arguments.force)
    else:
        with reached(arguments) as (store, prefix):
            keys = FleetKeys(prefix)
            place, final = key_of(keys, kind, arguments.check), write(store, keys, new, at=at, by=by, force=arguments.force)
    notes = [*_notes(runs, figures)]
    if arguments.json:
        say_json({"recorded": True, "place": place, "baseline": final, "notes": notes})
    else:
        say([f"recorded {arguments.check} of {kind}: {len(figures)} sizes from {len(runs)} runs ({place})", *notes, *_table(figures)])
    return Code.OK


def _each_once(paths: Sequence[str]) -> Sequence[str]:
    """The same file twice would be one run that counts as two."""
    twice = next((p for p in paths if paths.count(p) > 1), None)
    if twice is not None:
        raise BaselineError("one file a run", f"{twice} more than once", "give the output of each run once")
    return paths


def _notes(runs: Sequence[Run], figures: Sequence[Figure]) -> Iterator[str]:
    gone = left_out(runs, figures)
    if gone:
        yield f"left out: {len(gone)} sizes that not all runs have, or whose figures are 0"
    loose = unsteady(figures)
    if loose:
        yield f"at {len(loose)} sizes the runs differ by more than a ratio of {MIN_RATIO} allows: record more runs, or larger sizes"
    yield from dict.fromkeys(f"{run.source}: {note}" for run in runs for note in run.notes)


# ---- show


def show(arguments: argparse.Namespace) -> Code:
    if not arguments.file and not arguments.node_type and not arguments.check:
        return _list(arguments)
    found, place = _stored(arguments, _type_of(arguments), arguments.check or CHECK)
    if found is None:
        raise NotFound(f"expected a baseline in {place}; found none; see `elastic-health baseline show`")
    say_json(found) if arguments.json else say(_lines(found))
    return Code.OK


def _list(arguments: argparse.Namespace) -> Code:
    with reached(arguments) as (store, prefix):
        found = read_all(store, FleetKeys(prefix))
    if arguments.json:
        say_json({"baselines": [_in_short(s) for s in found]})
    elif not found:
        say([f"no baselines below {FleetKeys(prefix).baselines}"])
    else:
        say(table(("node type", "check", "sizes", "runs", "at", "node", ""), [tuple(_in_short(s).values()) for s in found]))
    return Code.OK


def _in_short(stored: Stored) -> dict[str, object]:
    b = stored.baseline
    return {
        "node_type": stored.node_type,
        "check": stored.check,
        "sizes": len(b.figures) if b else "",
        "runs": b.runs if b else "",
        "at": b.provenance.at if b else "",
        "node": b.provenance.node if b else "",
        "unreadable": stored.why,
    }


def _lines(found: Baseline) -> list[str]:
    p = found.provenance
    told = " ".join(f"{k} {v}" for k, v in p.versions.items())
    lines = [
        f"{found.check} of {found.node_type}: {found.runs} runs, {found.unit}",
        f"measured on {p.node}, recorded {p.at} by {p.by or 'unknown'}{': ' + p.command if p.command else ''}",
        *([told] if told else []),
        *(f"before: {old.at} on {old.node}" for old in found.previous),
    ]
    return [*lines, "", *_table(found.figures)]


def _table(figures: Sequence[Figure]) -> list[str]:
    head = ("bytes", "median", "MAD", "lowest", "highest", "runs")
    return table(head, [(f.size, f"{f.median:.2f}", f"{f.mad:.2f}", f"{f.lowest:.2f}", f"{f.highest:.2f}", f.runs) for f in figures])


# ---- compare


def compare_with(arguments: argparse.Namespace) -> Code:
    if not 0 < arguments.min_ratio <= 1:
        raise BaselineError("--min-ratio above 0 and at most 1", str(arguments.min_ratio), "write a ratio such as 0.9")
    kind = _type_of(arguments)
    measured = read_run(arguments.outputs[0], arguments.format)
    found, place = _stored(arguments, kind, arguments.check)
    result = compare(measured, found, arguments.min_ratio, check=arguments.check, node=arguments.node or socket.gethostname())
    others = _other_types(arguments) if found is None and not arguments.file else []
    if arguments.json:
        told = {"verdict": result.outcome.value, "node_type": kind, "place": place, "summary": result.summary, "recorded_types": others}
        say_json({**told, "findings": result.findings, "parsed": result.details})
    else:
        lines = [f"there are baselines of: {', '.join(others)}; --node-type names one"] if others else []
        say([f"{result.outcome.value}: {arguments.check} against {place}", *_told(result), *lines])
    return next((code for outcome, code in _STATUS if result.outcome is outcome), Code.OK)


def _other_types(arguments: argparse.Namespace) -> list[str]:
    with reached(arguments) as (store, prefix):
        return sorted({s.node_type for s in read_all(store, FleetKeys(prefix)) if s.check == arguments.check and s.baseline})


def _told(result: CheckResult) -> Iterator[str]:
    yield result.summary
    for finding in result.findings:
        if finding.reason != result.summary:
            yield f"{finding.level.value}: {finding.reason}"
        if finding.advice:
            yield f"  {finding.advice}"
    rows = result.details.get("sizes")
    if isinstance(rows, list) and rows:
        head = ("bytes", "measured", "median", "MAD", "ratio", "")
        cells = [
            (r["size"], f"{r['measured']:.2f}", f"{r['median']:.2f}", f"{r['mad']:.2f}", f"{r['ratio']:.2f}", "low" if r["low"] else "-")
            for r in rows
        ]
        yield ""
        yield from table(head, cells)


# ---- both


def _type_of(arguments: argparse.Namespace) -> str:
    return check_segment("node type", arguments.node_type or node_type(node_facts()))


def _stored(arguments: argparse.Namespace, kind: str, check: str) -> tuple[Baseline | None, str]:
    """The baseline and where it is, or would be."""
    if arguments.file:
        return read_file(arguments.file), str(arguments.file)
    with reached(arguments) as (store, prefix):
        keys = FleetKeys(prefix)
        return read(store, keys, kind, check), key_of(keys, kind, check)
