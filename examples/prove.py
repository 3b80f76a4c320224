"""Was each sample used exactly once?  Recomputed from what a run left behind, by a script that imports nothing of ours.

    prove.py --keys keys.json --samples FOLDER --documents N --batch B --seed S
    prove.py --etcd http://127.0.0.1:2379 --run RUN --save-keys keys.json --samples … (as above)

What goes in, all of it plain text that other programs can read too:
  * the run's keys, as etcd itself gives them over HTTP (or a file saved from it);
  * the checkpoints' manifests, on disk;
  * the numbers that the data set wrote down in `__getitem__`, one file a process: `gen-<generation>.rank-<rank>.pid-<pid>`.

The argument.
 1. The *line*: from the newest committed checkpoint back to the beginning, by each record's parent.  Every one must be
    `committed`, and the manifest on disk must have the SHA-256 that the record names, and say the same.  What is not on
    this line was not kept: steps after a generation's last checkpoint were done again by the next one.
 2. Each generation that committed to the line started where its plan says, and that must be where the line stood.
 3. A rank reads its samples in order, and its share of a step is known: a step takes the next B positions outside the
    skipped windows (at the very end what is left), of which each of w ranks takes B // w, the first B % w ranks one more.
    So the *first* numbers in its file are the committed steps; what follows was fetched ahead, or done and lost.
 4. Counting: over the whole line no number occurs twice, and those that are missing are as many as the windows have
    positions.  This needs no knowledge of the order in which samples come.
 5. Order: the documented permutation, written again below, must give the same numbers in the same places, and exactly
    the positions of the windows must be what is missing.

Exit status 0 if all of it holds, 1 with what does not hold otherwise.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any


class DoesNotHold(Exception):
    """The proof fails; the message says where."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise DoesNotHold(text)


# ---- the run's keys
def ask_etcd(url: str, run: str, prefix: str) -> dict[str, Any]:
    """All keys of a run, from etcd's own HTTP gateway."""

    def coded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    root = f"{prefix}runs/{run}/"
    body = json.dumps({"key": coded(root), "range_end": coded(root[:-1] + chr(ord("/") + 1))}).encode()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{url.rstrip('/')}/v3/kv/range", data=body, timeout=10) as answer:
        pairs = json.load(answer).get("kvs", [])
    keys = {base64.b64decode(kv["key"]).decode()[len(root) :]: base64.b64decode(kv["value"]).decode() for kv in pairs}
    return {name: json.loads(value) for name, value in sorted(keys.items()) if value.startswith("{") and name != "secret"}


def numbered(keys: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name.split("/", 1)[1]: value for name, value in keys.items() if name.startswith(kind + "/")}


# ---- 1, 2: the line and the generations on it
@dataclass
class Piece:
    """What one generation added to the line: steps (first, last], positions [start, end), and its windows."""

    generation: int
    world: int
    first: int
    last: int
    start: int
    end: int
    windows: list[tuple[int, int]]


def line_of(keys: dict[str, Any]) -> list[dict[str, Any]]:
    """Checkpoint records from the oldest to the newest committed one."""
    records = numbered(keys, "checkpoints")
    committed = [r for r in records.values() if r["state"] == "committed"]
    require(bool(committed), "no checkpoint is committed")
    line: list[dict[str, Any]] = []
    name: str | None = max(records, key=lambda n: (records[n]["state"] == "committed", records[n]["generation"], records[n]["step"]))
    while name is not None:
        require(name in records, f"checkpoint {name} is a parent on the line and has no record")
        record = records[name]
        require(record["state"] == "committed", f"checkpoint {name} is on the line and {record['state']}")
        line.append(record)
        require(len(line) <= len(records), "the line goes in a circle")
        name = record["parent"]
    return line[::-1]


def check_manifest(record: dict[str, Any]) -> None:
    folder = Path(record["path"])
    raw = (folder / "manifest.json").read_bytes()
    require(hashlib.sha256(raw).hexdigest() == record["manifest"], f"{folder.name}: the manifest is not the committed one")
    manifest = json.loads(raw)
    for field in ("generation", "step", "position", "world"):
        require(manifest[field] == record[field], f"{folder.name}: {field} {manifest[field]} on disk, {record[field]} in etcd")


def pieces_of(keys: dict[str, Any], line: list[dict[str, Any]]) -> Iterator[Piece]:
    """One piece a generation, contiguous from the beginning to the end of the line."""
    generations = {g["number"]: g for g in numbered(keys, "generations").values()}
    step = position = 0
    for number in sorted({r["generation"] for r in line}):
        g, mine = generations[number], [r for r in line if r["generation"] == number]
        require(g["kind"] == "formed", f"generation {number} went on in place: its processes belong to two generations")
        plan, world = g["plan"], sum(m["workers"] for m in g["members"])
        require((plan["step"], plan["position"]) == (step, position), f"generation {number} began at step {plan['step']}, not at {step}")
        require(all(a["step"] < b["step"] and a["position"] < b["position"] for a, b in pairwise(mine)), "the line goes backwards")
        require(all(r["world"] == world for r in mine), f"generation {number} had {world} ranks, a checkpoint of it others")
        last, windows = mine[-1], [(w["start"], w["end"]) for w in plan["windows"]]
        yield Piece(number, world, step, last["step"], position, last["position"], windows)
        step, position = last["step"], last["position"]


# ---- 3: what was used
def positions(piece: Piece) -> list[int]:
    """Positions that the piece's steps consumed, in order."""
    return [p for p in range(piece.start, piece.end) if not any(a <= p < b for a, b in piece.windows)]


def step_sizes(piece: Piece, batch: int) -> list[int]:
    steps, left = piece.last - piece.first, len(positions(piece))
    full = min(steps, left // batch) if left < steps * batch else steps - 1
    sizes = [batch] * full + [left - batch * full] * (steps - full)
    require(sum(sizes) == left and len(sizes) == steps, f"generation {piece.generation}: {steps} steps can't use {left} samples")
    return sizes


def share(size: int, rank: int, world: int) -> tuple[int, int]:
    """Which of a step's samples are this rank's: [from, to)."""
    each, more = divmod(size, world)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def fetched(samples: Path, generation: int, rank: int) -> list[int]:
    files = sorted(samples.glob(f"gen-{generation}.rank-{rank}.pid-*"))
    require(len(files) == 1, f"generation {generation} rank {rank}: {len(files)} files of fetched samples instead of one")
    return [int(line) for line in files[0].read_text().splitlines()]


def used(samples: Path, piece: Piece, batch: int) -> list[int]:
    """Samples of the piece in the order of their positions."""
    logs = [fetched(samples, piece.generation, rank) for rank in range(piece.world)]
    read, out = [0] * piece.world, []
    for size in step_sizes(piece, batch):
        for rank in range(piece.world):
            first, end = share(size, rank, piece.world)
            count = end - first
            mine = logs[rank][read[rank] : read[rank] + count]
            require(len(mine) == count, f"generation {piece.generation} rank {rank}: a committed step lacks samples")
            # With fewer samples than ranks a rank without one still joins the collectives, on a sample that counts nothing.
            read[rank] += max(count, 1)
            out += mine
    return out


# ---- 5: the documented order
def permuted(place: int, n: int, seed: int, epoch: int) -> int:
    """Which sample stands at `place` of an epoch: rounds on a grid of rows x columns, values >= n sent through again."""
    rows = isqrt(n - 1) + 1
    columns = -(-n // rows)
    blocks = 3 if n < 2**16 else 1
    raw = b"".join(hashlib.blake2b(f"{seed}/{epoch}/{n}/{b}".encode(), person=b"eh permutation 1").digest() for b in range(blocks))
    while True:
        row, column = divmod(place, columns)
        for turn in range(len(raw) // 8):
            key = int.from_bytes(raw[8 * turn : 8 * turn + 8], "little")
            z = (row if turn % 2 else column) ^ key
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
            far = (z ^ z >> 31) >> 1
            row, column = (row, (column + far) % columns) if turn % 2 else ((row + far) % rows, column)
        place = row * columns + column
        if place < n:
            return place


def prove(keys: dict[str, Any], samples: Path, n: int, batch: int, seed: int) -> dict[str, Any]:
    """Figures of a proof that holds.

    Raises:
        DoesNotHold: it does not.
    """
    line = line_of(keys)
    for record in line:
        check_manifest(record)
    pieces = list(pieces_of(keys, line))
    require(pieces[-1].end == n, f"the line ends at position {pieces[-1].end}, the data at {n}")

    history: list[int] = []
    for piece in pieces:
        mine = used(samples, piece, batch)
        wanted = [permuted(p, n, seed, 0) for p in positions(piece)]
        wrong = next((i for i, (a, b) in enumerate(zip(mine, wanted, strict=True)) if a != b), None)
        history += mine
        if wrong is not None:
            check_counts(history)
            text = f"position {positions(piece)[wrong]} used sample {mine[wrong]}, the documented order has {wanted[wrong]} there"
            raise DoesNotHold(f"generation {piece.generation}: {text}")
    check_counts(history)
    skipped = set(range(n)) - {p for piece in pieces for p in positions(piece)}
    missing = set(range(n)) - set(history)
    require(len(missing) == len(skipped), f"{len(missing)} samples were never used, and the windows hold {len(skipped)}")
    require(missing == {permuted(p, n, seed, 0) for p in skipped}, "other samples than those in the windows were never used")
    windows = {w for piece in pieces for w in piece.windows}
    every = sum(len(path.read_text().splitlines()) for path in samples.glob("gen-*"))
    return {
        "samples": n,
        "used_exactly_once": len(history),
        "skipped_in_windows": len(skipped),
        "windows": sorted(windows),
        "fetched_and_not_kept": every - len(history),
        "checkpoints_on_the_line": len(line),
        "steps": pieces[-1].last,
        "generations_on_the_line": [p.generation for p in pieces],
        "world_sizes": [p.world for p in pieces],
    }


def check_counts(history: list[int]) -> None:
    twice = [i for i, times in Counter(history).items() if times > 1]
    require(not twice, f"{len(twice)} samples were used more than once, for instance {twice[:3]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Recompute that each sample was used exactly once.")
    parser.add_argument("--keys", type=Path, help="the run's keys as JSON, saved earlier")
    parser.add_argument("--etcd", metavar="URL", help="ask this etcd instead")
    parser.add_argument("--run", help="with --etcd: the run's id")
    parser.add_argument("--prefix", default="/elastic-health/")
    parser.add_argument("--save-keys", type=Path, help="with --etcd: save them there")
    parser.add_argument("--samples", type=Path, required=True, help="folder of the data set's own logs")
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (args.keys is None) == (args.etcd is None) or (args.etcd is not None and args.run is None):
        parser.error("give --keys FILE, or --etcd URL and --run RUN")
    keys = json.loads(args.keys.read_text()) if args.keys else ask_etcd(args.etcd, args.run, args.prefix)
    if args.save_keys:
        args.save_keys.write_text(json.dumps(keys, indent=1))
    try:
        figures = prove(keys, args.samples, args.documents, args.batch, args.seed)
    except DoesNotHold as e:
        print(json.dumps({"holds": False, "why": str(e)}) if args.json else f"does not hold: {e}")
        return 1
    if args.json:
        print(json.dumps({"holds": True, **figures}))
        return 0
    print(f"holds: {figures['used_exactly_once']} of {figures['samples']} samples were used exactly once,", end=" ")
    print(f"{figures['skipped_in_windows']} lie in skipped windows; {figures['fetched_and_not_kept']} fetches were not kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
