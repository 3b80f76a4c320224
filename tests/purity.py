"""Which files may do what, read from syntax trees; `tests/test_purity.py` applies it to the product.

Law: a file whose name doesn't end in one of `IMPURE_SUFFIXES`, and isn't on `EXCEPTIONS`, imports only `PURE_STDLIB`
and other pure files of ours, so it can't read a clock, a file, a socket or the environment.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

IMPURE_SUFFIXES = ("_etcd", "_torch", "_proc", "_os", "_net")

# Dotted modules (or whole packages) that may do I/O under a name of their own, each with its reason.
EXCEPTIONS: Mapping[str, str] = {
    "elastic_health": "the lazy public API",
    "elastic_health.config": "YAML and pydantic",
    "elastic_health.cli": "a command line reads and prints",
    "elastic_health.rendezvous.plug": "torch's entry point",
    "elastic_health.worker.site_hook.sitecustomize": "Python's `site` asks for this name",
    "elastic_health.worker.__main__": "`python -m elastic_health.worker`: Python gives the name",
}
_WHOLE = ("elastic_health.config", "elastic_health.cli")

PURE_STDLIB = frozenset(
    "__future__ abc base64 bisect collections contextlib copy dataclasses datetime enum functools hashlib heapq hmac html "
    "itertools json math operator random re statistics string struct textwrap types typing zlib".split()
)
_BANNED_CALLS = frozenset("open print input exec eval compile __import__ breakpoint".split())
_CLOCKS = frozenset(("now", "utcnow", "today"))
_UNSEEDED = frozenset(("Random", "SystemRandom"))
_MUTABLE_CALLS = frozenset("dict list set defaultdict OrderedDict Counter deque bytearray".split())
# Annotations through which mypy refuses a change.
_READ_ONLY = frozenset("Mapping Sequence Collection Iterable AbstractSet frozenset tuple MappingProxyType".split())


@dataclass(frozen=True)
class Violation:
    module: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.what}"


def is_pure(module: str) -> bool:
    if module in EXCEPTIONS or any(module.startswith(whole + ".") for whole in _WHOLE):
        return False
    return not module.endswith(IMPURE_SUFFIXES)


def check(module: str, source: str, known: frozenset[str]) -> list[Violation]:
    """All violations in one file.

    Args:
        module: dotted name, e.g. `elastic_health.rendezvous.keys` (a package's own name for its `__init__`).
        known: dotted names of all files of the product: tells `from package import module` from importing a name.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    found = [*_everywhere(tree, lines)]
    if is_pure(module):
        found += [*_pure_only(tree, known)]
    return [Violation(module, line, what) for line, what in sorted(found)]


def _everywhere(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        for name in _imported(node):
            if name.split(".")[0] in ("agents", "rendezvous"):
                yield _line(node), f"bare import of {name}: write elastic_health.{name}"
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield node.lineno, "wildcard import"
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "relative import"
        if isinstance(node, ast.Global):
            yield node.lineno, "global statement: pass the value instead"
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _is_explained(node, lines):
            yield node.lineno, "broad except that neither re-raises nor has a comment that says why it is broad"
    for statement in tree.body:
        if _is_mutable_value(statement):
            yield statement.lineno, "mutable module-level value: use a tuple, a frozenset, or annotate it Mapping or Sequence"


def _pure_only(tree: ast.Module, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    typing_only = {id(inner) for node in ast.walk(tree) if _is_type_checking(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) not in typing_only:
            yield from ((_line(node), why) for why in _bad_imports(node, known))
        if isinstance(node, ast.Call):
            why = _bad_call(node)
            if why:
                yield node.lineno, why


def _bad_imports(node: ast.AST, known: frozenset[str]) -> Iterator[str]:
    for name in _imported(node):
        if name == "pathlib" and isinstance(node, ast.ImportFrom) and all(alias.name.startswith("Pure") for alias in node.names):
            continue  # paths as text: these classes have no method that touches a disk
        if name.split(".")[0] != "elastic_health":
            if name.split(".")[0] not in PURE_STDLIB:
                yield f"imports {name}, which is not on the allow-list of pure files"
            continue
        targets = [name]
        if isinstance(node, ast.ImportFrom):
            targets = [f"{name}.{alias.name}" if f"{name}.{alias.name}" in known else name for alias in node.names]
        yield from (f"imports {target}, which is not pure" for target in dict.fromkeys(targets) if not is_pure(target))


def _bad_call(node: ast.Call) -> str | None:
    if isinstance(node.func, ast.Name):
        return f"calls {node.func.id}()" if node.func.id in _BANNED_CALLS else None
    if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Name):
        return None
    base, name = node.func.value.id, node.func.attr
    if base in ("datetime", "date") and name in _CLOCKS:
        return f"reads a clock by {base}.{name}()"
    if base == "random" and (name not in _UNSEEDED or not (node.args or node.keywords) or name == "SystemRandom"):
        return f"calls random.{name} without a seed: use random.Random(seed)"
    return None


def _imported(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Import):
        return tuple(alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and not node.level:
        return (node.module or "",)
    return ()


def _is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING")


def _is_broad(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    if isinstance(kind, ast.Tuple):
        return any(_is_broad(element) for element in kind.elts)
    return isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")


def _is_explained(handler: ast.ExceptHandler, lines: list[str]) -> bool:
    if any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
        return True
    said = lines[handler.lineno - 1].partition("#")[2].strip()
    return bool(said) and not (said.startswith("noqa") and len(said.split()) < 4)


def _is_mutable_value(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        return names != ["__all__"] and _is_mutable(statement.value)
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        words = {n.id for n in ast.walk(statement.annotation) if isinstance(n, ast.Name)}
        return not words & _READ_ONLY and _is_mutable(statement.value)
    return False


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in _MUTABLE_CALLS
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
