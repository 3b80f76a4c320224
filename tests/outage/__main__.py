"""All outage drills: `python -m tests.outage --minutes 5`.  Ends with 0 only if everything held."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.outage.drill import Result, broken, members, ride


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--minutes", type=float, default=5.0, help="length of each whole outage")
    p.add_argument("--members", type=int, default=3, help="etcd members in the whole outages")
    a = p.parse_args()
    began, results = time.time(), list[Result]()
    every = 50 if a.minutes <= 1 else 200
    with tempfile.TemporaryDirectory(prefix="outage-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as tmp:
        for n, drill in enumerate((
            lambda f: ride(f, "freeze", a.members, a.minutes * 60, "sync", every),
            lambda f: ride(f, "kill", a.members, a.minutes * 60, "async", every),
            lambda f: broken(f),
            lambda f: members(f),
        )):  # fmt: skip
            results.append(drill(Path(tmp) / str(n)))
            print(results[-1].line(), flush=True)
    wrong = sum(len(r.wrong) for r in results)
    print(f"{len(results)} drills, outages of {a.minutes:g} min: {wrong} things wrong; {time.time() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
