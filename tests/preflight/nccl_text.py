"""Outputs of nccl-tests in every layout, made to order: what a test changes is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

SIZES = (1048576, 8388608, 67108864)
FIGURES = {1048576: (28.5, 36.7, 64.2), 8388608: (84.2, 99.5, 174.1), 67108864: (326.0, 205.4, 359.5)}
OLD, OLD_ROOT, OLD_PLAIN, NEW, ITERS, STAMPED = "old", "old_root", "old_plain", "new", "iters", "stamped"
LAYOUTS = (OLD, OLD_ROOT, OLD_PLAIN, NEW, ITERS, STAMPED)
_HEAD = {
    OLD: ("redop",),
    OLD_ROOT: ("redop", "root"),
    OLD_PLAIN: (),
    NEW: ("redop", "root"),
    ITERS: ("redop", "root"),
    STAMPED: ("redop", "root"),
}
_VALUES = {"redop": "sum", "root": "-1"}

PREFIXES: Mapping[str, Callable[[int], str]] = MappingProxyType(
    {
        "mpirun --tag-output": lambda i: "[1,0]<stdout>:",
        "mpirun --timestamp-output": lambda i: f"Mon Mar  2 10:11:{i % 60:02d} 2026<stdout>:",
        "srun --label": lambda i: "0: ",
        "kubectl --prefix --timestamps": lambda i: f"[pod/nccl-launcher/test] 2026-03-02T10:11:{i % 60:02d}.123456789Z ",
        "cri": lambda i: f"2026-03-02T10:11:{i % 60:02d}.123456789Z stdout F ",
        "torchrun --tee": lambda i: "[default0]:",
        "systemd": lambda i: "Mar 02 10:11:12 node-a nccl[4000]: ",
        "quoted": lambda i: "> ",
    }
)
NOISE = (
    "node-a:4000:4012 [0] NCCL INFO Launch mode Parallel",
    "",
    "#",
    "NCCL version 2.21.5+cuda12.4",
    "libibverbs: Warning: couldn't load driver 'libvmw_pvrdma-rdmav34.so'",
    "node-a:4000:4012 [3] NCCL INFO Channel 00/24 :    0   1   2   3   4   5   6   7",
    "1048576 262144",
    "WARNING: There are more than one active ports on host 'node-a'",
)


def output(
    layout: str = NEW,
    *,
    world: int = 8,
    hosts: Sequence[str] = ("node-a",),
    wrong: str = "",
    sizes: Sequence[int] = SIZES,
    scale: float = 1.0,
    redops: Sequence[str] = ("sum",),
    bounds: str | None = None,
    average: str | None = None,
    pid: int = 4000,
) -> str:
    """A whole output.  `wrong`: what stands in the validation column, "" for the layout's own zero."""
    return (
        "\n".join([*head(layout, world, hosts, pid), *table(layout, wrong, sizes, scale, redops), *tail(layout, wrong, bounds, average)])
        + "\n"
    )


def head(layout: str, world: int = 8, hosts: Sequence[str] = ("node-a",), pid: int = 4000) -> list[str]:
    group = "" if layout.startswith("old") else "Group  0 "
    each = max(1, world // len(hosts))
    bus = "0000:{:02x}:00" if layout in (ITERS, STAMPED) else "0x{:02x}"
    lines = ["# Collective test starting: all_reduce_perf"] if layout in (ITERS, STAMPED) else []
    lines += [
        "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 67108864 step: 8(factor) warmup iters: 5 iters: 20 validation: 1 ",
        "#",
        "# Using devices",
    ]
    for rank in range(world):
        place = f"on {hosts[min(rank // each, len(hosts) - 1)]} device {rank % each:2d} [{bus.format(rank + 16)}]"
        lines.append(f"#  Rank {rank:2d} {group}Pid {pid + rank:6d} {place} NVIDIA H100 80GB HBM3")
    return lines


def table(layout: str, wrong: str = "", sizes: Sequence[int] = SIZES, scale: float = 1.0, redops: Sequence[str] = ("sum",)) -> list[str]:
    columns = _HEAD[layout]
    check = "error" if layout.startswith("old") else "#wrong"
    half = f"time algbw busbw {check}"
    extra = {ITERS: " #iters", STAMPED: " timestamp"}.get(layout, "")
    lines = ["#", "#      out-of-place     in-place", f"#       size         count    type   {' '.join(columns)}   {half}   {half}{extra}"]
    lines.append("#        (B)    (elements)      (us)  (GB/s)  (GB/s)      (us)  (GB/s)  (GB/s)")
    said = wrong or ("0e+00" if layout.startswith("old") else "0")
    tail_of_row = {ITERS: "      20", STAMPED: "  2026-03-01 10:11:12"}.get(layout, "")
    for redop in redops:
        for size in sizes:
            time, alg, bus = FIGURES.get(size, (20.0, 0.5, 0.9))
            words = [redop if name == "redop" else _VALUES[name] for name in columns]
            one = f"{time:8.2f} {alg * scale:7.2f} {bus * scale:7.2f} {said:>6}"
            lines.append(f"{size:12d}  {size // 4:12d}   float  {'  '.join(words)}  {one}  {one}{tail_of_row}")
    return lines


def tail(layout: str, wrong: str = "", bounds: str | None = None, average: str | None = None) -> list[str]:
    failed = wrong not in ("", "0", "0e+00", "N/A")
    lines = [
        f"# Out of bounds values : {bounds or ('6 FAILED' if failed else '0 OK')}",
        f"# Avg bus bandwidth    : {average or '199.267'} ",
        "#",
    ]
    return [*lines, "# Collective test concluded: all_reduce_perf", "#"] if layout in (ITERS, STAMPED) else lines
