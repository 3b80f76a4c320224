"""The tree speaks of the project alone, and its text files are clean."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Each is split so that this file doesn't contain it.
FORBIDDEN = (
    "/wor" + "k/",
    "/tmp" + "/eh",
    r"\.\./sha" + "red",
    "pypi" + r"\.org",
    "pythonhosted" + r"\.org",
    "proxy" + r"\.golang",
    "registry" + r"\.npmjs",
)
# The one place that may look beside the checkout.
MAY_LOOK_BESIDE = frozenset((".ci/run",))
LONGEST_FILE = 420


def tracked() -> list[Path]:
    """Files of the repository; outside a checkout (an sdist) there is no list and nothing to check."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file() and not path.is_symlink()]


def text_of(path: Path) -> str | None:
    """The file's text, or None for a picture or the like."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_no_file_speaks_of_a_place_outside_the_project() -> None:
    found = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        text = text_of(path) or ""
        allowed = FORBIDDEN[2:3] if name in MAY_LOOK_BESIDE else ()
        found += [f"{name}: {word}" for word in FORBIDDEN if word not in allowed and re.search(word, text)]
    assert not found, "\n".join(found)


def test_the_search_would_find_them() -> None:
    planted = "see /wor" + "k/main and .." + "/shared/x"
    assert [bool(re.search(word, planted)) for word in FORBIDDEN[:3]] == [True, False, True]


def test_files_are_small_enough_to_hold_in_the_head() -> None:
    lines = {p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in tracked() if p.suffix == ".py"}
    assert not {name: count for name, count in lines.items() if count > LONGEST_FILE}


def test_links_are_the_two_and_lead_inside() -> None:
    assert (ROOT / "elastic_health/agents").resolve() == ROOT / "agents"
    assert (ROOT / "elastic_health/rendezvous").resolve() == ROOT / "rendezvous"
