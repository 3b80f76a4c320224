"""Frozen dataclasses to plain JSON values and back, checked field by field.

Only what our records are made of: dataclasses, enums, tuples, mappings with string keys, optional values, and
`str`, `int`, `float`, `bool`.  A missing field takes its default; a wrong type raises `BadValue` naming key and field.

Versions: `v` is the schema's number and changes only when an older reader would misunderstand.  A newer writer that
merely adds fields keeps `v`: its fields are ignored on reading, and where a value of others is rewritten the class has a
field made by `rest()`, which carries them through.  Any other `v` raises `OtherVersion`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from elastic_health._version import __version__
from elastic_health.errors import BadValue, OtherVersion

T = TypeVar("T")
SCHEMA = 1
STAMPS = frozenset({"v", "at", "by"})
"""What `dump` adds to every value."""
REST_BYTES = 65536
_REST = "rest"
_SHOWN = 80
"""Characters of a value, and four times as many of a key, that a message repeats: whoever wrote them may have written megabytes."""


def rest() -> Any:
    """A dataclass field that keeps what a newer writer added, so that rewriting the value loses nothing.  It counts in
    no comparison, and never goes before a field of our own."""
    return dataclasses.field(default_factory=dict, compare=False, repr=False, metadata={_REST: True})


def shown(text: str, most: int = _SHOWN) -> str:
    """Foreign text as a message may repeat it: short, and printable whatever its bytes were."""
    if len(text) <= most and text.isprintable():
        return text
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text[: most + 1])
    return safe if len(text) <= most else f"{safe[:most]}…"


def plain(value: Any) -> Any:
    """Turn a value made of dataclasses, enums and tuples into JSON-ready dicts, lists and scalars."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, enum.Enum)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return value


@functools.cache
def _names(cls: Hashable) -> tuple[tuple[str, ...], str]:
    """A dataclass's own fields, and the one made by `rest()` ("": none)."""
    fields = dataclasses.fields(typing.cast(Any, cls))
    theirs = next((f.name for f in fields if f.metadata.get(_REST)), "")
    return tuple(f.name for f in fields if f.name != theirs), theirs


def _plain_fields(value: Any) -> dict[str, Any]:
    names, rest_name = _names(typing.cast(Hashable, type(value)))
    ours = {name: plain(getattr(value, name)) for name in names}
    theirs = plain(getattr(value, rest_name)) if rest_name else None
    return {**ours, **{k: v for k, v in theirs.items() if k not in ours}} if theirs else ours


def dump(value: Any, *, at: str, by: str) -> bytes:
    """Encode a record for the store: the fields of `value` plus `v` (schema), `at` (UTC, ISO 8601) and `by` (node)."""
    body = {"v": SCHEMA, "at": at, "by": by, **plain(value)}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def load(cls: type[T], raw: bytes, key: str) -> T:
    """Decode a stored value.

    Raises:
        OtherVersion: `v` is not ours.
        BadValue: not JSON, not an object, or a field of the wrong type.
    """
    where = shown(key, 4 * _SHOWN)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise BadValue("a JSON object", f"{where}: {e or 'too deeply nested'}", "delete or correct this key with etcdctl") from e
    if not isinstance(body, dict):
        raise BadValue("a JSON object", f"{where}: {type(body).__name__}", "delete or correct this key with etcdctl")
    version = body.get("v", SCHEMA)
    if version != SCHEMA or isinstance(version, bool):
        by = body.get("by")
        wrote = f", written by {shown(by)}" if isinstance(by, str) and by else ""
        raise OtherVersion(
            f"schema v={SCHEMA} (elastic-health {__version__})", f"{where}: v={shown(repr(version))}{wrote}", "use one version in a run"
        )
    return build(cls, body, where)


def build(cls: type[T], body: Any, where: str) -> T:
    """Make a dataclass from a plain JSON value; `where` names it in errors."""
    return typing.cast(T, _read(cls, body, where))


Reader = Callable[[Any, str], Any]
"""(plain value, where it stands) -> the value; raises BadValue."""


def _bad(where: str, want: Any, found: Any) -> BadValue:
    name = getattr(want, "__name__", str(want))
    return BadValue(name, f"{where}: {shown(_told(found))}", "delete or correct this key with etcdctl")


def _bounded(more: dict[str, Any], where: str) -> dict[str, Any]:
    """What a newer version added is carried along with every rewrite, so it may not be just anything."""
    if more and len(json.dumps(more)) > REST_BYTES:
        raise BadValue(f"at most {REST_BYTES} bytes of fields unknown to this version", where, "delete or correct this key with etcdctl")
    return more


def _told(found: Any) -> str:
    """`repr`, without ever writing out a number of thousands of digits (which Python refuses)."""
    try:
        return repr(found)
    except ValueError:
        return f"a {type(found).__name__}"


def _read(want: Any, value: Any, where: str) -> Any:
    return _reader(want)(value, where)


@functools.cache
def _reader(want: Any) -> Reader:
    """How to read one type: worked out once, since every watch event is read by every agent."""
    origin = typing.get_origin(want)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(typing.get_args(want))
    if want is Any or want is object:
        return lambda value, where: value
    if origin is tuple:
        return _tuple_reader(typing.get_args(want))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(typing.get_args(want))
    if dataclasses.is_dataclass(want):
        return _dataclass_reader(want)
    if isinstance(want, type) and issubclass(want, enum.Enum):
        return _enum_reader(want)
    return _scalar_reader(want)


def _union_reader(options: tuple[Any, ...]) -> Reader:
    optional, one = type(None) in options, _reader(next(o for o in options if o is not type(None)))
    return lambda value, where: None if value is None and optional else one(value, where)


def _enum_reader(want: type[enum.Enum]) -> Reader:
    def read(value: Any, where: str) -> Any:
        try:
            return want(value)
        except ValueError:
            raise _bad(where, want, value) from None

    return read


def _scalar_reader(want: Any) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is want:
            return value
        if want is float and isinstance(value, int) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise _bad(where, want, value) from None
        if not isinstance(value, want) or (want in (int, float) and isinstance(value, bool)):
            raise _bad(where, want, value)
        return value

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        return _list_reader(_reader(args[0]))
    each = tuple(_reader(a) for a in args)

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _bad(where, "a list", value)
        if len(each) != len(value):
            raise _bad(where, f"a list of {len(each)}", value)
        return tuple(one(v, f"{where}[{i}]") for i, (one, v) in enumerate(zip(each, value, strict=True)))

    return read


def _list_reader(one: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _bad(where, "a list", value)
        return tuple(one(v, f"{where}[{i}]") for i, v in enumerate(value))

    return read


def _mapping_reader(args: tuple[Any, ...]) -> Reader:
    one = _reader(args[1])

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _bad(where, "an object", value)
        return {str(k): one(v, f"{where}.{shown(str(k))}") for k, v in value.items()}

    return read


def _dataclass_reader(want: Any) -> Reader:
    hints = typing.get_type_hints(want)
    missing = dataclasses.MISSING
    fields = tuple(
        (f.name, hints[f.name], _reader(hints[f.name]), f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(want)
        if not f.metadata.get(_REST)
    )
    keeper = next((f.name for f in dataclasses.fields(want) if f.metadata.get(_REST)), None)
    ours = frozenset(name for name, _, _, _ in fields) | STAMPS

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _bad(where, "an object", value)
        known = {}
        for name, hint, one, needed in fields:
            if name in value:
                found = value[name]
                # Nearly all are scalars of the right type: thousands in a member list.
                known[name] = found if type(found) is hint else one(found, f"{where}.{name}")
            elif needed:
                raise BadValue(f"field {name}", f"{where}: it is missing", "delete or correct this key with etcdctl")
        if keeper is not None:
            known[keeper] = _bounded({k: v for k, v in value.items() if k not in ours}, where)
        return want(**known)

    return read
