"""What the rendezvous benchmark's figures mean: exponents and bars."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import rendezvous_figures as figures


def ours(n: int, formation: str = "first", members: int = 1, decoding: str = "shared", **over: Any) -> dict[str, Any]:
    plain = {"writes": 4 * n, "written_bytes": 3000 * n, "delivered_bytes": 200 * n * n, "events": 9 * n, "time_s": n / 128, "formed": True}
    costs = {"etcd_cpu_s": 1.0, "db_bytes": 1000}
    return {"side": "ours", "n": n, "formation": formation, "members": members, "decoding": decoding, **plain, **costs, **over}


def stock(n: int, time_s: float, formed: bool = True) -> dict[str, Any]:
    return {"side": "stock", "n": n, "formation": "first", "time_s": time_s, "formed": formed}


SIZES = (8, 128, 256, 512, 1024)
GOOD = [stock(128, 5.3), *(ours(n, f) for n in SIZES for f in ("first", "again"))]


def held(found: list[dict[str, Any]]) -> list[bool | None]:
    return [o.held for o in figures.outcomes(found)]


def test_all_bars_hold() -> None:
    assert held(GOOD) == [True] * 5
    assert figures.exit_status(figures.outcomes(GOOD)) == 0


@pytest.mark.parametrize(
    ("worse", "which"),
    [
        (ours(1024, formed=False), 0),
        (ours(128, members=3, time_s=1.2), 1),
        (ours(512, "again", members=3, writes=2561), 2),
        (ours(512, "again", decoding="each", members=3, writes=2561), 2),
    ],
)
def test_each_bar_can_break(worse: dict[str, Any], which: int) -> None:
    found = held([*GOOD, worse])
    assert found[which] is False and found.count(False) == 1


def test_too_steep_a_growth_breaks_its_bar() -> None:
    steep = [ours(n, members=3, written_bytes=n**1.2) for n in SIZES]
    assert held([*GOOD, *steep])[4] is False
    assert figures.exit_status(figures.outcomes([*GOOD, *steep])) == 1


def test_small_groups_are_not_fitted() -> None:
    odd = [ours(8, writes=1), *(ours(n, writes=4 * n) for n in (128, 1024))]
    fit = figures.fit(odd, (1, "shared", "first"), "writes")
    assert fit is not None and abs(fit - 1.0) < 1e-9


def test_the_median_counts() -> None:
    once = [ours(128, time_s=t) for t in (0.9, 1.0, 50.0)]
    assert figures.outcomes([stock(128, 5.3), *once])[1].held is True


def test_nothing_measured_is_no_success() -> None:
    assert figures.exit_status(figures.outcomes([])) == 3
    assert figures.exit_status(figures.outcomes(GOOD[1:])) == 3, "no stock beside it"
    assert figures.outcomes([stock(128, 200.0, formed=False), *GOOD[1:]])[1].held is True
    assert "not formed" in "".join(figures.table([stock(128, 200.0, formed=False)]))
