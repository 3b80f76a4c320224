"""What the host checks require; each default says where it comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_health.preflight.host_facts import Part

MIB = 1024.0**2
GIB = 1024.0**3


@dataclass(frozen=True)
class HostLimits:
    """Bounds; a finding is a failure or a warning as said.

    Attributes:
        parts: what is looked at.
        memory_bytes: available memory below this fails: less than a process takes that imports torch.
        memory_comfort_bytes: below this warns: less than a torch process with CUDA takes at its start.
        memory_fraction: available memory below this part of all warns: at 10 % earlyoom begins to kill.
        paths: whose file systems are looked at, besides /dev/shm: checkpoints, logs, /tmp.
        disk_bytes: free space below this fails: not even logs and evidence have room.
        disk_comfort_bytes: below this warns.
        disk_fraction: free space below this part warns: kubelet's default eviction bound `nodefs.available<10%`.
        inode_fraction: free inodes below this part warn: kubelet's `nodefs.inodesFree<5%`.
        shm_bytes: free /dev/shm below this fails: not even the workers' progress pages have room.  Docker's default of 64 MiB
            in all passes: it does for one small worker; NCCL and data loaders die by SIGBUS or "unable to open shared
            memory" when it is used up.
        shm_comfort_bytes: below this warns: NVIDIA's NCCL user guide (Troubleshooting, Docker) asks for --shm-size=1g.
        open_files: a hard limit below this fails: the usual soft default, used up by one worker's sockets and loaders.
        open_files_comfort: below this warns: twice the kernel's old default hard limit of 4096.
        locked_bytes: with an active RDMA port, a lower limit of locked memory warns (the NCCL user guide asks for none).
        clock_s: an offset above this warns: etcd warns of peers' clocks at 1 s (rafthttp's probing status).
        clock_fail_s: above this fails: records, quarantine and evidence of several nodes are ordered by wall clocks.
        nics: patterns (* and ?) of interfaces that must be there and up; () judges none, since spare ports are common.
        nic_mbps: what they must run at; 0: any speed.
        rdma_ports: patterns of `device` or `device:port` that must be there and active; () looks at all that are there, and
            only warns.
        rdma_gbps: what they must run at; 0: as fast as the fastest of their kind here.
        gpus: how many GPUs there must be; 0: any number.
        gpu_processes: patterns of names of processes that may be on a GPU.
        gpu_process_bytes: a process that holds less is no leftover: a context alone takes more.
        retired_pages: from so many on the GPU fails: 60 in NVIDIA/DCGM's dcgm_gpu_hardware_limits.h.
        nvlinks: active links that each GPU must have; 0: as many as the GPU here that has most; None: not looked at.
    """

    parts: tuple[Part, ...] = tuple(Part)
    memory_bytes: float = 256 * MIB
    memory_comfort_bytes: float = 1 * GIB
    memory_fraction: float = 0.10
    paths: tuple[str, ...] = ("/tmp",)
    disk_bytes: float = 128 * MIB
    disk_comfort_bytes: float = 1 * GIB
    disk_fraction: float = 0.10
    inode_fraction: float = 0.05
    shm_bytes: float = 4 * MIB
    shm_comfort_bytes: float = 1 * GIB
    open_files: int = 1024
    open_files_comfort: int = 8192
    locked_bytes: float = 1 * GIB
    clock_s: float = 1.0
    clock_fail_s: float = 30.0
    nics: tuple[str, ...] = ()
    nic_mbps: int = 0
    rdma_ports: tuple[str, ...] = ()
    rdma_gbps: float = 0.0
    gpus: int = 0
    gpu_processes: tuple[str, ...] = ("nvidia-cuda-mps*", "nv-hostengine*", "dcgm*", "nvidia-persiste*", "Xorg*")
    gpu_process_bytes: float = 16 * MIB
    retired_pages: int = 60
    nvlinks: int | None = 0

    def wants(self, part: Part) -> bool:
        return part in self.parts


def fits(pattern: str, name: str) -> bool:
    """Does a whole name fit a pattern of `*` (any characters) and `?` (one)?"""
    spelled = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    return re.fullmatch(spelled, name, re.DOTALL) is not None
