"""Many seeds with progress and a summary: `python -m tests.simulator --seeds 10000 --seed0 0 [--jobs N]`."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulator.faults import FAULTS
from tests.simulator.run import Outcome, simulate

_HISTORY_LINES = 250


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seeds", type=int, default=1000)
    p.add_argument("--seed0", type=int, default=0)
    p.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    p.add_argument("--history", action="store_true", help="print the history of each seed")
    a = p.parse_args()
    began, faults, ends, failed = time.time(), Counter[str](), Counter[str](), 0
    generations = in_place = 0
    gaps: list[float] = []
    for n, o in enumerate(_outcomes(range(a.seed0, a.seed0 + a.seeds), a.jobs), 1):
        faults += o.faults
        ends[o.ended] += 1
        generations, in_place = generations + o.generations, in_place + o.in_place
        gaps += o.gaps
        if o.broken or a.history:
            failed += bool(o.broken)
            lines = o.history[-_HISTORY_LINES:] if failed <= 2 or a.history else ()
            print("\n".join((*lines, f"seed {o.seed}: {o.broken or o.ended}")), flush=True)
        if n % 1000 == 0:
            print(f"{n} seeds, {failed} failed, {time.time() - began:.0f} s", flush=True)
    missing = sorted(set(FAULTS) - set(faults)) if a.seeds >= 200 else []
    print("faults: " + ", ".join(f"{k} {v}" for k, v in sorted(faults.items())))
    print(f"ends: {dict(ends)}; fault kinds never struck: {missing or 'none'}")
    took = time.time() - began
    print(
        f"{a.seeds} seeds: {failed} broke an invariant; {sum(faults.values())} faults, {generations} generations, {in_place} in place; "
        f"verdict to next generation {statistics.median(gaps or [0.0]):.2f} s in the median; {took:.0f} s, {a.seeds / took:.0f} seeds/s"
    )
    return 1 if failed or missing else 0


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(simulate, seeds)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap_unordered(simulate, seeds, chunksize=8)


if __name__ == "__main__":
    sys.exit(main())
