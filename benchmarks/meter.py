"""What goes over the wire to etcd and back, counted where the shipped session serialises it, and by etcd itself.

Law: bytes are those of the protobuf messages, without HTTP/2 frames.  `proposals` is etcd's own count of what went through
raft, lease grants and refused transactions included: an independent check of the writes counted here.
"""

from __future__ import annotations

import threading
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from elastic_health.rendezvous import channels_etcd
from elastic_health.rendezvous.wire_etcd import METHODS

WRITING = ("LeaseGrant", "LeaseRevoke")
OPS = ("request_put", "request_delete_range")


@dataclass(frozen=True)
class Traffic:
    """Counts of one phase.  `writes`: requests that go through raft; `delivered_bytes`, `events`: to all watchers."""

    writes: int = 0
    written_bytes: int = 0
    refused: int = 0
    reads: int = 0
    read_bytes: int = 0
    events: int = 0
    delivered_bytes: int = 0
    renewals: int = 0
    watchers: int = 0


class Meter:
    """Counts while it is in place; `take` returns what was counted since the last one."""

    def __init__(self) -> None:
        self._lock, self._counts = threading.Lock(), Counter[str]()

    def take(self) -> Traffic:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return Traffic(**{name: counts[name] for name in Traffic.__dataclass_fields__})

    def count(self, **by: int) -> None:
        with self._lock:
            self._counts.update(by)

    def sent(self, method: str, request: Any, size: int) -> None:
        writes = method in WRITING
        if method == "Txn":
            writes = any(op.WhichOneof("choice") in OPS for op in (*request.success, *request.failure))
        if writes:
            self.count(writes=1, written_bytes=size)
        elif method in ("Txn", "Range"):
            self.count(reads=1)
        elif method == "LeaseKeepAlive":
            self.count(renewals=1)

    def heard(self, method: str, response: Any, size: int) -> None:
        if method == "Watch":
            self.count(events=len(response.events), delivered_bytes=size, watchers=int(response.created))
        elif method in ("Txn", "Range"):
            self.count(read_bytes=size, refused=int(method == "Txn" and not response.succeeded))


class _Counting:
    """A message class as the channel uses it: `SerializeToString` and `FromString`."""

    def __init__(self, meter: Meter, method: str, message: Any) -> None:
        self._meter, self._method, self._message = meter, method, message

    def SerializeToString(self, request: Any) -> bytes:  # protobuf's name
        data: bytes = request.SerializeToString()
        self._meter.sent(self._method, request, len(data))
        return data

    def FromString(self, data: bytes) -> Any:  # protobuf's name
        response = self._message.FromString(data)
        self._meter.heard(self._method, response, len(data))
        return response


@contextmanager
def metered() -> Iterator[Meter]:
    """Sessions that connect within count what they send and hear."""
    meter, shipped = Meter(), METHODS
    counting = {m: (path, _Counting(meter, m, a), _Counting(meter, m, b)) for m, (path, a, b) in shipped.items()}
    with mock.patch.object(channels_etcd, "METHODS", counting):
        yield meter


def etcd_says(endpoints: Sequence[str]) -> dict[str, float]:
    """etcd's own figures: proposals applied and database size of the first member, CPU and memory of all."""
    found: defaultdict[str, float] = defaultdict(float)
    for i, endpoint in enumerate(endpoints):
        with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        values = {name: float(value) for line in lines if not line.startswith("#") for name, _, value in (line.rpartition(" "),)}
        if i == 0:
            found["proposals"] = values.get("etcd_server_proposals_applied_total", 0.0)
            found["db_bytes"] = values.get("etcd_mvcc_db_total_size_in_bytes", 0.0)
        found["cpu_s"] += values.get("process_cpu_seconds_total", 0.0)
        found["rss_bytes"] += values.get("process_resident_memory_bytes", 0.0)
    return dict(found)
