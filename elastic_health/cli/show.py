"""Printing: a table for people, one JSON object for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
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


def when(at: float) -> str:
    """Seconds since the epoch, as a person reads them; "" for none, or for what no calendar has."""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ") if at else ""
    except (ValueError, OverflowError, OSError):
        return ""


def few(names: Sequence[object]) -> str:
    """The first four of them, and how many there are."""
    listed = ",".join(str(n) for n in names[:4])
    return f"{listed},… ({len(names)})" if len(names) > 4 else listed


def say(lines: Iterable[str], out: TextIO | None = None) -> None:
    """Print lines; control characters in them (values come from a store that others write) are made visible."""
    stream = out or sys.stdout
    for line in lines:
        safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)
        stream.write(safe.encode(stream.encoding or "utf-8", "backslashreplace").decode(stream.encoding or "utf-8") + "\n")
    stream.flush()


def say_json(value: Any, *, line: bool = False) -> None:
    """One JSON object, indented, or on a line of its own."""
    text = json.dumps(plain(value), indent=None if line else 2, ensure_ascii=True)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
