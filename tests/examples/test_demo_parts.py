"""The demo's own parts: nodes end whatever they do, the picture opens, and a report never calls bad news good."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import time
import zlib
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from demo_parts.drawing import Dot, Drawing, Line, Text
from demo_parts.faults import Fault
from demo_parts.nodes import Node, end
from demo_parts.picture import picture, ticks
from demo_parts.report import FAULTS, Outcome, page, tell, write
from demo_parts.scene import Step

pytestmark = pytest.mark.spec("U1")

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until(holds: object, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stubborn(tmp_path: Path) -> tuple[Node, int]:
    node = Node("node-a", tmp_path / "log")
    node.start([sys.executable, "-c", STUBBORN], {"PATH": "/usr/bin:/bin"})
    until(lambda: (tmp_path / "log").read_text().endswith("\n"))
    return node, int((tmp_path / "log").read_text())


def test_a_node_that_ignores_sigterm_is_killed_with_its_tree_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo_parts.nodes._END_S", 0.5)
    node, child = stubborn(tmp_path)
    left = end([node])
    assert len(left) == 2 and all(text.startswith("node-a: ") for text in left)
    until(lambda: gone(child))
    assert not node.up


def test_a_killed_node_takes_its_children_along(tmp_path: Path) -> None:
    node, child = stubborn(tmp_path)
    node.kill()
    assert node.killed and node.status == -9
    until(lambda: gone(child))
    assert end([node]) == []


def test_a_node_dies_with_the_demo(tmp_path: Path) -> None:
    starts = f"""
import os, pathlib, signal, sys, time
sys.path.insert(0, {str(Path(sys.modules["demo_parts.nodes"].__file__ or "").parents[1])!r})
from demo_parts.nodes import Node
node = Node("node-a", pathlib.Path({str(tmp_path / "log")!r}))
node.start([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], dict(os.environ))
while not os.path.getsize({str(tmp_path / "log")!r}): time.sleep(0.02)
print(node.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", starts], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9
    until(lambda: gone(int(done.stdout)))


# ---- the picture
def pixels(png: bytes) -> list[bytes]:
    """Rows of an 8-bit RGB picture without filters, each chunk's checksum verified."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, data = 8, b""
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert (depth, colour) == (8, 2)
        data += body if kind == b"IDAT" else b""
        at += 12 + size
    raw = zlib.decompress(data)
    assert len(raw) == height * (3 * width + 1)
    return [raw[y * (3 * width + 1) + 1 : (y + 1) * (3 * width + 1)] for y in range(height)]


def test_what_is_drawn_is_in_the_picture() -> None:
    drawing = Drawing(40, 30, [Line(((5, 10), (35, 10)), (255, 0, 0), 3.0), Dot((20, 22), 3, (0, 0, 255)), Text((0, 30), "1", (0, 0, 0))])
    rows = pixels(drawing.png())
    assert rows[10][60:63] == bytes((255, 0, 0)) and rows[22][60:63] == bytes((0, 0, 255))
    assert rows[0][60:63] == bytes((255, 255, 255))
    assert any(rows[y][3 * x] == 0 for y in range(16, 30) for x in range(10))
    assert drawing.svg().count("<polyline") == 1


@pytest.mark.parametrize(("low", "high"), [(0, 400), (1.5, 6.0), (0, 7), (0, 0.013), (0, 123456)])
def test_ticks_are_few_and_round(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 10
    assert low <= found[0] and found[-1] <= high
    assert all(re.fullmatch(r"\d\.?\d?e[+-]\d\d", f"{t:.1e}") for t in found)


# ---- the report
def outcome(**changes: object) -> Outcome:
    faults = [Fault(f"fault <{n}>", "done & dusted", 1, "node-b", n, at=10.0 + n, step=n, named_nodes=("node-b",)) for n in range(FAULTS)]
    steps = [Step(n, 6.0 - n / 10, 10.0 + n / 2, 1 + n // 7, 3) for n in range(1, 20)]
    proof = {"holds": True, "samples": 10, "used_exactly_once": 9, "skipped_in_windows": 1, "fetched_and_not_kept": 2}
    proof |= {"checkpoints_on_the_line": 3, "steps": 19, "world_sizes": [3]}
    made = Outcome(10.0, faults, 19, ended=20.0, steps=steps, proof=proof)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_good_outcome_holds_and_its_page_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = outcome()
    write(tmp_path, good)
    tell(tmp_path, good)
    assert good.holds and capsys.readouterr().out.splitlines()[-1].startswith("demo held: 6 of 6 faults")
    pixels((tmp_path / "loss.png").read_bytes())
    html = (tmp_path / "report.html").read_text()
    assert "fault &lt;1&gt;" in html and "fault <1>" not in html and "done &amp; dusted" in html
    assert not re.search(r"(src|href)=|url\(|@import", html)
    HTMLParser().feed(html)


@pytest.mark.parametrize(
    "changes",
    [
        {"failed": "waited in vain"},
        {"faults": []},
        {"proof": {}},
        {"proof": {"holds": False, "why": "one twice"}},
        {"left_over": ["node-a: python"]},
        {"faults": [Fault("a", "b", 0, "c", 1, problems=["another rank was named"])] * FAULTS},
        {"steps": [], "failed": "nothing ever trained"},
    ],
)
def test_a_bad_outcome_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object]) -> None:
    bad = outcome(**changes)
    write(tmp_path, bad)
    tell(tmp_path, bad)
    said = capsys.readouterr().out
    assert not bad.holds and "NOT AS IT MUST BE" in said and said.splitlines()[-1].startswith("DEMO FAILED")
    assert "not everything held" in page(bad, picture(bad.steps, bad.faults, bad.began).svg())
