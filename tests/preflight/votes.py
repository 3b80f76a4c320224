"""Digests, votes and fingerprints for the canary's tests."""

from __future__ import annotations

import hashlib

from elastic_health.preflight.canary import Vote
from elastic_health.preflight.canary_report import Report, Unit
from elastic_health.preflight.fingerprint import Fingerprint

AT = "2026-01-01T00:00:00Z"


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


GOOD, BAD, OTHER = digest("good"), digest("bad"), digest("other")


def gpu(node: str, i: int = 0) -> str:
    return f"GPU-{node}-{i}"


def vote(node: str, value: str = GOOD, i: int = 0, at: str = AT) -> Vote:
    return Vote(node, gpu(node, i), value, at)


def key(driver: str = "550.54.15", dtype: str = "float32") -> Fingerprint:
    return Fingerprint("cuda", "NVIDIA H100 80GB HBM3", "9.0/132", driver, "12.4", "12.4.5", "2.13.0", dtype, 4096, 7, 1, 1)


def report(node: str, *values: str, fingerprint: Fingerprint | None = None) -> Report:
    """One device for each value, measured three times."""
    units = tuple(Unit(gpu(node, i), fingerprint or key(), (v,) * 3, 3) for i, v in enumerate(values))
    return Report(units, True, len(units))
