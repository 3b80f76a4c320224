"""Judges what a host looks like before workers start: memory, space, limits, clock, leftovers, network, kernel log.

Laws:
 - a part that was asked for and did not answer is `not_measured`; a part that this machine doesn't have is a note;
 - each finding says what was measured against what is required, and what to do.
GPUs are judged in `host_gpu`, by limits in `host_limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.clock import ClockSample, offset
from elastic_health.preflight.host_facts import Gpus, HostFacts, IbPort, KernelLog, Limits, Memory, Network, Nic, Orphan, Part, Space
from elastic_health.preflight.host_gpu import judge_gpus
from elastic_health.preflight.host_limits import GIB, MIB, HostLimits, fits
from elastic_health.preflight.results import CheckResult, outcome_of

NAME = "host"
JudgeLog = Callable[[str], CheckResult]
"""Judges the kernel's messages, which were read from the kernel: an empty text means that it said nothing."""
CONTAINER_ADVICE = "in a container raise --shm-size (Kubernetes: an emptyDir of medium Memory)"
_SHOWN = 8


def judge_host(
    facts: HostFacts,
    limits: HostLimits,
    *,
    clock: tuple[ClockSample, ...] | None = None,
    log: KernelLog | None = None,
    xid: JudgeLog | None = None,
) -> CheckResult:
    """All parts that `limits` asks for.

    Args:
        clock: looks at the store's clock; None where there is no store to ask.
        log: the kernel's messages.
        xid: judges them; without it they are not judged.
    """
    found = (*_host(facts, limits), *_clock(clock, limits), *_kernel_log(log, xid, facts.gpus, limits))
    outcome = outcome_of(found, measured=True)
    worst = [f for f in found if f.level is Level.FAIL] or [f for f in found if f.level is Level.WARN]
    return CheckResult(NAME, outcome, found, "; ".join(f.reason for f in worst[:3]), details=_details(facts))


def _host(facts: HostFacts, limits: HostLimits) -> Iterator[Finding]:
    wanted = frozenset(part.value for part in limits.parts)
    for part, reason in sorted(facts.silent.items()):
        if part.split()[0] not in wanted:
            continue
        yield Finding(FindingKind.NOT_MEASURED, f"{part}: {reason}", level=Level.WARN, advice="look at what the machine waits for (dmesg)")
    if facts.memory is not None and limits.wants(Part.MEMORY):
        yield from _memory(facts.memory, limits)
    if facts.spaces is not None and limits.wants(Part.SPACE):
        for space in facts.spaces:
            yield from _space(space, limits)
    if facts.limits is not None and limits.wants(Part.LIMITS):
        yield from _limits(facts.limits, facts.network or Network(), limits)
    if facts.orphans is not None and limits.wants(Part.ORPHANS):
        yield from _orphans(facts.orphans)
    if facts.network is not None and limits.wants(Part.NETWORK):
        yield from _nics(facts.network.nics, limits)
        yield from _ports(facts.network.ports, limits)
    if facts.gpus is not None and limits.wants(Part.GPUS):
        yield from judge_gpus(facts.gpus, limits)


def _details(facts: HostFacts) -> dict[str, object]:
    said: dict[str, object] = {}
    if facts.memory is not None:
        said["memory_available_gib"] = round(facts.memory.available_bytes / GIB, 1)
    if facts.gpus is not None and facts.gpus.any:
        said |= {"gpus": len(facts.gpus.gpus) or facts.gpus.devices, "driver": facts.gpus.driver}
    return said


# ---- memory, space, limits


def _memory(memory: Memory, limits: HostLimits) -> Iterator[Finding]:
    gib, least = memory.available_bytes / GIB, limits.memory_bytes / GIB
    advice = "look for leftover processes; in a container or job step raise its memory limit"
    if memory.available_bytes < limits.memory_bytes:
        yield _low(f"{gib:.1f} GiB of memory available", gib, least, "GiB", advice, Level.FAIL)
    elif memory.available_bytes < (comfort := max(limits.memory_comfort_bytes, limits.memory_fraction * memory.total_bytes)):
        wanted = comfort / GIB
        yield _low(f"{gib:.1f} GiB of {memory.total_bytes / GIB:.1f} GiB of memory available", gib, wanted, "GiB", advice, Level.WARN)


def _space(space: Space, limits: HostLimits) -> Iterator[Finding]:
    if space.error:
        advice = "correct host.paths in the YAML, or mount it"
        yield Finding(FindingKind.MISCONFIGURED, f"{space.path}: {space.error}", level=Level.FAIL, advice=advice)
        return
    if space.read_only:
        advice = "look at the kernel log for disk errors, remount"
        yield Finding(FindingKind.LOW_RESOURCE, f"{space.path} is mounted read-only", advice=advice)
    shared = space.path == "/dev/shm"
    least, fraction = (limits.shm_bytes, 0.0) if shared else (limits.disk_bytes, limits.disk_fraction)
    comfort = limits.shm_comfort_bytes if shared else limits.disk_comfort_bytes
    yield from _bytes(space, least, max(comfort, fraction * space.total_bytes), CONTAINER_ADVICE if shared else "delete what is old")
    wanted = limits.inode_fraction * space.total_inodes
    if space.total_inodes and space.free_inodes < wanted:
        reason = f"{space.path}: {space.free_inodes} inodes free"
        yield _low(reason, space.free_inodes, wanted, "inodes", "delete small files", Level.WARN)


def _bytes(space: Space, least: float, comfort: float, advice: str) -> Iterator[Finding]:
    reason, free = f"{space.path}: {space.free_bytes / GIB:.2f} GiB free", space.free_bytes
    if free < least:
        yield _low(reason, free / GIB, least / GIB, "GiB", advice, Level.FAIL)
    elif free < comfort:
        yield _low(reason, free / GIB, comfort / GIB, "GiB", advice, Level.WARN)


def _limits(found: Limits, network: Network, limits: HostLimits) -> Iterator[Finding]:
    hard, advice = found.open_files_hard, "raise LimitNOFILE of the service, or nofile in limits.conf (container: --ulimit nofile=1048576)"
    if hard is not None and hard < limits.open_files_comfort:
        enough = hard >= limits.open_files
        required = limits.open_files_comfort if enough else limits.open_files
        yield _low(f"at most {hard} open files", hard, required, "files", advice, Level.WARN if enough else Level.FAIL)
    rdma = any(port.state == "ACTIVE" for port in network.ports)
    if rdma and found.locked_bytes is not None and found.locked_bytes < limits.locked_bytes:
        reason = f"only {found.locked_bytes / MIB:.0f} MiB may be locked, and RDMA registers its buffers so"
        advice = "ulimit -l unlimited (container: --ulimit memlock=-1)"
        yield _low(reason, found.locked_bytes / MIB, limits.locked_bytes / MIB, "MiB", advice, Level.WARN)


def _low(reason: str, measured: float, required: float, unit: str, advice: str, level: Level) -> Finding:
    return Finding(FindingKind.LOW_RESOURCE, reason, measured=measured, required=required, unit=unit, advice=advice, level=level)


# ---- clock


def _clock(samples: tuple[ClockSample, ...] | None, limits: HostLimits) -> Iterator[Finding]:
    if samples is None or not limits.wants(Part.CLOCK):
        return
    found = offset(samples)
    if found is None:
        advice = "look at etcd's /health"
        yield Finding(FindingKind.NOT_MEASURED, "clock: the store's HTTP endpoint told no time", level=Level.WARN, advice=advice)
        return
    measured = abs(found.least)
    if measured <= limits.clock_s:
        return
    fails = measured > limits.clock_fail_s
    side = "ahead of" if found.least > 0 else "behind"
    yield Finding(
        FindingKind.CLOCK_OFFSET,
        f"this host's clock is at least {measured:.1f} s {side} the store's",
        measured=measured,
        required=limits.clock_fail_s if fails else limits.clock_s,
        unit="s",
        level=Level.FAIL if fails else Level.WARN,
        advice="start chronyd or systemd-timesyncd here, and look at the store's machines too",
    )


# ---- leftovers


def _orphans(orphans: tuple[Orphan, ...]) -> Iterator[Finding]:
    if not orphans:
        return
    pids = [o.pid for o in orphans]
    held = sum(o.resident_bytes for o in orphans)
    runs = sorted({o.run for o in orphans if o.run})
    of = f" of run {', '.join(runs[:_SHOWN])}" if runs else ""
    yield Finding(
        FindingKind.LEFTOVER_PROCESS,
        f"{len(orphans)} worker processes{of} live on without an agent, oldest {max(o.age_s for o in orphans):.0f} s",
        measured=len(orphans),
        required=0,
        unit="processes",
        level=Level.WARN,
        advice=f"kill {' '.join(map(str, pids[:_SHOWN]))}{' …' if len(pids) > _SHOWN else ''}",
        evidence={"pids": pids[:64], "names": sorted({o.name for o in orphans})[:_SHOWN], "resident_gib": round(held / GIB, 2)},
    )


# ---- network


def _nics(nics: tuple[Nic, ...], limits: HostLimits) -> Iterator[Finding]:
    for pattern in limits.nics:
        named = [nic for nic in nics if fits(pattern, nic.name)]
        if not named:
            advice = "correct host.nics in the YAML, or look for the card (lspci)"
            reason = f"no network interface {pattern}"
            yield Finding(FindingKind.DEVICE_MISSING, reason, measured=0, required=1, unit="interfaces", advice=advice)
        for nic in named:
            yield from _nic(nic, limits)


def _nic(nic: Nic, limits: HostLimits) -> Iterator[Finding]:
    if not nic.up:
        yield Finding(FindingKind.LINK_ERROR, f"{nic.name} has no link", advice="look at cable, transceiver and switch port (ethtool)")
    elif limits.nic_mbps and nic.speed_mbps is None:
        yield Finding(FindingKind.NOT_MEASURED, f"{nic.name}: its driver tells no speed", level=Level.WARN, advice="set host.nic_mbps to 0")
    elif nic.speed_mbps is not None and nic.speed_mbps < limits.nic_mbps:
        yield Finding(
            FindingKind.LINK_ERROR,
            f"{nic.name} runs at {nic.speed_mbps} Mbit/s",
            measured=nic.speed_mbps,
            required=limits.nic_mbps,
            unit="Mbit/s",
            advice="look at cable, transceiver and switch port; set the switch to the full rate",
        )


def _ports(ports: tuple[IbPort, ...], limits: HostLimits) -> Iterator[Finding]:
    for pattern in limits.rdma_ports:
        if not any(_named(port, pattern) for port in ports):
            advice = "look for the card (lspci, ibstat)"
            yield Finding(FindingKind.DEVICE_MISSING, f"no RDMA port {pattern}", measured=0, required=1, unit="ports", advice=advice)
    wanted = [p for p in ports if not limits.rdma_ports or any(_named(p, pattern) for pattern in limits.rdma_ports)]
    for port in wanted:
        like = [p.rate_gbps for p in wanted if p.state == "ACTIVE" and p.link_layer == port.link_layer]
        yield from _port(port, limits, max(like, default=0.0))


def _named(port: IbPort, pattern: str) -> bool:
    return fits(pattern, port.device) or fits(pattern, f"{port.device}:{port.port}")


def _port(port: IbPort, limits: HostLimits, fastest: float) -> Iterator[Finding]:
    name, named = f"{port.device} port {port.port}", bool(limits.rdma_ports)
    if port.state != "ACTIVE":
        advice = "look at cable and switch port (ibstat); name the ports that count in host.rdma_ports"
        reason = f"{name} is {port.state}, physically {port.physical}"
        yield Finding(FindingKind.LINK_ERROR, reason, level=Level.FAIL if named else Level.WARN, advice=advice)
        return
    required = limits.rdma_gbps or fastest
    if port.rate_gbps < required:
        yield Finding(
            FindingKind.LINK_ERROR,
            f"{name} runs at {port.rate_gbps:g} Gbit/s",
            measured=port.rate_gbps,
            required=required,
            unit="Gbit/s",
            level=Level.FAIL if limits.rdma_gbps else Level.WARN,
            advice="a lane of its cable or transceiver is bad: reseat or change it",
        )


# ---- kernel log


def _kernel_log(log: KernelLog | None, xid: JudgeLog | None, gpus: Gpus | None, limits: HostLimits) -> Iterator[Finding]:
    if log is None or xid is None or not limits.wants(Part.KERNEL_LOG):
        return
    if log.readable:
        yield from xid(log.text).findings
    elif not log.readable and gpus is not None and gpus.any:
        advice = "run as root, set kernel.dmesg_restrict=0, or mount the host's /dev/kmsg"
        yield Finding(FindingKind.NOT_MEASURED, f"kernel log: {log.why_not}", level=Level.WARN, advice=advice)
    elif not log.readable:
        yield Finding(FindingKind.NOTE, f"skipped: kernel log: {log.why_not}", level=Level.NOTE)
