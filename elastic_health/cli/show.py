"""Printing: a table for people, one JSON object for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from elastic_health.codec import plain


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(head), *cells]) for i in range(len(head))]
    right = [bool(cells) and all(_number(r[i]) for r in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()

    return [line(list(head)), line(["-" * w for w in widths]), *map(line, cells)]


def _number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit() or text == ""


def say(lines: Iterable[str], out: TextIO | None = None) -> None:
    """Print lines; control characters in them (values come from a store that others write) are made visible."""
    stream = out or sys.stdout
    for line in lines:
        stream.write("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line) + "\n")
    stream.flush()


def say_json(value: Any, *, line: bool = False) -> None:
    """One JSON object, indented, or on a line of its own."""
    text = json.dumps(plain(value), indent=None if line else 2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
