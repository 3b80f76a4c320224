"""The canary's measurement on the processor, its process, and (where there is one) a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from elastic_health.findings import FindingKind
from elastic_health.preflight.canary import CPU, judge
from elastic_health.preflight.canary_etcd import check_canary
from elastic_health.preflight.canary_proc import Ended, run_canary
from elastic_health.preflight.canary_report import CPU_DTYPES, SEED, Report, judge_report, own_votes, read_report
from elastic_health.preflight.canary_torch import both_inputs, digest_of, exact, inputs, known, main, measure, measure_cpu
from elastic_health.preflight.results import Outcome
from tests.etcd_fixture import wait_until
from tests.preflight.votes import AT, GOOD, key, vote

pytestmark = pytest.mark.spec("P4")

FIRST_INPUT = "d107904ae1dc3733"
"""The beginning of the digest of `inputs(33, 7, 0)`, the same on every machine; another one needs another `RECIPE`."""


def twin(size: int, seed: int, which: int) -> list[float]:
    """The inputs in plain Python, number by number."""
    out = []
    for i in range(size * size):
        word = (2 * i + which + seed * 0x9E3779B1) % 2**32
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            word = (word ^ word >> shift) * factor % 2**32
        word ^= word >> 16
        out.append((word % 2**24 - 2**23) * 2.0 ** (word // 2**24 % 8 - 28))
    return out


@pytest.mark.parametrize(("size", "seed", "which"), [(33, 7, 0), (5, SEED, 1), (40, -3, 1)])
def test_inputs_are_what_the_recipe_says(size: int, seed: int, which: int) -> None:
    assert inputs(size, seed, which).flatten().tolist() == twin(size, seed, which)


def test_inputs_are_the_same_everywhere_and_well_mixed() -> None:
    value = inputs(33, 7, 0)
    assert digest_of(value).startswith(FIRST_INPUT)
    assert value.abs().max() < 4 and len(set(value.flatten().tolist())) > 1080
    assert abs(value.mean()) < 0.2 and (value < 0).sum() in range(400, 700)
    assert len({digest_of(inputs(33, seed, which)) for seed in (7, 8, -1, 1 << 70) for which in (0, 1)}) == 8
    assert torch.equal(inputs(600, 7, 1)[:40].flatten()[: 40 * 600], inputs(600, 7, 1).flatten()[:24000])


def test_inputs_do_not_depend_on_torchs_generator() -> None:
    before = torch.get_rng_state()
    inputs(8, 1, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_single_bit_makes_another_digest() -> None:
    value = inputs(64, 7, 0)
    flipped = value.clone()
    flipped.view(torch.int32)[13, 5] ^= 1
    assert digest_of(value) == digest_of(value.clone().t().contiguous().t()) != digest_of(flipped)
    assert digest_of(torch.zeros(0)) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_processor_agrees_with_itself_whatever_the_script_had_set() -> None:
    first = measure_cpu(size=64)
    threads, reduced = torch.get_num_threads(), torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.set_num_threads(2)
    again = measure_cpu(size=64)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    assert [u.digests for u in first.units] == [u.digests for u in again.units] and [u.fingerprint for u in first.units] == [
        u.fingerprint for u in again.units
    ]
    assert {u.fingerprint.dtype for u in first.units} == set(CPU_DTYPES) and all(len(set(u.digests)) == 1 for u in first.units)
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is reduced
    with pytest.raises(KeyError), exact(1):
        raise KeyError
    assert torch.get_num_threads() == threads
    assert judge_report(first, "a").outcome is Outcome.PASS


def test_a_dtype_that_fails_is_told_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> list[str]:
        if arguments[1] == "float16":
            raise RuntimeError("not implemented for 'Half'\nand more")
        return [GOOD] * 3

    monkeypatch.setattr("elastic_health.preflight.canary_torch.digests", broken)
    units = list(measure(known(torch.device(CPU)), both_inputs(16, 7), ("float32", "float16", "bfloat16"), 7, 3))
    assert [u.error for u in units] == ["", "not implemented for 'Half'", ""]
    assert judge_report(Report(tuple(units), True, 1), "a").outcome is Outcome.NOT_MEASURED


def test_the_process_measures_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    """One start of an interpreter with torch; what it prints is what this process computes under the same settings."""
    ended = run_canary(60, arguments=["--device", "cpu", "--size", "64"])
    assert ended.status == 0 and ended.report.complete and ended.report.devices == 1, ended
    assert main(["--device", "cpu", "--size", "64"]) == 0
    here = read_report(capsys.readouterr().out)
    assert [(u.device, u.digests) for u in here.units] == [(u.device, u.digests) for u in ended.report.units]
    assert here.units[0].fingerprint == ended.report.units[0].fingerprint
    assert here.units[0].fingerprint.seed == SEED
    own = own_votes(here.units[:1], "a", AT)
    assert judge([vote("b", own[0].digest), vote("c", own[0].digest)], own, None).outcome is Outcome.PASS


def test_the_default_canary_costs_a_join_little() -> None:
    measure_cpu(size=16)
    began = time.process_time()
    measure_cpu()
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("wrong", [["--size", "0", "--repeats", "0"], ["--size", "-4"], ["--dtype", "int3"], ["--device", "tpu"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2 and capsys.readouterr().err


# ---- its process, by stand-ins


def stand_in(tmp_path: Path, body: str) -> Ended:
    script = tmp_path / "canary.py"
    script.write_text(body)
    return run_canary(60, command=[sys.executable, str(script)])


BEGIN_1 = 'print(\'{"begin": "GPU-1"}\', flush=True)\n'


def line(device: str, *digests: str) -> str:
    unit = {"device": device, "fingerprint": key().__dict__, "digests": digests, "repeats": 3}
    return f"print({json.dumps(json.dumps(unit))}, flush=True)\n"


def test_a_crash_loses_no_other_device(tmp_path: Path) -> None:
    ended = stand_in(tmp_path, line("GPU-0", *[GOOD] * 3) + BEGIN_1 + "import os\nos.abort()\n")
    assert ended.status == -6 and [u.device for u in ended.report.units] == ["GPU-0"]
    result = judge_report(ended.report, "a")
    assert result.outcome is Outcome.NOT_MEASURED and "ended before" in result.summary and "GPU-1" in result.summary
    assert result.findings[-1].gpus == ("GPU-1",)


def test_a_flaky_device_is_named_though_the_process_crashed_later(tmp_path: Path) -> None:
    ended = stand_in(tmp_path, line("GPU-0", GOOD, GOOD, GOOD.replace("7", "8")) + "raise SystemExit(9)\n")
    result = judge_report(ended.report, "a")
    assert ended.status == 9 and result.outcome is Outcome.FAIL and result.findings[0].gpus == ("GPU-0",)


def test_a_hanging_process_ends_with_its_children(tmp_path: Path) -> None:
    unit = json.dumps({"device": "GPU-0", "fingerprint": key().__dict__, "digests": [GOOD] * 3, "repeats": 3})
    script = 'printf \'%s\\n\' "$1"; sleep 600 & echo $! > "$2"; wait'
    began = time.monotonic()
    ended = run_canary(1.0, command=["sh", "-c", script, "canary", unit, str(tmp_path / "pid")])
    assert ended.status is None and time.monotonic() - began < 20 and not ended.report.complete and len(ended.report.units) == 1
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, "its child is gone")
    assert check_canary(None, ended.report, "a", at=AT).outcome is Outcome.NOT_MEASURED


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    body = "print('a warning of some library')\nprint('{\"device\": 3}')\nprint('{')\nprint('{\"done\": true, \"devices\": 1}')\n"
    ended = stand_in(tmp_path, body)
    assert ended.report.complete and len(ended.report.unread) == 2
    assert judge_report(ended.report, "a").outcome is Outcome.NOT_MEASURED
    assert len(read_report(line("GPU-0", "zz")[6:].replace("\\", "")).units) == 0


def test_every_cut_of_a_report_is_never_a_pass() -> None:
    unit = json.dumps({"device": "GPU-0", "fingerprint": key().__dict__, "digests": [GOOD] * 3, "repeats": 3})
    whole = unit + '\n{"done": true, "devices": 1}'
    assert judge_report(read_report(whole), "a").outcome is Outcome.PASS
    for cut in range(len(whole)):
        assert judge_report(read_report(whole[:cut]), "a").outcome is Outcome.NOT_MEASURED


def test_devices_that_gave_no_answer_are_not_measured() -> None:
    unit = json.dumps({"device": "GPU-0", "fingerprint": key().__dict__, "digests": [GOOD] * 3, "repeats": 3})
    result = judge_report(read_report(unit + '\n{"done": true, "devices": 8}'), "a")
    assert result.outcome is Outcome.NOT_MEASURED and "1 of 8 devices" in result.summary


def test_no_device_is_not_measured() -> None:
    assert judge_report(read_report('{"done": true, "devices": 0}'), "a").outcome is Outcome.NOT_MEASURED


def test_a_device_error_names_the_device_unless_its_memory_is_taken() -> None:
    body = {
        "device": "GPU-0",
        "fingerprint": key().__dict__,
        "digests": [],
        "repeats": 3,
        "error": "CUDA error: unspecified launch failure",
    }
    done = '\n{"done": true, "devices": 1}'
    failed = judge_report(read_report(json.dumps(body) + done), "a")
    assert failed.outcome is Outcome.FAIL and failed.findings[0].kind is FindingKind.DEVICE_ERROR and failed.findings[0].gpus == ("GPU-0",)
    body["error"] = "CUDA out of memory. Tried to allocate 64.00 MiB"
    assert judge_report(read_report(json.dumps(body) + done), "a").outcome is Outcome.NOT_MEASURED


# ---- a GPU


def test_on_every_gpu_of_this_machine() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here: the CUDA part of the canary was not run")
    said = subprocess.run(
        [sys.executable, "-m", "elastic_health.preflight.canary_torch", "--device", "cuda", "--size", "2048"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    report = read_report(said.stdout)
    assert said.returncode == 0 and report.complete and report.devices == torch.cuda.device_count(), said.stderr
    first = report.units[0].fingerprint
    assert first.driver != "unknown" and first.cuda and first.blas[0].isdigit() and report.units[0].device.startswith(("GPU-", "MIG-"))
    assert judge_report(report, "a").outcome is Outcome.PASS
    by_dtype = {u.fingerprint.dtype: u.digests[0] for u in report.units if u.device == report.units[0].device}
    assert len(by_dtype) == len(set(by_dtype.values())), "TF32 and float32 differ"
