"""docs/REQUIREMENTS.md: every id has a state, and tests cite only ids that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNTS = {"P": 7, "N": 5, "S": 6, "L": 10, "E": 4, "R": 13, "U": 6}
ROW = re.compile(r"^\| ([A-Z]\d+) \| (done|partly|later) \| \S", re.MULTILINE)


def ids() -> list[str]:
    return [m[1] for m in ROW.finditer((ROOT / "docs" / "REQUIREMENTS.md").read_text())]


def test_every_id_once_with_a_state() -> None:
    assert ids() == [f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)]


def test_tests_cite_ids_that_exist() -> None:
    known, wrong = set(ids()), []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spec":
                cited = [a.value for a in node.args if isinstance(a, ast.Constant)]
                wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {i}" for i in cited if i not in known]
    assert not wrong
