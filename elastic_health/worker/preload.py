"""What a warm process may import ahead of its script, and when that is exact.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MODULES: tuple[str, ...] = (
    "torch",
    "torch.distributed",
    "numpy",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.optim",
    "torch.nn.parallel",
    "torch.utils.data",
)
"""Heavy modules; bit i of a page's `modules` stands for MODULES[i].  Only what the script itself had imported by its
first process group is preloaded later."""

EARLY = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "MALLOC_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "PYTHON",
    "LD_", "ATEN_", "TRITON_", "GLOO_", "HIP_", "ROCR_",
)  # fmt: skip
"""Variables that torch or its libraries may read while they are imported."""


def mask(imported: Iterable[str]) -> int:
    have = set(imported)
    return sum(1 << i for i, name in enumerate(MODULES) if name in have)


def names(bits: int) -> tuple[str, ...]:
    return tuple(name for i, name in enumerate(MODULES) if bits >> i & 1)


def warmable(at_start: Mapping[str, str], at_import: Mapping[str, str]) -> bool:
    """May a process that has imported torch *before* the script take its place?  Not if the script set something first that
    an import reads."""
    changed = {k for k in at_start.keys() | at_import.keys() if at_start.get(k) != at_import.get(k)}
    return not any(name.startswith(EARLY) for name in changed)
