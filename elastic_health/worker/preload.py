"""What a warm process may import ahead of its script, and when that is exact.  Pure.

Law: a warm start is allowed only where the order "import torch, then the script" can't be told from "the script, which
imports torch": nothing that an import reads or depends on was changed by the script before its own import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

MODULES: tuple[str, ...] = (
    "torch",
    "torch.distributed",
    "numpy",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.optim",
    "torch.nn.parallel",
    "torch.utils.data",
)
"""Heavy modules; bit i of a page's `modules` stands for MODULES[i].  Only what the script itself imports is preloaded
for its successors."""

NEEDED_BY_TORCH = frozenset(
    "filelock fsspec jinja2 markupsafe mpmath networkx numpy nvidia packaging psutil setuptools sympy torchgen triton "
    "typing_extensions yaml".split()
)
"""Top-level modules outside the standard library that importing torch may import."""


class Hindrance(Enum):
    """Why an earlier import of torch might have gone another way."""

    ENVIRONMENT = "the script changes environment variables before it imports torch"
    WARNINGS = "the script changes warning filters before it imports torch"
    FINDERS = "the script changes how modules are found before it imports torch"
    HIDDEN = "the script hides a module before it imports torch"
    NATIVE = "the script loads native code before torch"
    AFFINITY = "the script changes its CPU affinity before it imports torch"
    LOGGERS = "the script changes the class of loggers before it imports torch"
    SHADOWED = "a file on the script's path takes the place of a module that torch imports"


@dataclass(frozen=True)
class Moment:
    """What imports depend on, at one moment.

    Attributes:
        finders: identities of what finds modules.
        hidden: names that can't be imported (None in sys.modules).
        native: extension modules from outside the standard library.
        path: where modules are looked for.
    """

    environ: Mapping[str, str]
    filters: tuple[object, ...] = ()
    finders: tuple[int, ...] = ()
    hidden: frozenset[str] = frozenset()
    native: frozenset[str] = frozenset()
    affinity: frozenset[int] = frozenset()
    loggers: int = 0
    path: tuple[str, ...] = ()


def hindrance(start: Moment, now: Moment, shadowing: Iterable[str] = (), imported: Iterable[str] = ()) -> Hindrance | None:
    """What stands against importing torch before the script; None if nothing does.

    Args:
        start, now: before the script's first line, and when its import of torch began.
        shadowing: top-level names found in folders that the script's path gained in between.
        imported: names of modules after that import.
    """
    changes = (
        (Hindrance.ENVIRONMENT, start.environ, now.environ),
        (Hindrance.WARNINGS, start.filters, now.filters),
        (Hindrance.FINDERS, start.finders, now.finders),
        (Hindrance.HIDDEN, start.hidden, now.hidden),
        # numpy is one of torch's own imports: which of the two comes first makes no difference.
        (Hindrance.NATIVE, start.native, frozenset(n for n in now.native if n.partition(".")[0] != "numpy")),
        (Hindrance.AFFINITY, start.affinity, now.affinity),
        (Hindrance.LOGGERS, start.loggers, now.loggers),
    )
    for why, before, after in changes:
        if before != after:
            return why
    tops = {name.partition(".")[0] for name in imported}
    return Hindrance.SHADOWED if tops & set(shadowing) else None


def mask(imported: Iterable[str]) -> int:
    have = set(imported)
    return sum(1 << i for i, name in enumerate(MODULES) if name in have)


def names(bits: int) -> tuple[str, ...]:
    return tuple(name for i, name in enumerate(MODULES) if bits >> i & 1)
