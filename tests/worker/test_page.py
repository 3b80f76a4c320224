"""The progress page: any marks survive the trip, and no reader ever sees half a record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from elastic_health.liveness.facts import GroupFrontier, Phase
from elastic_health.liveness.page import (
    GROUPS,
    PAGE_BYTES,
    Beat,
    Mark,
    Order,
    PageFacts,
    blank,
    pack_beat,
    pack_order,
    place,
    read,
    torn,
)
from elastic_health.liveness.page_os import Page

I64 = st.integers(-1, 2**62)
U63 = st.integers(0, 2**62)
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=24)
RANKS = st.just(()) | st.builds(lambda a, s, n: tuple(range(a, a + s * n, s)), st.integers(0, 9), st.integers(1, 9), st.integers(1, 64))
GROUP = st.builds(GroupFrontier, TEXT, I64, I64, TEXT, RANKS)
BEAT = st.builds(
    Beat, U63, U63, U63, U63, U63, st.sampled_from((-1, 0, 1)), U63, st.booleans(), st.lists(GROUP, max_size=GROUPS).map(tuple)
)


@pytest.fixture
def path() -> Iterator[str]:
    path = f"/dev/shm/eh-page-test-{os.getpid()}-{time.monotonic_ns()}"
    yield path
    os.unlink(path)


def with_slot(page: bytes, section: str, seq: int, raw: bytes) -> bytes:
    at = place(section, seq)
    return page[:at] + raw + page[at + len(raw) :]


@given(BEAT, st.integers(1, 2**60))
def test_a_beat_reads_back_as_written(beat: Beat, seq: int) -> None:
    assert read(with_slot(blank(), "beat", seq, pack_beat(seq, beat))) == PageFacts(Mark(), beat, Order())


@given(st.builds(Order, U63, U63, U63, st.booleans(), st.integers(0, 2**31)), st.integers(1, 2**60))
def test_an_order_reads_back_as_written(order: Order, seq: int) -> None:
    assert read(with_slot(blank(), "order", seq, pack_order(seq, order))).order == order


@given(BEAT, BEAT, st.integers(0, 700), st.integers(0, 255))
def test_damage_in_the_newest_record_shows_the_one_before(old: Beat, new: Beat, where: int, value: int) -> None:
    page = with_slot(with_slot(blank(), "beat", 1, pack_beat(1, old)), "beat", 2, raw := pack_beat(2, new))
    at = place("beat", 2) + where % len(raw)
    damaged = page[:at] + bytes((value,)) + page[at + 1 :]
    assert read(damaged).beat == (new if damaged == page else old)
    assert not torn(damaged)


@given(st.binary(min_size=PAGE_BYTES - 8, max_size=PAGE_BYTES - 8))
def test_rubbish_is_never_taken_for_marks(rubbish: bytes) -> None:
    assert read(blank()[:8] + rubbish) == PageFacts(Mark(), Beat(), Order())


def test_another_layout_is_refused(path: str) -> None:
    Path(path).write_bytes(b"EHPAGE99" + bytes(PAGE_BYTES))
    with pytest.raises(ValueError, match="expected a progress page"):
        Page(path)


def test_irregular_ranks_are_unknown_rather_than_wrong() -> None:
    beat = Beat(groups=(GroupFrontier("0", 1, 1, "", (0, 1, 3)), GroupFrontier("1", 1, 1, "", (5,))))
    assert [g.ranks for g in read(with_slot(blank(), "beat", 1, pack_beat(1, beat))).beat.groups] == [(), (5,)]


def test_two_ends_and_a_writer_that_comes_back(path: str) -> None:
    agent = Page.create(path)
    worker = Page(path)
    worker.phase(Phase.STEP, 2.5)
    worker.step(41, 640)
    worker.microbatch(3)
    agent.order(Order(1, 2, 3, True))
    mark = agent.look().mark
    assert (mark.steps, mark.position, mark.microbatch, mark.phase, mark.bound_hint_ms) == (41, 640, 3, Phase.STEP, 2500)
    assert 0 <= time.monotonic_ns() - mark.step_at < 60e9
    assert worker.look().order == Order(1, 2, 3, True)
    assert not mark.saves
    worker.saves()
    again = Page(path)
    again.phase(Phase.EVAL)
    assert (agent.look().mark.steps, agent.look().mark.phase, agent.look().mark.saves) == (41, Phase.EVAL, True)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_silenced_page_writes_nothing(path: str) -> None:
    page = Page.create(path)
    page.step(1)
    page.silence()
    page.step(2)
    assert page.look().mark.steps == 1


WRITER = """
import sys
from elastic_health.liveness.page_os import Page
page, n = Page(sys.argv[1]), 0
while True:
    n += 1
    page.step(n, n * 3)
"""


@pytest.mark.spec("L4")
def test_no_look_is_torn_while_a_writer_hurries_and_after_it_was_killed(path: str) -> None:
    page = Page.create(path)
    root = str(Path(__file__).parents[2])
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path], env={**os.environ, "PYTHONPATH": root})
    try:
        deadline = time.monotonic() + 30
        seen, last = 0, -1
        while seen < 3000:
            mark = page.look().mark
            assert mark.position == mark.steps * 3 or mark.steps < 0
            assert mark.steps >= last, "a newer look showed an older record"
            seen, last = seen + (mark.steps > last), mark.steps
            assert time.monotonic() < deadline
        writer.send_signal(signal.SIGSTOP)
        assert page.look().mark.steps >= last
    finally:
        writer.kill()
        writer.wait(10)
    assert page.look().mark.steps >= last
