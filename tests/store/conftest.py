"""Where the contract runs: in memory, on one real etcd, on three.  Each place can cut watches, compact and pass time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.memory_session import Fault, FaultKind, MemorySession
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Store
from elastic_health.rendezvous.watch_etcd import WatchPace
from tests.etcd_fixture import EtcdCluster, TcpProxy, etcd_cluster, one_etcd, three_etcd, wait_until

__all__ = ["one_etcd", "three_etcd"]

QUICK = WatchPace(ask_every_s=0.5, answer_s=0.5)
_prefixes = itertools.count()


class Place(Protocol):
    """One implementation and the means to disturb it."""

    def session(self) -> Store: ...

    def pass_time(self, seconds: float) -> None: ...

    def wait(self, holds: Callable[[], object], what: str, within_s: float = 10.0) -> None: ...

    def compact(self, revision: int) -> None: ...

    def cut(self) -> None:
        """Cut every connection once."""
        ...

    def outage(self, begins: bool) -> None:
        """Put the store out of the sessions' reach, or back."""
        ...

    def lose_next_reply(self) -> None:
        """The next write lands; its reply does not."""
        ...

    def mend(self) -> None: ...


class MemoryPlace:
    """The manual clock: waiting means moving it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.sessions: list[MemorySession] = []

    def session(self) -> MemorySession:
        self.sessions.append(MemorySession(self.store))
        return self.sessions[-1]

    def pass_time(self, seconds: float) -> None:
        self.store.advance(self.store.now + seconds)

    def wait(self, holds: Callable[[], object], what: str, within_s: float = 10.0) -> None:
        end = self.store.now + within_s
        while not holds():
            if self.store.now >= end:
                pytest.fail(f"not within {within_s} s: {what}")
            self.pass_time(0.05)

    def compact(self, revision: int) -> None:
        self.store.compact(revision)

    def cut(self) -> None:
        for session in self.sessions:
            session.cut_watches()

    def outage(self, begins: bool) -> None:
        for session in self.sessions:
            session.set_down(begins)

    def lose_next_reply(self) -> None:
        for session in self.sessions:
            session.faults.append(Fault(FaultKind.REPLY_LOST))

    def mend(self) -> None:
        for session in self.sessions:
            session.faults.clear()


class EtcdPlace:
    """A real cluster, each member behind a proxy."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        self.proxies = [TcpProxy(endpoint) for endpoint in cluster.endpoints]
        self.sessions: list[EtcdSession] = []

    def session(self) -> EtcdSession:
        self.sessions.append(EtcdSession.connect([p.endpoint for p in self.proxies], pace=QUICK, timeout_s=3.0))
        return self.sessions[-1]

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)  # etcd's own clock has to move

    def wait(self, holds: Callable[[], object], what: str, within_s: float = 10.0) -> None:
        wait_until(holds, what, within_s)

    def compact(self, revision: int) -> None:
        self.cluster.ctl("compaction", str(revision))

    def cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def outage(self, begins: bool) -> None:
        for proxy in self.proxies:
            if begins:
                proxy.refuse()
            else:
                proxy.accept_again()

    def lose_next_reply(self) -> None:
        for session in self.sessions:
            session.get("warm")  # the connection stands, so that only the write's own reply can be lost
        for proxy in self.proxies:
            proxy.drop_replies(cut=True)

    def mend(self) -> None:
        for proxy in self.proxies:
            proxy.pass_replies()

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        for proxy in self.proxies:
            proxy.close()


@pytest.fixture(scope="module", params=[0, 1, 3], ids=["memory", "one", "three"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EtcdCluster | None]:
    """A cluster for the module's contract tests, or None for memory."""
    if request.param == 0:
        yield None
    else:
        with etcd_cluster(request.param) as running:
            yield running


@pytest.fixture
def place(cluster: EtcdCluster | None) -> Iterator[Place]:
    if cluster is None:
        yield MemoryPlace()
        return
    real = EtcdPlace(cluster)
    try:
        yield real
    finally:
        real.close()


@pytest.fixture
def prefix() -> str:
    """Keys of this test alone."""
    return f"/contract/{next(_prefixes)}/"
