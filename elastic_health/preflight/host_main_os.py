"""`python -m elastic_health.preflight.host_main_os JSON`: reads this host's facts, one JSON line a part.

It is a process of its own so that a mount that doesn't answer, or a driver that hangs, holds up neither the agent nor the
other parts: what has been read by the time limit is judged, what has not is named.

JSON: `parts` (see `host_facts.Part`), `paths` whose space is asked for, `agent` (its pid).  A line: `part`, and `value` or `error`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from elastic_health.codec import plain
from elastic_health.preflight import host_os, nvml_os
from elastic_health.preflight.host_facts import GpuProcess, Gpus, Part


class _Teller:
    """Writes a line a part, whichever thread it comes from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def tell(self, part: str, read: Callable[[], Any]) -> None:
        try:
            said = {"part": part, "value": plain(read())}
        except (OSError, ValueError, KeyError, psutil.Error) as error:
            said = {"part": part, "error": f"{type(error).__name__}: {error}"}
        with self._lock:
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()

    def aside(self, part: str, read: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=self.tell, args=(part, read), name=part, daemon=True)
        thread.start()
        return thread


def _gpus(workers: Mapping[int, str], agent: int) -> Gpus:
    lost = {orphan.pid for orphan in host_os.orphans(workers, agent)}

    def describe(pid: int, used: int | None) -> GpuProcess:
        return GpuProcess(pid, host_os.name_of(pid), used, host_os.descends(pid, agent), pid in workers and pid not in lost)

    return nvml_os.read_gpus(host_os.gpu_devices(), os.environ.get("CUDA_VISIBLE_DEVICES"), describe)


def main(asked: Mapping[str, Any]) -> None:
    parts, agent = frozenset(asked["parts"]), int(asked["agent"])
    teller = _Teller()
    quick: Mapping[Part, Callable[[], Any]] = {
        Part.MEMORY: host_os.memory,
        Part.LIMITS: host_os.limits,
        Part.NETWORK: host_os.network,
    }
    for part, read in quick.items():
        if part.value in parts:
            teller.tell(part.value, read)
    paths = asked["paths"] if Part.SPACE.value in parts else ()
    aside = [teller.aside(Part.SPACE.value, functools.partial(host_os.space, path)) for path in paths]
    if parts & {Part.GPUS.value, Part.ORPHANS.value}:
        workers = host_os.marked()  # may wait for a process whose memory map is locked
        if Part.GPUS.value in parts:
            aside.append(teller.aside(Part.GPUS.value, functools.partial(_gpus, workers, agent)))
        if Part.ORPHANS.value in parts:
            teller.tell(Part.ORPHANS.value, functools.partial(host_os.orphans, workers, agent))
    for thread in aside:
        thread.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
