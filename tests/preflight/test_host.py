"""Judgement of a host: each bound from both sides, and what is not said is not passed."""

from __future__ import annotations

import pytest

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.clock import ClockSample
from elastic_health.preflight.host import judge_host
from elastic_health.preflight.host_facts import (
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
)
from elastic_health.preflight.host_limits import HostLimits, fits
from elastic_health.preflight.results import CheckResult, Outcome, not_measured
from elastic_health.preflight.xid import analyze_xid
from tests.preflight.hosts import GIB, GOOD, MIB, gpu, host, judged, levels, only

pytestmark = pytest.mark.spec("P5")

# ---- memory, space, limits


@pytest.mark.parametrize(
    ("available_gib", "outcome"),
    [(100.0, Outcome.PASS), (25.7, Outcome.PASS), (25.5, Outcome.WARN), (0.25, Outcome.WARN), (0.2, Outcome.FAIL)],
)
def test_memory(available_gib: float, outcome: Outcome) -> None:
    result = judged(HostFacts(memory=Memory(256 * GIB, int(available_gib * GIB))))
    assert result.outcome is outcome
    if outcome is not Outcome.PASS:
        found = only(result)
        assert found.kind is FindingKind.LOW_RESOURCE and found.unit == "GiB" and found.advice
        assert found.measured == pytest.approx(available_gib) and found.required == pytest.approx(0.25 if outcome is Outcome.FAIL else 25.6)


@pytest.mark.parametrize(
    ("space", "outcome"),
    [
        (Space("/scratch", 1000 * GIB, 500 * GIB), Outcome.PASS),
        (Space("/scratch", 1000 * GIB, 99 * GIB), Outcome.WARN),
        (Space("/scratch", 5 * GIB, GIB * 9 // 10), Outcome.WARN),
        (Space("/scratch", 5 * GIB, GIB // 10), Outcome.FAIL),
        (Space("/scratch", 1000 * GIB, 500 * GIB, 1000, 49), Outcome.WARN),
        (Space("/scratch", 1000 * GIB, 500 * GIB, 0, 0), Outcome.PASS),
        (Space("/scratch", 1000 * GIB, 500 * GIB, read_only=True), Outcome.FAIL),
        (Space("/scratch", error="No such file or directory"), Outcome.FAIL),
        (Space("/dev/shm", 64 * MIB, 64 * MIB), Outcome.WARN),
        (Space("/dev/shm", 16 * MIB, 5 * MIB), Outcome.WARN),
        (Space("/dev/shm", 64 * MIB, 3 * MIB), Outcome.FAIL),
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


# ---- kernel log and silence


def xid(text: str) -> CheckResult:
    if "Xid" not in text:
        return CheckResult("xid", Outcome.PASS)
    return CheckResult("xid", Outcome.FAIL, (Finding(FindingKind.DEVICE_ERROR, "Xid 79: fallen off the bus", gpus=("0000:b3:00.0",)),))


def test_the_kernel_log_is_judged_by_the_one_who_knows_xids() -> None:
    bad = judged(HostFacts(), log=KernelLog("NVRM: Xid (PCI:0000:b3:00): 79"), xid=xid)
    assert bad.outcome is Outcome.FAIL and "Xid 79" in bad.summary
    assert judged(HostFacts(), log=KernelLog("usb 1-1: new device"), xid=xid).outcome is Outcome.PASS
    assert judged(HostFacts(), log=KernelLog("x"), xid=lambda text: not_measured("xid", "cut")).outcome is Outcome.NOT_MEASURED
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


@pytest.mark.spec("P7")
def test_the_default_limits_refuse_no_small_but_sound_machine() -> None:
    """2 GB of memory, Docker's /dev/shm, 1024 open files, no card up, a kernel log that nobody may read, no GPU."""
    facts = HostFacts(
        memory=Memory(2 * GIB, GIB // 2),
        spaces=(Space("/tmp", 8 * GIB, GIB // 2), Space("/dev/shm", 64 * MIB, 60 * MIB)),
        limits=Limits(1024, 1024, 64 * 1024),
        network=Network((Nic("lo", True, False), Nic("eth0", False, True))),
        gpus=Gpus(0, False, "no NVIDIA GPU here"),
        orphans=(),
    )
    log = KernelLog(readable=False, why_not="/dev/kmsg: Operation not permitted")
    result = judge_host(facts, HostLimits(), clock=None, log=log, xid=lambda text: analyze_xid(text, readable=True))
    assert result.outcome is Outcome.WARN and {f.level for f in result.findings} == {Level.WARN, Level.NOTE}
