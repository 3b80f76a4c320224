"""The built-in benchmark: what it prints, that results are checked, where it listens; and how its lines and rules are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import torch
from hypothesis import given, strategies as st

from elastic_health.errors import ConfigError
from elastic_health.preflight.commands import Ended, Ran
from elastic_health.preflight.pair_bench import (
    MODULE,
    PairRules,
    bench_command,
    checked,
    endpoint_of,
    nccl_command,
    read_bench,
    run_of_bench,
    told_by_bench,
    told_by_nccl,
)
from elastic_health.preflight.pairs_torch import Options, main, measure, options, pattern
from tests.etcd_fixture import free_port, wait_until

pytestmark = pytest.mark.spec("P3")
RULES = PairRules(round_s=30, sizes=(4096, 1048576), iterations=4, warmup=1, backend="gloo")
CPU = torch.device("cpu")


# ---- measuring


def world_of_two(rank: int, *, flip: int | None = None, delay_s: float = 0.0):  # type: ignore[no-untyped-def]
    """An all-reduce with a partner that is not there: its part is known; `flip` spoils one element of large messages."""

    def reduce(tensor: torch.Tensor, op: object) -> None:
        time.sleep(delay_s)
        if tensor.dtype is torch.float32 and tensor.any():
            tensor += pattern(tensor.numel(), 1 - rank, CPU)
            if flip is not None:
                tensor[flip] = float("nan") if flip == 0 else tensor[flip] + 1

    return reduce


def measured(reduce: object, size: int = 4096) -> dict[str, object]:
    o = Options(0, 2, "h:1", "h", (size,), 5, 1, 30.0, "gloo")
    return measure(reduce, o, size, CPU, 1.0)  # type: ignore[arg-type]


def test_bus_bandwidth_is_what_nccl_tests_calls_so() -> None:
    """size / time * 2 (n - 1) / n: with two ranks the factor is 1."""
    found = measured(world_of_two(0, delay_s=0.01), 1_000_000)
    assert found["wrong"] == 0 and found["size"] == 1_000_000 and found["iterations"] == 5
    assert float(str(found["time_s"])) >= 0.01 and float(str(found["busbw"])) == pytest.approx(
        1e6 / float(str(found["time_s"])) / 1e9, rel=0.01
    )


@pytest.mark.parametrize("flip", [0, 7])
def test_one_wrong_element_is_seen_and_so_is_a_nan(flip: int) -> None:
    assert measured(world_of_two(0, flip=flip))["wrong"] == 2, "in the check before and in the one after"


def test_a_slow_size_is_measured_less_often_and_still_three_times() -> None:
    o = Options(0, 2, "h:1", "h", (4096,), 50, 1, 30.0, "gloo")
    assert measure(world_of_two(0, delay_s=0.02), o, 4096, CPU, 0.01)["iterations"] == 3


def test_patterns_differ_between_ranks_and_neighbours_and_sum_exactly() -> None:
    a, b = pattern(1000, 0, CPU), pattern(1000, 1, CPU)
    assert (a != b).any() and (a[1:] != a[:-1]).all() and float((a + b).max()) < 2**24


# ---- two processes


@contextmanager
def ranks(endpoint: str, addresses: tuple[str, ...], **rules: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Started one after another, and ended."""
    started: list[subprocess.Popen[str]] = []
    try:
        for rank, address in enumerate(addresses):
            words = bench_command(sys.executable, PairRules(**{**vars(RULES), **rules}), rank, endpoint, address, time.monotonic() + 60)  # type: ignore[arg-type]
            started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def listening(*pids: int) -> set[str]:
    found = set()
    for pid in pids:
        try:
            found |= {c.laddr.ip for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_two_processes_measure_and_listen_at_their_own_addresses_alone() -> None:
    endpoint = endpoint_of("127.0.0.2", free_port())
    with ranks(endpoint, ("127.0.0.2", "127.0.0.3"), iterations=300) as both:
        seen: set[str] = set()
        while both[0].poll() is None:
            seen |= listening(both[0].pid, both[1].pid)
            time.sleep(0.02)
        assert seen <= {"127.0.0.2", "127.0.0.3"} and "127.0.0.2" in seen
        said = [process.communicate(timeout=30) for process in both]
        for (out, err), process in zip(said, both, strict=True):
            bench = read_bench(out)
            assert process.returncode == 0 and bench.done and not bench.wrong and not bench.error, err
            assert set(bench.figures) == set(RULES.sizes) and min(bench.figures.values()) > 0
        assert read_bench(said[0][0]).figures == read_bench(said[1][0]).figures, "both tell the slower one's figure"
        run = run_of_bench(said[0][0], "pair")
        assert not run.missing and run.versions["backend"] == "gloo"


@pytest.mark.slow
def test_the_partner_s_death_ends_it_and_a_port_that_is_taken_is_said() -> None:
    endpoint = endpoint_of("127.0.0.1", free_port())
    with ranks(endpoint, ("127.0.0.1", "127.0.0.1"), sizes=(4096, 16 << 20), iterations=100000) as both:
        assert both[0].stdout is not None
        wait_until(lambda: "connected" in (both[0].stdout.readline() if both[0].stdout else ""), "they have met", 60)
        both[1].kill()
        assert both[0].wait(30) == 1 and "error" in both[0].stdout.read()
    with ranks(endpoint, ("127.0.0.1",)) as first:
        wait_until(lambda: listening(first[0].pid), "it listens", 60)
        assert main(["--rank", "0", "--endpoint", endpoint, "--limit", "5"]) == 1


@pytest.mark.parametrize(
    "words", [["--sizes", "x"], ["--sizes", "0"], ["--world", "1"], ["--iterations", "0"], ["--limit", "0"], ["--rank", "2"]]
)
def test_bad_arguments_are_said_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(["--rank", "0", "--endpoint", "h:1", *words])
    assert ended.value.code == 2 and "error:" in capsys.readouterr().err.splitlines()[-1]
    for endpoint in ("h", "h:", ":1", "h:0", "h:x"):
        with pytest.raises(SystemExit):
            options(["--rank", "0", "--endpoint", endpoint])


# ---- its lines


def lines(*said: dict[str, object]) -> str:
    return "".join(json.dumps(one) + "\n" for one in said)


WHOLE = lines(
    {"started": True, "left_s": 29.0},
    {"connected": True, "left_s": 28.0, "backend": "gloo", "torch": "2.6"},
    {"size": 4096, "busbw": 0.5, "wrong": 0},
    {"size": 1048576, "busbw": 2.5, "wrong": 0},
    {"done": True},
)


def ran(stdout: str, ended: Ended = Ended.BY_ITSELF, status: int | None = 0, **more: object) -> Ran:
    return Ran(("x",), ended, exit_status=status, stdout=stdout, **more)  # type: ignore[arg-type]


def test_a_whole_run_is_measured_and_a_slow_link_s_skipped_size_does_not_count() -> None:
    assert told_by_bench(ran(WHOLE), RULES).figures == ((4096, 0.5), (1048576, 2.5)) and told_by_bench(ran(WHOLE), RULES).measured
    part = WHOLE.replace('{"size": 1048576, "busbw": 2.5, "wrong": 0}', '{"skipped": 1048576}')
    assert told_by_bench(ran(part), RULES).figures == ((4096, 0.5),) and told_by_bench(ran(part), RULES).measured


@given(st.integers(0, len(WHOLE) - 2), st.sampled_from(list(Ended)))
def test_a_run_that_is_cut_is_never_measured(at: int, ended: Ended) -> None:
    assert not told_by_bench(ran(WHOLE[:at], ended, None if ended is not Ended.BY_ITSELF else 0), RULES).measured


@given(
    st.text(max_size=200),
    st.lists(
        st.dictionaries(
            st.sampled_from(("size", "busbw", "wrong", "done", "left_s", "error")),
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        )
    ),
)
def test_foreign_lines_break_nothing(text: str, said: list[dict[str, object]]) -> None:
    bench = read_bench(text + "\n" + "".join(json.dumps(one) + "\n" for one in said))
    assert all(size > 0 and 0 <= value < float("inf") for size, value in bench.figures.items())
    told_by_bench(ran(text), RULES)


def test_a_run_stalled_only_if_it_had_time() -> None:
    begun = WHOLE[: WHOLE.index('{"size"')]
    assert told_by_bench(ran(begun, Ended.TIME_LIMIT, None), RULES).stalled
    late = begun.replace("28.0", "3.0")
    told = told_by_bench(ran(late, Ended.TIME_LIMIT, None), RULES)
    assert not told.stalled and "too late" in told.failed
    assert not told_by_bench(ran("", Ended.TIME_LIMIT, None), RULES).stalled


def test_wrong_elements_and_errors_are_told() -> None:
    wrong = told_by_bench(ran(WHOLE.replace('"wrong": 0}', '"wrong": 3}')), RULES)
    assert wrong.wrong == ("3 elements of 4096 bytes", "3 elements of 1048576 bytes")
    assert run_of_bench(WHOLE.replace('"wrong": 0}', '"wrong": 3}'), "x").wrong and run_of_bench(WHOLE[:80], "x").missing
    closed = told_by_bench(ran(WHOLE[: WHOLE.index('{"size"')] + lines({"error": "Connection closed"}), status=1), RULES)
    assert closed.broke and closed.failed == "Connection closed"
    crashed = told_by_bench(ran("", status=None, signal=11, stderr="x\nSegmentation fault\n"), RULES)
    assert not crashed.broke and "signal 11: Segmentation fault" in crashed.failed


def test_a_launcher_that_says_nothing_has_measured_nothing() -> None:
    rules = PairRules(command=("mpirun",), ranks=2)
    assert told_by_nccl(ran("no such host", status=1), rules).failed
    assert told_by_nccl(Ran(("mpirun",), Ended.MISSING, detail="no mpirun on PATH"), rules).failed.endswith("no mpirun on PATH")
    cut = told_by_nccl(ran("", Ended.TIME_LIMIT, None), rules)
    assert cut.failed and not cut.stalled


# ---- rules and commands


def test_commands() -> None:
    words = bench_command("python", RULES, 1, "[fd00::1]:5", "fd00::2", 12.5)
    assert (
        words[:3] == ("python", "-m", MODULE) and options([*words[3:]]).address == "fd00::2" and options([*words[3:]]).sizes == RULES.sizes
    )
    rules = PairRules(command=("mpirun", "-np", "{ranks}", "-H", "{hosts}", "--x={host}:{partner}", "{other}"), ranks=16)
    assert nccl_command(rules, "a", "b", "a:1") == ("mpirun", "-np", "16", "-H", "a,b", "--x=a:b", "{other}")
    assert endpoint_of("fd00::1", 7) == "[fd00::1]:7" and endpoint_of("h", 7) == "h:7"


@pytest.mark.parametrize(
    "wrong",
    [
        {"wait_s": 0.0}, {"wait_s": float("nan")}, {"round_s": float("inf")}, {"sizes": ()}, {"sizes": (8, 4)}, {"sizes": (3,)},
        {"iterations": 0}, {"warmup": -1}, {"backend": "mpi"}, {"min_ratio": 0.0}, {"meeting_ratio": 1.1}, {"fewest_sizes": 0},
        {"expect": -1}, {"port": 70000},
    ],
)  # fmt: skip
def test_rules_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="check pair: "):
        checked(PairRules(**wrong), "pair")  # type: ignore[arg-type]
    assert checked(PairRules(), "pair") == PairRules()


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="NCCL between two ranks needs two GPUs")
def test_nccl_between_two_gpus() -> None:
    endpoint = endpoint_of("127.0.0.1", free_port())
    words = [bench_command(sys.executable, PairRules(backend="nccl"), r, endpoint, "127.0.0.1", time.monotonic() + 60) for r in (0, 1)]
    both = [
        subprocess.Popen(w, stdout=subprocess.PIPE, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": str(r)})
        for r, w in enumerate(words)
    ]
    said = [read_bench(process.communicate(timeout=90)[0]) for process in both]
    assert all(bench.done and not bench.wrong and len(bench.figures) == len(PairRules().sizes) for bench in said)
