"""Decisions are pure: they can't reach a clock, a file, a socket or the environment.  The checker is tested by planting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.purity import EXCEPTIONS, check, is_pure

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (("elastic_health", "elastic_health"), ("agents", "elastic_health.agents"), ("rendezvous", "elastic_health.rendezvous"))


def product() -> dict[str, Path]:
    """Dotted name -> file, over the three real folders (never through the links)."""
    found = {}
    for folder, package in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "elastic_health" and parts[0] in ("agents", "rendezvous"):
                continue
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


def test_the_product_keeps_the_law() -> None:
    files = product()
    known = frozenset(files)
    found = [str(v) for name, path in files.items() for v in check(name, path.read_text(encoding="utf-8"), known)]
    assert not found, "\n".join(found)


def test_the_walk_reaches_all_three_rooms() -> None:
    files = product()
    for name in ("elastic_health.findings", "elastic_health.agents", "elastic_health.rendezvous.keys", "elastic_health.liveness.facts"):
        assert name in files
    assert len(files) == len(set(files.values()))


def test_every_exception_exists_or_is_dropped() -> None:
    """A name on the list that no file has any more would let a later file in unseen."""
    assert not [name for name in EXCEPTIONS if name not in product()]


KNOWN = frozenset(("elastic_health.cut", "elastic_health.cut.knife_os", "elastic_health.cut.plan", "elastic_health.config.load"))

PLANTED = {
    "a clock": ("import time", "imports time"),
    "a clock inside a function": ("def f():\n    from time import monotonic", "imports time"),
    "os": ("import os.path", "imports os.path"),
    "paths that touch the disk": ("from pathlib import PurePath, Path", "imports pathlib"),
    "torch": ("from torch import nn", "imports torch"),
    "an impure file of ours": ("from elastic_health.cut.knife_os import cut", "imports elastic_health.cut.knife_os"),
    "an impure file by its package": ("from elastic_health.cut import knife_os", "imports elastic_health.cut.knife_os"),
    "a plain import of one": ("import elastic_health.cut.knife_os as k", "imports elastic_health.cut.knife_os"),
    "the config room": ("from elastic_health.config.load import load", "imports elastic_health.config.load"),
    "open": ("def f():\n    return open('x')", "calls open()"),
    "print": ("print(1)", "calls print()"),
    "the wall clock": ("from datetime import datetime\ndatetime.now()", "reads a clock"),
    "unseeded random": ("import random\nrandom.random()", "without a seed"),
    "unseeded generator": ("import random\nrandom.Random()", "without a seed"),
}

PLANTED_ANYWHERE = {
    "bare agents": ("import agents", "bare import of agents"),
    "bare rendezvous": ("from rendezvous.keys import Keys", "bare import of rendezvous.keys"),
    "wildcard": ("from math import *", "wildcard"),
    "relative": ("from . import x", "relative import"),
    "mutable": ("CACHE = {}", "mutable module-level"),
    "mutable, annotated": ("CACHE: dict[str, int] = {}", "mutable module-level"),
    "mutable call": ("from collections import deque\nQ = deque()", "mutable module-level"),
    "global": ("X = 1\ndef f():\n    global X\n    X = 2", "global statement"),
    "bare except": ("try:\n    pass\nexcept:\n    pass", "broad except"),
    "except Exception": ("try:\n    pass\nexcept Exception as e:\n    x = e", "broad except"),
    "in a tuple": ("try:\n    pass\nexcept (OSError, Exception):\n    pass", "broad except"),
    "noqa alone": ("try:\n    pass\nexcept Exception:  # noqa: BLE001\n    pass", "broad except"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found_in_a_pure_file_only(name: str) -> None:
    source, expected = PLANTED[name]
    found = check("elastic_health.cut.plan", source, KNOWN)
    assert [v.what for v in found if expected in v.what], found
    assert not check("elastic_health.cut.knife_os", source, KNOWN)


@pytest.mark.parametrize("name", PLANTED_ANYWHERE)
def test_a_planted_violation_is_found_anywhere(name: str) -> None:
    source, expected = PLANTED_ANYWHERE[name]
    for module in ("elastic_health.cut.plan", "elastic_health.cut.knife_os", "elastic_health.cli.main"):
        assert [v for v in check(module, source, KNOWN) if expected in v.what], module


@pytest.mark.parametrize(
    "source",
    [
        "from elastic_health.cut import plan",
        "from pathlib import PurePosixPath",
        "from elastic_health.cut.plan import Plan",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "from collections.abc import Mapping\nTABLE: Mapping[str, int] = {'a': 1}",
        "from typing import Final\nfrom collections.abc import Mapping\nTABLE: Final[Mapping[str, int]] = {'a': 1}",
        "NAMES = ('a', 'b')\nSEEN = frozenset({'a'})\n__all__ = ['f']",
        "import random\ndef f(seed):\n    return random.Random(seed).random()",
        "try:\n    pass\nexcept Exception as e:\n    raise RuntimeError from e",
        "try:\n    pass\nexcept Exception:  # a plug-in of the user may raise anything; it is reported as failed\n    pass",
    ],
)
def test_what_is_allowed_passes(source: str) -> None:
    assert check("elastic_health.cut.plan", source, KNOWN) == []


def test_names_decide() -> None:
    assert is_pure("elastic_health.liveness.judge") and is_pure("elastic_health.configs")
    assert not is_pure("elastic_health.liveness.page_os") and not is_pure("elastic_health.config.load")
