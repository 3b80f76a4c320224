"""Judgement of a host: each bound from both sides, and what is not said is not passed."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.clock import ClockSample, from_date, from_stamp, offset
from elastic_health.preflight.host import judge_host
from elastic_health.preflight.host_facts import (
    Gpu,
    GpuProcess,
    Gpus,
    HostFacts,
    IbPort,
    KernelLog,
    Limits,
    Memory,
    Network,
    Nic,
    Orphan,
    Part,
    Space,
    visible_gpus,
)
from elastic_health.preflight.host_limits import HostLimits, fits
from elastic_health.preflight.results import CheckResult, Outcome, not_measured

pytestmark = pytest.mark.spec("P5")

GIB = 1024**3
MIB = 1024**2


def judged(facts: HostFacts, limits: HostLimits | None = None, **more: object) -> CheckResult:
    return judge_host(facts, limits or HostLimits(), **more)  # type: ignore[arg-type]


def only(result: CheckResult) -> Finding:
    assert len(result.findings) == 1, result.findings
    return result.findings[0]


def levels(result: CheckResult) -> list[tuple[FindingKind, Level]]:
    return [(f.kind, f.level) for f in result.findings]


# ---- memory, space, limits


@pytest.mark.parametrize(
    ("available_gib", "outcome"),
    [(100.0, Outcome.PASS), (25.7, Outcome.PASS), (25.5, Outcome.WARN), (1.0, Outcome.WARN), (0.9, Outcome.FAIL)],
)
def test_memory(available_gib: float, outcome: Outcome) -> None:
    result = judged(HostFacts(memory=Memory(256 * GIB, int(available_gib * GIB))))
    assert result.outcome is outcome
    if outcome is not Outcome.PASS:
        found = only(result)
        assert found.kind is FindingKind.LOW_RESOURCE and found.unit == "GiB" and found.advice
        assert found.measured == pytest.approx(available_gib) and found.required == pytest.approx(1.0 if outcome is Outcome.FAIL else 25.6)


@pytest.mark.parametrize(
    ("space", "outcome"),
    [
        (Space("/scratch", 1000 * GIB, 500 * GIB), Outcome.PASS),
        (Space("/scratch", 1000 * GIB, 99 * GIB), Outcome.WARN),
        (Space("/scratch", 5 * GIB, GIB // 2), Outcome.FAIL),
        (Space("/scratch", 1000 * GIB, 500 * GIB, 1000, 49), Outcome.WARN),
        (Space("/scratch", 1000 * GIB, 500 * GIB, 0, 0), Outcome.PASS),
        (Space("/scratch", 1000 * GIB, 500 * GIB, read_only=True), Outcome.FAIL),
        (Space("/scratch", error="No such file or directory"), Outcome.FAIL),
        (Space("/dev/shm", 64 * MIB, 64 * MIB), Outcome.WARN),
        (Space("/dev/shm", 64 * MIB, 31 * MIB), Outcome.FAIL),
        (Space("/dev/shm", 24 * GIB, 2 * GIB), Outcome.PASS),
    ],
)
def test_space(space: Space, outcome: Outcome) -> None:
    result = judged(HostFacts(spaces=(Space("/", 100 * GIB, 50 * GIB), space)))
    assert result.outcome is outcome
    assert all(space.path in f.reason and f.advice for f in result.findings)


@pytest.mark.parametrize(
    ("hard", "outcome"), [(None, Outcome.PASS), (1_048_576, Outcome.PASS), (4096, Outcome.WARN), (1024, Outcome.WARN), (512, Outcome.FAIL)]
)
def test_open_files(hard: int | None, outcome: Outcome) -> None:
    assert judged(HostFacts(limits=Limits(256, hard, None))).outcome is outcome


def test_locked_memory_matters_with_rdma_only() -> None:
    few = Limits(None, None, 8 * MIB)
    assert judged(HostFacts(limits=few)).outcome is Outcome.PASS
    assert judged(HostFacts(limits=few, network=Network(ports=(port(),)))).outcome is Outcome.WARN
    assert judged(HostFacts(limits=Limits(None, None, None), network=Network(ports=(port(),)))).outcome is Outcome.PASS


# ---- clock


@pytest.mark.parametrize(
    ("ahead_s", "outcome"),
    [(0.0, Outcome.PASS), (0.9, Outcome.PASS), (5.0, Outcome.WARN), (-5.0, Outcome.WARN), (60.0, Outcome.FAIL), (-3600.0, Outcome.FAIL)],
)
def test_clock(ahead_s: float, outcome: Outcome) -> None:
    true = 1_700_000_000.25
    sample = ClockSample(true + ahead_s, true + ahead_s + 0.01, math.floor(true), math.floor(true) + 1.0)
    result = judged(HostFacts(), clock=(sample,))
    assert result.outcome is outcome
    if outcome is not Outcome.PASS:
        found = only(result)
        assert (
            found.kind is FindingKind.CLOCK_OFFSET
            and ("ahead" in found.reason) is (ahead_s > 0)
            and abs(ahead_s) - 1 <= (found.measured or 0)
        )


def test_a_store_that_tells_no_time_is_not_measured_and_none_is_no_finding() -> None:
    assert judged(HostFacts(), clock=()).outcome is Outcome.NOT_MEASURED
    assert judged(HostFacts(), clock=None).outcome is Outcome.PASS
    assert judged(HostFacts(), HostLimits(parts=(Part.MEMORY,)), clock=()).outcome is Outcome.PASS


@given(st.floats(-5000, 5000), st.lists(st.tuples(st.floats(0, 100), st.floats(0, 2)), min_size=1, max_size=6))
def test_the_true_offset_is_never_outside_of_what_samples_leave_possible(true: float, looks: list[tuple[float, float]]) -> None:
    samples = []
    for at, trip in looks:
        other = 1e6 + at + trip / 2  # the other clock, somewhere between sending and receiving
        samples.append(ClockSample(1e6 + at + true, 1e6 + at + trip + true, float(math.floor(other)), math.floor(other) + 1.0))
    found = offset(samples)
    assert found is not None and found.low - 1e-6 <= true <= found.high + 1e-6
    assert abs(found.least) <= abs(true) + 1e-6


def test_a_stamp_from_the_future_bounds_the_offset_and_one_from_the_past_says_nothing() -> None:
    behind = offset([from_stamp(1000.0, 1042.0)])
    assert behind is not None and behind.least == -42.0
    fine = offset([from_stamp(1000.0, 400.0)])
    assert fine is not None and fine.least == 0.0


def test_clocks_that_contradict_each_other_accuse_nobody_by_the_worse_one() -> None:
    right, wrong = ClockSample(1000.0, 1000.0, 999.5, 1000.5), ClockSample(1000.0, 1000.0, 4000.0, 4001.0)
    found = offset([wrong, right])
    assert found is not None and found.least == 0.0


def test_a_clock_that_was_set_in_between_is_no_sample() -> None:
    assert offset([ClockSample(1000.0, 990.0, 1.0, 2.0)]) is None and offset([]) is None


def test_dates_are_read_as_http_writes_them() -> None:
    assert from_date(1.0, 2.0, "Sun, 06 Nov 1994 08:49:37 GMT") == ClockSample(1.0, 2.0, 784111777.0, 784111778.0)
    for bad in ("", "yesterday", "1994-11-06T08:49:37Z", "Sun, 06 Nov 1994 08:49:37 CET"):
        assert from_date(1.0, 2.0, bad) is None


# ---- leftovers


def test_orphans_are_named_with_their_run() -> None:
    """GaTech-RL2/EgoVerse#682: 126 data-loader workers survived a cancelled job."""
    left = tuple(Orphan(100 + i, "python", "old-run", 60.0 + i, MIB) for i in range(126))
    found = only(judged(HostFacts(orphans=left)))
    assert (found.kind, found.level, found.measured) == (FindingKind.LEFTOVER_PROCESS, Level.WARN, 126)
    assert "old-run" in found.reason and found.advice.startswith("kill 100 101") and len(found.advice) < 100
    assert judged(HostFacts(orphans=())).outcome is Outcome.PASS


# ---- network


def port(state: str = "ACTIVE", rate: float = 400.0, device: str = "mlx5_0", number: int = 1) -> IbPort:
    return IbPort(device, number, state, "LinkUp" if state == "ACTIVE" else "Polling", "InfiniBand", rate)


def test_only_named_interfaces_are_judged() -> None:
    nics = (Nic("eth0", True, True, 25_000), Nic("eth1", False, True), Nic("docker0", False, False))
    assert judged(HostFacts(network=Network(nics))).outcome is Outcome.PASS
    assert judged(HostFacts(network=Network(nics)), HostLimits(nics=("eth0",), nic_mbps=25_000)).outcome is Outcome.PASS
    down = only(judged(HostFacts(network=Network(nics)), HostLimits(nics=("eth*",))))
    assert (down.kind, down.level) == (FindingKind.LINK_ERROR, Level.FAIL) and "eth1" in down.reason
    slow = only(judged(HostFacts(network=Network(nics)), HostLimits(nics=("eth0",), nic_mbps=100_000)))
    assert (slow.measured, slow.required, slow.unit) == (25_000, 100_000, "Mbit/s")
    gone = only(judged(HostFacts(network=Network(nics)), HostLimits(nics=("ib0",))))
    assert gone.kind is FindingKind.DEVICE_MISSING
    silent = judged(HostFacts(network=Network((Nic("v0", True, True, None),))), HostLimits(nics=("v0",), nic_mbps=1000))
    assert silent.outcome is Outcome.NOT_MEASURED


def test_rdma_ports() -> None:
    eight = tuple(port(device=f"mlx5_{i}") for i in range(8))
    assert judged(HostFacts(network=Network(ports=eight))).outcome is Outcome.PASS
    spare = (*eight, port("DOWN", 10.0, "mlx5_8"))
    assert levels(judged(HostFacts(network=Network(ports=spare)))) == [(FindingKind.LINK_ERROR, Level.WARN)]
    named = HostLimits(rdma_ports=("mlx5_?",))
    assert levels(judged(HostFacts(network=Network(ports=spare)), named)) == [(FindingKind.LINK_ERROR, Level.FAIL)]
    assert judged(HostFacts(network=Network(ports=spare)), HostLimits(rdma_ports=("mlx5_[0-7]", "mlx5_0:1"))).outcome is Outcome.FAIL
    slow = (*eight[1:], port(rate=200.0))
    found = only(judged(HostFacts(network=Network(ports=slow))))
    assert (found.measured, found.required, found.level) == (200.0, 400.0, Level.WARN)
    assert only(judged(HostFacts(network=Network(ports=slow)), HostLimits(rdma_gbps=400.0))).level is Level.FAIL


@pytest.mark.parametrize(
    ("pattern", "name", "yes"),
    [("eth*", "eth12", True), ("eth?", "eth12", False), ("*", "", True), ("a.c", "abc", False), ("[a]", "a", False), ("", "x", False)],
)
def test_patterns(pattern: str, name: str, yes: bool) -> None:
    assert fits(pattern, name) is yes


# ---- GPUs


def gpu(index: int = 0, **more: object) -> Gpu:
    base = Gpu(
        index,
        f"GPU-{index}",
        "NVIDIA H100 80GB HBM3",
        f"00000000:{index:02X}:00.0",
        ecc=True,
        uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        reasons=1,
        state=0,
        pcie_width=16,
        pcie_width_max=16,
        pcie_generation=5,
        pcie_generation_max=5,
        links=(True,) * 18,
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def host(*gpus: Gpu, devices: int | None = None) -> HostFacts:
    return HostFacts(gpus=Gpus(len(gpus) if devices is None else devices, True, "", "580.1", gpus))


GOOD = tuple(gpu(i) for i in range(8))


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
    assert found.level is Level.WARN and "DCGM" in found.advice and "bandwidth" in found.advice
    assert [f.level for f in judged(host(*down), HostLimits(nvlinks=18)).findings] == [Level.FAIL] * 8
    assert judged(host(down[0])).findings == ()  # one GPU has nobody to be linked to
    assert judged(host(*(dataclasses.replace(g, links=()) for g in GOOD))).findings == ()  # a card without NVLink


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


# ---- kernel log and silence


def xid(text: str, status: int | None) -> CheckResult:
    assert status == 0
    if "Xid" not in text:
        return CheckResult("xid", Outcome.PASS)
    return CheckResult("xid", Outcome.FAIL, (Finding(FindingKind.DEVICE_ERROR, "Xid 79: fallen off the bus", gpus=("0000:b3:00.0",)),))


def test_the_kernel_log_is_judged_by_the_one_who_knows_xids() -> None:
    bad = judged(HostFacts(), log=KernelLog("NVRM: Xid (PCI:0000:b3:00): 79"), xid=xid)
    assert bad.outcome is Outcome.FAIL and "Xid 79" in bad.summary
    assert judged(HostFacts(), log=KernelLog("usb 1-1: new device"), xid=xid).outcome is Outcome.PASS
    assert judged(HostFacts(), log=KernelLog("x"), xid=lambda text, status: not_measured("xid", "cut")).outcome is Outcome.NOT_MEASURED
    without = HostLimits(parts=(Part.MEMORY,))
    assert judged(HostFacts(), without, log=KernelLog("NVRM: Xid"), xid=xid).outcome is Outcome.PASS


def test_a_log_that_cannot_be_read_matters_where_there_are_gpus() -> None:
    closed = KernelLog(readable=False, why_not="/dev/kmsg: Operation not permitted")
    result = judged(host(*GOOD), log=closed, xid=xid)
    assert result.outcome is Outcome.NOT_MEASURED and "dmesg_restrict" in only(result).advice
    plain = judged(HostFacts(gpus=Gpus(0, True)), log=closed, xid=xid)
    assert plain.outcome is Outcome.PASS and only(plain).reason.startswith("skipped:")


def test_what_did_not_answer_is_not_measured_and_named() -> None:
    facts = HostFacts(memory=Memory(GIB * 8, GIB * 8), silent={"space of /mnt/nfs": "no answer within 5.0 s", "gpus": "no answer"})
    result = judged(facts)
    assert result.outcome is Outcome.NOT_MEASURED and "/mnt/nfs" in result.summary
    assert judged(facts, HostLimits(parts=(Part.MEMORY,))).outcome is Outcome.PASS


def test_every_part_can_be_left_out() -> None:
    bad = HostFacts(
        memory=Memory(GIB, 1),
        spaces=(Space("/x", error="gone"),),
        limits=Limits(1, 1, 1),
        orphans=(Orphan(1, "x"),),
        network=Network(ports=(port("DOWN"),)),
        gpus=Gpus(1, True, gpus=(gpu(error="lost"),)),
    )
    log, clock = KernelLog("Xid"), (ClockSample(0.0, 0.0, 999.0, 1000.0),)
    for part in Part:
        alone = judge_host(bad, HostLimits(parts=(part,)), clock=clock, log=log, xid=xid)
        assert len(alone.findings) == 1, part
    assert judge_host(bad, HostLimits(parts=()), clock=clock, log=log, xid=xid).findings == ()
