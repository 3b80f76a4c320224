"""The gate's decision for a terminal and a log: one line, and the table of what counted."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_health.codec import shown
from elastic_health.preflight.gate import HEAD, Decision, Verdict, table

_CELL_CHARS = 400


def headline(decision: Decision) -> str:
    """`preflight join of n1: admitted in 0.4 s (host pass, canary not_measured, dcgm skipped)`."""
    word = {
        Verdict.ADMIT: "admitted",
        Verdict.REFUSE: "refused",
        Verdict.ADMIT_OBSERVED: "would be refused, but let in (preflight.mode is observe_only)",
    }[decision.verdict]
    each = ", ".join(f"{row.result.check} {row.result.outcome.value}" for row in decision.rows)
    return f"preflight {decision.stage.value} of {decision.node}: {word} in {decision.seconds:.1f} s ({each or 'no checks'})"


def table_lines(decision: Decision, *, everything: bool = False) -> list[str]:
    """The table with its head; [] where nothing counted.  Control characters, which tools may print, are made visible."""
    rows = [tuple(shown(cell, _CELL_CHARS) for cell in row) for row in table(decision, everything=everything)]
    return _columns([HEAD, *rows]) if rows else []


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
