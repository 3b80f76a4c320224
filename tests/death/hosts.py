"""Hosts that can die: network namespaces on one bridge, etcd on the bridge's own, and cables that can be pulled.

Law: no packet leaves these namespaces, and none of them is left.  Loopback is each host's own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_health.rendezvous.private_etcd import find_etcd
from tests.etcd_fixture import FAST, etcdctl_path, wait_until

NET = "10.78.0."


class Hosts:
    """`hub` has the address .1 and etcd; host number i, in order of `names`, has .i+2."""

    def __init__(self, names: tuple[str, ...], folder: Path) -> None:
        self.names, self.folder = names, folder
        self._tag = f"ehd{os.getpid() % 100000}"
        self._etcd: subprocess.Popen[bytes] | None = None
        self._space("hub")
        self.ip("hub", "link add br0 type bridge")
        self.ip("hub", f"addr add {NET}1/24 dev br0")
        self.ip("hub", "link set br0 up")
        for name in names:
            self._space(name)
            self.ip("hub", f"link add name to-{name} type veth peer name eth0 netns {self._tag}{name}")
            self.ip("hub", f"link set to-{name} master br0 up")
            self.ip(name, f"addr add {self.address(name)}/24 dev eth0")
            self.ip(name, "link set eth0 up")

    def _space(self, name: str) -> None:
        done = subprocess.run(["ip", "netns", "add", f"{self._tag}{name}"], capture_output=True, text=True, timeout=20, check=False)
        if done.returncode != 0:
            pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        self.ip(name, "link set lo up")

    def ip(self, name: str, words: str) -> None:
        subprocess.run(["ip", "-n", f"{self._tag}{name}", *words.split()], check=True, timeout=20, capture_output=True)

    def address(self, name: str) -> str:
        return f"{NET}{self.names.index(name) + 2}"

    def inside(self, name: str) -> tuple[str, ...]:
        """What a command runs under to be on this host."""
        return ("ip", "netns", "exec", f"{self._tag}{name}")

    def do(self, name: str, words: str) -> str:
        """Standard output of a command there."""
        return subprocess.run([*self.inside(name), *words.split()], check=True, timeout=30, capture_output=True, text=True).stdout

    # ---- faults
    def pull(self, name: str) -> None:
        """Pull its cable: nothing comes or goes, and nobody is told."""
        self.ip("hub", f"link set to-{name} down")

    def plug(self, name: str) -> None:
        self.ip("hub", f"link set to-{name} up")

    def drop(self, name: str, port: int) -> None:
        """Packets of TCP connections with this port at either end vanish in this host."""
        for chain in ("INPUT", "OUTPUT"):
            for side in ("--sport", "--dport"):
                self.do(name, f"iptables -A {chain} -p tcp {side} {port} -j DROP")

    def pass_all(self, name: str) -> None:
        self.do(name, "iptables -F")

    # ---- the store
    def start_etcd(self) -> str:
        """One member at the hub; returns its endpoint."""
        at = f"{NET}1"
        command = [find_etcd(None), "--data-dir", str(self.folder / "etcd"), *FAST]
        command += ["--listen-client-urls", f"http://{at}:2379", "--advertise-client-urls", f"http://{at}:2379"]
        command += ["--listen-peer-urls", f"http://{at}:2380", "--initial-advertise-peer-urls", f"http://{at}:2380"]
        command += ["--initial-cluster", f"default=http://{at}:2380"]
        with open(self.folder / "etcd.log", "ab") as log:
            self._etcd = subprocess.Popen([*self.inside("hub"), *command], stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self.ctl("get", "first-contact", "-w", "json", check=False), "etcd answers at the hub", 60)
        return f"{at}:2379"

    def ctl(self, *words: str, check: bool = True) -> str:
        """etcdctl's standard output."""
        command = [*self.inside("hub"), "env", "ETCDCTL_API=3", etcdctl_path(), f"--endpoints={NET}1:2379", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def freeze_etcd(self) -> None:
        assert self._etcd is not None
        os.kill(self._etcd.pid, signal.SIGSTOP)

    def thaw_etcd(self) -> None:
        assert self._etcd is not None
        os.kill(self._etcd.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        for name in ("hub", *self.names):
            subprocess.run(["ip", "netns", "del", f"{self._tag}{name}"], capture_output=True, timeout=20, check=False)


@contextmanager
def hosts(folder: Path, *names: str) -> Iterator[Hosts]:
    """Hosts of these names, each with a cable; skips where they can't be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iptables") is None:
        pytest.skip("making network namespaces needs root, iproute2 and iptables")
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Hosts] = []
    try:
        made.append(Hosts(names, folder))
        yield made[0]
    finally:
        for h in made:
            h.close()
