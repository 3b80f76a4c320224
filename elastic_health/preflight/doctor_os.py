"""Looks at this machine for `doctor`: tools, limits, GPUs, and the plugin in a process of its own."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from elastic_health.codec import build, shown
from elastic_health.errors import BadValue
from elastic_health.preflight.doctor_facts import HostFacts, PlugFacts, Trouble

_OUTPUT_BYTES = 1 << 20
_SHEBANG_BYTES = 4096
_LONG = re.compile(r"""'''exec' "?(.+?)"? "\$0\"""")
"""The second line of a script as pip writes it where the interpreter's path is too long, or has spaces, for the first."""


def look_at_host(tools: Iterable[str], driver: Path = Path("/proc/driver/nvidia"), shm: str = "/dev/shm") -> HostFacts:
    """Nothing is started for this."""
    try:
        space = os.statvfs(shm)
        free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    except OSError:
        free, total = None, 0
    return HostFacts(
        tools=tuple((name, shutil.which(name) or "") for name in tools),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        shm_free_bytes=free,
        shm_bytes=total,
        driver=_driver(driver / "version"),
        gpus=sum(1 for _ in (driver / "gpus").iterdir()) if (driver / "gpus").is_dir() else 0,
    )


def _driver(version: Path) -> str:
    """`NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …` -> `550.54.15`."""
    try:
        words = version.read_text(errors="replace").split()
    except OSError:
        return ""
    return next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), "of an unknown version")


def own_gpus(driver: Path = Path("/proc/driver/nvidia")) -> tuple[str, ...]:
    """Uuids of the GPUs that NVIDIA's driver lists."""
    return tuple(sorted(uuid for file in driver.glob("gpus/*/information") if (uuid := _uuid(file))))


def _uuid(information: Path) -> str:
    """The line `GPU UUID: GPU-…`, which an idle driver may fill with question marks."""
    try:
        found = re.search(r"^GPU UUID:\s*(\S+)", information.read_text(errors="replace"), re.M)
    except OSError:
        return ""
    return found[1] if found and "?" not in found[1] else ""


def own_nics(system: Path = Path("/sys/class")) -> tuple[str, ...]:
    """Names of network interfaces and of RDMA devices."""
    found = (place.iterdir() for place in (system / "net", system / "infiniband") if place.is_dir())
    return tuple(sorted({nic.name for some in found for nic in some} - {"lo", "bonding_masters"}))


def look_at_plugin(within_s: float) -> PlugFacts | Trouble:
    """A fresh Python, as torchrun would be one."""
    command = [sys.executable, "-m", "elastic_health.preflight.doctor_torch", str(int(within_s) + 5)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        return Trouble(f"importing torch and the plugin took more than {within_s:g} s", "try `python -c 'import torch'`: a slow disk?")
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    said = out[-_OUTPUT_BYTES:].decode(errors="replace").strip().rpartition("\n")[2]
    try:
        facts: PlugFacts = build(PlugFacts, {**json.loads(said), "python": _real(sys.executable), "torchrun": torchrun_python()}, "plugin")
    except (ValueError, TypeError, BadValue):
        last = err[-_OUTPUT_BYTES:].decode(errors="replace").strip().rpartition("\n")[2]
        how = f"ended with status {child.returncode}" if child.returncode >= 0 else f"was killed by signal {-child.returncode}"
        return Trouble(f"importing torch and the plugin {how}: {shown(last, 200)}", "try `python -c 'import torch'`")
    return facts


def torchrun_python() -> str:
    """The interpreter in the first line of the `torchrun` that $PATH finds, "" where that is no script."""
    script = shutil.which("torchrun")
    if script is None:
        return ""
    try:
        with open(script, "rb") as file:
            first, *more = file.read(_SHEBANG_BYTES).decode(errors="replace").splitlines()[:2]
    except (OSError, ValueError):
        return ""
    if not first.startswith("#!"):
        return ""
    words = first[2:].split()
    if words and words[0].endswith("/env"):
        return _real(shutil.which(words[-1]) or "")
    inner = _LONG.match(more[0]) if more else None
    return _real(inner[1] if inner else words[0]) if words else ""


def _real(path: str) -> str:
    """Without links in its folder; a link to another Python is a virtual environment, so the last part stays."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), _plain(os.path.basename(path))) if path else ""


def _plain(name: str) -> str:
    """`python3.11` and `python3` in one folder are one interpreter."""
    return "python" if name.startswith("python") else name
