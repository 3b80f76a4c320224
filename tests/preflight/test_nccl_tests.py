"""nccl-tests outputs of every layout: figures, verdicts, and what broken text must never become."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.nccl_tests import analyze_nccl_tests, bus_bandwidths, judge_nccl_tests, parse_nccl_tests
from elastic_health.preflight.results import CheckResult, Outcome
from tests.preflight.nccl_text import ITERS, LAYOUTS, NEW, OLD, OLD_PLAIN, OLD_ROOT, PREFIXES, SIZES, head, output, table, tail


def prefixed(text: str, prefix: Callable[[int], str]) -> str:
    return "".join(f"{prefix(i)}{line}\n" for i, line in enumerate(text.splitlines()))


def kinds(result: CheckResult) -> list[FindingKind]:
    return [finding.kind for finding in result.findings]


@pytest.mark.spec("P2")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_the_same_figures(layout: str) -> None:
    parsed = parse_nccl_tests(output(layout))
    assert [row.size for row in parsed.rows] == list(SIZES)
    assert bus_bandwidths(parsed) == {1048576: 64.2, 8388608: 174.1, 67108864: 359.5}
    first = parsed.rows[0]
    assert first.key == (1048576, "float", "" if layout == OLD_PLAIN else "sum", None if layout in (OLD, OLD_PLAIN) else -1)
    assert first.out_of_place == first.in_place and first.out_of_place is not None
    assert (first.out_of_place.time_us, first.out_of_place.algbw, first.count) == (28.5, 36.7, 262144)
    assert (first.out_of_place.wrong, first.out_of_place.error) == ((None, 0.0) if layout.startswith("old") else (0.0, None))
    assert first.iters == (20 if layout == ITERS else None)
    assert (parsed.world_size, parsed.runs, parsed.independent, parsed.closed, parsed.validated) == (8, 1, 1, True, True)
    assert (parsed.average_busbw, parsed.hosts, parsed.unfit) == (199.267, ("node-a",), ())
    assert analyze_nccl_tests(output(layout)).outcome is Outcome.PASS


def test_the_layout_of_2018_tells_milliseconds() -> None:
    """NVIDIA/nccl-tests#7, #5: columns `bytes N type op ... res`, no pid, blanks and `#` before rows or not."""
    text = """nThread 1 nGpus 2 minBytes 9 maxBytes 33554432 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 1
# NCCL Tests compiled with NCCL 2.1
# Using devices
#   Rank  0 on     node-a device  0 [0x00] Tesla P100-PCIE-16GB
#   Rank  1 on     node-a device  1 [0x00] Tesla P100-PCIE-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
    10000000       2500000   float     sum    1.628   6.14   9.21    2e-07    1.932   5.18   7.77    1e-07
 Out of bounds values : {} {}
 Avg bus bandwidth    : 8.49
"""
    parsed = parse_nccl_tests(text.format(0, "OK"))
    assert (parsed.world_size, [r.host for r in parsed.ranks], parsed.closed) == (2, ["node-a"] * 2, True)
    (row,) = parsed.rows
    assert row.key == (10000000, "float", "sum", None) and row.out_of_place is not None
    assert (row.out_of_place.time_us, row.out_of_place.error, row.out_of_place.busbw) == (1628.0, 2e-07, 9.21)
    assert judge_nccl_tests(parsed).outcome is Outcome.PASS
    assert analyze_nccl_tests(text.format(248, "FAILED")).outcome is Outcome.FAIL


def test_the_device_list_of_two_nodes() -> None:
    parsed = parse_nccl_tests(output(ITERS, world=16, hosts=("node-a", "node-b")))
    assert (parsed.world_size, parsed.hosts) == (16, ("node-a", "node-b"))
    last = parsed.ranks[-1]
    assert (last.rank, last.host, last.pid, last.device, last.bus) == (15, "node-b", 4015, 7, "0000:1f:00")


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_launchers_prefix_changes_nothing(layout: str, name: str) -> None:
    plain, behind = parse_nccl_tests(output(layout)), parse_nccl_tests(prefixed(output(layout), PREFIXES[name]))
    assert [row.halves for row in behind.rows] == [row.halves for row in plain.rows]
    assert [row.key for row in behind.rows] == [row.key for row in plain.rows]
    assert (behind.ranks, behind.summaries, behind.closed) == (plain.ranks, plain.summaries, True)


def test_a_prefix_may_be_glued_to_a_number_that_fills_its_column() -> None:
    (row,) = parse_nccl_tests("[1,0]<stdout>:1099511627776  274877906944 float sum -1 1.0 2.0 3.0 0 1.0 2.0 3.0 0\n").rows
    assert row.size == 1099511627776


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lost_leading_blanks_colours_and_line_ends_change_nothing(layout: str) -> None:
    """NVIDIA/nccl-tests#280: pasted text lost its leading blanks."""
    bare = "".join(line.lstrip(" ") + "\r\n" for line in output(layout).splitlines())
    coloured = "".join(f"\x1b[32m{line}\x1b[0m\n" for line in output(layout).splitlines())
    for text in (bare, coloured, output(layout).upper(), output(layout).lower()):
        assert analyze_nccl_tests(text).outcome is Outcome.PASS
        assert bus_bandwidths(parse_nccl_tests(text))[67108864] == 359.5


@pytest.mark.spec("P2")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_wrong_results_fail_whatever_the_speed(layout: str) -> None:
    result = analyze_nccl_tests(output(layout, wrong="1e+00" if layout.startswith("old") else "12", scale=2.0), exit_status=0)
    assert result.outcome is Outcome.FAIL and kinds(result) == [FindingKind.WRONG_RESULT]


@pytest.mark.parametrize("said", ["1", "1e+06", "2.68435e+08", "nan"])
def test_a_cut_run_fails_when_a_wrong_row_was_seen(said: str) -> None:
    text = output(NEW, wrong=said)
    result = analyze_nccl_tests(text[: text.index("# Out of bounds")])
    assert result.outcome is Outcome.FAIL and kinds(result) == [FindingKind.WRONG_RESULT, FindingKind.NOT_MEASURED]
    json.dumps([dict(f.evidence) for f in result.findings], allow_nan=False)


def test_the_summary_alone_fails_a_node() -> None:
    """NVIDIA/nccl-tests#356: corrupt data at full speed; also cut in the middle of the number."""
    for text in ("# Out of bounds values : 56 FAILED\n", "# Out of bounds values : 56 FAILED", "# Out of bounds values : 5"):
        assert analyze_nccl_tests(text).outcome is Outcome.FAIL


def test_a_deviation_is_no_wrong_value_when_the_summary_says_ok() -> None:
    """NVIDIA/nccl-tests#52: before 2.12 the column tells rounding, not wrong elements."""
    assert analyze_nccl_tests(output(OLD, wrong="2e-06", bounds="0 OK")).outcome is Outcome.PASS
    cut = output(OLD, wrong="2e-06")
    assert analyze_nccl_tests(cut[: cut.index("# Out of bounds")]).outcome is Outcome.NOT_MEASURED


def test_an_old_all_to_all_leaves_its_operation_empty() -> None:
    """NVIDIA/nccl-tests#78: the header has `redop`, the rows don't, and in-place deviations of 1 are no wrong results."""
    rows = [line.replace("  sum  ", "       ") for line in output(OLD).splitlines()]
    rows = [line[: line.rindex("0e+00")] + "1e+00" if "float" in line else line for line in rows]
    parsed = parse_nccl_tests("\n".join(rows) + "\n")
    assert [row.key for row in parsed.rows] == [(size, "float", "", None) for size in SIZES] and not parsed.unfit
    assert judge_nccl_tests(parsed).outcome is Outcome.PASS
    assert analyze_nccl_tests("\n".join(rows[:-3]) + "\n").outcome is Outcome.NOT_MEASURED


def test_an_all_to_all_cannot_validate_in_place() -> None:
    rows = [line.rsplit(None, 1)[0] + "  N/A" if "float" in line else line for line in output(NEW).splitlines()]
    parsed = parse_nccl_tests("\n".join(rows) + "\n")
    assert [(r.out_of_place and r.out_of_place.validated, r.in_place and r.in_place.validated) for r in parsed.rows] == [(True, False)] * 3
    assert judge_nccl_tests(parsed).outcome is Outcome.PASS


def test_a_run_without_validation_says_so() -> None:
    result = analyze_nccl_tests(output(NEW, wrong="N/A"))
    assert result.outcome is Outcome.WARN and "not validated" in result.summary and result.details["validated"] is False


def test_one_gpu_has_no_bus_bandwidth() -> None:
    for layout in LAYOUTS:
        result = analyze_nccl_tests(output(layout, world=1, average="0"))
        assert result.outcome is Outcome.NOT_MEASURED and "one GPU" in result.summary
    no_list = (
        "\n".join([*table(NEW, scale=1.0), *tail(NEW, average="0")])
        .replace("64.20", "0.00")
        .replace("174.10", "0.00")
        .replace("359.50", "0.00")
    )
    assert "one GPU" in analyze_nccl_tests(no_list + "\n").summary


@pytest.mark.spec("P3")
def test_runs_without_mpi_are_no_pair() -> None:
    """NVIDIA/nccl-tests#107: two runs of one rank each, side by side; each looks like a whole output."""
    both = [output(ITERS, world=1, hosts=(host,), pid=pid).splitlines() for host, pid in (("node-a", 11), ("node-b", 22))]
    mixed = "\n".join(line for pair in zip(*both, strict=True) for line in pair) + "\n"
    parsed = parse_nccl_tests(mixed)
    assert (parsed.world_size, parsed.runs, parsed.independent, parsed.closed) == (1, 2, 2, False)
    assert judge_nccl_tests(parsed).outcome is Outcome.NOT_MEASURED
    one_after_the_other = judge_nccl_tests(parse_nccl_tests("\n".join(["\n".join(lines) for lines in both]) + "\n"))
    assert one_after_the_other.outcome is Outcome.NOT_MEASURED


def test_another_number_of_ranks_is_another_measurement() -> None:
    assert judge_nccl_tests(parse_nccl_tests(output(NEW, world=8)), expected_ranks=16).outcome is Outcome.NOT_MEASURED
    assert judge_nccl_tests(parse_nccl_tests(output(NEW, world=8)), expected_ranks=8).outcome is Outcome.PASS


def test_several_programs_in_one_text_must_each_end() -> None:
    two = output(NEW) + output(ITERS, pid=9000)
    parsed = parse_nccl_tests(two)
    assert (parsed.runs, parsed.independent, parsed.closed, {row.run for row in parsed.rows}) == (2, 1, True, {0, 1})
    assert analyze_nccl_tests(two[: two.rindex("# Out of bounds")]).outcome is Outcome.NOT_MEASURED
    crashed_first = output(NEW)[:-60] + "\n" + output(NEW, pid=9000)
    assert parse_nccl_tests(crashed_first).independent == 1 and analyze_nccl_tests(crashed_first).outcome is Outcome.NOT_MEASURED


def test_two_tables_with_one_summary_are_not_whole() -> None:
    text = "\n".join([*table(NEW), *table(NEW), *tail(NEW)]) + "\n"
    assert parse_nccl_tests(text).runs == 2 and analyze_nccl_tests(text).outcome is Outcome.NOT_MEASURED


def test_one_size_under_several_operations_is_several_rows() -> None:
    """NVIDIA/nccl-tests#167: `-o all`; the slowest operation is what counts for a size."""
    lines = table(NEW, redops=("sum", "max"))
    lines[-1] = lines[-1].replace("359.50", "100.00")
    parsed = parse_nccl_tests("\n".join([*head(NEW), *lines, *tail(NEW)]) + "\n")
    assert len({row.key for row in parsed.rows}) == 6
    assert bus_bandwidths(parsed)[67108864] == 100.0


@pytest.mark.parametrize(
    ("line", "kind", "hosts"),
    [
        (
            "node-b: Test NCCL failure common.cu:1005 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '",
            FindingKind.DEVICE_ERROR,
            ("node-b",),
        ),
        ("[1,3]<stdout>:node-b: Test CUDA failure common.cu:730 'unknown error'", FindingKind.DEVICE_ERROR, ("node-b",)),
        ("NCCL failure all_reduce.cu:95 'unhandled cuda error'", FindingKind.DEVICE_ERROR, ()),
        ("Cuda failure common.cu:730 'out of memory'", FindingKind.LOW_RESOURCE, ()),
        ("n7: Test NCCL failure common.cu:958 'remote process exited or there was a network error / '", FindingKind.NETWORK_ERROR, ("n7",)),
        ("n7: Test NCCL failure common.cu:958 'invalid usage (run with NCCL_DEBUG=WARN for details)'", FindingKind.MISCONFIGURED, ("n7",)),
        ("n7: Test NCCL failure common.cu:1057 'internal error / '", FindingKind.APPLICATION_ERROR, ("n7",)),
        ("n7: Test timeout (30is) common.cu:600", FindingKind.NO_PROGRESS, ("n7",)),
        (" .. n7 pid 4000: Test failure common.cu:1126", FindingKind.APPLICATION_ERROR, ("n7",)),
    ],
)
def test_the_programs_own_errors_fail(line: str, kind: FindingKind, hosts: tuple[str, ...]) -> None:
    """NVIDIA/nccl-tests#280, #252, #66, #13."""
    text = "\n".join([*head(NEW), *table(NEW)[:-1], line]) + "\n"
    result = analyze_nccl_tests(text, exit_status=1)
    assert result.outcome is Outcome.FAIL and (result.findings[0].kind, result.findings[0].nodes) == (kind, hosts)


def test_log_lines_of_nccl_itself_are_evidence_not_failures() -> None:
    text = output(NEW) + "node-a:1:2 [0] transport.cc:154 NCCL WARN Cuda failure 'peer access is not supported'\n"
    result = analyze_nccl_tests(text)
    assert result.outcome is Outcome.PASS and result.details["nccl_warnings"]


def test_a_trace_after_a_summary_that_failed_is_not_a_second_finding() -> None:
    text = output(ITERS, wrong="1") + " .. node-a pid 12345: Test failure common.cu:1127\n"
    assert kinds(analyze_nccl_tests(text, 1)) == [FindingKind.WRONG_RESULT, FindingKind.NOT_MEASURED]
    low = analyze_nccl_tests(output(ITERS, average="90 FAILED") + " .. node-a pid 12345: Test failure common.cu:1126\n")
    assert low.outcome is Outcome.FAIL and kinds(low) == [FindingKind.LOW_BANDWIDTH]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "There are not enough slots available in the system to satisfy the 16\nslots that were requested by the application:\n",
        "srun: error: Unable to create step for job 12: More processors requested than permitted\n",
        "bash: line 1: all_reduce_perf: command not found\n",
        "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file\n",
        "mpirun noticed that process rank 3 with PID 0 on node node-b exited on signal 9 (Killed).\n",
        "step 100 loss 2.3 time 0.4\n",
    ],
)
def test_what_never_ran_is_not_measured(text: str) -> None:
    assert analyze_nccl_tests(text).outcome is Outcome.NOT_MEASURED
    assert analyze_nccl_tests("\n".join([*head(NEW), *table(NEW), text]) + "\n").outcome is Outcome.NOT_MEASURED


def test_exit_status_and_text_are_judged_together() -> None:
    assert analyze_nccl_tests(output(NEW), exit_status=0).outcome is Outcome.PASS
    assert analyze_nccl_tests(output(NEW), exit_status=1).outcome is Outcome.NOT_MEASURED
    assert analyze_nccl_tests(output(NEW, wrong="3"), exit_status=0).outcome is Outcome.FAIL


def test_a_row_that_does_not_fit_is_noted_and_not_guessed() -> None:
    lines = table(NEW)
    lines[-2] = lines[-2].replace(" sum ", " sum 3 ")
    result = analyze_nccl_tests("\n".join([*head(NEW), *lines, *tail(NEW)]) + "\n")
    assert result.details["rows"] == 2 and result.outcome is Outcome.PASS
    (note,) = result.findings
    assert note.level is Level.NOTE and "1 rows" in note.reason and "14 fields, where the header has 13" in str(note.evidence["lines"])


def test_elided_rows_are_said() -> None:
    text = "\n".join([*head(NEW), *table(NEW)[:-1], "        ...", table(NEW)[-1], *tail(NEW)]) + "\n"
    assert [f.reason for f in analyze_nccl_tests(text).findings] == ["some rows were left out of the stored text"]


@pytest.mark.parametrize("layout", [OLD_ROOT, NEW, ITERS, OLD, OLD_PLAIN])
def test_rows_without_a_header_are_known_by_their_shape(layout: str) -> None:
    bare = "\n".join(line for line in table(layout) if "float" in line) + "\n"
    with_header, without = parse_nccl_tests(output(layout)).rows, parse_nccl_tests(bare).rows
    assert [(r.key, r.halves, r.iters) for r in without] == [(r.key, r.halves, r.iters) for r in with_header]


# ---- with a baseline


@pytest.mark.spec("P2")
def test_slow_sizes_are_named_with_measured_and_required() -> None:
    baseline = bus_bandwidths(parse_nccl_tests(output(NEW)))
    assert judge_nccl_tests(parse_nccl_tests(output(NEW, scale=0.95)), baseline).outcome is Outcome.PASS
    slow = judge_nccl_tests(parse_nccl_tests(output(NEW, scale=0.8)), baseline)
    assert slow.outcome is Outcome.FAIL and kinds(slow) == [FindingKind.LOW_BANDWIDTH] * 3
    last = slow.findings[-1]
    assert (last.measured, last.unit, last.evidence["size"]) == (287.6, "GB/s", 67108864) and last.required == pytest.approx(0.9 * 359.5)
    assert "not compared" in judge_nccl_tests(parse_nccl_tests(output(NEW))).summary


def test_a_cut_run_is_not_compared() -> None:
    baseline = bus_bandwidths(parse_nccl_tests(output(NEW)))
    cut = "\n".join([*head(NEW), *table(NEW)]) + "\n"
    assert judge_nccl_tests(parse_nccl_tests(cut), baseline).outcome is Outcome.NOT_MEASURED
