"""Killed, stopped and silent agents and hosts, half-open and idle links: real hosts, each death timed (`python -m tests.death`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.death.drill import deaths


@pytest.mark.slow
@pytest.mark.spec("R2", "R10", "U6")
@pytest.mark.timeout(700)
def test_every_death_within_its_bound(tmp_path: Path) -> None:
    result = deaths(tmp_path / "hosts")
    print(result.line())
    assert not result.wrong, result.line()
