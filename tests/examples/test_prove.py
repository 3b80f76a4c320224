"""The demo's proof: it follows from a true history, and from no history in which a sample was dropped or doubled.

The histories are made with the package's own stream and shares, of which the proof knows nothing.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from elastic_health.data.permutation import permute
from elastic_health.data.shares import share
from elastic_health.data.stream import SampleStream
from elastic_health.windows import Window

pytestmark = pytest.mark.spec("R4")
PROVE = Path(__file__).resolve().parents[2] / "examples" / "prove.py"
N, BATCH, SEED = 103, 8, 7


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prove", PROVE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prove"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


prove = load()


@dataclass
class History:
    """A made-up run: `go` adds a generation that starts at the newest checkpoint."""

    root: Path
    n: int = N
    seed: int = SEED
    keys: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    parent: str | None = None
    step: int = 0
    position: int = 0

    def go(self, world: int, steps: int | None, every: int = 3, windows: tuple[Window, ...] = (), lost: int = 0) -> None:
        """`steps` that are kept (None: to the end of the data), a checkpoint each `every` and at the end, then `lost` more."""
        self.generation += 1
        stream = SampleStream(self.n, global_batch=BATCH, seed=self.seed, epochs=1)
        stream.place(self.position, windows)
        plan = {"step": self.step, "position": self.position, "checkpoint": self.parent}
        plan["windows"] = [{"start": w.start, "end": w.end} for w in stream.windows]
        members = [{"workers": 1} for _ in range(world)]
        self.keys[f"generations/{self.generation}"] = {"number": self.generation, "kind": "formed", "members": members, "plan": plan}
        logs: list[list[int]] = [[] for _ in range(world)]
        done = 0
        while (due := stream.next_step(world)) is not None and (steps is None or done < steps + lost):
            for rank in range(world):
                logs[rank] += [stream.spec.sample(p)[1] for a, b in share(due, rank, world).reads for p in range(a, b)]
            stream.complete(due)
            done += 1
            last = done == steps or stream.next_step(world) is None
            if (steps is None or done <= steps) and (done % every == 0 or last):
                self.commit(plan["step"] + done, stream.position, world)
        for rank, ids in enumerate(logs):
            self.log(self.generation, rank).write_text("".join(f"{i}\n" for i in ids))

    def commit(self, step: int, position: int, world: int) -> None:
        name = f"{step:04d}.{self.generation:02d}"
        folder = self.root / "ckpt" / name
        folder.mkdir(parents=True)
        body = {"step": step, "generation": self.generation, "position": position, "world": world}
        raw = json.dumps(body).encode()
        (folder / "manifest.json").write_bytes(raw)
        record = {**body, "path": str(folder), "parent": self.parent, "state": "committed", "manifest": hashlib.sha256(raw).hexdigest()}
        self.keys[f"checkpoints/{name}"] = record
        self.parent, self.step, self.position = name, step, position

    def log(self, generation: int, rank: int) -> Path:
        (self.root / "samples").mkdir(parents=True, exist_ok=True)
        return self.root / "samples" / f"gen-{generation}.rank-{rank}.pid-{100 * generation + rank}"

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = prove.prove(self.keys, self.root / "samples", self.n, BATCH, self.seed)
        return figures


WINDOW = Window(61, 70, "a bad file")


def whole(root: Path) -> History:
    """Three groups of other sizes, lost steps in between, a window that is known from the second one on."""
    history = History(root)
    history.go(3, 4, lost=2)
    history.go(2, 3, windows=(WINDOW,), lost=1)
    history.go(3, None, windows=(WINDOW,))
    return history


def test_a_true_history_is_proven(tmp_path: Path) -> None:
    figures = whole(tmp_path).figures()
    assert figures["used_exactly_once"] == N - 9 and figures["skipped_in_windows"] == 9
    assert figures["fetched_and_not_kept"] == 3 * BATCH
    assert figures["world_sizes"] == [3, 2, 3] and figures["generations_on_the_line"] == [1, 2, 3]


def cut(path: Path, at: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:at] + lines[at + 1 :]))


def double(path: Path, at: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: at + 1] + lines[at:]))


def swap_files(history: History) -> None:
    a, b = history.log(1, 0), history.log(1, 1)
    first, second = a.read_text(), b.read_text()
    a.write_text(second)
    b.write_text(first)


def repeat_over_ranks(history: History) -> None:
    """Two ranks read the same samples: a sampler that forgot its rank."""
    history.log(2, 1).write_text(history.log(2, 0).read_text())


def edit_manifest(history: History) -> None:
    record = next(iter(history.keys["checkpoints/" + name.split("/")[1]] for name in history.keys if name.startswith("checkpoints/")))
    path = Path(record["path"]) / "manifest.json"
    path.write_text(path.read_text().replace('"world"', '"other": 1, "world"'))


def abandon_one(history: History) -> None:
    assert history.parent is not None
    parent = history.keys[f"checkpoints/{history.parent}"]["parent"]
    history.keys[f"checkpoints/{parent}"]["state"] = "abandoned"


def lose_newest(history: History) -> None:
    del history.keys[f"checkpoints/{history.parent}"]


def start_elsewhere(history: History) -> None:
    plan = history.keys["generations/2"]["plan"]
    plan["step"], plan["position"] = plan["step"] + 1, plan["position"] + BATCH


def hide_window(history: History) -> None:
    for name in ("generations/2", "generations/3"):
        history.keys[name]["plan"]["windows"] = []


def second_process(history: History) -> None:
    history.log(1, 0).with_name("gen-1.rank-0.pid-7").write_text("5\n")


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (lambda h: cut(h.log(1, 0), 2), "used|lacks|documented"),
        (lambda h: cut(h.log(3, 2), 5), "lacks samples|documented"),
        (lambda h: double(h.log(2, 1), 1), "more than once"),
        (lambda h: cut(h.log(2, 0), 0), "documented|more than once"),
        (swap_files, "documented"),
        (repeat_over_ranks, "more than once"),
        (edit_manifest, "not the committed one"),
        (abandon_one, "abandoned"),
        (lose_newest, "the line ends at"),
        (start_elsewhere, "began at step"),
        (hide_window, "can't use|documented|lacks"),
        (second_process, "2 files"),
        (lambda h: h.log(1, 2).unlink(), "0 files"),
    ],
)
def test_a_history_that_was_tampered_with_is_not(tmp_path: Path, tamper: Callable[[History], None], says: str) -> None:
    history = whole(tmp_path)
    tamper(history)
    with pytest.raises(prove.DoesNotHold, match=says):
        history.figures()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(generation=st.integers(1, 3), rank=st.integers(0, 2), at=st.integers(0, 200), how=st.sampled_from([cut, double]))
def test_no_committed_sample_can_be_dropped_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, generation: int, rank: int, at: int, how: Callable[[Path, int], None]
) -> None:
    """Each line of each file: those of committed steps must not be touched, those after them may."""
    history = whole(tmp_path_factory.mktemp("history"))
    path = history.log(generation, rank)
    lines = path.read_text().splitlines() if path.exists() else []
    kept = sum(b - a for a, b in committed_shares(history, generation, rank))
    if at >= len(lines):
        return
    how(path, at)
    # Doubling the last committed line makes no difference to those before it.
    if at >= kept or (how is double and at == kept - 1):
        history.figures()
    else:
        with pytest.raises(prove.DoesNotHold):
            history.figures()


def committed_shares(history: History, generation: int, rank: int) -> list[tuple[int, int]]:
    pieces = {p.generation: p for p in prove.pieces_of(history.keys, prove.line_of(history.keys))}
    piece = pieces[generation]
    return [prove.share(size, rank, piece.world) for size in prove.step_sizes(piece, BATCH)] if rank < piece.world else []


@pytest.mark.parametrize(("n", "world"), [(1, 1), (9, 3), (64, 3), (65, 2), (66, 3), (67, 4), (70, 5)])
def test_the_end_of_the_data(tmp_path: Path, n: int, world: int) -> None:
    """Nothing, little or much is left for the last step; a remainder smaller than the group joins the step before it."""
    history = History(tmp_path, n=n)
    history.go(world, None)
    assert history.figures()["used_exactly_once"] == n


@given(n=st.integers(1, 200_000), seed=st.integers(0, 2**40), epoch=st.integers(0, 5), place=st.integers(0, 2**40))
def test_the_order_written_down_twice_is_the_same(n: int, seed: int, epoch: int, place: int) -> None:
    assert prove.permuted(place % n, n, seed, epoch) == permute(place % n, n, seed, epoch)


def test_it_imports_nothing_of_ours() -> None:
    tree = ast.parse(PROVE.read_text())
    modules = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {m.partition(".")[0] for m in modules} <= sys.stdlib_module_names
