"""What a canary's bytes depend on, read from torch, the driver, the kernel and the libraries in memory."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from elastic_health.preflight.canary import CPU

UNKNOWN = "unknown"
_MAX_BYTES = 1 << 20
_SETTINGS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
_GPU_SETTINGS = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")
_FLAGS = re.compile(r"(?:sse|ssse|avx|amx|fma|f16c|asimd|sve|bf16|i8mm|fphp)\w*")


@dataclass(frozen=True)
class Machine:
    """The fields of a `Fingerprint` that don't depend on the matmul."""

    kind: str
    device: str
    capability: str
    driver: str
    cuda: str
    blas: str
    threads: int


NO_MACHINE = Machine("cuda", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 1)
"""Of a device that answers nothing."""


def gpus_listed() -> bool:
    """Does the driver list a GPU, whether or not CUDA can use it?"""
    try:
        return bool(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return False


def uuid_of(device: torch.device) -> str:
    """As NVML and nvidia-smi write it; `cpu` for the processor."""
    if device.type == CPU:
        return CPU
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def cpu_machine(threads: int) -> Machine:
    """The processor: model, family and stepping, the vector instructions it offers and torch uses, the maths libraries."""
    said = _cpu_fields(_text("/proc/cpuinfo"))
    model = said.get("model name") or said.get("CPU part") or UNKNOWN
    numbers = "/".join(said.get(name, "") for name in ("cpu family", "model", "stepping", "CPU variant", "CPU revision"))
    flags = sorted(set(_FLAGS.findall(said.get("flags") or said.get("Features") or "")))
    # Libraries choose their blocking, and with it the order of sums, by the size of the cache.
    cache = said.get("cache size", "").replace(" ", "")
    capability = " ".join([torch.backends.cpu.get_cpu_capability(), numbers.strip("/"), cache, *flags])
    config = torch.__config__.show()
    found = re.findall(r"(?:Math Kernel Library Version|MKL-DNN|OpenBLAS)[ v]*([\w.-]+)", config)
    return Machine(CPU, model, capability, "", "", " ".join([*found, *_set(_SETTINGS)]), threads)


def cuda_machine(device: torch.device) -> Machine:
    """One GPU: model, compute capability and multiprocessors, driver, CUDA and cuBLAS."""
    props = torch.cuda.get_device_properties(device)
    capability = f"{props.major}.{props.minor}/{props.multi_processor_count}"
    cuda = torch.version.cuda or f"hip-{torch.version.hip}"
    with torch.cuda.device(device):
        load_blas: Any = torch.cuda.current_blas_handle
        load_blas()
    return Machine("cuda", props.name, capability, _driver(), cuda, " ".join([_cublas(), *_set(_GPU_SETTINGS)]), 1)


def _driver() -> str:
    """NVIDIA's kernel module tells its version in the first line, as `… Kernel Module  550.54.15 …` or `… for x86_64  560.35.03 …`."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _text("/proc/driver/nvidia/version"))
    return found[1] if found else UNKNOWN


def _cublas() -> str:
    """The version of the library that is in this process; `cublasGetProperty` is in its public API."""
    path = re.search(r"\s(/\S*libcublas\.so[\w.]*)", _text("/proc/self/maps"))
    if path is None:
        return UNKNOWN
    try:
        ask = ctypes.CDLL(path[1]).cublasGetProperty
    except (OSError, AttributeError):
        return UNKNOWN
    numbers = [ctypes.c_int(-1) for _ in range(3)]
    failed = any(ask(i, ctypes.byref(number)) for i, number in enumerate(numbers))
    return UNKNOWN if failed else ".".join(str(n.value) for n in numbers)


def _set(names: tuple[str, ...]) -> list[str]:
    return [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]


def _cpu_fields(text: str) -> Mapping[str, str]:
    """Of the first processor."""
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return ""
