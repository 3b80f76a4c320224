"""Machines for tests: network namespaces with addresses, host names and hosts files of their own, joined by a switch.

Law: nothing outside these namespaces and `/etc/netns/<their names>` is touched, and both are gone afterwards.  No packet
leaves the machine: the switch is a bridge in a namespace of its own (`Net.hub`, address `.1`), which also routes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_health.rendezvous.private_etcd import find_etcd
from tests.etcd_fixture import FAST, etcdctl_path

V4, V6 = "10.77.0.", "fd77::"


def _run(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line.split(), capture_output=True, text=True, timeout=20, check=False)


class Net:
    """`v4`, `v6`: which addresses the machines have; the n-th one made has `.n` / `::n`, the hub is 1."""

    def __init__(self, *, v4: bool = True, v6: bool = False) -> None:
        self.v4, self.v6 = v4, v6
        self._tag = f"eh{os.getpid() % 100000}x"
        self._names: list[str] = []
        self._etcd: subprocess.Popen[bytes] | None = None
        self.hub = self._add("hub", "br0")

    def _do(self, line: str) -> None:
        done = _run(line)
        if done.returncode != 0:
            pytest.skip(f"no such network here: {line}: {done.stderr.strip()}")

    def _add(self, name: str, device: str) -> str:
        space = f"{self._tag}{name}"
        self._do(f"ip netns add {space}")
        self._names.append(name)
        etc = Path("/etc/netns") / space
        etc.mkdir(parents=True)
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")  # nobody answers there, at once
        self.hosts(name, {})
        self._do(f"ip -n {space} link set lo up")
        if device == "br0":
            self._do(f"ip -n {space} link add br0 type bridge")
        else:
            self._do(f"ip -n {self.hub} link add name to-{name} type veth peer name {device} netns {space}")
            self._do(f"ip -n {self.hub} link set to-{name} master br0 up")
        number = len(self._names)
        if self.v4:
            self._do(f"ip -n {space} addr add {V4}{number}/24 dev {device}")
        if self.v6:
            self._do(f"ip -n {space} -6 addr add {V6}{number}/64 dev {device} nodad")
        if not self.v4:
            self._do(f"ip -n {space} addr del 127.0.0.1/8 dev lo")
        self._do(f"ip -n {space} link set {device} up")
        return space

    def machine(self, name: str) -> str:
        """Make one; its address."""
        self._add(name, "eth0")
        return self.address(name)

    def address(self, name: str) -> str:
        """Without brackets; IPv4 where there is one."""
        return f"{V4 if self.v4 else V6}{self._names.index(name) + 1}"

    def hosts(self, name: str, names: dict[str, str]) -> None:
        """What this machine's resolver knows from now on: name -> address."""
        lines = [*(["127.0.0.1 localhost"] if self.v4 else ["::1 localhost"]), *(f"{address} {n}" for n, address in names.items())]
        (Path("/etc/netns") / f"{self._tag}{name}" / "hosts").write_text("\n".join([*lines, ""]))

    def inside(self, name: str, host: str = "") -> tuple[str, ...]:
        """The command that another one runs under to be on this machine, which calls itself `host`."""
        enter = ("ip", "netns", "exec", f"{self._tag}{name}")
        return (*enter, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host or name)

    def do(self, name: str, *words: str) -> str:
        """Standard output of a command there."""
        return subprocess.run([*self.inside(name), *words], capture_output=True, text=True, timeout=30, check=True).stdout

    def listening(self, name: str, pid: int) -> set[str]:
        """Local addresses, without ports, at which this process takes TCP connections."""
        lines = self.do(name, "ss", "-ltnpH").splitlines()
        return {line.split()[3].rpartition(":")[0] for line in lines if f"pid={pid}," in line}

    def start_etcd(self, folder: Path) -> str:
        """etcd at the hub, on all its addresses; returns its endpoint."""
        at = f"[{V6}1]" if not self.v4 else f"{V4}1"
        near = "[::1]" if not self.v4 else "127.0.0.1"
        command = [find_etcd(None), "--data-dir", str(folder / "etcd"), *FAST, "--listen-client-urls", f"http://{at}:2379,http://{near}:2379"]
        command += ["--advertise-client-urls", f"http://{at}:2379", "--listen-peer-urls", f"http://{near}:2380"]
        command += ["--initial-advertise-peer-urls", f"http://{near}:2380", "--initial-cluster", f"default=http://{near}:2380"]
        with open(folder / "etcd.log", "ab") as log:
            self._etcd = subprocess.Popen([*self.inside("hub"), *command], stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 30
        while not self.ctl("get", "first-contact", "--write-out=json", check=False):
            assert time.monotonic() < deadline, (folder / "etcd.log").read_text()[-2000:]
            time.sleep(0.1)
        return f"{at}:2379"

    def ctl(self, *words: str, check: bool = True) -> str:
        near = "[::1]" if not self.v4 else "127.0.0.1"
        command = [*self.inside("hub"), "env", "ETCDCTL_API=3", etcdctl_path(), f"--endpoints={near}:2379", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def close(self) -> None:
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        for name in reversed(self._names):
            _run(f"ip netns del {self._tag}{name}")
            shutil.rmtree(Path("/etc/netns") / f"{self._tag}{name}", ignore_errors=True)


@contextmanager
def a_net(names: Sequence[str] = (), *, v4: bool = True, v6: bool = False) -> Iterator[Net]:
    """Machines of these names; skips without the right to make them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("making network namespaces needs root, iproute2 and unshare")
    made: list[Net] = []
    try:
        net = Net(v4=v4, v6=v6)
        made.append(net)
        for name in names:
            net.machine(name)
        yield net
    finally:
        for net in made:
            net.close()
