"""What a host looks like before workers start, as plain data; `host_os` and `nvml_os` fill it in, `host` judges it.

Everything here can be told as JSON by one process and read by another.  None means that the host doesn't say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Part(Enum):
    """What is looked at; YAML may leave parts out."""

    MEMORY = "memory"
    SPACE = "space"
    LIMITS = "limits"
    CLOCK = "clock"
    ORPHANS = "orphans"
    NETWORK = "network"
    GPUS = "gpus"
    KERNEL_LOG = "kernel_log"


@dataclass(frozen=True)
class Memory:
    """Of the host, or of its control group where that is smaller."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Space:
    """Of the file system that holds `path`.  `error`: why it could not be asked, "" if it could."""

    path: str
    total_bytes: int = 0
    free_bytes: int = 0
    total_inodes: int = 0
    free_inodes: int = 0
    read_only: bool = False
    error: str = ""


@dataclass(frozen=True)
class Limits:
    """Of this process, as workers inherit them; None for no limit."""

    open_files: int | None
    open_files_hard: int | None
    locked_bytes: int | None


@dataclass(frozen=True)
class Orphan:
    """A process that says by its environment that it is a torchrun worker (or one's child), and whose agent is gone."""

    pid: int
    name: str
    run: str = ""
    age_s: float = 0.0
    resident_bytes: int = 0


@dataclass(frozen=True)
class Nic:
    """A network interface, from /sys/class/net.  `speed_mbps`: None where the driver doesn't say."""

    name: str
    up: bool
    physical: bool
    speed_mbps: int | None = None


@dataclass(frozen=True)
class IbPort:
    """A port of an RDMA device, from /sys/class/infiniband; `state` and `physical` in the kernel's words (ACTIVE, LinkUp)."""

    device: str
    port: int
    state: str
    physical: str
    link_layer: str
    rate_gbps: float


@dataclass(frozen=True)
class Network:
    nics: tuple[Nic, ...] = ()
    ports: tuple[IbPort, ...] = ()


@dataclass(frozen=True)
class GpuProcess:
    """A process that has a compute context on a GPU.

    Attributes:
        name: "" where it can't be seen from here (another PID namespace).
        ours: it descends from the agent that asks.
        cared_for: it belongs to workers of another agent that lives.
    """

    pid: int
    name: str = ""
    used_bytes: int | None = None
    ours: bool = False
    cared_for: bool = False


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML shows it.

    Attributes:
        error: why it can't be asked ("GPU is lost"), "" if it can.
        uncorrected: ECC errors since the driver was loaded, `uncorrected_ever` in its life; `corrected` likewise.
        retired_pages: for either cause (before Ampere); `remapped`: rows, for uncorrectable errors (from Ampere on).
        retire_pending, remap_pending: something waits for a reset of the GPU.
        reasons: the bits of nvmlDeviceGetCurrentClocksEventReasons.
        state: performance state, 0 for full clocks.
        links: whether each NVLink that it has is active.
    """

    index: int
    uuid: str = ""
    model: str = ""
    pci: str = ""
    error: str = ""
    visible: bool = True
    memory_bytes: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    corrected_ever: int | None = None
    uncorrected_ever: int | None = None
    retired_pages: int | None = None
    retire_pending: bool | None = None
    remapped: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    reasons: int | None = None
    temperature_c: int | None = None
    state: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    links: tuple[bool, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Gpus:
    """All GPUs of the host.

    Attributes:
        devices: how many NVIDIA GPUs the kernel driver shows; None where it shows no list.
        library: whether NVML could be asked; `why_not` says why it couldn't.
    """

    devices: int | None = None
    library: bool = False
    why_not: str = ""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.devices or self.gpus)


@dataclass(frozen=True)
class KernelLog:
    """The kernel's messages since boot, or as many as its buffer still holds."""

    text: str = ""
    readable: bool = True
    why_not: str = ""


@dataclass(frozen=True)
class HostFacts:
    """Everything; a part that is None was not asked for, or did not answer (then `silent` says why)."""

    memory: Memory | None = None
    spaces: tuple[Space, ...] | None = None
    limits: Limits | None = None
    orphans: tuple[Orphan, ...] | None = None
    network: Network | None = None
    gpus: Gpus | None = None
    silent: Mapping[str, str] = field(default_factory=dict)


def visible_gpus(gpus: Iterable[Gpu], value: str | None) -> frozenset[int]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves to this agent; all where it says nothing that can be told.

    Indices are taken in NVML's order, which is CUDA's own on a host whose GPUs are of one model.
    """
    known = tuple(gpus)
    everything = frozenset(gpu.index for gpu in known)
    if value is None:
        return everything
    found: set[int] = set()
    for word in (part.strip() for part in value.split(",") if part.strip()):
        match = [g.index for g in known if word == str(g.index) or (word.startswith("GPU-") and g.uuid.startswith(word))]
        if len(match) != 1:
            return frozenset() if word == "-1" and not found else everything
        found.add(match[0])
    return frozenset(found)
