"""A drawing as a list of lines, dots and texts, and its two forms: SVG for pages, PNG for everything else.

Small on purpose: no plotting library has to be installed for one picture.  Coordinates are pixels, y grows downwards.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from math import ceil, floor, hypot

Colour = tuple[int, int, int]
Point = tuple[float, float]
WHITE: Colour = (255, 255, 255)
GLYPH_W, GLYPH_H = 5, 7

# One glyph: seven rows from the top, each a base-32 digit whose five bits are pixels from left to right.
_GLYPHS = dict(
    pair.split("=", 1)
    for pair in (
        "0=ehjlphe 1=4c4444e 2=eh1248v 3=v2421he 4=26aiv22 5=vgu11he 6=68guhhe 7=v124888 8=ehhehhe 9=ehhf12c "
        "A=ehhvhhh B=uhhuhhu C=ehggghe D=uhhhhhu E=vgguggv F=vgguggg G=ehgnhhe H=hhhvhhh I=e44444e J=72222ic K=hikokih L=ggggggv "
        "M=hrllhhh N=hpljhhh O=ehhhhhe P=uhhuggg Q=ehhhlid R=uhhukih S=fgge11u T=v444444 U=hhhhhhe V=hhhhha4 W=hhhllla X=hha4ahh "
        "Y=hhha444 Z=v1248gv .=00000cc ,=0000c48 :=0cc0cc0 -=000v000 (=2488842 )=8422248 /=01248g0 +=044v440"
    ).lower().split()
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    colour: Colour
    width: float = 1.5


@dataclass(frozen=True)
class Dot:
    at: Point
    radius: float
    colour: Colour


@dataclass(frozen=True)
class Text:
    """`anchor`: start, middle or end; `at` is on the baseline."""

    at: Point
    text: str
    colour: Colour
    anchor: str = "start"


@dataclass
class Drawing:
    """Shapes are drawn in order."""

    width: int
    height: int
    shapes: list[Line | Dot | Text] = field(default_factory=list)

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="13">'
        return "\n".join([head, *(_svg(shape) for shape in self.shapes), "</svg>"])

    def png(self) -> bytes:
        """8-bit RGB."""
        canvas = _Canvas(self.width, self.height)
        for shape in self.shapes:
            if isinstance(shape, Line):
                for a, b in pairwise(shape.points):
                    canvas.stroke(a, b, shape.width / 2, shape.colour)
            elif isinstance(shape, Dot):
                canvas.stroke(shape.at, shape.at, shape.radius, shape.colour)
            else:
                canvas.write(shape)
        return canvas.png()


def _svg(shape: Line | Dot | Text) -> str:
    colour = "#{:02x}{:02x}{:02x}".format(*shape.colour)
    if isinstance(shape, Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{shape.width}" stroke-linejoin="round"/>'
    x, y = shape.at
    if isinstance(shape, Dot):
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{shape.radius}" fill="{colour}"/>'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{shape.anchor}">{escape(shape.text)}</text>'


class _Canvas:
    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [bytearray(bytes(WHITE) * width) for _ in range(height)]

    def stroke(self, a: Point, b: Point, radius: float, colour: Colour) -> None:
        """A line with round ends, smooth by how much of a pixel lies within `radius` of it."""
        (x0, y0), (x1, y1) = a, b
        length = hypot(x1 - x0, y1 - y0)
        reach = radius + 1
        for y in range(max(0, floor(min(y0, y1) - reach)), min(self.height, ceil(max(y0, y1) + reach) + 1)):
            for x in range(max(0, floor(min(x0, x1) - reach)), min(self.width, ceil(max(x0, x1) + reach) + 1)):
                along = 0.0 if length == 0 else max(0.0, min(1.0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length**2))
                off = hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))
                cover = radius + 0.5 - off
                if cover > 0:
                    self.mix(x, y, colour, min(1.0, cover))

    def mix(self, x: int, y: int, colour: Colour, cover: float) -> None:
        row, i = self.rows[y], 3 * x
        for c in range(3):
            row[i + c] = round(row[i + c] * (1 - cover) + colour[c] * cover)

    def write(self, text: Text, scale: int = 2) -> None:
        step = (GLYPH_W + 1) * scale
        width = len(text.text) * step - scale
        left = round(text.at[0]) - {"start": 0, "middle": width // 2, "end": width}[text.anchor]
        top = round(text.at[1]) - GLYPH_H * scale
        for n, letter in enumerate(text.text.lower()):
            for row, digit in enumerate(_GLYPHS.get(letter, "0000000")):
                for column in range(GLYPH_W):
                    if int(digit, 32) >> (GLYPH_W - 1 - column) & 1:
                        self.block(left + n * step + column * scale, top + row * scale, scale, text.colour)

    def block(self, left: int, top: int, size: int, colour: Colour) -> None:
        for y in range(max(0, top), min(self.height, top + size)):
            for x in range(max(0, left), min(self.width, left + size)):
                self.mix(x, y, colour, 1.0)

    def png(self) -> bytes:
        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        raw = b"".join(b"\0" + bytes(row) for row in self.rows)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
