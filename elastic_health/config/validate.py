"""From a YAML document to a `Config`, or to every mistake in it at once."""

from __future__ import annotations

import difflib
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from elastic_health.config.mistakes import ConfigMistakes, Mistake
from elastic_health.config.model import Config
from elastic_health.config.nodes import Document, Path, dotted, read
from elastic_health.config.preflight_model import BUILT_IN, PreflightSection

_CHECK_NAME = "a name of small letters, digits and _.- that begins with a letter"
ALIASES: Mapping[str, str] = {"max_restarts": "total"}
"""Second spellings within `restarts`."""
ELSEWHERE: Mapping[str, str] = {"max_restarts": "restarts.total", "join_timeout": "membership.join_timeout_s"}
"""Names that people look for at the top, and where they are."""
_IN_WORDS: Mapping[str, str] = {
    "preflight.node_type": "a name of letters, digits and ._:@-",
    "preflight.bandwidth.check": _CHECK_NAME,
    "store.prefix": "a path of letters, digits and ._:@- that begins and ends with /",
    "store.user": "a user's name, without a password",
    "store.password_env": "the name of an environment variable",
    "topology.env": "the name of an environment variable",
    "page.webhook": "a URL that begins with http:// or https://",
    "page.webhook_env": "the name of an environment variable",
}
_SECRETS = frozenset(("password", "passwd", "token", "secret"))

_TYPES: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} entry",
    "too_long": "at most {max_length} entries",
    "enum": "one of {expected}",
}


def parse(text: str, path: str = "health.yaml") -> Config:
    """A configuration from YAML text.  An empty file is the defaults.

    Args:
        path: only for messages.

    Raises:
        ConfigMistakes: with every mistake found.
    """
    doc = read(text)
    if doc.mistakes:
        raise ConfigMistakes(path, [*doc.mistakes, *(_checked(doc)[1] if isinstance(doc.value, dict) else ())])
    config, mistakes = _checked(doc)
    if config is None or mistakes:
        raise ConfigMistakes(path, mistakes)
    return config


def _checked(doc: Document) -> tuple[Config | None, list[Mistake]]:
    value = {} if doc.value is None else doc.value
    if not isinstance(value, dict):
        return None, [Mistake(doc.line(()), "", "a mapping of sections", doc.shown.get((), "a plain value"))]
    mistakes = [*_infinite(value, (), doc), *_aliased(value, doc)]
    if mistakes:  # JSON can't carry these on
        value = _finite(value)
    try:
        config = Config.model_validate_json(json.dumps(value))
    except ValidationError as e:
        return None, [*mistakes, *_merged(_mistake(error, doc) for error in e.errors(include_url=False))]
    return config, [*mistakes, *_crossed(config, doc)]


def _aliased(value: dict[str, Any], doc: Document) -> Iterator[Mistake]:
    """Put second spellings in their place; both at once is a mistake."""
    section = value.get("restarts")
    if not isinstance(section, dict):
        return
    for other, name in ALIASES.items():
        if other not in section:
            continue
        path: Path = ("restarts", other)
        if name in section:
            yield Mistake(doc.keys[path], dotted(path), f"one of {name} and {other}", "both")
        target: Path = ("restarts", name)
        doc.values.setdefault(target, doc.values[path])
        doc.shown.setdefault(target, doc.shown[path])
        doc.keys.setdefault(target, doc.keys[path])
        section.setdefault(name, section.pop(other))


def _infinite(value: Any, path: Path, doc: Document) -> Iterator[Mistake]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Mistake(doc.line(path), dotted(path), "a finite number", doc.shown[path])
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _infinite(inner, (*path, key), doc)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items() if not (isinstance(v, float) and not math.isfinite(v))}
    if isinstance(value, list):
        return [_finite(v) for v in value if not (isinstance(v, float) and not math.isfinite(v))]
    return value


def _mistake(error: ErrorDetails, doc: Document) -> Mistake:
    path: Path = _known_part(error["loc"], doc)
    if error["type"] == "extra_forbidden":
        return _unknown(path, doc)
    if error["type"] == "missing":
        return Mistake(doc.line(path), dotted(path), f"the key `{error['loc'][-1]}`", "none")
    context = error.get("ctx") or {}
    expected = _TYPES.get(error["type"], error["msg"][:1].lower() + error["msg"][1:]).format_map(_Context(context))
    if error["type"] == "string_pattern_mismatch":
        expected = _IN_WORDS.get(dotted(path), _CHECK_NAME if path[:2] == ("preflight", "own") else expected)
    if _optional(path):
        expected += ", or null"
    return Mistake(doc.line(path), dotted(path), expected, doc.shown.get(path, "nothing"))


def _known_part(loc: Path, doc: Document) -> Path:
    """The error's place without the names of union branches, which pydantic appends and no file holds."""
    path: Path = ()
    for part in loc:
        if (*path, part) not in doc.values and (*path, part) not in doc.keys:
            break
        path = (*path, part)
    return path


class _Context(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def _unknown(path: Path, doc: Document) -> Mistake:
    name = str(path[-1])
    line = doc.keys.get(path, doc.line(path))
    if name.lower() in _SECRETS:
        expected = "no secret in this file, but password_file or password_env"
        return Mistake(line, dotted(path), expected, f"`{name}`, whose value is not shown")
    known = sorted(names(path[:-1]))
    guess = ELSEWHERE.get(name) if len(path) == 1 else None
    guess = guess or _near(name, [*known, *(ALIASES if path[:-1] == ("restarts",) else ())], path)
    if guess:
        return Mistake(line, dotted(path), "a known key", f"`{name}`; did you mean `{guess}`?")
    return Mistake(line, dotted(path), f"one of {', '.join(known)}", f"the unknown key `{name}`")


def _near(name: str, siblings: list[str], path: Path) -> str | None:
    leaves = {p.rsplit(".", 1)[-1]: p for p in all_names()}
    near = difflib.get_close_matches(name, siblings, 1, 0.6)
    if near and name not in leaves:
        return dotted((*path[:-1], near[0]))
    near = difflib.get_close_matches(name, leaves, 1, 0.8)
    return leaves[near[0]] if near else None


def _merged(mistakes: Iterator[Mistake]) -> list[Mistake]:
    """One a field: a value that fits no branch of a union gives one error a branch."""
    seen: dict[tuple[int, str], Mistake] = {}
    for m in mistakes:
        seen.setdefault((m.line, m.field), m)
    return list(seen.values())


def _model_at(path: Path) -> type[BaseModel] | None:
    model: type[BaseModel] = Config
    items: type[BaseModel] | None = None
    for part in path:
        field = None if isinstance(part, int) else model.model_fields.get(part)
        inner = items if isinstance(part, int) else _model_of(field.annotation) if field else None
        items = _item_of(field.annotation) if field else None
        if inner is None and items is not None and part is not path[-1]:
            continue
        if inner is None:
            return None
        model = inner
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((m for m in map(_model_of, typing.get_args(annotation)) if m), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _item_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a list's entries."""
    inner = typing.get_args(annotation)
    return _model_of(inner[0]) if typing.get_origin(annotation) is tuple and inner else None


def _optional(path: Path) -> bool:
    model = _model_at(path[:-1]) if path else None
    field = model.model_fields.get(str(path[-1])) if model else None
    return field is not None and type(None) in typing.get_args(field.annotation)


def names(path: Path) -> tuple[str, ...]:
    """The keys that a section may have."""
    model = _model_at(path)
    return tuple(model.model_fields) if model else ()


def all_names(path: Path = ()) -> Iterator[str]:
    """Every dotted key of the file, sections included."""
    for name in names(path):
        inner: Path = (*path, name)
        yield dotted(inner)
        yield from all_names(inner)


def _crossed(config: Config, doc: Document) -> Iterator[Mistake]:
    """What two keys must keep between them."""

    def mistake(field: str, expected: str, found: str) -> Mistake:
        return Mistake(doc.line(tuple(field.split("."))), field, expected, found)

    m, t, live, store = config.membership, config.teardown, config.liveness, config.store
    if t.grace_s + t.commit_wait_s > m.kill_grace_s:
        both = f"{t.grace_s:g} + {t.commit_wait_s:g}"
        yield mistake("teardown.grace_s", f"grace_s + commit_wait_s within membership.kill_grace_s={m.kill_grace_s:g}", both)
    if live.busy_after_s < live.stall_after_s:
        yield mistake("liveness.busy_after_s", f"at least stall_after_s={live.stall_after_s:g}", f"{live.busy_after_s:g}")
    if live.heartbeat_s * 2 > live.stall_after_s:
        yield mistake("liveness.heartbeat_s", f"at most half of stall_after_s={live.stall_after_s:g}", f"{live.heartbeat_s:g}")
    if store.password_file is not None and store.password_env is not None:
        yield mistake("store.password_env", "one of password_file and password_env", "both")
    if (store.password_file or store.password_env) and store.user is None:
        yield mistake("store.user", "a user with the password", "none")
    if store.tls is not None and (store.tls.cert is None) != (store.tls.key is None):
        yield mistake("store.tls", "cert and key, or neither", "one of them")
    if config.page.webhook and config.page.webhook_env:
        yield mistake("page.webhook_env", "one of webhook and webhook_env", "both")
    yield from _own_checks(config.preflight, doc)
    if sorted(config.restarts.backoff_s) != list(config.restarts.backoff_s):
        yield mistake("restarts.backoff_s", "seconds that never get less", ", ".join(f"{s:g}" for s in config.restarts.backoff_s))


def _own_checks(section: PreflightSection, doc: Document) -> Iterator[Mistake]:
    """Each has a name of its own, and one thing to run."""

    def mistake(index: int, field: str, expected: str, found: str) -> Mistake:
        path: Path = ("preflight", "own", index, field)
        return Mistake(doc.line(path), dotted(path), expected, found)

    seen: set[str] = set()
    for i, one in enumerate(section.own):
        if one.name in BUILT_IN or one.name in seen:
            yield mistake(i, "name", f"a name that no other check has (nor {', '.join(BUILT_IN)})", one.name)
        seen.add(one.name)
        if bool(one.command) == bool(one.entry):
            yield mistake(i, "command", "command or entry", "both" if one.entry else "neither")
    h = section.host
    if h.clock_fail_s < h.clock_s:
        path: Path = ("preflight", "host", "clock_fail_s")
        yield Mistake(doc.line(path), dotted(path), f"at least clock_s={h.clock_s:g}", f"{h.clock_fail_s:g}")
