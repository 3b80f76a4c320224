"""Two versions of the package in one run: real agents, one of them from a second copy, built as a wheel and put beside.

A minor version that only adds fields works together with this one, whoever leads and whoever writes last; a major one
(another schema) is refused before the run sees anything of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from elastic_health._version import __version__
from elastic_health.cli.main import main
from elastic_health.exits import ExitStatus
from elastic_health.rendezvous.keys import RunKeys
from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import PLENTY, REPO, Run

pytestmark = [pytest.mark.spec("U1", "R6"), pytest.mark.timeout(900), pytest.mark.slow]
KEYS = RunKeys("job")
LONG = 240.0
GROW = PLENTY + "membership: {scale_up: at_once}\n"

NEWER_FIELDS = {
    "elastic_health/generations.py": (
        ('    why: str = ""\n', '    why: str = ""\n    colour: str = "blue"\n'),
        ("    by_cause: tuple[tuple[str, int], ...] = ()\n", '    by_cause: tuple[tuple[str, int], ...] = ()\n    colour: str = "blue"\n'),
        ("    leaving: bool = False\n", '    leaving: bool = False\n    racks: tuple[str, ...] = ("r1", "r2")\n'),
        ("    moved: tuple[str, ...] = ()\n", '    moved: tuple[str, ...] = ()\n    colour: str = "blue"\n'),
    ),
    "elastic_health/verdicts.py": (('    writer: str = ""\n', '    writer: str = ""\n    colour: str = "blue"\n'),),
    "elastic_health/_version.py": ((f'"{__version__}"', '"0.99.0"'),),
}
NEWER_SCHEMA = {
    "elastic_health/_version.py": ((f'"{__version__}"', '"7.0.0"'),),
    "elastic_health/codec.py": (("SCHEMA = 1\n", "SCHEMA = 2\n"),),
}


def second_copy(at: Path, edits: Mapping[str, tuple[tuple[str, str], ...]]) -> str:
    """A wheel of this tree with these edits, installed into a folder of its own; what to put on PYTHONPATH."""
    tree, target = at / "tree", at / "site"
    leave = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.egg-info", "build", "dist", ".*_cache", ".hypothesis", "*-out")
    shutil.copytree(REPO, tree, symlinks=True, ignore=leave)
    for name, pairs in edits.items():
        text = (tree / name).read_text()
        for old, new in pairs:
            assert text.count(old) == 1, f"{name}: {old!r}"
            text = text.replace(old, new)
        (tree / name).write_text(text)
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", str(at), str(tree)]
    for words in (build, [*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(at / "*.whl")]):
        words = [*words[:-1], str(next(at.glob("*.whl")))] if words[-1].endswith("*.whl") else words
        done = subprocess.run(words, cwd=at, env=clean, capture_output=True, text=True, timeout=LONG, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return str(target)


@pytest.fixture(scope="module")
def minor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"PYTHONPATH": second_copy(tmp_path_factory.mktemp("minor"), NEWER_FIELDS)}


@pytest.fixture(scope="module")
def major(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"PYTHONPATH": second_copy(tmp_path_factory.mktemp("major"), NEWER_SCHEMA)}


def value(etcd: EtcdCluster, key: str) -> dict[str, object]:
    return json.loads(etcd.ctl("get", "--print-value-only", key))  # type: ignore[no-any-return]


def versions(etcd: EtcdCluster) -> dict[str, str]:
    lines = etcd.ctl("get", "--prefix", "--print-value-only", KEYS.candidates).splitlines()
    return {c["node"]: c["version"] for c in map(json.loads, lines)}


def test_a_minor_version_that_adds_fields(
    minor: dict[str, str], run: Run, one_etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    new = run.start("a", nnodes="1:2", config=GROW, env=minor)
    run.wait_group(1, within_s=LONG)
    old = run.start("b", nnodes="1:2", config=GROW)
    run.wait_group(2, after=1, within_s=LONG)
    assert versions(one_etcd) == {"a": "0.99.0", "b": __version__}
    assert value(one_etcd, KEYS.budget)["colour"] == value(one_etcd, KEYS.generation(2))["colour"] == "blue", "the newer one formed it"
    assert main(["status", "job", "--endpoint", one_etcd.endpoints[0]]) == 0
    assert f"versions: {__version__} on b; 0.99.0 on a" in capsys.readouterr().out
    new.kill_node()
    run.wait_group(1, after=2, within_s=LONG)  # the older one leads, forms, and rewrites the budget
    budget = value(one_etcd, KEYS.budget)
    assert (budget["restarts"], budget["colour"]) == (1, "blue") and "colour" not in value(one_etcd, KEYS.generation(3))
    again = run.start("a", nnodes="1:2", config=GROW, env=minor)
    run.wait_group(2, after=3, within_s=LONG)
    run.finish(old, again, within_s=LONG)
    assert all("Traceback" not in a.text() and "unreadable" not in a.text() for a in run.agents)


@pytest.mark.parametrize("first", ["this", "the other"])
def test_a_major_version_is_refused_and_disturbs_nobody(first: str, major: dict[str, str], run: Run, one_etcd: EtcdCluster) -> None:
    ours, theirs = f"{re.escape(__version__)} \\(schema 1\\)", "7\\.0\\.0 \\(schema 2\\)"
    there, comes = (({}, major), (ours, theirs)) if first == "this" else ((major, {}), (theirs, ours))
    group = [run.start(n, nnodes="2:3", config=GROW, env=there[0]) for n in ("a", "c")]
    run.wait_group(2, within_s=LONG)
    before = one_etcd.ctl("get", "--prefix", "--keys-only", KEYS.root)
    late = run.start("b", nnodes="2:3", config=GROW, env=there[1])
    assert late.wait(LONG) == ExitStatus.RUN_REFUSED, late.text()
    text = late.text()
    assert "Traceback" not in text and text.count("healthy-etcd: ") == 1, text
    assert re.search(f"expected .*{comes[1]} on this node, b; found run job of elastic-health {comes[0]} on a, c; install", text), text
    after = one_etcd.ctl("get", "--prefix", "--keys-only", KEYS.root)
    assert set(after.split()) - set(before.split()) <= {KEYS.progress, KEYS.summary}, "it wrote nothing"
    assert len(run.events("boot")) == 2 and all(a.process.poll() is None for a in group)
    run.finish(*group, within_s=LONG)
