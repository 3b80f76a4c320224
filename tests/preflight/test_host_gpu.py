"""Judgement of GPUs: one bad one among eight is found and named, and what is no fault is no finding."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.host_facts import (
    Gpu,
    GpuProcess,
    Gpus,
    HostFacts,
    visible_gpus,
)
from elastic_health.preflight.host_limits import HostLimits
from elastic_health.preflight.results import Outcome
from tests.preflight.hosts import GIB, GOOD, MIB, host, judged, levels, only

pytestmark = pytest.mark.spec("P5")


def test_a_good_host_of_eight_passes() -> None:
    result = judged(host(*GOOD), HostLimits(gpus=8, nvlinks=18))
    assert (result.outcome, result.findings) == (Outcome.PASS, ()) and result.details["gpus"] == 8


@pytest.mark.parametrize(
    ("change", "kind", "level", "says"),
    [
        ({"error": "GPU is lost"}, FindingKind.DEVICE_ERROR, Level.FAIL, "GPU is lost"),
        ({"uncorrected": 1}, FindingKind.DEVICE_ERROR, Level.FAIL, "1 uncorrectable"),
        ({"remap_failed": True}, FindingKind.DEVICE_ERROR, Level.FAIL, "remapped"),
        ({"remap_pending": True}, FindingKind.DEVICE_ERROR, Level.WARN, "reset"),
        ({"retire_pending": True}, FindingKind.DEVICE_ERROR, Level.WARN, "reset"),
        ({"retired_pages": 60}, FindingKind.DEVICE_ERROR, Level.FAIL, "60 retired"),
        ({"reasons": 0x40 | 0x8}, FindingKind.THROTTLED, Level.FAIL, "too hot"),
        ({"reasons": 0x80 | 0x8}, FindingKind.THROTTLED, Level.FAIL, "power supply"),
        ({"reasons": 0x20}, FindingKind.THROTTLED, Level.WARN, "temperature limit"),
        ({"reasons": 0x8}, FindingKind.THROTTLED, Level.WARN, "hardware"),
        ({"pcie_width": 8}, FindingKind.LINK_ERROR, Level.FAIL, "x8 of x16"),
        ({"pcie_width": 8, "state": 8}, FindingKind.LINK_ERROR, Level.WARN, "x8 of x16"),
        ({"pcie_generation": 3}, FindingKind.LINK_ERROR, Level.WARN, "3 of 5"),
        ({"links": (True,) * 17 + (False,)}, FindingKind.LINK_ERROR, Level.FAIL, "17 of 18 NVLinks"),
        ({"links": (False,) * 18}, FindingKind.LINK_ERROR, Level.FAIL, "0 of 18 NVLinks"),
        ({"processes": (GpuProcess(77, "python", GIB),)}, FindingKind.LEFTOVER_PROCESS, Level.FAIL, "77 (python)"),
        ({"processes": (GpuProcess(77, "", None),)}, FindingKind.LEFTOVER_PROCESS, Level.FAIL, "not visible"),
        ({"ecc": False}, FindingKind.NOTE, Level.NOTE, "ECC is off"),
        ({"model": "NVIDIA A100"}, FindingKind.MISCONFIGURED, Level.WARN, "1 × NVIDIA A100"),
    ],
)
def test_one_bad_gpu_among_eight_is_found_and_named(change: dict[str, object], kind: FindingKind, level: Level, says: str) -> None:
    for index in (0, 5):
        gpus = list(GOOD)
        gpus[index] = dataclasses.replace(gpus[index], **change)  # type: ignore[arg-type]
        result = judged(host(*gpus))
        found = only(result)
        assert (found.kind, found.level) == (kind, level) and says in found.reason
        assert result.outcome is {Level.FAIL: Outcome.FAIL, Level.WARN: Outcome.WARN, Level.NOTE: Outcome.PASS}[level]
        if "model" not in change:
            assert found.gpus == (f"GPU-{index}",) and found.evidence["index"] == index
        assert found.advice


@pytest.mark.parametrize(
    "change",
    [
        {"reasons": 0x4},  # a power cap: how a loaded GPU runs
        {"reasons": None},
        {"corrected": 10_000, "corrected_ever": 10_000, "uncorrected_ever": 3, "remapped": 2},  # healed
        {"pcie_generation": 1, "state": 8},  # idle
        {"retired_pages": 59},
        {"processes": (GpuProcess(77, "python", GIB, ours=True),)},
        {"processes": (GpuProcess(77, "python", GIB, cared_for=True),)},
        {"processes": (GpuProcess(77, "nvidia-cuda-mps-server", GIB),)},
        {"processes": (GpuProcess(77, "python", MIB),)},
        {"pcie_width": None, "pcie_width_max": None, "uncorrected": None, "remap_failed": None, "ecc": None},
    ],
)
def test_what_is_no_fault_is_no_finding(change: dict[str, object]) -> None:
    gpus = [dataclasses.replace(GOOD[0], **change), *GOOD[1:]]  # type: ignore[arg-type]
    assert judged(host(*gpus)).findings == ()


def test_a_missing_gpu() -> None:
    found = only(judged(host(*GOOD[:7]), HostLimits(gpus=8)))
    assert (found.kind, found.measured, found.required) == (FindingKind.DEVICE_MISSING, 7, 8)
    found = only(judged(host(*GOOD[:7], devices=8)))
    assert (found.kind, found.level) == (FindingKind.DEVICE_MISSING, Level.FAIL)
    without = HostFacts(gpus=Gpus(7, False, "nvidia-ml-py is not installed"))
    kinds = [f.kind for f in judged(without, HostLimits(gpus=8)).findings]
    assert kinds == [FindingKind.DEVICE_MISSING, FindingKind.NOT_MEASURED]
    assert judged(HostFacts(gpus=Gpus(0, False, "no NVIDIA GPU here")), HostLimits(gpus=8)).outcome is Outcome.FAIL
    assert judged(HostFacts(gpus=Gpus(None, False, "?")), HostLimits(gpus=8)).outcome is Outcome.NOT_MEASURED


def test_without_the_library_gpus_are_not_measured_and_without_gpus_it_is_a_note() -> None:
    there = judged(HostFacts(gpus=Gpus(8, False, "nvidia-ml-py is not installed")))
    assert there.outcome is Outcome.NOT_MEASURED and only(there).advice == "pip install nvidia-ml-py"
    none = judged(HostFacts(gpus=Gpus(0, False, "no NVIDIA GPU here")))
    assert none.outcome is Outcome.PASS and only(none).reason.startswith("skipped:")


def test_nvlinks_that_are_down_everywhere() -> None:
    """NVIDIA/DCGM#198: all NVLinks were down and level 2 passed."""
    down = [dataclasses.replace(g, links=(False,) * 18) for g in GOOD]
    found = only(judged(host(*down)))
    assert found.level is Level.WARN and (found.measured, found.required) == (0, 18)
    assert "DCGM" in found.advice and "bandwidth" in found.advice
    assert judged(host(*down), HostLimits(nvlinks=None)).findings == ()
    assert [f.level for f in judged(host(*down), HostLimits(nvlinks=18)).findings] == [Level.FAIL] * 8
    assert judged(host(down[0])).findings == ()  # one GPU has nobody to be linked to
    assert judged(host(*(dataclasses.replace(g, links=()) for g in GOOD))).findings == ()  # a card without NVLink


def test_boards_that_are_bridged_in_pairs_use_some_of_their_links() -> None:
    bridged = [dataclasses.replace(g, links=(True,) * 4 + (False,) * 8) for g in GOOD[:4]]
    assert levels(judged(host(*bridged))) == [(FindingKind.LINK_ERROR, Level.WARN)]
    assert judged(host(*bridged), HostLimits(nvlinks=4)).findings == ()
    loose = [dataclasses.replace(bridged[0], links=(True,) * 3 + (False,) * 9), *bridged[1:]]
    assert only(judged(host(*loose), HostLimits(nvlinks=4))).gpus == ("GPU-0",)


def test_only_gpus_that_this_agent_may_use_are_judged() -> None:
    gpus = [dataclasses.replace(GOOD[0], visible=False, uncorrected=5, processes=(GpuProcess(7, "x", GIB),)), *GOOD[1:]]
    assert judged(host(*gpus)).findings == ()


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, {0, 1, 2}),
        ("0,2", {0, 2}),
        (" 1 ", {1}),
        ("GPU-2", {2}),
        ("GPU-1,GPU-0", {0, 1}),
        ("", set()),
        ("-1", set()),
        ("MIG-xyz", {0, 1, 2}),
        ("7", {0, 1, 2}),
        ("GPU-", {0, 1, 2}),
        ("0,9", {0, 1, 2}),
    ],
)
def test_cuda_visible_devices(value: str | None, seen: set[int]) -> None:
    assert visible_gpus(GOOD[:3], value) == seen


FLAGS = st.none() | st.booleans()
COUNTS = st.none() | st.integers(0, 2**40)
ANY_GPU = st.builds(
    Gpu,
    index=st.integers(0, 7),
    error=st.sampled_from(["", "GPU is lost"]),
    visible=st.booleans(),
    ecc=FLAGS,
    uncorrected=COUNTS,
    retired_pages=COUNTS,
    retire_pending=FLAGS,
    remap_pending=FLAGS,
    remap_failed=FLAGS,
    reasons=COUNTS,
    state=COUNTS,
    pcie_width=COUNTS,
    pcie_width_max=COUNTS,
    pcie_generation=COUNTS,
    pcie_generation_max=COUNTS,
    links=st.lists(st.booleans(), max_size=4).map(tuple),
)


@given(st.lists(ANY_GPU, max_size=4), st.integers(0, 8), st.integers(0, 4))
def test_any_facts_are_judged_and_a_lost_gpu_never_passes(gpus: list[Gpu], wanted: int, nvlinks: int) -> None:
    result = judged(host(*gpus), HostLimits(gpus=wanted, nvlinks=nvlinks))
    if any(g.visible and (g.error or g.uncorrected or g.remap_failed) for g in gpus) or len(gpus) < wanted:
        assert result.outcome is Outcome.FAIL
    assert all(f.reason for f in result.findings)
