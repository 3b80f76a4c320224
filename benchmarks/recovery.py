"""How long a broken group needs to train again: ours beside stock torchrun, in one run, one trial of each in turn.

    python -m benchmarks.recovery --repeats 5            (or: make bench)

Timed from the fault to the first step that the new group completes; counted only if that group goes on.  Ours runs with the
unedited configs/health.yaml, evidence on, on an etcd that this program starts.  A line of JSON a trial (also in
OUT/trials.jsonl), then a table and the bars.  Exit status: 0 every bar held, 1 one did not, 3 none failed but not all were
measured.  The last line carries the figures.  Ctrl-C ends the trial under way and reports on those before it.

--from FILE reports on an earlier run's trials.jsonl and runs nothing.

--ruler PATH runs another program as the measure instead, which takes --launcher, --endpoint, --fault, --agents, --nproc,
--repeats, --coll-timeout, --workdir and --env, and prints one JSON object a trial with `recovered` and `recovered_s`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import figures
from benchmarks.processes import TOKEN, end_all, etcd, new_token
from benchmarks.trial import FAULTS, Launcher, Setting, calibrate, measure, with_product

ROOT = Path(__file__).resolve().parent.parent
STALLS = ("hang", "sigstop")
STALLS_QUICK = 1
RULER_LIMIT_S = 420.0
C10D = ("--rdzv-backend=c10d",)
RESTARTS = ("--max-restarts=5",)
"""For stock only, whose default is not to restart."""
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TUNED = ("--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3",)


def launchers(endpoint: str, cold_yaml: str) -> list[Launcher]:
    """Ours, ours without waiting processes, stock as shipped, with a store of its own a generation, tuned on top of that."""
    ours = "--rdzv-backend=healthy-etcd"
    return [
        Launcher(figures.OURS, (ours, f"--rdzv-conf=config={ROOT / 'configs' / 'health.yaml'}"), endpoint),
        Launcher("ours-cold", (ours, f"--rdzv-conf=config={cold_yaml}"), endpoint),
        Launcher("shipped", (*C10D, *RESTARTS)),
        Launcher("own-store", (*C10D, *RESTARTS), env=OWN_STORE),
        Launcher("tuned", (*C10D, *RESTARTS, *TUNED), env=OWN_STORE),
    ]


def plan(names: Sequence[str], faults: Sequence[str], repeats: int, stock_stalls: int, seed: int = 0) -> Iterator[tuple[str, str, float]]:
    """(fault, launcher, delay of the fault in seconds) in turns: a round does every pair once, launchers in a new order."""
    order = random.Random(seed)
    for turn in range(repeats):
        for fault in faults:
            row = [n for n in names if n not in figures.STOCK or fault not in STALLS or turn < stock_stalls]
            order.shuffle(row)
            delay_s = order.random()
            yield from ((fault, name, delay_s) for name in row)


def by_ruler(ruler: Path, launcher: Launcher, fault: str, setting: Setting, out: Path) -> dict[str, Any]:
    """One trial by an external program; its own JSON, with our names for launcher and fault.  It breaks when it likes."""
    torchrun = [str(Path(sys.executable).with_name("torchrun")), *(w for w in launcher.words if w not in RESTARTS)]
    command = [sys.executable, str(ruler), "--launcher", shlex.join(torchrun), "--fault", fault, f"--agents={setting.agents}"]
    command += [f"--nproc={setting.workers}", "--repeats=1", f"--coll-timeout={setting.gloo_timeout_s:g}", f"--workdir={out}"]
    command += ["--endpoint", launcher.endpoint or "{ep}"]
    command += [word for k, v in launcher.env.items() for word in ("--env", f"{k}={v}")]
    token, spin = new_token(), round(calibrate(), 1)
    record: dict[str, Any] = {"recovered": False, "calibration_ms": spin, "load": round(os.getloadavg()[0], 2)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=with_product({**os.environ, TOKEN: token}), timeout=RULER_LIMIT_S, check=False)
        lines = done.stdout.strip().splitlines()
        record.update(json.loads(lines[-1]) if lines else {"error": done.stderr[-500:]})
    except subprocess.TimeoutExpired:
        record["error"] = f"no answer within {RULER_LIMIT_S:g} s"
    finally:
        record["left_over"] = end_all(token)
    return {**record, "launcher": launcher.name, "fault": fault, "recovered": bool(record.get("recovered"))}


def source_digest() -> str:
    """Of the product as it stands now: each agent imports it anew, so an edit in the middle of a run would be measured too."""
    digest = hashlib.sha256()
    for room in ("elastic_health", "agents", "rendezvous"):
        for path in sorted((ROOT / room).rglob("*.py")):
            digest.update(path.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def trials(args: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Run them all; each is printed and written down as soon as it is there."""
    setting = Setting(gloo_timeout_s=args.gloo_timeout_s, warm_steps=args.warm_steps)
    found: list[dict[str, Any]] = []
    cold = out / "cold.yaml"
    cold.write_text("workers: {warm: off}\n")
    with etcd(out / "etcd") as endpoint, open(out / "trials.jsonl", "w") as log, suppress(KeyboardInterrupt):
        known = {it.name: it for it in launchers(endpoint, str(cold)) if it.name in args.launchers}
        for fault, name, delay_s in plan(list(known), args.faults, args.repeats, args.stock_stalls):
            code = source_digest()
            if args.ruler:
                record = by_ruler(args.ruler.resolve(), known[name], fault, setting, out)
            else:
                record = measure(known[name], fault, setting, out, delay_s)
            found.append({**record, "code": code})
            for place in (sys.stdout, log):
                print(json.dumps(found[-1]), file=place, flush=True)
    return found


def report(found: Sequence[dict[str, Any]], args: argparse.Namespace, took_s: float) -> list[figures.Outcome]:
    """Table, bars, and the last line."""
    print("\n" + "\n".join(figures.table(found, args.faults, args.launchers)))
    if args.stock_stalls < args.repeats and set(args.faults) & set(STALLS):
        alone = "; with one value the interval shows our noise alone" if args.stock_stalls == 1 else ""
        print(f"\nhang and sigstop: {args.stock_stalls} repeats of each stock launcher only{alone}")
    results = figures.outcomes(found)
    for remark in figures.remarks(found):
        print(f"\nNOTE: {remark}")
    print("\nbars (best stock: the stock launcher with the lowest median for that fault):")
    for it in results:
        print(f"  {'not measured' if it.held is None else 'holds' if it.held else 'BROKEN':<12} {it.bar}: {it.said}")
    ours = "  ".join(f"{f} {median(t):.2f} s" for f in args.faults if (t := figures.times(found, f, figures.OURS)))
    held = sum(it.held is True for it in results)
    took = f" in {took_s:.0f} s" if took_s else ""
    print(f"\nbench: {held} of {len(results)} bars hold, {len(found)} trials{took}; ours: {ours or 'nothing'}")
    return results


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__, formatter_class=plain)
    names = [it.name for it in launchers("", "")]
    p.add_argument("--repeats", type=int, default=5, help="of each fault and launcher")
    p.add_argument("--stock-stalls", type=int, help="repeats of hang and sigstop with stock (35 to 65 s each); default: --repeats")
    p.add_argument("--quick", action="store_true", help=f"the same as --stock-stalls {STALLS_QUICK}")
    p.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    p.add_argument("--launchers", nargs="+", choices=names, default=names)
    p.add_argument("--gloo-timeout-s", type=float, default=30.0)
    p.add_argument("--warm-steps", type=int, default=Setting.warm_steps, help="steps of every rank before the fault")
    p.add_argument("--ruler", type=Path, help="an external program that measures instead")
    p.add_argument("--from", type=Path, dest="earlier", help="report on this trials.jsonl instead of running anything")
    p.add_argument("--out", type=Path, default=ROOT / "bench-out" / "recovery")
    args = p.parse_args(words)
    if args.repeats < 1 or (args.stock_stalls is not None and args.stock_stalls < 1):
        p.error("expected at least one repeat")
    for name, given in (("--ruler", args.ruler), ("--from", args.earlier)):
        if given and not given.is_file():
            p.error(f"expected a file as {name}; found none at {given}")
    args.stock_stalls = min(args.repeats, args.stock_stalls or (STALLS_QUICK if args.quick else args.repeats))
    return args


def main(words: Sequence[str] | None = None) -> int:
    args = arguments(words)
    # Turned into SystemExit, so that every `finally` runs and nothing that was started stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.earlier:
        found = [json.loads(line) for line in args.earlier.read_text().splitlines()]
        return figures.exit_status(report(found, args, 0.0))
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    begun = time.monotonic()
    found = trials(args, args.out.resolve())
    return figures.exit_status(report(found, args, time.monotonic() - begun))


if __name__ == "__main__":
    sys.exit(main())
