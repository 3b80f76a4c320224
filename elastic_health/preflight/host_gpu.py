"""Judges GPUs as NVML shows them: count, errors of memory, throttling, links, and who else is on them.

Laws:
 - a GPU that can't be asked fails the node: the driver has lost it;
 - figures that an idle GPU may lower by itself (its PCIe generation, on some boards its width) fail only in performance state P0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.host_facts import Gpu, GpuProcess, Gpus
from elastic_health.preflight.host_limits import GIB, HostLimits, fits

SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
"""Bits of nvmlClocksEventReasons in nvml.h."""
RESET = "drain the node and reset the GPU (nvidia-smi --gpu-reset -i {uuid}), or reboot"
_SLOW: tuple[tuple[int, Level, str, str], ...] = (
    (HW_THERMAL, Level.FAIL, "slowed down by hardware: too hot", "look at fans, air flow, coolant and thermal paste"),
    (HW_POWER_BRAKE, Level.FAIL, "slowed down by hardware: the power supply asks for it", "look at power supplies and their cables"),
    (SW_THERMAL, Level.WARN, "slowed down by the driver: near its temperature limit", "look at fans, air flow and coolant"),
    # nvml.h: may also be reported while clocks or performance state change.
    (HW_SLOWDOWN, Level.WARN, "slowed down by hardware", "look at temperature and power; ask again under load"),
)


def judge_gpus(found: Gpus, limits: HostLimits) -> Iterator[Finding]:
    """All GPUs that this agent may use.

    A power cap is no finding: it is how a loaded GPU runs.  Corrected ECC errors are a matter of statistics, not of fitness:
    NVIDIA's policy (GPU Memory Error Management, RMA Policy) asks for uncorrectable ones and failed remappings.
    """
    yield from _count(found, limits)
    if found.any and not found.library:
        advice = "pip install nvidia-ml-py" if "nvidia-ml-py" in found.why_not else "look at nvidia-smi"
        yield Finding(FindingKind.NOT_MEASURED, f"GPUs: {found.why_not}", level=Level.WARN, advice=advice)
    elif not found.library:
        yield Finding(FindingKind.NOTE, f"skipped: GPUs: {found.why_not}", level=Level.NOTE)
    mine = [gpu for gpu in found.gpus if gpu.visible]
    yield from _models(mine)
    for gpu in mine:
        if gpu.error:
            yield _of(gpu, FindingKind.DEVICE_ERROR, f"can't be asked: {gpu.error}", Level.FAIL, "reboot; if it comes back, replace it")
            continue
        yield from _memory(gpu, limits)
        yield from _throttled(gpu)
        yield from _pcie(gpu)
        yield from _processes(gpu, limits)
    yield from _links(mine, limits)


def _count(found: Gpus, limits: HostLimits) -> Iterator[Finding]:
    there = len(found.gpus) if found.library else found.devices
    if limits.gpus and there is None:
        yield Finding(FindingKind.NOT_MEASURED, "GPU count: neither NVML nor the driver tells it", level=Level.WARN)
    elif limits.gpus and there is not None and there < limits.gpus:
        yield Finding(
            FindingKind.DEVICE_MISSING,
            f"{there} GPUs where {limits.gpus} should be",
            measured=there,
            required=limits.gpus,
            unit="GPUs",
            advice="look for Xid 79 in the kernel log and for the card in lspci; reboot, reseat",
        )
    if found.library and found.devices is not None and len(found.gpus) < found.devices:
        yield Finding(
            FindingKind.DEVICE_MISSING,
            f"the driver shows {found.devices} GPUs, NVML {len(found.gpus)}",
            measured=len(found.gpus),
            required=found.devices,
            unit="GPUs",
            advice="one has failed to start: look for RmInitAdapter in the kernel log; reboot",
        )


def _models(gpus: list[Gpu]) -> Iterator[Finding]:
    models = Counter(gpu.model for gpu in gpus if gpu.model)
    if len(models) > 1:
        said = ", ".join(f"{count} × {model}" for model, count in models.most_common())
        advice = "training runs at the slowest one's speed: use GPUs of one model"
        yield Finding(FindingKind.MISCONFIGURED, f"GPUs of several models: {said}", level=Level.WARN, advice=advice)
    if any(gpu.mig for gpu in gpus):
        yield Finding(FindingKind.NOTE, "MIG is on: links and leftovers of instances are not looked at", level=Level.NOTE)


def _memory(gpu: Gpu, limits: HostLimits) -> Iterator[Finding]:
    reset = RESET.format(uuid=gpu.uuid)
    if gpu.uncorrected:
        reason = f"{gpu.uncorrected} uncorrectable ECC errors since the driver was loaded"
        yield _of(gpu, FindingKind.DEVICE_ERROR, reason, Level.FAIL, reset, measured=gpu.uncorrected, required=0, unit="errors")
    if gpu.remap_failed:
        reason = "a row of its memory could not be remapped"
        yield _of(gpu, FindingKind.DEVICE_ERROR, reason, Level.FAIL, "run the field diagnostic; replace it")
    if gpu.retired_pages is not None and gpu.retired_pages >= limits.retired_pages:
        reason, bound = f"{gpu.retired_pages} retired memory pages", limits.retired_pages
        yield _of(gpu, FindingKind.DEVICE_ERROR, reason, Level.FAIL, "replace it", measured=gpu.retired_pages, required=bound, unit="pages")
    if gpu.remap_pending or gpu.retire_pending:
        what = "a remapped row" if gpu.remap_pending else "a retired page"
        yield _of(gpu, FindingKind.DEVICE_ERROR, f"{what} takes effect only after a reset", Level.WARN, reset)
    if gpu.ecc is False:
        yield _of(gpu, FindingKind.NOTE, "ECC is off", Level.NOTE, "nvidia-smi -e 1, then reset")


def _throttled(gpu: Gpu) -> Iterator[Finding]:
    reasons = gpu.reasons or 0
    for bit, level, reason, advice in _SLOW:
        if reasons & bit:
            evidence = {"reasons": hex(reasons), "temperature_c": gpu.temperature_c}
            yield _of(gpu, FindingKind.THROTTLED, reason, level, advice, evidence=evidence)
            return  # the general bit comes with the particular one


def _pcie(gpu: Gpu) -> Iterator[Finding]:
    advice = "reseat the card or riser; look for PCIe errors (AER) in the kernel log"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        width, full, level = gpu.pcie_width, gpu.pcie_width_max, Level.WARN if gpu.state else Level.FAIL
        reason = f"PCIe width x{width} of x{full}"
        yield _of(gpu, FindingKind.LINK_ERROR, reason, level, advice, measured=width, required=full, unit="lanes")
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    if gpu.state == 0 and now and most and now < most:
        reason = f"PCIe generation {now} of {most}"
        yield _of(gpu, FindingKind.LINK_ERROR, reason, Level.WARN, advice, measured=now, required=most, unit="generation")


def _processes(gpu: Gpu, limits: HostLimits) -> Iterator[Finding]:
    left = [p for p in gpu.processes if not p.ours and not p.cared_for and _counts(p, limits)]
    if not left:
        return
    many, held = len(left), sum(p.used_bytes or 0 for p in left)
    named = ", ".join(f"{p.pid} ({p.name or 'not visible from here'})" for p in left[:8])
    reason = f"used by {many} other processes: {named}"
    advice = "kill them, or wait for the job that they belong to; name what may stay in host.gpu_processes"
    evidence = {"pids": [p.pid for p in left[:64]], "held_gib": round(held / GIB, 2)}
    kind, unit = FindingKind.LEFTOVER_PROCESS, "processes"
    yield _of(gpu, kind, reason, Level.FAIL, advice, measured=many, required=0, unit=unit, evidence=evidence)


def _counts(process: GpuProcess, limits: HostLimits) -> bool:
    if any(fits(pattern, process.name) for pattern in limits.gpu_processes):
        return False
    return process.used_bytes is None or process.used_bytes >= limits.gpu_process_bytes


def _links(gpus: list[Gpu], limits: HostLimits) -> Iterator[Finding]:
    """Links that are down: against what the YAML says, else against the best GPU of this host.

    A bridged pair of PCIe boards uses only some of its links: as many on each of them is told, and fails nobody.
    """
    linked = [gpu for gpu in gpus if gpu.links and not gpu.error]
    if limits.nvlinks is None or not (linked or limits.nvlinks):
        return
    best = max((sum(gpu.links) for gpu in linked), default=0)
    required = limits.nvlinks or best
    for gpu in gpus:
        up = sum(gpu.links)
        if not gpu.error and up < required:
            reason = f"{up} of {required} NVLinks active"
            advice = "look at nvidia-smi nvlink -s and the fabric manager; reset the GPU, reseat"
            yield _of(gpu, FindingKind.LINK_ERROR, reason, Level.FAIL, advice, measured=up, required=required, unit="links")
    most = max((len(gpu.links) for gpu in linked), default=0)
    if not limits.nvlinks and len(linked) > 1 and best < most:
        reason = f"at most {best} of {most} NVLinks are active on each of {len(linked)} GPUs"
        advice = (
            "start nvidia-fabricmanager; if this is how they are wired, set host.nvlinks; "
            "DCGM's levels 1 and 2 don't look at links, the bandwidth check does"
        )
        yield Finding(FindingKind.LINK_ERROR, reason, level=Level.WARN, measured=best, required=most, unit="links", advice=advice)


def _of(
    gpu: Gpu,
    kind: FindingKind,
    reason: str,
    level: Level,
    advice: str = "",
    *,
    measured: float | None = None,
    required: float | None = None,
    unit: str = "",
    evidence: Mapping[str, object] | None = None,
) -> Finding:
    named = gpu.uuid or f"GPU {gpu.index}"
    more = {"index": gpu.index, "pci": gpu.pci, "model": gpu.model, **(evidence or {})}
    said = f"GPU {gpu.index}: {reason}"
    return Finding(kind, said, gpus=(named,), measured=measured, required=required, unit=unit, level=level, advice=advice, evidence=more)
