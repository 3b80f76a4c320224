"""What each Xid means and what is to be done: NVIDIA's catalogue for Ampere and newer GPUs, in short words.

Source of numbers and actions: https://docs.nvidia.com/deploy/xid-errors/ (catalogue, "immediate action" and "investigatory action").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from elastic_health.findings import Level


class Action(Enum):
    """What an Xid asks for, mildest first."""

    NOTE = "note"  # nothing is to be done
    WATCH = "watch"  # nothing at once; support, if it comes back
    APPLICATION = "application"  # most likely the program's own fault
    RESTART_APP = "restart_app"  # the work on this GPU is lost, the GPU is not
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    SUPPORT = "support"  # hardware, or a driver that needs its vendor


LEVELS: Mapping[Action, Level] = MappingProxyType(
    {
        Action.NOTE: Level.NOTE,
        Action.WATCH: Level.WARN,
        Action.APPLICATION: Level.WARN,
        Action.RESTART_APP: Level.WARN,
        Action.RESET_GPU: Level.FAIL,
        Action.REBOOT: Level.FAIL,
        Action.SUPPORT: Level.FAIL,
    }
)
ADVICE: Mapping[Action, str] = MappingProxyType(
    {
        Action.NOTE: "nothing to do",
        Action.WATCH: "nothing at once; if it comes back, collect nvidia-bug-report.sh and ask the vendor",
        Action.APPLICATION: "look at the program first (compute-sanitizer); if only this GPU faults, run dcgmi diag -r 3",
        Action.RESTART_APP: "restart the program; if it comes back on this GPU, run dcgmi diag -r 3 and ask the vendor",
        Action.RESET_GPU: "drain the node and reset the GPU (nvidia-smi --gpu-reset -i GPU), or reboot; if it comes back, ask the vendor",
        Action.REBOOT: "reboot the node (cold, if a warm one does not help); if it comes back, reseat or replace the GPU",
        Action.SUPPORT: "keep the node out, collect nvidia-bug-report.sh and ask the vendor",
    }
)


ADVICE_OF: Mapping[int, str] = MappingProxyType(
    {
        63: "reset the GPU at the next chance, between two jobs, so that the remapping takes effect",
        64: "reset the GPU; a failure to remap that comes back means that the GPU is to be replaced",
        94: "restart the programs that were ended; reset the GPU at the next chance where a remapping is pending (Xid 63)",
        160: "reset the GPU at the next chance",
    }
)
"""For single numbers, where the class alone says too little."""


@dataclass(frozen=True)
class Entry:
    """One number of the catalogue."""

    action: Action
    meaning: str
    link: bool = False
    used: bool = True


# Not raised by Ampere and newer GPUs.
_UNUSED = "1-7 9 10 12 14-24 26-30 33-36 42 47 49-53 55-59 61 65 73 81 87 90 91 111-118 122-125 138"
_ROWS: tuple[tuple[str, Action, str], ...] = (
    (_UNUSED, Action.WATCH, "not used by Ampere and newer GPUs"),
    ("8", Action.RESTART_APP, "the GPU stopped processing"),
    ("11 25 32", Action.APPLICATION, "invalid or corrupt command stream"),
    ("13", Action.APPLICATION, "exception in the compute engine, such as an illegal address or instruction"),
    ("31", Action.APPLICATION, "memory page fault: the program touched an address that is not mapped"),
    ("37", Action.NOTE, "driver firmware error: an unknown method"),
    ("38", Action.WATCH, "driver firmware error"),
    ("39-41 70-72 75-77 85 126-135", Action.RESTART_APP, "exception in a copy engine"),
    ("43", Action.APPLICATION, "the program's channel was ended after its own fault; the GPU is well"),
    ("44", Action.WATCH, "fault in the compute engine during a context switch"),
    ("45", Action.WATCH, "channels were cleaned up, after another error or the end of a program"),
    ("46", Action.RESET_GPU, "the GPU stopped processing and did not answer in time"),
    ("48", Action.RESET_GPU, "uncorrectable memory error (double bit ECC)"),
    ("54", Action.SUPPORT, "auxiliary power is not connected to the GPU board"),
    ("60", Action.RESTART_APP, "exception in the video processor"),
    ("62", Action.RESET_GPU, "the GPU's internal controller halted"),
    ("63", Action.NOTE, "a memory row (or page) is marked for remapping; the next reset activates it"),
    ("64", Action.RESET_GPU, "a memory row (or page) could not be remapped"),
    ("66", Action.NOTE, "illegal access by the driver"),
    ("67", Action.WATCH, "illegal access by the driver"),
    ("68 83 84 88 89 96-98", Action.RESTART_APP, "exception in a video decoder"),
    ("69", Action.APPLICATION, "class error in the compute engine"),
    ("74", Action.RESET_GPU, "NVLink error"),
    ("78", Action.WATCH, "a virtual GPU could not start: driver and firmware do not match"),
    ("79", Action.REBOOT, "the GPU has fallen off the bus: the driver can't reach it any more"),
    ("80", Action.APPLICATION, "corrupt data was sent to the GPU"),
    ("82 99-105", Action.RESTART_APP, "error in a JPEG decoder"),
    ("86 139", Action.RESTART_APP, "error in the optical flow engine"),
    ("92", Action.WATCH, "high rate of corrected memory errors"),
    ("93", Action.WATCH, "the InfoROM is written more often than it should"),
    ("94", Action.RESTART_APP, "memory error, contained: only the programs that it hit are ended"),
    ("95", Action.RESET_GPU, "memory error, uncontained: all programs on the GPU are hit"),
    ("106 107", Action.NOTE, "test message"),
    ("108", Action.WATCH, "NVLink address translation error of a peer"),
    ("109", Action.RESET_GPU, "a context switch did not end in time"),
    ("110", Action.RESET_GPU, "security fault"),
    ("119", Action.RESET_GPU, "the GPU's system processor (GSP) did not answer in time"),
    ("120", Action.RESET_GPU, "error in the GPU's system processor (GSP)"),
    ("121", Action.WATCH, "error on the chip-to-chip link"),
    ("136", Action.RESET_GPU, "NVLink training failed"),
    ("137", Action.WATCH, "NVLink privilege error, most often after a fault of a peer's program"),
    ("140", Action.RESET_GPU, "uncorrectable memory error that the driver did not handle"),
    ("141", Action.WATCH, "CUDA fast path error"),
    ("142", Action.SUPPORT, "error in a video encoder"),
    ("143", Action.RESET_GPU, "the GPU could not be initialised"),
    ("144", Action.RESET_GPU, "NVLink SAW error"),
    ("145", Action.RESET_GPU, "NVLink RLW error"),
    ("146", Action.RESET_GPU, "NVLink TLW error"),
    ("147", Action.RESET_GPU, "NVLink TREX error"),
    ("148", Action.RESET_GPU, "NVLink control error"),
    ("149", Action.RESET_GPU, "NVLink network interface error"),
    ("150", Action.RESET_GPU, "NVLink MSE error"),
    ("151", Action.REBOOT, "key rotation error"),
    ("152 153", Action.WATCH, "error of the deep learning accelerator"),
    ("154", Action.WATCH, "the recovery that the GPU asks for has changed"),
    ("155", Action.RESET_GPU, "NVLink error defined by software"),
    ("156", Action.RESET_GPU, "a resource is retired; a reset activates it"),
    ("157", Action.WATCH, "a resource could not be retired"),
    ("158", Action.RESET_GPU, "fatal time-out of the GPU"),
    ("159", Action.WATCH, "error on the coherent interface that carried no data"),
    ("160", Action.NOTE, "a memory channel is retired"),
    ("161", Action.WATCH, "a memory channel could not be retired"),
    ("162", Action.NOTE, "power smoothing is on again"),
    ("163", Action.WATCH, "power smoothing is off"),
    ("164", Action.WATCH, "power smoothing hardware is near the end of its life"),
    ("165", Action.WATCH, "power smoothing hardware is worn out"),
    ("166 170", Action.WATCH, "NVLink error in confidential computing"),
    ("167", Action.RESET_GPU, "fatal time-out on PCIe"),
    ("168", Action.WATCH, "the GPU runs with less memory"),
    ("169", Action.RESET_GPU, "the GPU's security controller halted"),
    ("171", Action.RESET_GPU, "uncorrectable memory error in DRAM (belongs to Xid 48)"),
    ("172", Action.RESET_GPU, "uncorrectable memory error in SRAM (belongs to Xid 48)"),
)


def _expanded() -> dict[int, Entry]:
    table: dict[int, Entry] = {}
    for numbers, action, meaning in _ROWS:
        for part in numbers.split():
            first, _, last = part.partition("-")
            entry = Entry(action, meaning, "NVLink" in meaning, numbers is not _UNUSED)
            table.update(dict.fromkeys(range(int(first), int(last or first) + 1), entry))
    return table


CATALOG: Mapping[int, Entry] = MappingProxyType(_expanded())
UNKNOWN = Entry(Action.WATCH, "not in the catalogue that this version knows", used=False)
NVLINK5 = frozenset(range(144, 151))
"""Carry a unit, `Fatal` or `Nonfatal`, a link and registers; the same number may be harmless or not."""


def entry_of(xid: int) -> Entry:
    return CATALOG.get(xid, UNKNOWN)
