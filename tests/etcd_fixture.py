"""Real etcd processes for tests: one member or three, each killable, freezable and restartable, with `etcdctl`.

Data lies in memory where possible (etcd 3.4 can't switch fsync off).  Servers end with the test that started them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_health.rendezvous.private_etcd import find_etcd
from elastic_health.rendezvous.session_etcd import EtcdSession
from tests.tcp_proxy import TcpProxy

__all__ = ["Etcd", "EtcdCluster", "TcpProxy", "etcd_cluster", "free_port", "one_etcd", "three_etcd", "wait_until"]

FAST = ("--heartbeat-interval=50", "--election-timeout=300")


def wait_until(holds: Callable[[], object], what: str, within_s: float = 10.0) -> None:
    """Return once `holds()` is true; fail with `what` otherwise."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s} s: {what}")
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def etcdctl_path() -> str:
    """`etcdctl`, from $PATH or beside etcd; skips the test where there is none."""
    beside = Path(find_etcd(None)).parent / "etcdctl"
    found = shutil.which("etcdctl") or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip("no etcdctl on $PATH or beside etcd")
    return found


class Etcd:
    """One member."""

    def __init__(self, folder: Path, name: str = "m0", extra: Sequence[str] = (), scheme: str = "http") -> None:
        self.folder, self.name, self.extra, self.scheme = folder, name, tuple(extra), scheme
        self.client_port, self.peer_port = free_port(), free_port()
        self.cluster = f"{name}=http://127.0.0.1:{self.peer_port}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        client = f"{self.scheme}://{self.endpoint}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        command = [find_etcd(None), "--name", self.name, "--data-dir", str(self.folder / self.name), *FAST, *self.extra]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", self.cluster]
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def healthy(self) -> bool:
        if self.scheme == "https":
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", self.client_port)) == 0
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=2) as reply:
                return b'"true"' in reply.read()
        except OSError:
            return False

    def wait_healthy(self) -> None:
        wait_until(self.healthy, f"etcd {self.name} is healthy; see {self.folder}/{self.name}.log", 20)

    def kill(self) -> None:
        """SIGKILL, as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP, and wait: threads stop one by one, and one still running may serve a request."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: self._thread_states() == {"T"}, f"etcd {self.name} stands still")

    def _thread_states(self) -> set[str]:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return {(t / "stat").read_text().rpartition(")")[2].split()[0] for t in tasks}

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class EtcdCluster:
    """Some members; `endpoints` of all, `ctl` runs etcdctl."""

    def __init__(self, members: Sequence[Etcd]) -> None:
        self.members = list(members)

    @property
    def endpoints(self) -> list[str]:
        return [m.endpoint for m in self.members]

    def ctl(self, *arguments: str, check: bool = True, endpoints: Sequence[str] = (), stdin: str | None = None) -> str:
        """etcdctl's standard output."""
        command = [etcdctl_path(), "--endpoints", ",".join(endpoints or self.endpoints), *arguments]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, input=stdin, timeout=20, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def leader(self) -> Etcd:
        """The member that leads."""
        session = EtcdSession.connect(self.endpoints, timeout_s=10)
        try:
            leaders = [m for m, status in zip(self.members, session.status(), strict=True) if status.is_leader]
        finally:
            session.close()
        assert len(leaders) == 1, "exactly one leader"
        return leaders[0]

    def stop(self) -> None:
        for member in self.members:
            member.stop()


@contextmanager
def etcd_cluster(size: int, extra: Sequence[str] = ()) -> Iterator[EtcdCluster]:
    """A running cluster of `size` members in a folder of its own."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="etcd-test-", dir=memory if os.access(memory, os.W_OK) else None))
    members = [Etcd(folder, f"m{i}", extra) for i in range(size)]
    together = ",".join(m.cluster for m in members)
    cluster = EtcdCluster(members)
    try:
        for member in members:
            member.cluster = together
            member.start()
        for member in members:
            member.wait_healthy()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def one_etcd() -> Iterator[EtcdCluster]:
    """One real member, for this test alone."""
    with etcd_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def three_etcd() -> Iterator[EtcdCluster]:
    """Three real members, for this test alone."""
    with etcd_cluster(3) as cluster:
        yield cluster
