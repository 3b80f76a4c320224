"""Files of measured figures, read for `baseline`: outputs of nccl-tests or of our own all-reduce, or sizes and figures as JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from elastic_health.codec import shown
from elastic_health.errors import BaselineError
from elastic_health.findings import Level
from elastic_health.preflight.baselines import MOST_SIZES, Run
from elastic_health.preflight.nccl_tests import bus_bandwidths, judge_nccl_tests, parse_nccl_tests
from elastic_health.preflight.pair_bench import run_of_bench
from elastic_health.preflight.results import Outcome

MAX_BYTES = 8 << 20
Reader = Callable[[str, str], Run]
"""(source, text) -> the run; raises BaselineError."""
_DO = 'give an output of nccl-tests, JSON as {"65536": 12.3}, or CSV with the head size,busbw'


def read_run(path: str, form: str = "auto") -> Run:
    """One run out of a file; `-` is standard input.

    Raises:
        BaselineError: it can't be read, or isn't what `form` says.
    """
    source = "standard input" if path == "-" else path
    text = _text(path, source)
    return READERS[_form_of(text) if form == "auto" else form](source, text)


def _text(path: str, source: str) -> str:
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise BaselineError("a readable file", f"{source}: {e.strerror or e}", "correct the path or its mode") from e
    if len(raw) > MAX_BYTES:
        raise BaselineError(f"at most {MAX_BYTES >> 20} MiB", f"{source}: more", "give the output of one run")
    return raw.decode("utf-8", "replace")


def _form_of(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if first.startswith('{"started"'):
        return "pair"
    if first.startswith("{"):
        return "json"
    return "csv" if first.replace(" ", "").lower().startswith("size,") else "nccl-tests"


def from_json(source: str, text: str) -> Run:
    """`{"65536": 12.3, …}`, or the same under `values` with `unit`, and `wrong` (number of wrong values) beside it."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise BaselineError("JSON", f"{source}: {e or 'too deeply nested'}", _DO) from e
    if not isinstance(body, dict):
        raise BaselineError("a JSON object", f"{source}: {type(body).__name__}", _DO)
    values, unit, wrong = body.get("values", body), body.get("unit", "GB/s"), body.get("wrong", 0)
    if not isinstance(values, dict) or not isinstance(unit, str) or not isinstance(wrong, int):
        raise BaselineError("values (an object), unit (text) and wrong (a number)", f"{source}: other types", _DO)
    figures = _figures(source, values)
    return Run(source, figures, unit, wrong=(f"{wrong} wrong values",) if wrong else ())


def from_csv(source: str, text: str) -> Run:
    """A head `size,busbw`, then one line a size."""
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if not rows or [cell.strip().lower() for cell in rows[0]] != ["size", "busbw"]:
        raise BaselineError("the head size,busbw", f"{source}: {shown(','.join(rows[0]) if rows else 'nothing')}", _DO)
    bad = next((i for i, row in enumerate(rows) if len(row) != 2), None)
    if bad is not None:
        raise BaselineError("two columns", f"{source}, row {bad + 1}: {len(rows[bad])}", _DO)
    sizes = [row[0].strip() for row in rows[1:]]
    twice = next((s for s in sizes if sizes.count(s) > 1), None) if len(sizes) <= MOST_SIZES else None
    if twice is not None:
        raise BaselineError("each size once", f"{source}: {shown(twice)} twice", _DO)
    return Run(source, _figures(source, {row[0]: row[1] for row in rows[1:]}))


def _figures(source: str, values: Mapping[str, Any]) -> dict[int, float]:
    if not 0 < len(values) <= MOST_SIZES:
        raise BaselineError(f"1 to {MOST_SIZES} sizes", f"{source}: {len(values)}", _DO)
    out = {}
    for size, value in values.items():
        try:
            if isinstance(value, bool):
                raise ValueError
            out[int(size)] = float(value)
        except (ValueError, TypeError, OverflowError):
            raise BaselineError("sizes in bytes with figures", f"{source}: {shown(str(size))}: {shown(str(value))}", _DO) from None
    return out


def from_nccl_tests(source: str, text: str) -> Run:
    """An output of all_reduce_perf or one of its like; what its own parser finds wrong or missing is kept."""
    parsed = parse_nccl_tests(text)
    result = judge_nccl_tests(parsed)
    wrong = tuple(f.reason for f in result.findings if f.level is Level.FAIL)
    cut = result.outcome is Outcome.NOT_MEASURED
    missing = tuple(f.reason for f in result.findings if cut and f.level is Level.WARN) or ((result.summary,) if cut else ())
    notes = tuple(f.reason for f in result.findings if not cut and f.level is Level.WARN)
    version = result.details.get("nccl_version")
    versions = {"nccl": version} if isinstance(version, str) and version else {}
    return Run(source, bus_bandwidths(parsed), wrong=wrong, missing=missing, notes=notes, versions=versions)


def from_pair(source: str, text: str) -> Run:
    """An output of `python -m elastic_health.preflight.pairs_torch`."""
    run = run_of_bench(text, source)
    if not run.values:
        raise BaselineError("figures of pairs_torch", f"{source}: none", _DO)
    return run


READERS: Mapping[str, Reader] = {"json": from_json, "csv": from_csv, "nccl-tests": from_nccl_tests, "pair": from_pair}
