"""A YAML text as plain values, with the line of each key and value, and its own mistakes (syntax, duplicate keys).

Scalars follow YAML 1.2's core rules, not PyYAML's older ones: only `true` and `false` are booleans (so `off` stays a
word), `1e3` is a number, `1:30` and dates are text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml

from elastic_health.config.mistakes import Mistake

Path = tuple[str | int, ...]
MAX_BYTES = 1024 * 1024
MAX_DEPTH = 20
MAX_VALUES = 20_000
"""Aliases can make a small file unfold into a huge one."""
_TOO_BIG = "more"
_DO_NOT_SHOW = re.compile(r"(?i)pass(word|wd|phrase)?$|secret|token|credential|webhook$")


@dataclass
class Document:
    """`value` is the file as dicts, lists and scalars; `keys` and `values` give lines; `shown` is each value as written."""

    value: Any = None
    keys: dict[Path, int] = field(default_factory=dict)
    values: dict[Path, int] = field(default_factory=dict)
    shown: dict[Path, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of a value, else of the nearest mapping around it, else 1."""
        while path:
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.values.get((), 1)


class _Loader(yaml.SafeLoader):
    """Resolves scalars by YAML 1.2's core schema."""


def _core_rules() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    rules: tuple[tuple[str, str, str], ...] = (
        ("null", r"~|null|Null|NULL|", "~nN\0"),
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    )
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for name, pattern, starts in rules:
        for start in starts:
            table.setdefault("" if start == "\0" else start, []).append((f"tag:yaml.org,2002:{name}", re.compile(f"(?:{pattern})\\Z")))
    return table


_Loader.yaml_implicit_resolvers = _core_rules()


def dotted(path: Path) -> str:
    """`restarts.backoff_s[2]`."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def read(text: str) -> Document:
    """Parse a whole file.  Never raises for its content: what is wrong is in `mistakes`."""
    doc = Document()
    if len(text.encode()) > MAX_BYTES:
        doc.mistakes.append(Mistake(1, "", f"at most {MAX_BYTES} bytes", "a larger file"))
        return doc
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            doc.value = _value(loader, node, (), doc)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = ", ".join(x for x in (e.context, e.problem) if x)
        doc.mistakes.append(Mistake(mark.line + 1 if mark else 1, "", "YAML", where or "something else"))
    except yaml.YAMLError as e:
        doc.mistakes.append(Mistake(1, "", "YAML", str(e).splitlines()[0]))
    return doc


def _value(loader: _Loader, node: yaml.Node, path: Path, doc: Document) -> Any:
    doc.values[path] = node.start_mark.line + 1
    if len(path) > MAX_DEPTH or len(doc.values) > MAX_VALUES:
        if not any(m.found == _TOO_BIG for m in doc.mistakes):
            doc.mistakes.append(Mistake(doc.line(path), dotted(path), f"at most {MAX_DEPTH} levels and {MAX_VALUES} values", _TOO_BIG))
        return None
    if isinstance(node, yaml.MappingNode):
        doc.shown[path] = "a mapping" if node.value else "an empty mapping"
        return _mapping(loader, node, path, doc)
    if isinstance(node, yaml.SequenceNode):
        doc.shown[path] = "a list"
        return [_value(loader, item, (*path, i), doc) for i, item in enumerate(node.value)]
    return _scalar(loader, node, path, doc)


def _scalar(loader: _Loader, node: yaml.Node, path: Path, doc: Document) -> Any:
    plain = bool(getattr(node, "style", None) is None)
    text = node.value if len(node.value) <= 80 else node.value[:77] + "..."
    last = str(path[-1]) if path else ""
    secret = bool(_DO_NOT_SHOW.search(last)) or (last == "user" and ":" in text)
    doc.shown[path] = "a value that is not shown" if secret else (text or "nothing") if plain else repr(text)
    if node.tag == "tag:yaml.org,2002:int":
        return int(node.value, 0) if node.value[:2].lower() in ("0x", "0o") else int(node.value)
    if node.tag == "tag:yaml.org,2002:str":
        return node.value
    try:
        return loader.construct_object(node)
    except ValueError:
        doc.mistakes.append(Mistake(doc.line(path), dotted(path), "a plain value", doc.shown[path]))
        return None


def _mapping(loader: _Loader, node: yaml.MappingNode, path: Path, doc: Document) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, Hashable) or not isinstance(key, str) or key_node.tag != "tag:yaml.org,2002:str":
            found = "a key of another kind" if key is None else f"the key {key}"
            doc.mistakes.append(Mistake(line, dotted(path), "keys that are words", found))
            continue
        inner = (*path, key)
        if key in out:
            doc.mistakes.append(Mistake(line, dotted(inner), "each key once", f"it again (first on line {doc.keys[inner]})"))
            continue
        doc.keys[inner] = line
        out[key] = _value(loader, value_node, inner, doc)
    return out
