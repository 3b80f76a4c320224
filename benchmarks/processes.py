"""Processes of the benchmark: an etcd, and agents whose whole tree can be killed.

Law: nothing that was started stays.  Every process carries a random token in its environment, so that orphans are found
too, and no foreign process is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from elastic_health import variables
from elastic_health.rendezvous.private_etcd import find_etcd

TOKEN = "BENCH_TOKEN"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def new_token() -> str:
    return secrets.token_hex(8)


def end_all(token: str, within_s: float = 5.0) -> int:
    """Kill every process that carries the token and wait for it; returns how many there were."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(TOKEN) == token:
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=within_s)
    return len(found)


class Agent:
    """One torchrun in a session of its own, as a node would be."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> None:
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env), cwd=cwd, start_new_session=True
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill_tree(self) -> None:
        """The agent and everything below it, at one blow."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            tree = (root, *root.children(recursive=True))
            rooms = {room for p in tree for room in _rooms(p)}
            for process in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            self.process.wait(10)
            for room in rooms:
                shutil.rmtree(room, ignore_errors=True)

    def leave(self, within_s: float) -> None:
        """Ask it to end, then make it end."""
        if not self.ended:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        if not self.ended:
            self.kill_tree()


def _rooms(process: psutil.Process) -> set[Path]:
    """Folders in shared memory of a worker of ours, which nobody is left to remove once guardian and agent are killed."""
    with contextlib.suppress(psutil.Error):
        environment = process.environ()
        return {Path(environment[name]).parent for name in (variables.PAGE, variables.LINK) if environment.get(name)}
    return set()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
            return b'"true"' in reply.read()
    except OSError:
        return False


@contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """A running etcd of one member with its own defaults; yields its endpoint."""
    with etcd_cluster(folder, 1) as endpoints:
        yield endpoints[0]


@contextmanager
def etcd_cluster(folder: Path, members: int) -> Iterator[list[str]]:
    """A running etcd with its own defaults; yields the members' endpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = [(free_port(), free_port()) for _ in range(members)]
    cluster = ",".join(f"bench{i}=http://127.0.0.1:{peer}" for i, (_, peer) in enumerate(ports))
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for i, (client, peer) in enumerate(ports):
            servers.append(_member(folder, f"bench{i}", f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}", cluster))
        deadline = time.monotonic() + 30
        while not all(_healthy(client) for client, _ in ports):
            if any(s.poll() is not None for s in servers) or time.monotonic() > deadline:
                raise SystemExit(f"expected etcd to start within 30 s; it did not; see the logs in {folder}")
            time.sleep(0.05)
        yield [f"127.0.0.1:{client}" for client, _ in ports]
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _member(folder: Path, name: str, client: str, peer: str, cluster: str) -> subprocess.Popen[bytes]:
    command = [find_etcd(None), f"--name={name}", f"--data-dir={folder / name}", f"--initial-cluster={cluster}"]
    command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
    command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
    with open(folder / f"{name}.log", "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
