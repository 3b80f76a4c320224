"""Many seeds, with progress and a summary; one run again; every fault at every boundary.

python -m tests.simulator --seeds 10000 --seed0 0       exit status 0 only if no seed failed and every kind of fault struck
python -m tests.simulator --sweep --stride 10
python -m tests.simulator --replay 17 [--setup JSON]    prints the history
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from tests.simulator.ledger import LAWS
from tests.simulator.run import Outcome, simulate
from tests.simulator.setup import Setup, read, setup
from tests.simulator.shrink import law, shrink
from tests.simulator.sweep import SEED, cases
from tests.simulator.tally import Tally

_TOLD = 2
"""So many failures are shrunk and told whole; of the others one line."""
_EVERY_S = 10.0
Run = tuple[int, Setup]


def main(argv: list[str] | None = None) -> int:
    a = _arguments(argv)
    if a.replay is not None:
        return _replay(a.replay, read(a.setup) if a.setup else setup(a.replay))
    if a.sweep:
        runs: list[Run] = [(SEED, c.setup) for c in cases(a.stride, a.seed0 % a.stride)]
    else:
        runs = [(s, setup(s)) for s in range(a.seed0, a.seed0 + a.seeds)]
    return _many(runs, a.jobs, until_broken=a.until_broken, swept=a.sweep, limit_s=a.shrink_s)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=int, default=1000)
    p.add_argument("--seed0", type=int, default=0)
    p.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    p.add_argument("--until-broken", action="store_true", help="stop at the first failure")
    p.add_argument("--shrink-s", type=float, default=60.0, help="seconds to make a failure small (0: don't)")
    p.add_argument("--replay", type=int, metavar="SEED", help="run one seed and print its history")
    p.add_argument("--setup", metavar="JSON", help="with --replay: this setup instead of the seed's own")
    p.add_argument("--sweep", action="store_true", help="each kind of fault at each boundary of a few plain runs")
    p.add_argument("--stride", type=int, default=1, help="with --sweep: only each n-th case (--seed0 says where to begin)")
    return p.parse_args(argv)


def _many(runs: list[Run], jobs: int, *, until_broken: bool, swept: bool, limit_s: float) -> int:
    tally, began = Tally(), time.time()
    told = began
    for at, o in _outcomes(runs, jobs):
        tally.add(o)
        if o.broken:
            _tell(*runs[at], o, limit_s if tally.failed <= _TOLD else -1.0)
            if until_broken:
                break
        if time.time() > told + _EVERY_S:
            told = time.time()
            print(tally.progress(len(runs), told - began), flush=True)
    print("\n".join(tally.lines(max(time.time() - began, 1e-3))))
    never = () if until_broken or swept else tally.never
    return 1 if tally.failed or never else 0


def _replay(seed: int, given: Setup) -> int:
    o = simulate(seed, given)
    print("\n".join((*given.lines(), "", *o.history, "", _sentence(o))))
    return 1 if o.broken else 0


def _sentence(o: Outcome) -> str:
    if not o.broken:
        return f"seed {o.seed}: every law held; the run ended with {o.ended}"
    meaning = LAWS.get(law(o.broken).rpartition(" ")[2], "")
    return f"seed {o.seed}: {o.broken}" + (f"\n  the law: {meaning}" if meaning else "")


def _tell(seed: int, given: Setup, o: Outcome, limit_s: float) -> None:
    """A failure, for people: the smallest history that shows it, and the commands that replay both."""
    print(f"\nFAILED {_sentence(o)}")
    own = given == setup(seed)
    print(f"  replay: python -m tests.simulator --replay {seed}" + ("" if own else f" --setup '{given.text()}'"))
    if limit_s <= 0:
        if not limit_s:
            print("\n".join(("", *given.lines(), "", *o.history)))
        return
    small = shrink(seed, given, o.broken, limit_s)
    print(f"  made smaller in {small.tries} runs: {len(given.strikes)} -> {len(small.setup.strikes)} faults, ", end="")
    print(f"{given.nodes} -> {small.setup.nodes} nodes, {len(o.history)} -> {len(small.outcome.history)} lines")
    print(f"  replay the small one: {small.command}")
    print("\n".join(("", *small.setup.lines(), "", *small.outcome.history, "", _sentence(small.outcome), "")), flush=True)


def _outcomes(runs: list[Run], jobs: int) -> Iterator[tuple[int, Outcome]]:
    """(index into `runs`, outcome), as they come; a history comes only with a failure."""
    if jobs == 1:
        _calm()
        yield from map(_one, enumerate(runs))
        return
    with multiprocessing.Pool(jobs, _calm) as pool:
        yield from pool.imap_unordered(_one, enumerate(runs), chunksize=8)


def _calm() -> None:
    """What a run leaves behind is freed without the collector's help; looking for cycles costs a tenth."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def _one(numbered: tuple[int, Run]) -> tuple[int, Outcome]:
    at, (seed, given) = numbered
    o = simulate(seed, given)
    return at, o if o.broken else replace(o, history=())


if __name__ == "__main__":
    sys.exit(main())
