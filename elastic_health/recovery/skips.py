"""Skipped windows as people record them: `runs/<run>/skips/<id>`, by command or with plain `etcdctl put`.

Law: a value needs `start` and `end` and nothing else; one that can't be read is named and left out, and never stops a
run or hides the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastic_health.codec import load
from elastic_health.errors import BadValue, DataError
from elastic_health.rendezvous.store import KeyValue
from elastic_health.windows import Window, normal


def parse_skip(kv: KeyValue) -> Window:
    """The half-open window of positions in one key.

    Raises:
        BadValue: not a JSON object with whole numbers 0 <= `start` < `end`; it names the key.
    """
    try:
        return load(Window, kv.value, kv.key)
    except DataError as e:
        raise BadValue(e.expected, f"{kv.key}: {e.found}", "delete or correct this key with etcdctl") from e


def read_skips(kvs: Iterable[KeyValue]) -> tuple[tuple[Window, ...], tuple[BadValue, ...]]:
    """All windows in normal form, and what could not be read."""
    windows, bad = [], []
    for kv in kvs:
        try:
            windows.append(parse_skip(kv))
        except BadValue as e:
            bad.append(e)
    return normal(windows), tuple(bad)


def covers(kvs: Iterable[KeyValue], start: int, end: int) -> str | None:
    """The key of a readable window that already holds all of [start, end), or None."""
    for kv in kvs:
        try:
            w = parse_skip(kv)
        except BadValue:
            continue
        if w.start <= start and end <= w.end:
            return kv.key
    return None
