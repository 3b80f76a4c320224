"""Rows of an nccl-tests table, by the columns that its header names.

Layouts: NCCL 1 tests (`bytes N type op … res`), before 2.12 (`error`; no root where the operation has none, no redop where nothing
is reduced), since 2.12 (`redop root … #wrong`), 2.17 and later (`#iters`, `timestamp`, `#bitdiff`, `i_min` …); see print_header and
writeResultHeader in github NVIDIA/nccl-tests.

Law: a row that doesn't fit its columns gives nothing; no field is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

MOST_TOKENS = 64

TYPES = frozenset(
    "int8 uint8 char int32 uint32 int int64 uint64 half float16 fp16 float float32 double float64 bfloat16 bf16 f8e4m3 f8e5m2 "
    "fp8_e4m3 fp8_e5m2 fp8e4m3 fp8e5m2 float8_e4m3 float8_e5m2".split()
)
GREATEST_DEVIATION: Mapping[str, float] = MappingProxyType({"half": 5e-2, "bfloat16": 5e-2, "float": 1e-5, "double": 1e-12})
"""Before 2.12 the tool itself calls a greater deviation out of bounds (DeltaMaxValue in its common.cu); 0 for all other types."""

_NAMES: Mapping[str, str] = MappingProxyType({"bytes": "size", "n": "count", "op": "redop", "cputime": "time", "wrong": "#wrong"})
_KEYS = ("size", "count", "type")
_PER_HALF = ("time", "algbw", "busbw")
_UNIT = re.compile(r"\([^)]{0,16}\)$")
_INTEGER = re.compile(r"\d{1,20}$")
_GLUED = re.compile(r"[:>\]|](\d{1,20})$")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,19}$", re.IGNORECASE)
_NUMBER = re.compile(r"-?(?:\d{1,24}(?:\.\d{0,24})?(?:e[+-]?\d{1,3})?|nan|inf)$", re.IGNORECASE)
_SCIENTIFIC = re.compile(r"\d(?:\.\d+)?e([+-]\d{1,3})$", re.IGNORECASE)


@dataclass(frozen=True)
class Half:
    """Out-of-place or in-place figures of one row.

    Attributes:
        time_us: mean of one operation, µs.
        algbw, busbw: GB/s.
        wrong: number of wrong elements; None where not validated, or where the layout tells a deviation instead.
        error: greatest deviation, of layouts before 2.12; None where not validated.
    """

    time_us: float
    algbw: float
    busbw: float
    wrong: float | None = None
    error: float | None = None

    @property
    def validated(self) -> bool:
        return self.wrong is not None or self.error is not None


@dataclass(frozen=True)
class Row:
    """One size of one operation; `redop` is "" and `root` None where the layout has no such column."""

    size: int
    count: int
    type: str
    redop: str = ""
    root: int | None = None
    out_of_place: Half | None = None
    in_place: Half | None = None
    iters: int | None = None
    run: int = 0
    line: int = 0

    @property
    def key(self) -> tuple[int, str, str, int | None]:
        return self.size, self.type, self.redop, self.root

    @property
    def halves(self) -> tuple[Half, ...]:
        return tuple(half for half in (self.out_of_place, self.in_place) if half is not None)


def header_of(line: str) -> tuple[str, ...] | None:
    """Column names of a header line, in today's spelling; None for any other line."""
    words = [_UNIT.sub("", word).lower() for word in line.split()[-MOST_TOKENS:]]
    names = tuple(_NAMES.get(word, word) for word in words)
    start = next((i for i in range(len(names) - 3) if names[i : i + 3] == _KEYS), None)
    if start is None or "time" not in names[start:] or "busbw" not in names[start:]:
        return None
    return names[start:]


def row_of(line: str, columns: Sequence[str] | None, *, run: int = 0, number: int = 0) -> Row | str | None:
    """The row in this line; a reason when it looks like a row and doesn't fit; None for any other line.

    Args:
        columns: of the table's header; None where none was seen: then the shape of the row decides.
    """
    words = line.split()[-MOST_TOKENS:]
    start = _start(words)
    if start is None:
        return None
    size = _integer(words[start])
    values = [str(size), *words[start + 1 :]]
    looks = values[2].lower() in TYPES
    if columns is None:
        columns = _shape(values)
        if columns is None:
            return "no layout has this number of fields" if looks else None
    blank = "redop" in columns and len(values) > 3 and not _is_word(values[3])
    fields = _fields(values, [name for name in columns if name != "redop"] if blank else columns)
    if fields is None:
        return f"{len(values)} fields, where the header has {len(columns)}" if looks else None
    made = _row(fields, run, number)
    if made is not None and blank and made.in_place is not None:
        # Before 2.12 an all-to-all leaves the column empty, and its in-place deviation says nothing (NVIDIA/nccl-tests#78).
        return replace(made, in_place=replace(made.in_place, error=None))
    return made if made is not None or not looks else "a field is not of its column's kind"


def _start(words: Sequence[str]) -> int | None:
    """Where `size count type` begins, whatever a launcher put before it (it may be glued to the size)."""
    for i in range(len(words) - 3):
        if _WORD.match(words[i + 2]) and _INTEGER.match(words[i + 1]) and _integer(words[i]) is not None:
            return i
    return None


def _is_word(text: str) -> bool:
    return _WORD.match(text) is not None and not _NUMBER.match(text)


def _integer(word: str) -> int | None:
    glued = _GLUED.search(word)
    if glued:
        return int(glued.group(1))
    return int(word) if _INTEGER.match(word) else None


def _shape(values: Sequence[str]) -> tuple[str, ...] | None:
    """Columns of a row without a header: which word is there, and how many numbers follow, leave one layout each."""
    has_redop = len(values) > 3 and _is_word(values[3])
    head = (*_KEYS, "redop") if has_redop else _KEYS
    rest = len(values) - len(head)
    if rest not in (8, 9, 10) or (rest == 10 and not has_redop):
        return None
    half = (*_PER_HALF, "unknown")
    return (*head, *(("root",) if rest > 8 else ()), *half, *half, *(("#iters",) if rest == 10 else ()))


def _fields(values: Sequence[str], columns: Sequence[str]) -> list[tuple[str, str]] | None:
    """(column, value) pairs; a time stamp is two words.  None where the numbers don't match."""
    spread = [name for name in columns for _ in range(2 if name == "timestamp" else 1)]
    return list(zip(spread, values, strict=True)) if len(spread) == len(values) else None


def _row(fields: Sequence[tuple[str, str]], run: int, number: int) -> Row | None:
    split = [i for i, (name, _) in enumerate(fields) if name == "time"] + [len(fields)]
    head = dict(fields[: split[0]])
    halves = [_half(fields[a:b]) for a, b in pairwise(split)]
    iters = dict(fields).get("#iters", "")
    if None in halves or len(halves) > 2 or not _head_is_sound(head) or (iters and not _INTEGER.match(iters)):
        return None
    return Row(
        int(head["size"]),
        int(head["count"]),
        head["type"].lower(),
        head.get("redop", "").lower(),
        int(head["root"]) if "root" in head else None,
        halves[0],
        halves[1] if len(halves) == 2 else None,
        int(iters) if iters else None,
        run,
        number,
    )


def _head_is_sound(head: Mapping[str, str]) -> bool:
    redop, root = head.get("redop"), head.get("root")
    return (redop is None or _WORD.match(redop) is not None) and (root is None or re.match(r"-?\d{1,7}$", root) is not None)


def _half(fields: Sequence[tuple[str, str]]) -> Half | None:
    named = dict(fields)
    figures = [named.get(name, "") for name in _PER_HALF]
    if not all(_NUMBER.match(figure) and math.isfinite(float(figure)) for figure in figures):
        return None
    column = next((name for name in ("#wrong", "error", "res", "unknown") if name in named), None)
    said = named[column] if column else "N/A"
    time_us, algbw, busbw = map(float, figures)
    time_us *= 1000 if column == "res" else 1  # the oldest layout tells milliseconds
    if said.upper() == "N/A":
        return Half(time_us, algbw, busbw)
    if not _NUMBER.match(said):
        return None
    value = math.inf if math.isnan(float(said)) else abs(float(said))
    scientific = _SCIENTIFIC.match(said)
    # Without a header: a count is printed by %g, which has an exponent from 1e+06 on only.
    if column in ("error", "res") or (column == "unknown" and scientific and int(scientific.group(1)) < 6):
        return Half(time_us, algbw, busbw, error=value)
    return Half(time_us, algbw, busbw, wrong=value)
