"""The loss curve, and below it the way there: steps over time, with each fault and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, log10

from demo_parts.drawing import WHITE, Colour, Dot, Drawing, Line, Point, Text
from demo_parts.faults import Fault
from demo_parts.scene import Step

INK, GREY, PALE = (40, 44, 52), (130, 136, 145), (226, 229, 233)
FAULT: Colour = (200, 60, 40)
GENERATIONS: tuple[Colour, ...] = ((31, 98, 173), (104, 165, 222))
WIDTH, HEIGHT = 1100, 660


@dataclass(frozen=True)
class Panel:
    """A frame in the drawing and the values at its edges."""

    left: float
    top: float
    right: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> Point:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)


def picture(steps: Sequence[Step], faults: Sequence[Fault], began: float) -> Drawing:
    """Both panels.  Colours change with the generation, so that what was done twice shows."""
    drawing = Drawing(WIDTH, HEIGHT)
    if not steps:
        drawing.shapes.append(Text((40, 40), "no step was completed", INK))
        return drawing
    last = max(s.step for s in steps)
    losses = [s.loss for s in steps]
    top = Panel(70, 50, WIDTH - 30, 300, (0, last), (floor(min(losses) * 2) / 2, ceil(max(losses) * 2) / 2))
    below = Panel(70, 380, WIDTH - 30, HEIGHT - 50, (0, steps[-1].at - began), (0, last))
    frame(drawing, top, "loss (nats a byte) over steps", "step")
    frame(drawing, below, "completed steps over seconds, and the faults", "seconds")
    curve(drawing, top, steps, lambda s: (s.step, s.loss))
    curve(drawing, below, steps, lambda s: (s.at - began, s.step))
    for number, fault in enumerate(faults, 1):
        mark(drawing, top, fault.step, number)
        mark(drawing, below, fault.at - began, number)
    return drawing


def curve(drawing: Drawing, panel: Panel, steps: Sequence[Step], value: Callable[[Step], Point]) -> None:
    for n, (_, part) in enumerate(groupby(steps, key=lambda s: s.gen)):
        drawing.shapes.append(Line(tuple(panel.at(*value(s)) for s in part), GENERATIONS[n % 2], 2.2))


def mark(drawing: Drawing, panel: Panel, x: float, number: int) -> None:
    foot, head = panel.at(x, panel.y[0]), panel.at(x, panel.y[1])
    drawing.shapes += [
        Line((foot, head), FAULT, 1.0),
        Dot((head[0], head[1] - 4), 10, FAULT),
        Text((head[0], head[1] + 2), str(number), WHITE, "middle"),
    ]


def frame(drawing: Drawing, panel: Panel, title: str, across: str) -> None:
    drawing.shapes.append(Text((panel.left, panel.top - 22), title, INK))
    for y in ticks(*panel.y):
        a, b = panel.at(panel.x[0], y), panel.at(panel.x[1], y)
        drawing.shapes += [Line((a, b), PALE, 1.0), Text((a[0] - 10, a[1] + 6), f"{y:g}", GREY, "end")]
    for x in ticks(*panel.x):
        foot = panel.at(x, panel.y[0])
        drawing.shapes += [Line((foot, (foot[0], foot[1] + 5)), GREY, 1.0), Text((foot[0], foot[1] + 24), f"{x:g}", GREY, "middle")]
    drawing.shapes.append(Text((panel.right, panel.bottom + 42), across, GREY, "end"))


def ticks(low: float, high: float) -> list[float]:
    """Four to ten round numbers from `low` to `high`."""
    rough = (high - low) / 6
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough)
    first = ceil(low / step - 1e-9)
    return [round(step * k, 9) for k in range(first, floor(high / step + 1e-9) + 1)]
