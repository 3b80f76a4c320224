"""A stand-in for the module `pynvml`: written to a folder on PYTHONPATH, or loaded here.

GPUs come from the JSON in the variable FAKE_NVML: a list of {function name: answer}; an answer that is a text raises the
error of that name, and functions that aren't named aren't supported.  `"hang"` in place of the list makes `nvmlInit` hang.
"""

from __future__ import annotations

import types
from pathlib import Path

SOURCE = """
import json, os, time
from types import SimpleNamespace

NVML_PAGE_RETIREMENT_CAUSE_COUNT = 2
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
NVML_NVLINK_MAX_LINKS = 4
SHUT = []


class NVMLError(Exception):
    pass


def _gpus():
    return json.loads(os.environ.get("FAKE_NVML", "[]"))


def nvmlInit():
    found = _gpus()
    if found == "hang":
        time.sleep(600)
    if isinstance(found, str):
        raise NVMLError(found)


def nvmlShutdown():
    SHUT.append(1)


def nvmlDeviceGetCount():
    return len(_gpus())


def nvmlSystemGetDriverVersion():
    return b"580.65.06"


def nvmlDeviceGetHandleByIndex(index):
    gpu = _gpus()[index]
    if isinstance(gpu.get("handle"), str):
        raise NVMLError(gpu["handle"])
    return gpu


def _answer(name, gpu, arguments):
    if name not in gpu:
        raise NVMLError("Not Supported")
    answer = gpu[name]
    for argument in arguments:
        if isinstance(answer, list):
            if argument >= len(answer):
                raise NVMLError("Invalid Argument")
            answer = answer[argument]
    if isinstance(answer, str) and answer.startswith("!"):
        raise NVMLError(answer[1:])
    return answer


def _plain(name):
    return lambda gpu, *arguments: _answer(name, gpu, arguments)


for _name in (
    "UUID Name EccMode MigMode RemappedRows TotalEccErrors RetiredPages RetiredPagesPendingStatus CurrPcieLinkWidth "
    "MaxPcieLinkWidth CurrPcieLinkGeneration MaxPcieLinkGeneration Temperature PerformanceState NvLinkState "
    "CurrentClocksThrottleReasons"
).split():
    globals()["nvmlDeviceGet" + _name] = _plain(_name)


def nvmlDeviceGetPciInfo(gpu):
    return SimpleNamespace(busId=b"00000000:18:00.0")


def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(total=_answer("MemoryInfo", gpu, ()))


def nvmlDeviceGetComputeRunningProcesses(gpu):
    return [SimpleNamespace(pid=p[0], usedGpuMemory=p[1]) for p in _answer("ComputeRunningProcesses", gpu, ())]
"""
GOOD = {
    "UUID": "GPU-aaaa",
    "Name": "NVIDIA H100 80GB HBM3",
    "MemoryInfo": 85899345920,
    "EccMode": [1, 1],
    "MigMode": [0, 0],
    "RemappedRows": [1, 2, 0, 0],
    "TotalEccErrors": [[5, 6], [0, 3]],
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "CurrPcieLinkGeneration": 1,
    "MaxPcieLinkGeneration": 5,
    "Temperature": 41,
    "PerformanceState": 8,
    "NvLinkState": [1, 1, 0],
    "CurrentClocksThrottleReasons": 1,
    "ComputeRunningProcesses": [],
}


def install(folder: Path) -> None:
    """Make it importable as `pynvml` from `folder`."""
    (folder / "pynvml.py").write_text(SOURCE)


def loaded() -> types.ModuleType:
    """The module, here."""
    module = types.ModuleType("fake_pynvml")
    exec(compile(SOURCE, "fake_pynvml", "exec"), module.__dict__)
    return module
