"""nccl-tests outputs cut, mixed, re-cased and hostile: what they must never become; and real ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from elastic_health.preflight.nccl_tests import analyze_nccl_tests
from elastic_health.preflight.results import Outcome
from tests.preflight.nccl_text import LAYOUTS, NEW, NOISE, OLD, PREFIXES, STAMPED, output


@pytest.mark.parametrize("layout", [OLD, STAMPED])
def test_no_cut_of_a_whole_output_passes(layout: str) -> None:
    """At every byte: a pass only where nothing but blanks, `#` and line ends is lost."""
    whole = output(layout)
    for end in range(len(whole)):
        lost = whole[end:].strip("# \n")
        outcome = analyze_nccl_tests(whole[:end]).outcome
        assert outcome is Outcome.NOT_MEASURED if lost else outcome in (Outcome.NOT_MEASURED, Outcome.PASS), whole[:end][-80:]


@pytest.mark.parametrize("layout", [OLD, NEW])
def test_no_cut_turns_a_wrong_result_into_a_pass(layout: str) -> None:
    whole = output(layout, wrong="1e+00" if layout == OLD else "7", average="12.5 FAILED")
    seen_fail = False
    for end in range(len(whole) + 1):
        outcome = analyze_nccl_tests(whole[:end]).outcome
        assert outcome in (Outcome.NOT_MEASURED, Outcome.FAIL)
        assert outcome is Outcome.FAIL or not seen_fail
        seen_fail = seen_fail or outcome is Outcome.FAIL
    assert seen_fail


def _mutated(text: str, rng: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(rng.randrange(4)):
        kind = rng.randrange(5)
        if kind == 0:
            for _ in range(rng.randrange(1, 12)):
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(NOISE))
        elif kind == 1:
            prefix = rng.choice(list(PREFIXES.values()))
            lines = [f"{prefix(i)}{line}" for i, line in enumerate(lines)]
        elif kind == 2:
            lines = [rng.choice((line.upper(), line.lower(), line)) for line in lines]
        elif kind == 3:
            lines = [f"\x1b[1;33m{line}\x1b[0m" for line in lines]
        else:
            at = rng.randrange(len(lines))
            lines.insert(at, lines[at])
    return rng.choice(("\n", "\r\n")).join(lines) + "\n"


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from(LAYOUTS), st.booleans())
def test_noise_never_turns_a_failure_into_a_pass(seed: int, layout: str, wrong: bool) -> None:
    rng = random.Random(seed)
    said = ("1e+00" if layout.startswith("old") else "9") if wrong else ""
    result = analyze_nccl_tests(_mutated(output(layout, wrong=said), rng))
    assert (result.outcome is Outcome.FAIL) if wrong else (result.outcome in (Outcome.PASS, Outcome.NOT_MEASURED))


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from(LAYOUTS))
def test_a_mutated_and_cut_output_never_passes(seed: int, layout: str) -> None:
    rng = random.Random(seed)
    text = _mutated(output(layout), rng)
    end = rng.randrange(text.lower().index("avg bus bandwidth"))
    assert analyze_nccl_tests(text[:end]).outcome is Outcome.NOT_MEASURED


@settings(max_examples=100)
@given(st.text(max_size=400))
@example("Rank 0 on a device 0 []")
@example("# Avg bus bandwidth : -nan\n")
@example("1 2 float sum -1 nan nan nan nan inf inf inf inf\n")
def test_any_text_is_read(text: str) -> None:
    assert analyze_nccl_tests(text).outcome in (Outcome.NOT_MEASURED, Outcome.FAIL)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "unit", ["1 ", "a", "Rank 1 ", ": Test NCCL failure ", "float 1 2 ", "\x1b[", "Avg bus bandwidth : 1", "Test failure a:", ". ", "\r"]
)
def test_hostile_lines_of_a_megabyte_are_read(unit: str) -> None:
    line = unit * ((1 << 20) // len(unit))
    assert analyze_nccl_tests(line).outcome is not Outcome.PASS
    assert analyze_nccl_tests(output(NEW, wrong="2") + line).outcome is Outcome.FAIL
    analyze_nccl_tests((unit * 200 + "\n") * 200)


# ---- real outputs: outcome, average, peak, ranks, rows

REAL: dict[str, tuple[Outcome, float | None, float | None, int | None, int]] = {
    "aws_batch.txt": (Outcome.PASS, 156.742, 483.35, None, 32),
    "aws_slurm_topo.txt": (Outcome.PASS, 84.0569, 369.86, None, 3),
    "dcgm_mock_output_pass.txt": (Outcome.NOT_MEASURED, 0.0, 0.0, 1, 1),
    "gcm_sample_failure_output.txt": (Outcome.NOT_MEASURED, None, None, None, 0),
    "gcm_sample_single_success_output.txt": (Outcome.PASS, 210.99, 231.72, 8, 6),
    "issue107_two_headers_no_mpi.txt": (Outcome.NOT_MEASURED, None, None, 1, 0),
    "issue167_op_all_sweep.txt": (Outcome.NOT_MEASURED, None, 3.02, None, 4),
    "issue280_partial_rank_list.txt": (Outcome.FAIL, None, 0.0, 3, 3),
    "issue356_oob_56_failed.txt": (Outcome.FAIL, None, None, None, 0),
    "superbench_nccl_allgather.log": (Outcome.WARN, 58.2651, 230.07, 8, 34),
    "superbench_nccl_allreduce.log": (Outcome.WARN, 68.4048, 235.26, 8, 34),
    "superbench_nccl_reduce.log": (Outcome.WARN, 65.018, 231.28, 8, 34),
}


@pytest.mark.spec("P2", "U3")
def test_real_outputs(cases: Path) -> None:
    """awslabs/awsome-distributed-training, NVIDIA/DCGM, facebookresearch/gcm, NVIDIA/nccl-tests#107, #167, #280, #356,
    microsoft/superbenchmark; files that this table doesn't know are only read."""
    for path in sorted((cases / "nccl_tests").iterdir()):
        result = analyze_nccl_tests(path.read_text())
        d = result.details
        got = (result.outcome, d["average_busbw"], d["peak_busbw"], d["world_size"], d["rows"])
        assert got == REAL.get(path.name, got), path.name
        json.dumps(dict(d), allow_nan=False)
    assert REAL.keys() <= {path.name for path in (cases / "nccl_tests").iterdir()}


@pytest.mark.spec("P2")
def test_real_outputs_cut_and_mixed_with_noise(cases: Path) -> None:
    for path in sorted((cases / "nccl_tests").iterdir()):
        text = path.read_text()
        plain = analyze_nccl_tests(text).outcome
        for seed in range(12):
            rng = random.Random(seed)
            mutated = analyze_nccl_tests(_mutated(text, rng)).outcome
            assert mutated is not Outcome.PASS or plain is Outcome.PASS, (path.name, seed)
            assert mutated is Outcome.FAIL or plain is not Outcome.FAIL, (path.name, seed)
            cut = analyze_nccl_tests(text[: rng.randrange(max(1, text.rfind("Avg bus")))])
            assert cut.outcome is not Outcome.PASS, (path.name, seed)
