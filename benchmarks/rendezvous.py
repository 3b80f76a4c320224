"""How forming a group grows with the number of nodes: n agents in one process on a real etcd, beside stock c10d in the same run.

`python -m benchmarks.rendezvous` forms groups of n nodes (first formation, then again after one agent was killed) against
an etcd of one member and one of three, counts what goes over the wire, fits exponents from 128 nodes on, and judges the bars.
One JSON line a formation; the last line has the figures.  Exit status 0 only if every bar held.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import rendezvous_figures as figures
from benchmarks.crowd import NAME_CHARS, Crowd
from benchmarks.meter import Meter, etcd_says, metered
from benchmarks.processes import etcd_cluster
from benchmarks.stock import form_stock
from benchmarks.trial import calibrate
from elastic_health.rendezvous import view

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0
STOCK_LIMIT_S = 200.0


@contextmanager
def shared_decoding(share: bool) -> Iterator[None]:
    """With `share`, one decoded generation record serves all agents of this process: n machines decode each their own, at
    the same time, where one process does it n times in a row."""
    if not share:
        yield
        return
    known: dict[bytes, Any] = {}
    shipped = view._generation

    def once(kv: Any) -> Any:
        if kv.value not in known:
            known[kv.value] = shipped(kv)
        return known[kv.value]

    with mock.patch.object(view, "_generation", once):
        yield


def form_ours(endpoints: Sequence[str], n: int, share: bool, name: str, meter: Meter) -> Iterator[dict[str, Any]]:
    """First formation, then again without one that is killed: a node in the middle, not the former."""
    crowd = Crowd(",".join(endpoints), f"scale-{name}", n)
    try:
        crowd.open()
        opening = meter.take()
        begun = _moment(endpoints)
        with shared_decoding(share):
            ok = crowd.run(lambda: crowd.settled(1), LIMIT_S)
            yield _line("first", n, crowd, ok, begun, _moment(endpoints), meter, opening=asdict(opening))
            if ok:
                begun = _moment(endpoints)
                crowd.kill(crowd.agents[n // 2])
                ok = crowd.run(lambda: crowd.settled(2), LIMIT_S)
                yield _line("again", n, crowd, ok, begun, _moment(endpoints), meter)
    finally:
        crowd.close()


def _moment(endpoints: Sequence[str]) -> dict[str, float]:
    """What can be told at one moment: clocks last, so that asking is not timed."""
    said = etcd_says(endpoints)
    return {**{f"etcd_{k}": v for k, v in said.items()}, "own_cpu_s": time.process_time(), "at": time.monotonic()}


def _line(
    what: str, n: int, crowd: Crowd, ok: bool, begun: dict[str, float], ended: dict[str, float], meter: Meter, **more: Any
) -> dict[str, Any]:
    decided_s, turns = dict(crowd.spent_s), dict(crowd.turns)
    crowd.spent_s.clear()
    crowd.turns.clear()
    said = dict(crowd.said)
    crowd.said.clear()
    return {
        "formation": what, "n": n, "formed": ok, "time_s": round(crowd.reached_at - begun["at"], 3),
        **asdict(meter.take()),
        "proposals": int(ended["etcd_proposals"] - begun["etcd_proposals"]),
        "etcd_cpu_s": round(ended["etcd_cpu_s"] - begun["etcd_cpu_s"], 2),
        "etcd_rss_bytes": int(ended["etcd_rss_bytes"]), "db_bytes": int(ended["etcd_db_bytes"]),
        "own_cpu_s": round(ended["own_cpu_s"] - begun["own_cpu_s"], 2),
        "decided_s": {k: round(v, 3) for k, v in decided_s.items()}, "turns": turns, "said": said, **more,
    }  # fmt: skip


def trials(args: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Everything, one JSON line each as soon as it is there."""
    found: list[dict[str, Any]] = []
    with open(out / "trials.jsonl", "w") as log, metered() as meter:
        for record in _all(args, out, meter):
            found.append({**record, "load": round(os.getloadavg()[0], 2)})
            for place in (sys.stdout, log):
                print(json.dumps(found[-1]), file=place, flush=True)
    return found


def _all(args: argparse.Namespace, out: Path, meter: Meter) -> Iterator[dict[str, Any]]:
    for repeat in range(args.repeats):
        if not args.no_stock:
            for n in args.stock_ns:
                spin = calibrate()
                yield {**form_stock(n, STOCK_LIMIT_S), "side": "stock", "repeat": repeat, "calibration_ms": round(spin, 1)}
        for members in args.members:
            for n in args.ns:
                for share in (True, False) if n in args.decode_ns else (True,):
                    spin = calibrate()
                    name = f"{members}-{n}-{repeat}-{int(share)}"
                    with etcd_cluster(out / f"etcd-{name}", members) as endpoints:
                        for record in form_ours(endpoints, n, share, name, meter):
                            mode = "shared" if share else "each"
                            yield {**record, "side": "ours", "members": members, "decoding": mode, "repeat": repeat, "calibration_ms": round(spin, 1)}
                    shutil.rmtree(out / f"etcd-{name}", ignore_errors=True)


def report(found: Sequence[dict[str, Any]]) -> list[figures.Outcome]:
    print("\n" + "\n".join(figures.table(found)))
    print("\nexponents from 128 nodes on, medians of the repeats:")
    for line in figures.exponents(found):
        print(f"  {line}")
    results = figures.outcomes(found)
    print("\nbars:")
    for it in results:
        print(f"  {'not measured' if it.held is None else 'holds' if it.held else 'BROKEN':<12} {it.bar}: {it.said}")
    held = sum(it.held is True for it in results)
    print(f"\nbench-rendezvous: {held} of {len(results)} bars hold; {figures.summary(found)}")
    return results


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(prog="python -m benchmarks.rendezvous", description=__doc__, formatter_class=plain)
    p.add_argument("--ns", type=_sizes, default=(8, 32, 128, 256, 512, 1024), help="numbers of nodes, with commas")
    p.add_argument("--decode-ns", type=_sizes, default=(128, 1024), help="of these also: every agent decodes the record for itself")
    p.add_argument("--stock-ns", type=_sizes, default=(8, 32, 128), help="for stock c10d (256 do not form within 200 s)")
    p.add_argument("--members", type=_sizes, default=(1, 3), help="etcd members")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--no-stock", action="store_true")
    p.add_argument("--from", type=Path, dest="earlier", help="report on this trials.jsonl instead of running anything")
    p.add_argument("--out", type=Path, default=ROOT / "bench-out" / "rendezvous")
    return p.parse_args(words)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def main(words: Sequence[str] | None = None) -> int:
    args = arguments(words)
    # Turned into SystemExit, so that every `finally` runs and nothing that was started stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.earlier:
        return figures.exit_status(report([json.loads(line) for line in args.earlier.read_text().splitlines()]))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    print(f"node names of {NAME_CHARS} characters; load {os.getloadavg()[0]:.2f}", flush=True)
    return figures.exit_status(report(trials(args, args.out.resolve())))


if __name__ == "__main__":
    sys.exit(main())
