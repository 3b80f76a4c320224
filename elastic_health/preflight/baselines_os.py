"""A baseline in a file, and what this machine says of itself: node type and versions."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from importlib import metadata
from pathlib import Path

from elastic_health._version import __version__
from elastic_health.codec import dump, load
from elastic_health.errors import BadValue, BaselineError
from elastic_health.preflight.baselines import Baseline, NodeFacts, succeed

MAX_BYTES = 8 << 20
_PROC_NVIDIA = "proc/driver/nvidia"


def read_file(path: str | os.PathLike[str]) -> Baseline | None:
    """The baseline in a file, None if there is no such file.

    Raises:
        BaselineError: it can't be read, or makes no sense.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise BaselineError("a readable file", f"{os.fspath(path)}: {e.strerror or e}", "correct the path or its mode") from e
    try:
        return load(Baseline, raw, os.fspath(path))
    except BadValue as e:
        raise BaselineError(e.expected, e.found, "correct or delete this file, or record the baseline again") from e


def write_file(path: str | os.PathLike[str], new: Baseline, *, at: str, by: str, force: bool = False) -> Baseline:
    """Write a baseline under its name at once or not at all; returns it as `baselines_etcd.write` does.

    Raises:
        BaselineError: one is there and `force` isn't given, or the file can't be written.
    """
    path = Path(path)
    old = None
    try:
        old = read_file(path)
        there = f"{path}, of {old.provenance.at} from {old.provenance.node}" if old else ""
    except BaselineError as e:
        there = e.found
    if there and not force:
        raise BaselineError("no baseline yet", there, "write --force to replace it, or name another file")
    final = succeed(new, old)
    try:
        _replace(path, dump(final, at=at, by=by) + b"\n")
    except OSError as e:
        raise BaselineError("a file that can be written", f"{path}: {e.strerror or e}", "correct the path, or free space") from e
    return final


def _replace(path: Path, raw: bytes) -> None:
    fd, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(raw)
            file.flush()
            os.fsync(fd)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


# ---- this machine


def node_facts(root: str | os.PathLike[str] = "/") -> NodeFacts:
    """What `node_type` derives a type from, as the kernel and NVIDIA's driver list it.  `root`: where `/` is (for tests).

    Network devices are told by PCI vendor and device, not by state or speed: a link that is down makes no other type.
    """
    top = Path(root)
    gpus = [_field(_text(f), "Model") for f in sorted(top.glob(f"{_PROC_NVIDIA}/gpus/*/information"))]
    cpuinfo = _text(top / "proc/cpuinfo")
    cpu = _field(cpuinfo, "model name") or _field(cpuinfo, "CPU part")
    cpus = len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE))
    nics = [_pci(device) for device in sorted(top.glob("sys/class/net/*/device"))]
    return NodeFacts(tuple(g or "gpu" for g in gpus), cpu, cpus, tuple(n for n in nics if n))


def _pci(device: Path) -> str:
    vendor, model = _text(device / "vendor").strip(), _text(device / "device").strip()
    return f"{vendor.removeprefix('0x')}-{model.removeprefix('0x')}" if vendor and model else ""


def versions(root: str | os.PathLike[str] = "/") -> dict[str, str]:
    """Of this package, torch (without importing it) and NVIDIA's driver, as far as they are there."""
    found = {"elastic-health": __version__}
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")
    driver = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _text(Path(root) / _PROC_NVIDIA / "version"))
    if driver:
        found["driver"] = driver[1]
    return found


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}\s*:[ \t]*(.*\S)", text, re.MULTILINE)
    return found[1] if found else ""


def _text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return ""
