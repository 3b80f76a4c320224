"""Kernel messages in every form in which they are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

# Each puts a message at second `i` of the same minute (2026-03-02 10:11 UTC; 100 s after boot and on).
FORMS: Mapping[str, Callable[[int, str], str]] = MappingProxyType(
    {
        "dmesg": lambda i, m: f"[{100 + i:5d}.283302] {m}",
        "dmesg thread": lambda i, m: f"[{100 + i:5d}.283302][ T1234] {m}",
        "dmesg -T": lambda i, m: f"[Mon Mar  2 10:11:{i:02d} 2026] {m}",
        "dmesg iso": lambda i, m: f"2026-03-02T10:11:{i:02d},283302+00:00 {m}",
        "dmesg iso decode": lambda i, m: f"kern  :warn  : 2026-03-02T10:11:{i:02d}.283302+00:00 {m}",
        "dmesg decode": lambda i, m: f"kern  :err   : [{100 + i:5d}.283302] {m}",
        "dmesg raw": lambda i, m: f"<4>[{100 + i:5d}.283302] {m}",
        "kmsg": lambda i, m: f"4,{900 + i},{(100 + i) * 1_000_000 + 283302},-,caller=T77;{m}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:b3:00.0",
        "journal short": lambda i, m: f"Mar 02 10:11:{i:02d} gpu-node-1 kernel: {m}",
        "journal precise": lambda i, m: f"Mar 02 10:11:{i:02d}.283302 gpu-node-1 kernel: {m}",
        "journal iso": lambda i, m: f"2026-03-02T12:11:{i:02d}+0200 gpu-node-1 kernel: {m}",
        "journal iso precise": lambda i, m: f"2026-03-02T12:11:{i:02d}.283302+0200 gpu-node-1 kernel: {m}",
        "journal full": lambda i, m: f"Mon 2026-03-02 10:11:{i:02d} UTC gpu-node-1 kernel: {m}",
        "journal unix": lambda i, m: f"{1772446260 + i}.283302 gpu-node-1 kernel: {m}",
        "journal monotonic": lambda i, m: f"[{100 + i:5d}.283302] gpu-node-1 kernel: {m}",
        "journal cat": lambda i, m: m,
        "journal json": lambda i, m: _journal(i, m),
        "syslog": lambda i, m: f"Mar  2 10:11:{i:02d} gpu-node-1 kernel: [{100 + i:5d}.283302] {m}",
    }
)
MOMENT = 1772446260.0


def _journal(i: int, message: str) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": f"{1772446260 + i}283302", "_TRANSPORT": "kernel", "MESSAGE": message})


BOOT = MOMENT - 100.0
LOST = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
QUIET = (
    "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
    "NVRM: GPU at PCI:0000:08:00: GPU-926ecdb0-adb1-6ee9-2fad-52e7214c5011",
    "r8169 0000:06:00.0 eth0: RTL8125B, 50:eb:f6:ce:c1:33, XID 641, IRQ 158",
    "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
)


def log(form: str, *messages: str) -> str:
    return "".join(f"{FORMS[form](i, message)}\n" for i, message in enumerate(messages))


def xid(number: int, rest: str = "pid=4242, name=python3, Ch 00000008", pci: str = "PCI:0000:b3:00") -> str:
    return f"NVRM: Xid ({pci}): {number}, {rest}"
