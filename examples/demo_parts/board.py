"""What people see while the demo runs: lines for what happened, and on a terminal a table below them that stays current."""

from __future__ import annotations

import sys
import time

from demo_parts.nodes import Node
from demo_parts.scene import Scene
from elastic_health.generations import Generation
from elastic_health.verdicts import VerdictKind

DRAW_EVERY_S = 0.2
WIDTHS = (9, 18, 6, 11, 6)


class Board:
    """`saw` after each look; `line` for anything else worth telling."""

    def __init__(self, total_steps: int) -> None:
        self.began = time.monotonic()
        self.total = total_steps
        self.live = sys.stdout.isatty()
        self._drawn = 0
        self._at = 0.0
        self._generations: set[int] = set()
        self._verdicts: set[int] = set()
        self._events: dict[str, str] = {}

    def line(self, text: str) -> None:
        self._erase()
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)
        self._at = 0.0

    def saw(self, scene: Scene) -> None:
        now = scene.now
        for number in sorted(set(now.generations) - self._generations):
            self._generations.add(number)
            g = now.generations[number]
            ranks = ", ".join(f"{m.node} (rank {m.first_rank})" for m in g.members)
            start = f"step {g.plan.step}" if g.plan.checkpoint else "the beginning"
            self.line(f"generation {number}: {ranks}; from {start}")
            self._events.update({m.node: f"in generation {number}" for m in g.members})
        for number in sorted(set(now.verdicts) - self._verdicts):
            self._verdicts.add(number)
            v = now.verdicts[number]
            self.line(f"verdict: {v.cause.value}: {v.reason}")
            self._events.update(dict.fromkeys(v.nodes, v.cause.value))
        if self.live and time.monotonic() >= self._at:
            self._at = time.monotonic() + DRAW_EVERY_S
            self._draw(scene)

    def end(self) -> None:
        self._drawn = 0

    def _draw(self, scene: Scene) -> None:
        self._erase()
        now = scene.now
        g = now.generation
        newest = now.newest_committed
        loss = f"{scene.steps[-1].loss:.3f}" if scene.steps else "-"
        saved = newest.step if newest else "-"
        v = now.verdict
        doing = "trains" if v is None else "ends" if v.kind is VerdictKind.FINISH else "restarts"
        rows = [
            f"{time.monotonic() - self.began:6.1f} s   step {scene.step} of {self.total}   loss {loss}   checkpoint {saved}",
            _row("node", "is", "rank", "generation", "step", "last event"),
            *(self._node(node, g, doing, scene.step) for node in scene.nodes),
        ]
        print("\n".join(f"\x1b[2m{row}\x1b[0m" for row in rows), flush=True)
        self._drawn = len(rows)

    def _node(self, node: Node, g: Generation | None, doing: str, step: int) -> str:
        member = next((m for m in g.members if m.node == node.name), None) if g is not None else None
        event = self._events.get(node.name, "")
        if not node.up:
            event, state = "killed with its agent" if node.killed else event, "ended" if node.status == 0 else "down"
            return _row(node.name, state if node.process else "not started", "-", "-", "-", event)
        if member is None or g is None:
            return _row(node.name, "waits as a spare" if g else "joins", "-", "-", "-", event)
        return _row(node.name, doing, str(member.first_rank), str(g.number), str(step), event)

    def _erase(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0


def _row(*cells: str) -> str:
    return "  ".join([*(cell[:w].ljust(w) for cell, w in zip(cells, WIDTHS, strict=False)), cells[-1][:70]])
