"""Facts of this host from psutil, /proc and /sys (see `host_facts`).  Every function raises OSError where the kernel refuses."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import resource
import time
from collections.abc import Iterable, Iterator, Mapping

import psutil

from elastic_health import variables
from elastic_health.preflight.host_facts import IbPort, Limits, Memory, Network, Nic, Orphan, Space

SHM = "/dev/shm"
_MARKS = (b"TORCHELASTIC_RUN_ID=", f"{variables.WORKER_TOKEN}=".encode())
"""What torchrun and our agent put into the environment of workers, and so of all that descends from these."""
_REAPERS = frozenset("systemd init tini dumb-init docker-init catatonit s6-svscan runsv slurmstepd containerd-shim conmon pause".split())
"""Who inherits processes whose parent has died, besides pid 1."""
_AGENTS = ("python", "torchrun")
"""An agent is a Python program, as pid 1 of a container too; a shell that started one is none."""
_ENVIRON_BYTES = 256 * 1024
_UNLIMITED = 1 << 60
"""A control group of version 1 writes "no limit" as a number near 2**63."""


# ---- memory


def memory(cgroups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Memory:
    """Of the host, or of this process's control group where that allows less."""
    seen = psutil.virtual_memory()
    total, available = int(seen.total), int(seen.available)
    for folder, names in _group_folders(cgroups, own):
        limit, used = _number(f"{folder}/{names[0]}"), _number(f"{folder}/{names[1]}")
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        cached = _field(f"{folder}/memory.stat", names[2]) or 0  # as kubelet counts: cache that nobody uses is available
        total, available = min(total, limit), min(available, max(0, limit - used + cached))
    return Memory(total, available)


def _group_folders(cgroups: str, own: str) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Folders of this process's control group and of those above it, with the names of limit, use and idle cache."""
    for line in _lines(own):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            base, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = f"{cgroups}/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield "/".join((base, *parts[:depth])), names


# ---- space and limits


def space(path: str) -> Space:
    """Of one file system; may block for as long as a network file system does not answer."""
    try:
        seen = os.statvfs(path)
    except OSError as error:
        return Space(path, error=error.strerror or str(error))
    size = seen.f_frsize
    read_only = bool(seen.f_flag & os.ST_RDONLY)
    return Space(path, seen.f_blocks * size, seen.f_bavail * size, seen.f_files, seen.f_favail, read_only)


def limits() -> Limits:
    soft, hard = (_finite(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    return Limits(soft, hard, _finite(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))


def _finite(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


# ---- processes


def marked(proc: str = "/proc") -> dict[int, str]:
    """Pid -> run id ("" if unknown) of all processes that carry a worker's environment, as far as we may look."""
    found = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            with open(f"{proc}/{entry}/environ", "rb") as file:
                block = file.read(_ENVIRON_BYTES)
        except OSError:  # gone, or another user's
            continue
        if any(mark in block for mark in _MARKS):
            pairs = [word.partition(b"=")[::2] for word in block.split(b"\0")]
            named = {name: value for name, value in pairs if name + b"=" in _MARKS or name == variables.RUN.encode()}
            if any(name + b"=" in _MARKS for name in named):
                run = named.get(variables.RUN.encode()) or named.get(b"TORCHELASTIC_RUN_ID") or b""
                found[int(entry)] = run.decode("utf-8", "replace")
    return found


def orphans(workers: Mapping[int, str], agent: int) -> tuple[Orphan, ...]:
    """Those of `workers` whose agent is gone: the first of their line that is no worker is a reaper.

    Args:
        agent: pid of our agent; what descends from it is no orphan.
    """
    found = []
    for pid, run in sorted(workers.items()):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE and _orphaned(process, workers, agent):
                age = max(0.0, time.time() - process.create_time())
                found.append(Orphan(pid, process.name(), run, age, process.memory_info().rss))
    return tuple(found)


def _orphaned(process: psutil.Process, workers: Mapping[int, str], agent: int) -> bool:
    above = process.parent()
    while above is not None and above.pid in workers and above.pid != agent:
        above = above.parent()
    if above is None:  # its parent ended this moment, or lives outside of our namespace
        return process.ppid() in (0, 1)
    return above.pid != agent and is_reaper(above.pid, above.name(), (above.cmdline() or [""])[0])


def is_reaper(pid: int, name: str, program: str) -> bool:
    """Is this who inherits orphans, and not an agent?"""
    return not os.path.basename(program).startswith(_AGENTS) and (pid == 1 or name in _REAPERS)


def descends(pid: int, agent: int) -> bool:
    """Is `pid` the agent, or below it?"""
    try:
        process: psutil.Process | None = psutil.Process(pid)
        while process is not None and process.pid != agent:
            process = process.parent()
    except psutil.Error:
        return False
    return process is not None


def name_of(pid: int) -> str:
    """A process's name, "" where it can't be seen from here."""
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


# ---- network


def network(nets: str = "/sys/class/net", rdma: str = "/sys/class/infiniband") -> Network:
    return Network(tuple(_nics(nets)), tuple(_ports(rdma)))


def _nics(root: str) -> Iterator[Nic]:
    for folder in sorted(glob.glob(f"{glob.escape(root)}/*/")):
        base = folder.rstrip("/")
        up = _word(f"{base}/operstate") == "up" or _word(f"{base}/carrier") == "1"
        speed = _number(f"{base}/speed")
        yield Nic(os.path.basename(base), up, os.path.exists(f"{base}/device"), speed if speed and speed > 0 else None)


def _ports(root: str) -> Iterator[IbPort]:
    for folder in sorted(glob.glob(f"{glob.escape(root)}/*/ports/*/")):
        base = folder.rstrip("/")
        number = os.path.basename(base)
        state, physical = (_word(f"{base}/{name}").partition(":")[2].strip() for name in ("state", "phys_state"))
        rate = re.match(r"[\d.]+", _word(f"{base}/rate"))
        device = os.path.basename(os.path.dirname(os.path.dirname(base)))
        gbps = float(rate.group()) if rate and rate.group().strip(".") else 0.0
        yield IbPort(device, int(number) if number.isdigit() else 0, state, physical, _word(f"{base}/link_layer"), gbps)


def gpu_devices(nodes: str = "/dev", driver: str = "/proc/driver/nvidia/gpus") -> int:
    """NVIDIA GPUs that this host (or container) has been given: device nodes, else what the driver lists."""
    found = [path for path in glob.glob(f"{glob.escape(nodes)}/nvidia*") if re.fullmatch(r"nvidia\d+", os.path.basename(path))]
    if found:
        return len(found)
    try:
        return len(os.listdir(driver))
    except OSError:
        return 0


# ---- small files


def _lines(path: str) -> Iterable[str]:
    return _word(path).splitlines()


def _word(path: str) -> str:
    """A small file's text, "" where there is none (some drivers answer a read with EINVAL)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    word = _word(path)
    return int(word) if re.fullmatch(r"-?\d{1,20}", word) else None


def _field(path: str, name: str) -> int | None:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None
