"""A checkpoint on request: one rank is told, all save after the same step, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from elastic_health.checkpoints.wishes_torch import LOOK_EVERY_S, MOST_STEPS, steps_between
from tests.checkpoints.parts import JOIN, run_ranks

pytestmark = pytest.mark.spec("R1", "R3")

WISHED = (
    JOIN
    + """
home = FileHome(Path(sys.argv[1]) / f"records-{rank}")
checkpoints = Checkpoints(Path(sys.argv[1]) / "c", TinyState(1.0), every=1000, home=home, mode=sys.argv[2])
checkpoints.restore()
saved = []
for step in range(1, 41):
    if rank == 1 and step == 20:
        home.wished = 1
    if checkpoints.maybe_save(step, step * 4):
        saved.append(step)
checkpoints.finish()
print("saved", saved, home.told_saves, flush=True)
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_rank_is_told_and_all_save_after_the_same_step(tmp_path: Path, mode: str) -> None:
    ranks = run_ranks(WISHED, 2, tmp_path, str(tmp_path), mode, timeout_s=120)
    assert [r.code for r in ranks] == [0, 0], ranks
    one, other = (r.out.splitlines()[-1] for r in ranks)
    assert one == other and one.endswith("] True")
    steps = one.removeprefix("saved [").partition("]")[0].split(", ")
    assert len(steps) == 1 and 20 <= int(steps[0]) <= 40


@given(st.floats(0.0, 1e4), st.integers(1, MOST_STEPS))
def test_looks_come_about_once_a_second_and_never_far_apart(step_s: float, before: int) -> None:
    steps = steps_between(step_s, before)
    assert 1 <= steps <= min(MOST_STEPS, 2 * before)
    assert steps == 1 or steps * step_s <= LOOK_EVERY_S + 1e-9
