"""The mutation check: each bug of `mutants` is planted into a copy of the source tree, and there

(a) the ordinary unit tests of the module pass (`FOLDERS`; neither slow tests nor the simulator's own), and
(b) the simulator fails within 1,000 seeds.

   python -m tests.simulator.mutation [NAME ...]      exit status 0 only if all of it holds and at least 16 pass (a)
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.simulator.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("elastic_health", "agents", "rendezvous", "tests", "configs", "docs", "pyproject.toml", "setup.cfg")
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "rendezvous/": ("tests/rendezvous", "tests/recovery"),
    "elastic_health/recovery/": ("tests/recovery", "tests/rendezvous"),
    "elastic_health/checkpoints/": ("tests/checkpoints", "tests/rendezvous"),
}
"""Which ordinary tests a module has, by the beginning of its path."""
SEEDS = 1000
ENOUGH = 16
TESTS_LIMIT_S = 900
SEEDS_LIMIT_S = 1800


@dataclass(frozen=True)
class Report:
    """`test`: the first ordinary test that failed, "" for none.  `seed`: the first one that failed, None for none."""

    name: str
    test: str
    tests: int
    seed: int | None
    law: str
    took_s: float
    trouble: str = ""

    @property
    def holds(self) -> bool:
        return not self.trouble and self.seed is not None and bool(self.test) == MUTANTS[self.name].seen

    @property
    def line(self) -> str:
        if self.trouble:
            return f"FAIL {self.name}: {self.trouble}"
        tests = f"unit tests see it ({self.test})" if self.test else f"{self.tests} unit tests pass"
        seeds = f"the simulator fails at seed {self.seed} ({self.law})" if self.seed is not None else f"{SEEDS} seeds pass"
        return f"{'ok  ' if self.holds else 'FAIL'} {self.name}: {tests}; {seeds}; {self.took_s:.0f} s"


def planted(text: str, m: Mutant) -> str:
    """The file's text with the bug in it.

    Raises:
        ValueError: what it changes is not there exactly once.
    """
    if text.count(m.old) != 1:
        found = f"{text.count(m.old)} times"
        raise ValueError(f"expected the text that a bug replaces once in {m.file}; found it {found}: adapt tests/simulator/mutants.py")
    return text.replace(m.old, m.new)


def plant(name: str, into: Path) -> None:
    """A copy of the tree in `into`, with the bug."""
    m = MUTANTS[name]
    for part in COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, into / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, into / part)
    target = into / m.file
    target.write_text(planted(target.read_text(), m))


def child(tree: Path, *argv: str, limit_s: float) -> tuple[int, str]:
    """Exit status and output of a Python that imports the tree and nothing of the one that it was copied from."""
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *argv], cwd=tree, env=env, timeout=limit_s, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.returncode, done.stdout


def _unit_tests(tree: Path, m: Mutant) -> tuple[str, int]:
    """(first test that failed or "", how many passed)."""
    folders = next(f for start, f in FOLDERS.items() if m.file.startswith(start))
    failed, passed = _pytest(tree, *folders)
    if failed:  # on a machine that is busy a test may fail for another reason: only one that fails again counts
        failed, passed = _pytest(tree, *folders)
    return failed, passed


def _pytest(tree: Path, *folders: str) -> tuple[str, int]:
    argv = ("-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *folders)
    status, out = child(tree, *argv, limit_s=TESTS_LIMIT_S)
    passed = re.search(r"(\d+) passed", out)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", out, re.M)
    if status and not failed:
        raise RuntimeError(f"the unit tests did not run: {out[-500:]}")
    return (failed[1] if failed else ""), int(passed[1]) if passed else 0


def first_failure(tree: Path, seeds: int = SEEDS, shrink_s: float = -1.0) -> tuple[int | None, str, str]:
    """(seed, law, whole output) of the first seed that fails in that tree."""
    argv = ("-m", "tests.simulator", "--seeds", str(seeds), "--jobs", "1", "--until-broken", "--shrink-s", str(shrink_s))
    status, out = child(tree, *argv, limit_s=SEEDS_LIMIT_S)
    found = re.search(r"^FAILED seed (\d+): (?:Broken: )?([^:\n]+)", out, re.M)
    if status and not found:
        raise RuntimeError(f"the simulator did not run: {out[-500:]}")
    return (int(found[1]) if found else None), (found[2] if found else ""), out


def check(name: str) -> Report:
    began = time.time()
    try:
        with tempfile.TemporaryDirectory(prefix="planted-") as folder:
            tree = Path(folder)
            plant(name, tree)
            seed, law, _ = first_failure(tree)
            test, tests = _unit_tests(tree, MUTANTS[name])
    except (ValueError, RuntimeError, subprocess.TimeoutExpired) as e:  # it doesn't fit, or breaks more than a law
        return Report(name, "", 0, None, "", time.time() - began, str(e))
    return Report(name, test, tests, seed, law, time.time() - began)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="these bugs only")
    p.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    a = p.parse_args(argv)
    names = a.names or list(MUTANTS)
    unknown = sorted(set(names) - set(MUTANTS))
    if unknown:
        print(f"expected names out of tests/simulator/mutants.py; found {', '.join(unknown)}", file=sys.stderr)
        return 2
    began, reports = time.time(), list[Report]()
    with multiprocessing.Pool(a.jobs) as pool:
        for r in pool.imap_unordered(check, names):
            reports.append(r)
            print(r.line, flush=True)
    subtle = sum(not r.test for r in reports)
    caught = [r.seed for r in reports if r.seed is not None]
    enough = bool(a.names) or subtle >= ENOUGH
    print(
        f"{len(reports)} planted bugs: {len(caught)} caught by the simulator within {SEEDS} seeds, the latest at {max(caught, default=0)}; "
        f"{subtle} of them pass the ordinary unit tests; {sum(not r.holds for r in reports)} not as expected; {time.time() - began:.0f} s"
    )
    return 0 if all(r.holds for r in reports) and enough else 1


if __name__ == "__main__":
    sys.exit(main())
