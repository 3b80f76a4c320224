"""Many seeds with progress and a summary: `python -m tests.simulator --seeds 10000 --seed0 0 [--jobs N]`."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.simulator.run import FAULTS, simulate


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seeds", type=int, default=1000)
    p.add_argument("--seed0", type=int, default=0)
    p.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    p.add_argument("--history", action="store_true", help="print the history of each seed")
    a = p.parse_args()
    began, faults, ends, failed = time.time(), Counter[str](), Counter[str](), 0
    generations = in_place = 0
    with multiprocessing.Pool(a.jobs) as pool:
        for n, o in enumerate(pool.imap_unordered(simulate, range(a.seed0, a.seed0 + a.seeds), chunksize=8), 1):
            faults += o.faults
            ends[o.ended] += 1
            generations, in_place = generations + o.generations, in_place + o.in_place
            if o.broken or a.history:
                failed += bool(o.broken)
                if failed <= 3:
                    print("\n".join((f"seed {o.seed}: {o.broken or o.ended}", *o.history[-200:])), flush=True)
                else:
                    print(f"seed {o.seed}: {o.broken}", flush=True)
            if n % 1000 == 0:
                print(f"{n} seeds, {failed} failed, {time.time() - began:.0f} s", flush=True)
    missing = sorted(set(FAULTS) - set(faults)) if a.seeds >= 200 else []
    print("faults: " + ", ".join(f"{k} {v}" for k, v in sorted(faults.items())))
    print(f"ends: {dict(ends)}; fault kinds never struck: {missing or 'none'}")
    print(f"{a.seeds} seeds: {failed} broke an invariant; {generations} generations, {in_place} in place; {time.time() - began:.0f} s")
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
