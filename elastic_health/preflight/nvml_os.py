"""Facts of NVIDIA GPUs through NVML (package `nvidia-ml-py`, optional and imported only here).

Law: what one GPU or driver doesn't support is None; nothing of it raises.  NVML may block in a sick driver: call this in a
process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from elastic_health.preflight.host_facts import Gpu, GpuProcess, Gpus, visible_gpus

ABSENT = "nvidia-ml-py is not installed"
_MOST_LINKS = 36
Ask = Callable[..., Any]


def read_gpus(devices: int, visible: str | None, describe: Callable[[int, int | None], GpuProcess], nvml: Any = None) -> Gpus:
    """All GPUs that NVML shows.

    Args:
        devices: how many the driver shows (see `host_os.gpu_devices`).
        visible: the value of CUDA_VISIBLE_DEVICES.
        describe: (pid, bytes on the GPU) -> who that process is.
        nvml: the module `pynvml`, for tests.
    """
    if nvml is None:
        if importlib.util.find_spec("pynvml") is None:
            return Gpus(devices, why_not=ABSENT if devices else "no NVIDIA GPU here")
        nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Gpus(devices, why_not=f"NVML: {error}" if devices else "no NVIDIA GPU here")
    try:
        count = int(nvml.nvmlDeviceGetCount())
        gpus = tuple(_Reader(nvml, index).gpu(describe) for index in range(count))
        return _marked(Gpus(devices, True, "", _text(nvml.nvmlSystemGetDriverVersion()), gpus), visible)
    except nvml.NVMLError as error:
        return Gpus(devices, why_not=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _marked(found: Gpus, visible: str | None) -> Gpus:
    seen = visible_gpus(found.gpus, visible)
    gpus = tuple(gpu if gpu.index in seen else Gpu(**{**vars(gpu), "visible": False}) for gpu in found.gpus)
    return Gpus(found.devices, found.library, found.why_not, found.driver, gpus)


class _Reader:
    """One GPU's questions; each answers None where the driver refuses."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._index = nvml, index
        self._handle: Any = None

    def gpu(self, describe: Callable[[int, int | None], GpuProcess]) -> Gpu:
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByIndex(self._index)
            pci = _text(self._nvml.nvmlDeviceGetPciInfo(self._handle).busId)
            uuid, model = _text(self._nvml.nvmlDeviceGetUUID(self._handle)), _text(self._nvml.nvmlDeviceGetName(self._handle))
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)  # answers only while the GPU itself does
        except self._nvml.NVMLError as error:
            return Gpu(self._index, error=str(error), **self._named())
        facts = {**self._memory(), **self._links(), **self._speed()}
        return Gpu(self._index, uuid, model, pci, links=self._nvlinks(), processes=self._processes(describe), **facts)

    def _named(self) -> dict[str, Any]:
        """As much of its identity as a sick GPU still tells."""
        asked: Mapping[str, str] = {"uuid": "nvmlDeviceGetUUID", "model": "nvmlDeviceGetName"}
        found = {name: self._ask(function) for name, function in asked.items()} if self._handle is not None else {}
        return {name: _text(value) for name, value in found.items() if value is not None}

    def _memory(self) -> dict[str, Any]:
        n = self._nvml
        total = self._ask("nvmlDeviceGetMemoryInfo")
        ecc, mig = self._ask("nvmlDeviceGetEccMode"), self._ask("nvmlDeviceGetMigMode")
        rows = self._ask("nvmlDeviceGetRemappedRows") or (None, None, None, None)
        pages = [self._ask("nvmlDeviceGetRetiredPages", cause) for cause in range(n.NVML_PAGE_RETIREMENT_CAUSE_COUNT)]
        counts = {
            f"{name}{ever}": self._ask("nvmlDeviceGetTotalEccErrors", kind, counter)
            for name, kind in (("corrected", n.NVML_MEMORY_ERROR_TYPE_CORRECTED), ("uncorrected", n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED))
            for ever, counter in (("", n.NVML_VOLATILE_ECC), ("_ever", n.NVML_AGGREGATE_ECC))
        }
        return {
            **counts,
            "memory_bytes": int(total.total) if total is not None else None,
            "ecc": bool(ecc[0]) if ecc is not None else None,
            "mig": bool(mig[0]) if mig is not None else None,
            "retired_pages": sum(len(p) for p in pages if p is not None) if any(p is not None for p in pages) else None,
            "retire_pending": _flag(self._ask("nvmlDeviceGetRetiredPagesPendingStatus")),
            "remapped": rows[1],
            "remap_pending": _flag(rows[2]),
            "remap_failed": _flag(rows[3]),
        }

    def _links(self) -> dict[str, Any]:
        return {
            "pcie_width": self._ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_width_max": self._ask("nvmlDeviceGetMaxPcieLinkWidth"),
            "pcie_generation": self._ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_generation_max": self._ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        }

    def _speed(self) -> dict[str, Any]:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return {
            # The name before driver 535.
            "reasons": reasons if reasons is not None else self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", 0),
            "state": self._ask("nvmlDeviceGetPerformanceState"),
        }

    def _nvlinks(self) -> tuple[bool, ...]:
        states = (self._ask("nvmlDeviceGetNvLinkState", link) for link in range(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", _MOST_LINKS)))
        return tuple(bool(state) for state in states if state is not None)

    def _processes(self, describe: Callable[[int, int | None], GpuProcess]) -> tuple[GpuProcess, ...]:
        found = self._ask("nvmlDeviceGetComputeRunningProcesses") or []
        return tuple(describe(int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory)) for p in found)

    def _ask(self, function: str, *arguments: Any) -> Any:
        ask = getattr(self._nvml, function, None)
        if ask is None:  # an older package
            return None
        try:
            return ask(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _text(value: Any) -> str:
    """Older packages answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
