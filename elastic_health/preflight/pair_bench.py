"""How the pair check measures: its parameters, the commands, and what they say.

The built-in benchmark (`pairs_torch`) prints one JSON object a line: `{"started": true, …}`, `{"connected": true, …}` once the
two have found each other, one for each size (`{"skipped": SIZE}` for one that would take too long), `{"done": true}` at the
end, and `{"error": "…"}` where it can't go on.

Bus bandwidth is what nccl-tests calls so (doc/PERFORMANCE.md there): size / time × 2 × (n − 1) / n, the time being the
slowest rank's median.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from elastic_health.errors import ConfigError
from elastic_health.findings import FindingKind
from elastic_health.preflight.baselines import FEWEST_SIZES, MIN_RATIO, Run
from elastic_health.preflight.commands import Ended, Ran, text_of
from elastic_health.preflight.nccl_tests import bus_bandwidths, judge_nccl_tests, parse_nccl_tests
from elastic_health.preflight.pair_verdict import MEETING_RATIO
from elastic_health.preflight.pairs import Pace, Told
from elastic_health.preflight.results import Outcome

MODULE = "elastic_health.preflight.pairs_torch"
MIB = 1024 * 1024
SIZES: Sequence[int] = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
PLACES = ("host", "partner", "hosts", "ranks", "endpoint")
LATE_S = 15.0
"""Beyond an appointment's own limit: for what it started to end, and for its telling to be seen."""
ENOUGH = 1 / 3
"""Of an appointment's time: who had so much of it together and did not end has stalled."""
_CHARS = 300


@dataclass(frozen=True)
class PairRules:
    """The parameters of the pair check, as YAML spells them.

    Attributes:
        wait_s, settle_s, expect: see `pairs.Pace`.
        round_s: of one appointment, with the start of its processes.
        sizes: of messages, in bytes, in rising order.
        iterations, warmup: of each size; fewer where a size takes longer than its share of the time.
        backend: `gloo` or `nccl`; "" for NCCL where there is a GPU.
        min_ratio: of the baseline.  meeting_ratio: of the median of the other pairs, where there is no baseline.
        fewest_sizes: that must be comparable with the baseline.
        command: run in place of the built-in benchmark, by the first of each pair; see `nccl_command`.
        ranks: how many GPUs take part in `command`, 0 if it doesn't matter.
        port: at which the first of a pair is met, 0 for a free one.
        pool: nodes of one pool meet; "" for those of one run and node type.
    """

    wait_s: float = 60.0
    settle_s: float = 10.0
    expect: int = 0
    round_s: float = 60.0
    sizes: tuple[int, ...] = tuple(SIZES)
    iterations: int = 20
    warmup: int = 3
    backend: str = ""
    min_ratio: float = MIN_RATIO
    meeting_ratio: float = MEETING_RATIO
    fewest_sizes: int = FEWEST_SIZES
    command: tuple[str, ...] = ()
    ranks: int = 0
    port: int = 0
    pool: str = ""

    @property
    def pace(self) -> Pace:
        return Pace(self.wait_s, self.settle_s, self.expect, self.round_s + LATE_S)


def checked(rules: PairRules, check: str) -> PairRules:
    """The rules, if they make sense.

    Raises:
        ConfigError: one of them does not.
    """
    times = (rules.wait_s, rules.settle_s, rules.round_s)
    bad = {
        "wait_s, settle_s and round_s as seconds above 0": not all(math.isfinite(t) and t > 0 for t in times),
        "sizes in bytes, at least 4, in rising order": min(rules.sizes, default=0) < 4 or list(rules.sizes) != sorted(set(rules.sizes)),
        "iterations of at least 1 and warmup of at least 0": rules.iterations < 1 or rules.warmup < 0,
        "backend gloo or nccl": rules.backend not in ("", "gloo", "nccl"),
        "min_ratio and meeting_ratio above 0 and at most 1": not all(0 < r <= 1 for r in (rules.min_ratio, rules.meeting_ratio)),
        "fewest_sizes of at least 1": rules.fewest_sizes < 1,
        "expect and ranks of at least 0, a port up to 65535": min(rules.expect, rules.ranks) < 0 or not 0 <= rules.port <= 65535,
    }
    wrong = next((what for what, is_wrong in bad.items() if is_wrong), None)
    if wrong is not None:
        raise ConfigError(f"check {check}: {wrong}", "something else", "correct it in the YAML")
    return rules


# ---- commands


def endpoint_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bench_command(python: str, rules: PairRules, rank: int, endpoint: str, address: str, until: float) -> tuple[str, ...]:
    """The built-in benchmark, for one of two.  `address`: this node's own.  `until`: on the system's monotonic clock."""
    sizes = ",".join(map(str, rules.sizes))
    said = ["--rank", str(rank), "--world", "2", "--endpoint", endpoint, "--address", address, "--sizes", sizes]
    said += ["--iterations", str(rules.iterations), "--warmup", str(rules.warmup), "--until", f"{until:.3f}"]
    return (python, "-m", MODULE, *said, *(["--backend", rules.backend] if rules.backend else []))


def nccl_command(rules: PairRules, host: str, partner: str, endpoint: str) -> tuple[str, ...]:
    """`command` with `{host}`, `{partner}`, `{hosts}` (both, with a comma), `{ranks}` and `{endpoint}` filled in.

    It starts on the first of a pair, and has to reach the other by itself (mpirun, srun).
    """
    values = {"host": host, "partner": partner, "hosts": f"{host},{partner}", "ranks": str(rules.ranks), "endpoint": endpoint}
    return tuple(_filled(word, values) for word in rules.command)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for place in PLACES:
        word = word.replace(f"{{{place}}}", values[place])
    return word


# ---- what the benchmark says


@dataclass(frozen=True)
class Bench:
    """What the benchmark printed.

    Attributes:
        left_s: how much of its time was left when it started, or, if they have found each other, when they had.
        wrong: elements that were wrong, by size.
    """

    connected: bool = False
    done: bool = False
    figures: Mapping[int, float] = field(default_factory=dict)
    wrong: Mapping[int, int] = field(default_factory=dict)
    error: str = ""
    left_s: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)


def read_bench(text: str) -> Bench:
    """Read its lines; what is none of ours is passed over, a line that is cut is no figure."""
    connected, done, error, left_s = False, False, "", 0.0
    figures: dict[int, float] = {}
    wrong: dict[int, int] = {}
    versions: dict[str, str] = {}
    for said in _objects(text):
        connected, done = connected or said.get("connected") is True, done or said.get("done") is True
        error = error or str(said.get("error", ""))[:_CHARS]
        left_s = float(said["left_s"]) if _is_figure(said.get("left_s")) else left_s
        versions |= {k: str(said[k])[:80] for k in ("backend", "torch", "nccl") if k in said}
        size, value, count = said.get("size"), said.get("busbw"), said.get("wrong")
        if type(size) is int and size > 0 and type(count) is int and _is_figure(value):
            figures[size] = float(value)
            wrong |= {size: count} if count else {}
    return Bench(connected, done, figures, wrong, error, left_s, versions)


def _is_figure(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _objects(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found


def told_by_bench(ran: Ran, rules: PairRules) -> Told:
    """What one of a pair tells of a run of the benchmark.

    It stalled if there was time enough for it: what began late, on a busy machine or because of its partner, proves nothing.
    """
    bench = read_bench(ran.stdout)
    figures = tuple(sorted(bench.figures.items()))
    wrong = tuple(f"{count} elements of {size} bytes" for size, count in sorted(bench.wrong.items()))
    if ran.ended is Ended.TIME_LIMIT and not bench.error:
        late = bench.left_s < rules.round_s * ENOUGH
        return Told(figures, wrong, stalled=not late, failed="its benchmark began too late to end in its time" if late else "")
    if bench.done and ran.whole and ran.status == 0 and figures:
        return Told(figures, wrong)
    return Told(figures, wrong, failed=bench.error or _how(ran), broke=bench.connected)


def told_by_nccl(ran: Ran, rules: PairRules) -> Told:
    """What the first of a pair tells of a run of nccl-tests."""
    parsed = parse_nccl_tests(text_of(ran), ran.status)
    result = judge_nccl_tests(parsed, expected_ranks=rules.ranks or None)
    figures = tuple(sorted(bus_bandwidths(parsed).items()))
    wrong = tuple(f.reason for f in result.findings if f.kind is FindingKind.WRONG_RESULT)
    if ran.ended is Ended.TIME_LIMIT:
        return Told(figures, wrong, stalled=bool(figures), failed="" if figures else "its command began no measurement in its time")
    if wrong or (ran.whole and figures and result.outcome in (Outcome.PASS, Outcome.WARN)):
        return Told(figures, wrong)
    return Told(figures, failed=result.summary if ran.ended.started else _how(ran))


def _how(ran: Ran) -> str:
    last = next((line.strip() for line in reversed(ran.stderr.splitlines()) if line.strip()), "")
    end = f"signal {ran.signal}" if ran.signal else f"status {ran.exit_status}" if ran.ended is Ended.BY_ITSELF else ran.ended.value
    return f"its benchmark ended with {end}: {(last or ran.detail or 'no message')[:_CHARS]}"


def run_of_bench(text: str, source: str) -> Run:
    """A run of the built-in benchmark, for `baselines.combine`."""
    bench = read_bench(text)
    wrong = tuple(f"{count} wrong elements of {size} bytes" for size, count in sorted(bench.wrong.items()))
    missing = () if bench.done else ("the benchmark did not come to its end",)
    return Run(source, bench.figures, wrong=wrong, missing=missing, versions=bench.versions)
