"""A whole store outage, and one of three members lost, under a real group that trains (the drill of `make outage`, short)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outage.drill import Result, broken, members, ride

pytestmark = [pytest.mark.spec("U6", "R10"), pytest.mark.slow, pytest.mark.sound_etcd, pytest.mark.timeout(400)]
OUTAGE_S = 16.0
"""More than three leases."""


def held(result: Result) -> None:
    print(result.line())
    assert not result.wrong, result.line()


def test_all_members_frozen_for_longer_than_the_leases(tmp_path: Path) -> None:
    """Some leases may be renewed just before etcd sees that they are over; the others are retaken."""
    result = ride(tmp_path / "run", "freeze", 3, OUTAGE_S, "sync")
    held(result)
    assert int(result.figures["leases retaken"]) + int(result.figures["leases kept"]) >= 3


def test_all_members_killed_and_started_again_on_their_data(tmp_path: Path) -> None:
    held(ride(tmp_path / "run", "kill", 3, OUTAGE_S, "async"))


def test_a_link_that_breaks_in_an_outage_ends_it(tmp_path: Path) -> None:
    held(broken(tmp_path / "run"))


def test_one_of_three_members_makes_no_step_longer(tmp_path: Path) -> None:
    held(members(tmp_path / "run"))
