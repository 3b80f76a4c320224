"""The benchmark's figures: an interval that means something, bars that break when they should, trials in fair turns."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import figures
from benchmarks.figures import Bar, judge_bar, judge_share, outcomes, ratio
from benchmarks.recovery import arguments, main, plan
from benchmarks.trial import FAULTS

Trial = dict[str, Any]


def some(launcher: str, fault: str, *seconds: float | None) -> list[Trial]:
    """Trials; None: it did not recover."""
    return [{"launcher": launcher, "fault": fault, "recovered": s is not None, "recovered_s": s} for s in seconds]


def good() -> list[Trial]:
    """Every launcher, every fault; ours is ten times as quick."""
    stock = [t for name, fault in product(figures.STOCK, FAULTS) for t in some(name, fault, 40.0, 42.0, 44.0)]
    return [*stock, *(t for fault in FAULTS for t in some("ours", fault, 4.0, 4.2, 4.4))]


# ---- ratio and interval


def test_the_ratio_is_that_of_the_medians_and_the_interval_holds_it() -> None:
    found = ratio([1.0, 2.0, 9.0], [4.0, 5.0, 6.0])
    assert found.value == pytest.approx(0.4)
    assert found.low <= found.value <= found.high
    assert found.n == (3, 3)


def test_equal_values_have_no_width_and_the_same_draw_gives_the_same_interval() -> None:
    assert ratio([2.0] * 5, [8.0] * 5) == figures.Ratio(0.25, 0.25, 0.25, (5, 5))
    assert ratio([1.0, 2.0, 3.0], [4.0, 6.0], seed=7) == ratio([1.0, 2.0, 3.0], [4.0, 6.0], seed=7)


def test_small_samples_against_every_resample_that_exists() -> None:
    """A naive twin: all 27 × 27 resamples of two samples of three, instead of a random draw of them."""
    ours, theirs = (1.0, 2.0, 4.0), (5.0, 6.0, 9.0)
    every = sorted(median(a) / median(b) for a, b in product(product(ours, repeat=3), product(theirs, repeat=3)))
    found = ratio(ours, theirs)
    tail = round(len(every) * 0.025)
    assert (found.low, found.high) == pytest.approx((every[tail], every[-1 - tail]))


def test_more_noise_makes_a_wider_interval() -> None:
    calm, wild = ratio([5.0, 5.1, 5.2, 5.3, 5.4], [10.0] * 5), ratio([1.0, 3.0, 5.2, 7.0, 9.0], [10.0] * 5)
    assert calm.high - calm.low < 0.2 * (wild.high - wild.low)


def test_an_empty_sample_is_told() -> None:
    with pytest.raises(ValueError, match="empty"):
        ratio([], [1.0])


# ---- bars


def test_all_bars_hold_and_the_status_says_so() -> None:
    found = outcomes(good())
    assert [o.held for o in found] == [True] * 5
    assert figures.exit_status(found) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_each_bar_breaks_on_its_own(fault: str) -> None:
    slow = [{**t, "recovered_s": 50.0} if (t["launcher"], t["fault"]) == ("ours", fault) else t for t in good()]
    found = outcomes(slow)
    assert [o.bar.split()[0] for o in found if o.held is False] == [fault]
    assert figures.exit_status(found) == 1


def test_one_trial_of_ours_that_stays_down_breaks_the_first_bar() -> None:
    found = judge_share([*good(), *some("ours", "hang", None)])
    assert (found.held, found.said) == (False, "12 of 13")


def test_a_group_that_did_not_start_counts_against_ours_only_and_is_told() -> None:
    failed = {"fault": "hang", "recovered": False, "error": "the group did not start"}
    trials = [*good(), {**failed, "launcher": "tuned"}, {**failed, "launcher": "ours", "folder": "there"}]
    assert figures.share(trials, "tuned", "hang") == (3, 3)
    assert judge_share(trials).held is False
    assert figures.remarks(trials)[1] == "ours, hang: the group did not start (see there)"


def test_a_product_that_changed_meanwhile_is_told() -> None:
    assert figures.remarks([{**t, "code": "a"} for t in good()]) == []
    assert "changed during the run (2 states)" in figures.remarks([{**t, "code": "ab"[i % 2]} for i, t in enumerate(good())])[0]


def test_what_was_not_measured_is_no_success() -> None:
    found = outcomes([t for t in good() if t["fault"] in ("hang", "sigstop")])
    assert [o.held for o in found] == [True, None, None, True, True]
    assert figures.exit_status(found) == 3
    assert figures.exit_status(outcomes([])) == 3


def test_without_stock_beside_it_a_bar_is_not_measured() -> None:
    assert judge_bar(some("ours", "hang", 1.0), Bar("hang", 0.25)).held is None


def test_the_best_stock_is_the_quickest_and_its_failures_do_not_slow_it() -> None:
    stock = [*some("shipped", "hang", 9.0), *some("tuned", "hang", 8.0, None, None), *some("own-store", "hang", None)]
    trials = [*stock, *some("ours", "hang", 4.0)]
    assert figures.best_stock(trials, "hang") == "tuned"
    assert judge_bar(trials, Bar("hang", 0.5)).held is True
    assert judge_bar(trials, Bar("hang", 0.49)).held is False


def test_a_variant_of_ours_is_neither_ours_nor_stock() -> None:
    trials = [*good(), *some("ours-cold", "hang", 1.0, None)]
    assert figures.best_stock(trials, "hang") != "ours-cold"
    assert judge_share(trials).held is True


def test_an_interval_that_reaches_too_high_breaks_the_bar() -> None:
    noisy = [*some("ours", "kill_worker", 1.0, 1.0, 9.0), *some("tuned", "kill_worker", 2.0, 2.0, 2.0)]
    assert judge_bar(noisy, Bar("kill_worker", 1.0)).held is True
    assert judge_bar(noisy, Bar("kill_worker", 1.0, upper=1.1)).held is False


def test_stock_that_never_came_back_is_beaten_and_ours_that_never_came_back_is_not() -> None:
    bar = Bar("kill_node", 0.6, against="tuned")
    assert judge_bar([*some("ours", "kill_node", 3.0), *some("tuned", "kill_node", None)], bar).held is True
    assert judge_bar([*some("ours", "kill_node", None), *some("tuned", "kill_node", 3.0)], bar).held is False
    assert judge_bar([*some("ours", "kill_node", 3.0), *some("shipped", "kill_node", 3.0)], bar).held is None


def test_the_table_names_each_pair_and_what_did_not_come_back() -> None:
    rows = figures.table([*good(), *some("ours", "hang", None)], FAULTS, ("ours", *figures.STOCK))
    assert len(rows) == 2 + 4 * 4
    assert any(row.startswith("| hang | ours | 3/4 | 4.20 |") for row in rows)
    assert any(row.startswith("| hang | tuned | 3/3 | 42.00 | 40.00 to 44.00 | 0.10 [") for row in rows)


# ---- turns


def test_every_round_does_each_pair_once_in_changing_order() -> None:
    names = ("ours", *figures.STOCK)
    turns = list(plan(names, FAULTS, repeats=4, stock_stalls=4))
    rounds = [turns[i : i + 16] for i in range(0, 64, 16)]
    assert all({(f, n) for f, n, _ in it} == set(product(FAULTS, names)) for it in rounds)
    assert len({tuple(n for f, n, _ in it if f == "hang") for it in rounds}) > 1


def test_all_launchers_of_a_round_meet_the_fault_after_the_same_delay() -> None:
    by_round: dict[tuple[int, str], set[float]] = {}
    for i, (fault, _, delay_s) in enumerate(plan(("ours", "tuned"), FAULTS, 3, 3)):
        by_round.setdefault((i // 8, fault), set()).add(delay_s)
    assert all(len(delays) == 1 for delays in by_round.values())
    assert len(set.union(*by_round.values())) == 12


def test_fewer_repeats_of_stock_for_stalls_only() -> None:
    turns = [(f, n) for f, n, _ in plan(("ours", "ours-cold", "tuned"), FAULTS, repeats=5, stock_stalls=2)]
    assert {pair: turns.count(pair) for pair in set(turns)} == {
        (f, n): 2 if n == "tuned" and f in ("hang", "sigstop") else 5 for f in FAULTS for n in ("ours", "ours-cold", "tuned")
    }


def test_quick_and_mistakes_on_the_command_line() -> None:
    assert arguments(["--quick"]).stock_stalls == 1
    assert arguments([]).stock_stalls == arguments([]).repeats == 5
    assert arguments(["--repeats", "2", "--stock-stalls", "9"]).stock_stalls == 2
    for wrong in (["--repeats", "0"], ["--stock-stalls", "0"], ["--ruler", "/nowhere"], ["--from", "/nowhere"], ["--faults", "flood"]):
        with pytest.raises(SystemExit):
            arguments(wrong)


def test_an_earlier_run_is_reported_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = tmp_path / "trials.jsonl"
    earlier.write_text("".join(json.dumps(t) + "\n" for t in good()))
    assert main(["--from", str(earlier)]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("bench: 5 of 5 bars hold, 48 trials; ours: kill_worker 4.20 s")
