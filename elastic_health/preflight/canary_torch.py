"""The canary's measurement: a matmul of fixed inputs on the processor and on each GPU, and SHA-256 over its raw bytes.

`python -m elastic_health.preflight.canary_torch` prints one JSON object a line: one for each device and dtype as it is
done (so that a crash on one device loses no other's), one `{"done": true}` at the end.  A process of its own can be
limited in time, and a CUDA error in it is not the agent's.

The inputs come from an integer hash on the CPU, the same on every machine and under every version of torch.  Number
formats that the user may have relaxed (TF32, reduced-precision sums) are set for the measurement and put back.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from elastic_health.codec import plain
from elastic_health.preflight.canary import CPU
from elastic_health.preflight.canary_parts_torch import NO_MACHINE, Machine, cpu_machine, cuda_machine, gpus_listed, uuid_of
from elastic_health.preflight.canary_report import CPU_DTYPES, CPU_SIZE, CUDA_DTYPES, CUDA_SIZE, REPEATS, SEED, Report, Unit
from elastic_health.preflight.fingerprint import Fingerprint

RECIPE = 1
"""Raise it when inputs, flags or the bytes that are hashed change: older digests then no longer compare."""
TF32 = "tf32"
_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    TF32: torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_GRAIN = 32768
"""Elements up to which torch starts no threads for an operation (`at::internal::GRAIN_SIZE`); on a busy machine they cost
more than they give."""
Factors = tuple[torch.Tensor, torch.Tensor]
_WORD = 0xFFFFFFFF


def inputs(size: int, seed: int, which: int) -> torch.Tensor:
    """A size × size matrix of float32 in (-4, 4) on the CPU: full mantissas, both signs, eight exponents.

    Integer arithmetic only up to the last, exact, scaling.  `which` tells the factors of one product apart.
    """
    out = torch.empty((size, size), dtype=torch.float32)
    scales = torch.tensor([2.0 ** (k - 28) for k in range(8)], dtype=torch.float32)
    offset = (which + seed * 0x9E3779B1) & _WORD
    step = max(1, _GRAIN // size)
    for top in range(0, size, step):
        rows = min(step, size - top)
        word = torch.arange(top * size, (top + rows) * size, dtype=torch.int64)
        word = _mixed(word * 2 + offset)
        mantissa = (word & 0xFFFFFF) - 0x800000
        out[top : top + rows] = (mantissa.to(torch.float32) * scales[(word >> 24) & 7]).reshape(rows, size)
    return out


def _mixed(word: torch.Tensor) -> torch.Tensor:
    """A 32-bit integer mix by xorshift and multiplication, in 64-bit integers that are cut after each step."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        word = word & _WORD
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> 16)


def digest_of(value: torch.Tensor) -> str:
    """SHA-256, in hexadecimal, over the bytes of a tensor in row order."""
    held = value.detach().to("cpu").contiguous()
    size_bytes = held.numel() * held.element_size()
    return hashlib.sha256((ctypes.c_char * size_bytes).from_address(held.data_ptr())).hexdigest()


@contextmanager
def exact(threads: int, *, tf32: bool = False) -> Iterator[None]:
    """One number of threads and full-precision sums for the length of a `with` block."""
    backends: Any = torch.backends
    cuda, mkldnn = backends.cuda.matmul, backends.mkldnn.matmul
    wanted: tuple[tuple[Any, str, Any], ...] = (
        (cuda, "fp32_precision", TF32 if tf32 else "ieee"),
        (mkldnn, "fp32_precision", "ieee"),
        (cuda, "allow_fp16_reduced_precision_reduction", False),
        (cuda, "allow_bf16_reduced_precision_reduction", False),
        (cuda, "allow_fp16_accumulation", False),
    )
    before = [(where, name, getattr(where, name)) for where, name, _ in wanted]
    threads_before = torch.get_num_threads()
    try:
        for where, name, value in wanted:
            setattr(where, name, value)
        torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(threads_before)
        for where, name, value in before:
            setattr(where, name, value)


def digests(device: torch.device, dtype: str, factors: Factors, repeats: int, threads: int = 1) -> list[str]:
    """One digest a repetition; the factors go to the device once."""
    with torch.inference_mode(), exact(threads, tf32=dtype == TF32):
        a, b = (f.to(_DTYPES[dtype]).to(device) for f in factors)
        return [digest_of(a @ b) for _ in range(max(1, repeats))]


def fingerprint(machine: Machine, dtype: str, size: int, seed: int) -> Fingerprint:
    """What the bytes of this matmul depend on."""
    return Fingerprint(**plain(machine), torch=torch.__version__, dtype=dtype, size=size, seed=seed, recipe=RECIPE)


@dataclass(frozen=True)
class Known:
    """A device: its id, what it is, and what went wrong while that was asked."""

    device: torch.device
    id: str
    machine: Machine
    error: str = ""


def known(device: torch.device, threads: int = 1) -> Known:
    """Ask a device what it is."""
    if device.type == CPU:
        return Known(device, CPU, cpu_machine(threads))
    try:
        return Known(device, uuid_of(device), cuda_machine(device))
    except RuntimeError as e:
        return Known(device, str(device), NO_MACHINE, _first_line(e))


def measure(one: Known, factors: Factors, dtypes: Sequence[str], seed: int, repeats: int) -> Iterator[Unit]:
    """One `Unit` for each dtype, as it is done.  What fails on the device becomes its `error`.

    Args:
        factors: as `inputs` makes them of `seed`, both size × size.
    """
    error = one.error
    for dtype in dtypes:
        began, found = time.perf_counter(), list[str]()
        key = fingerprint(one.machine, dtype, factors[0].shape[0], seed)
        try:
            found = [] if error else digests(one.device, dtype, factors, repeats, one.machine.threads)
        except RuntimeError as e:
            error = _first_line(e)
        yield Unit(one.id, key, tuple(found), repeats, round(time.perf_counter() - began, 4), error)
        if error and one.device.type == "cuda":
            return  # after an error nothing that this device says can be relied on
        error = ""


def _first_line(error: RuntimeError) -> str:
    """Of an error of torch; the CUDA runtime's derive from RuntimeError too."""
    return (str(error).splitlines() or ["no message"])[0][:500]


def both_inputs(size: int, seed: int) -> Factors:
    return inputs(size, seed, 0), inputs(size, seed, 1)


def measure_cpu(dtypes: Sequence[str] = CPU_DTYPES, size: int = CPU_SIZE, *, seed: int = SEED, repeats: int = REPEATS) -> Report:
    """The processor's canary in this process, for one that has torch in memory already."""
    return Report(tuple(measure(known(torch.device(CPU)), both_inputs(size, seed), dtypes, seed, repeats)), True, 1)


def _devices(asked: str) -> list[torch.device]:
    there = torch.cuda.is_available() or (torch.version.cuda is not None and gpus_listed())  # listed but not usable: no device, not the CPU
    if asked == CPU or (asked == "auto" and not there):
        return [torch.device(CPU)]
    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m elastic_health.preflight.canary_torch", description=(__doc__ or "").splitlines()[0])
    top.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: every GPU, else the processor")
    top.add_argument("--dtype", action="append", choices=sorted(_DTYPES), help="repeat it for several")
    top.add_argument("--size", type=int, default=0, help="matrices are SIZE × SIZE")
    top.add_argument("--seed", type=int, default=SEED)
    top.add_argument("--repeats", type=int, default=REPEATS)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when all was measured, 1 when a device could not, 2 for wrong arguments."""
    parser = _parser()
    given = parser.parse_args(arguments)
    devices = _devices(given.device)
    on_cpu = bool(devices) and devices[0].type == CPU
    size = given.size or (CPU_SIZE if on_cpu else CUDA_SIZE)
    if not (0 < size <= 16384 and 0 < given.repeats <= 1000):
        parser.error("expected 1 <= SIZE <= 16384 and 1 <= REPEATS <= 1000")
    failed = not devices
    dtypes = given.dtype or (CPU_DTYPES if on_cpu else CUDA_DTYPES)
    factors = both_inputs(size if devices else 1, given.seed)
    for device in devices:
        _print({"begin": str(device)})
        one = known(device)
        _print({"begin": one.id})
        for unit in measure(one, factors, dtypes, given.seed, given.repeats):
            failed = failed or bool(unit.error)
            _print(plain(unit))
    _print({"done": True, "devices": len(devices)})
    return int(failed)


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a broken device may hang CUDA's own teardown, and all is printed
