"""What a canary's bytes depend on, as one value and as one segment of a key."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from elastic_health.codec import plain

_HEAD = 120
_HASH = 24


@dataclass(frozen=True)
class Fingerprint:
    """Two canaries are comparable only if all of this is equal.  "" stands for what the device doesn't have.

    Attributes:
        kind: `cpu` or `cuda`.
        device: its model, as the driver or the kernel names it.
        capability: compute capability and number of multiprocessors; for a CPU the instruction sets in use.
        driver, cuda, blas, torch: versions (`blas`: cuBLAS, or the CPU's maths libraries).
        dtype: as torch names it, or `tf32`.
        size: the matrices are size × size.
        seed: of the inputs.
        threads: of a CPU's matmul.
        recipe: number of the way in which the inputs are made and the bytes are taken.
    """

    kind: str
    device: str
    capability: str
    driver: str
    cuda: str
    blas: str
    torch: str
    dtype: str
    size: int
    seed: int
    threads: int
    recipe: int

    @property
    def segment(self) -> str:
        """A readable head, and a hash of every field."""
        body = json.dumps(plain(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        head = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.device} {self.dtype} {self.size}").strip("-")[-_HEAD:].strip("-")
        return f"{head or self.kind}.{hashlib.sha256(body.encode()).hexdigest()[:_HASH]}"
