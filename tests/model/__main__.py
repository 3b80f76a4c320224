"""`python -m tests.model`: explore every configuration to its end, with progress; status 0 only if all invariants hold.

`--without RULE`: leave a rule out, and print the shortest history that then breaks an invariant (`--without all`: each).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable
from dataclasses import replace

from tests.model.configs import DEEP, FULL, LAPSES
from tests.model.explore import Found, explore
from tests.model.jobs import explored
from tests.model.shape import FAULTS, RULES, SPECIAL

INVARIANTS = {
    "I1": "one generation at a time can commit",
    "I2": "sizes within MIN and MAX",
    "I3": "one verdict",
    "I4": "each position once",
    "I6": "an end can be reached",
    "I7": "what is restored was committed, is newest, and not left by a rollback",
    "I8": "the only restore point stays",
    "R7": "nothing of an old group runs beside a new one",
}
BUDGET_S = 600.0


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    p.add_argument("--only", action="append", choices=[*FULL, *DEEP], help="only this configuration (may be repeated)")
    p.add_argument("--deep", action="store_true", help="the largest runs instead, which may take hours (give --budget-s)")
    p.add_argument("--without", choices=["all", *LAPSES], help="leave a rule out and show what breaks")
    p.add_argument("--jobs", type=int, default=min(2, multiprocessing.cpu_count()))
    p.add_argument("--budget-s", type=float, default=BUDGET_S, help="give up, with status 1, after this many seconds")
    a = p.parse_args()
    return (
        without(LAPSES if a.without == "all" else [a.without])
        if a.without
        else whole(a.only or list(DEEP if a.deep else FULL), a.jobs, a.budget_s)
    )


def without(rules: Iterable[str]) -> int:
    missed = 0
    for rule in rules:
        want, c = LAPSES[rule]
        f = explore(replace(c, off=frozenset({rule})))
        print(f"without rule {rule} ({RULES[rule]}): {f.broken or 'nothing breaks'}; {f.states} states")
        print("\n".join(f"  {k:2d}. {line}" for k, line in enumerate(f.history, 1)), flush=True)
        missed += not f.broken.startswith(want)
    return 1 if missed else 0


def whole(names: list[str], jobs: int, budget_s: float) -> int:
    began, done = time.monotonic(), list[Found]()
    for name, f in explored(names, jobs, began + budget_s):
        done.append(f)
        size = f"{f.states} states, {f.moves} moves, depth {f.depth}, {f.seconds:.0f} s"
        print(f"{name}: {size}: {f.broken or ('every invariant holds' if f.whole else 'NOT FINISHED within the budget')}")
        print("\n".join(f"  {k:2d}. {line}" for k, line in enumerate(f.history, 1)), end="\n" if f.history else "", flush=True)
    struck = {k for f in done for k in f.faults}
    good = [f for f in done if f.whole and not f.broken]
    idle = sorted(set(FAULTS) - SPECIAL - struck) if names == list(FULL) else []
    if idle:
        print(f"faults that never struck: {', '.join(idle)}")
    held = len(good) == len(names) and not idle
    print(
        f"protocol model: {len(good)} of {len(names)} configurations explored to the end, {sum(f.states for f in done)} states, "
        f"{sum(f.moves for f in done)} moves, depth {max((f.depth for f in done), default=0)}, {len(INVARIANTS)} invariants "
        f"{'hold' if held else 'NOT SHOWN'}, {time.monotonic() - began:.0f} s"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
