"""What the rank-0 agent pays a look for the progress of the whole group: reading the members' messages, and judging.

`python -m benchmarks.rank0` takes CPU time, not wall time, of the shipped functions for healthy groups of growing size: eight
workers a node, each inside collectives of the world and of one group more.  One line a size; the last has the exponents.
Exit status 0 only if neither grows faster than its bar.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.rendezvous_figures import exponent
from elastic_health.agents.links import decode, encode
from elastic_health.liveness.facts import GroupFrontier, Phase, ProcState, RankFacts
from elastic_health.liveness.judge import judge
from elastic_health.liveness.memory import JudgeMemory
from elastic_health.messages import Progress
from elastic_health.policies import StallPolicy

NODE_RANKS = 8
LOOKS = 7
MOST_EXPONENT = 1.2
"""Linear, and something for memory that no longer fits the caches."""


def facts(rank: int, world: int, step: int) -> RankFacts:
    """A healthy rank in a step, in the world's group and in its data-parallel one."""
    groups = (
        GroupFrontier("0", 10 * step + 1, 10 * step, "nccl:all_reduce", tuple(range(world))).short(),
        GroupFrontier(str(1 + rank % NODE_RANKS), 3 * step, 3 * step, "nccl:all_gather", tuple(range(rank % NODE_RANKS, world, NODE_RANKS))).short(),
    )
    node = f"gpu-worker-{rank // NODE_RANKS:05d}-".ljust(40, "x")
    return RankFacts(
        rank, node, rank % NODE_RANKS, 1000 + rank, 1, Phase.STEP, 0.4, ProcState.RUNNING, 0.1, step, 0.3, step, 0.3, groups, 0.1, 0.1,
        True, 100.0 + step, 1000, 0.1,
    )  # fmt: skip


def measure(world: int) -> tuple[float, float, int]:
    """Milliseconds of CPU a look for reading and for judging, and bytes of all messages."""
    memory, read_ms, judged_ms, size = JudgeMemory(), list[float](), list[float](), 0
    first = [facts(rank, world, 1) for rank in range(world)]
    for look in range(LOOKS):
        told = [dataclasses.replace(f, steps=look + 1, activity=look + 1, pid=f.pid) for f in first]
        messages = [encode(Progress(1, tuple(told[k : k + NODE_RANKS]))) for k in range(0, world, NODE_RANKS)]
        size = sum(map(len, messages))
        began = time.process_time()
        for message in messages:
            decode(message)
        read_ms.append((time.process_time() - began) * 1e3)
        began = time.process_time()
        memory, _ = judge(tuple(dataclasses.replace(f, age_s=0.1) for f in told), memory, StallPolicy(), 100.0 + look / 2, world)
        judged_ms.append((time.process_time() - began) * 1e3)
    return median(read_ms), median(judged_ms[1:]), size


def main(words: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.rank0", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--worlds", type=lambda t: tuple(map(int, t.split(","))), default=(256, 1024, 4096, 16384))
    args = p.parse_args(words)
    found = []
    print("| ranks | nodes | messages kB | reading ms | judging ms |\n| ---: | ---: | ---: | ---: | ---: |")
    for world in args.worlds:
        found.append((world, *measure(world)))
        print(f"| {world} | {world // NODE_RANKS} | {found[-1][3] / 1e3:.0f} | {found[-1][1]:.1f} | {found[-1][2]:.1f} |", flush=True)
    fits = {name: exponent((f[0], f[i]) for f in found) or 0.0 for name, i in (("reading", 1), ("judging", 2), ("bytes", 3))}
    held = all(fit <= MOST_EXPONENT for fit in fits.values())
    print(f"\nbench-rank0: {'holds' if held else 'BROKEN'}: exponents {', '.join(f'{k} {v:.2f}' for k, v in fits.items())} (at most {MOST_EXPONENT:g})")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
