"""Frozen dataclasses to plain JSON values and back, checked field by field.

Only what our records are made of: dataclasses, enums, tuples, mappings with string keys, optional values, and
`str`, `int`, `float`, `bool`.  Unknown fields are ignored on reading (a newer writer may have added them); a missing
field takes its default; a wrong type raises `BadValue` naming key and field.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from elastic_health.errors import BadValue

T = TypeVar("T")
SCHEMA = 1


def plain(value: Any) -> Any:
    """Turn a value made of dataclasses, enums and tuples into JSON-ready dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return value


def dump(value: Any, *, at: str, by: str) -> bytes:
    """Encode a record for the store: the fields of `value` plus `v` (schema), `at` (UTC, ISO 8601) and `by` (node)."""
    body = {"v": SCHEMA, "at": at, "by": by, **plain(value)}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def load(cls: type[T], raw: bytes, key: str) -> T:
    """Decode a stored value.

    Raises:
        BadValue: not JSON, not an object, a newer schema, or a field of the wrong type.
    """
    try:
        body = json.loads(raw)
    except ValueError as e:
        raise BadValue("a JSON object", f"{key}: {e}", "delete or correct this key with etcdctl") from e
    if not isinstance(body, dict):
        raise BadValue("a JSON object", f"{key}: {type(body).__name__}", "delete or correct this key with etcdctl")
    version = body.get("v", SCHEMA)
    if not isinstance(version, int) or version > SCHEMA:
        raise BadValue(f"schema v <= {SCHEMA}", f"{key}: v={version!r}", "use one version of elastic-health in a run")
    return build(cls, body, key)


def build(cls: type[T], body: Any, where: str) -> T:
    """Make a dataclass from a plain JSON value; `where` names it in errors."""
    return typing.cast(T, _read(cls, body, where))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _bad(where: str, want: Any, found: Any) -> BadValue:
    name = getattr(want, "__name__", str(want))
    return BadValue(name, f"{where}: {found!r}", "correct this value")


def _read(want: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(want)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(want)
        if value is None and type(None) in options:
            return None
        return _read(next(o for o in options if o is not type(None)), value, where)
    if want is Any or want is object:
        return value
    if origin is tuple:
        return _read_tuple(typing.get_args(want), value, where)
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(typing.get_args(want), value, where)
    if dataclasses.is_dataclass(want):
        return _read_dataclass(want, value, where)
    if isinstance(want, type) and issubclass(want, enum.Enum):
        try:
            return want(value)
        except ValueError:
            raise _bad(where, want, value) from None
    return _read_scalar(want, value, where)


def _read_scalar(want: Any, value: Any, where: str) -> Any:
    if want is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, want) or (want in (int, float) and isinstance(value, bool)):
        raise _bad(where, want, value)
    return value


def _read_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _bad(where, "a list", value)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if len(args) != len(value):
        raise _bad(where, f"a list of {len(args)}", value)
    return tuple(_read(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))


def _read_mapping(args: tuple[Any, ...], value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _bad(where, "an object", value)
    return {str(k): _read(args[1], v, f"{where}.{k}") for k, v in value.items()}


def _read_dataclass(want: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _bad(where, "an object", value)
    hints, known = _hints(want), {}
    for field in dataclasses.fields(want):
        if field.name in value:
            known[field.name] = _read(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise BadValue(f"field {field.name}", f"{where}: it is missing", "correct this value")
    return want(**known)
