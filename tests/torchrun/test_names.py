"""Addresses, names and ports of whole runs, on machines with real ones (network namespaces)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.exits import ExitStatus
from tests.etcd_fixture import one_etcd
from tests.networks import Net, a_net
from tests.torchrun.runs import Agent, Run, a_run, program

__all__ = ["one_etcd"]
pytestmark = [pytest.mark.spec("U1", "U2"), pytest.mark.timeout(240)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


@pytest.fixture
def two(folder: Path) -> Iterator[tuple[Net, Run]]:
    """Two machines `a` and `b` with IPv4 addresses, and etcd on the hub."""
    with a_net(["a", "b"]) as net, a_run(folder, net.start_etcd(folder)) as run:
        yield net, run


def members(net: Net, run: Run) -> dict[str, str]:
    """Node -> advertised host, of the first generation."""
    value = net.ctl("get", f"/elastic-health/runs/{run.run_id}/generations/0000000001", "--print-value-only")
    return {m["node"]: m["address"].rpartition(":")[0] for m in json.loads(value)["members"]}


def lose_a_worker_and_finish(run: Run, first: list, agents: list[Agent], ev: str = "boot") -> None:
    os.kill(first[1]["pid"], signal.SIGKILL)
    again = run.wait_group(len(agents), after=first[0]["generation"], ev=ev)
    assert [e["restarts"] for e in again] == [1] * len(agents)
    run.finish(*agents)


@pytest.mark.slow
@pytest.mark.spec("U5")
def test_agents_listen_at_the_address_that_they_advertise_and_nowhere_else(two: tuple[Net, Run]) -> None:
    """The route to the store decides; another interface of the same machine is not opened."""
    net, run = two
    net.do("a", "ip", "link", "add", "eth1", "type", "bridge")
    net.do("a", "ip", "addr", "add", "192.0.2.5/24", "dev", "eth1")
    agents = {n: run.start(n, nnodes="2", inside=net.inside(n)) for n in ("a", "b")}
    first = run.wait_group(2)
    assert members(net, run) == {"a": net.address("a"), "b": net.address("b")}
    for node, agent in agents.items():
        assert net.listening(node, agent.pid) == {net.address(node)}, "link port, and rank 0's TCPStore"
    assert {e["env"]["MASTER_ADDR"] for e in first} == {net.address("a")}
    lose_a_worker_and_finish(run, first, list(agents.values()))


@pytest.mark.slow
def test_machines_without_any_ipv4_address(folder: Path) -> None:
    """Store, links, TCPStore and gloo over IPv6 alone."""
    with a_net(["a", "b"], v4=False, v6=True) as net, a_run(folder, net.start_etcd(folder)) as run:
        env = {"GLOO_SOCKET_IFNAME": "eth0"}
        agents = [run.start(n, nnodes="2", script=program("gloo"), env=env, inside=net.inside(n)) for n in ("a", "b")]
        first = run.wait_group(2, ev="step", within_s=90)
        assert members(net, run) == {n: f"[{net.address(n)}]" for n in ("a", "b")}
        for node, agent in zip(("a", "b"), agents, strict=True):
            assert net.listening(node, agent.pid) == {f"[{net.address(node)}]"}
        lose_a_worker_and_finish(run, first, agents, "step")


@pytest.mark.slow
def test_an_etcd_at_the_ipv6_loopback(folder: Path) -> None:
    with a_net(["a"], v4=False, v6=True) as net, a_run(folder, net.start_etcd(folder)) as run:
        run.endpoint = "[::1]:2379"
        agent = run.start("a", inside=net.inside("hub"))
        (only,) = run.wait_group(1)
        assert only["env"]["MASTER_ADDR"] == "::1" and members(net, run) == {"a": "[::1]"}
        run.finish(agent)


@pytest.mark.slow
def test_names_that_resolve_late(two: tuple[Net, Run]) -> None:
    """pytorch/pytorch#73682: the store's name, an agent's own name and a peer's, each known only some time after the start."""
    net, run = two
    address = {"store.test": V4_HUB, "a.test": net.address("a"), "b.test": net.address("b")}
    run.endpoint = "store.test:2379"
    agents = [
        run.start(
            n,
            nnodes="2",
            script=program("gloo"),
            flags=[f"--local-addr={n}.test"],
            config="store: {timeout_s: 1}\n",
            env={"GLOO_SOCKET_IFNAME": "eth0"},
            inside=net.inside(n),
        )
        for n in ("a", "b")
    ]
    known: dict[str, str] = {}
    for name, sign in (("store.test", "store.test"), ("own", "--local-addr")):
        for n, agent in zip(("a", "b"), agents, strict=True):
            run.wait(lambda a=agent, s=sign: re.search(rf"{s}.*asking again", a.text()), f"{n} waits for {name}")
        if name == "store.test":
            known["store.test"] = address["store.test"]
            for n in ("a", "b"):
                net.hosts(n, known)
    assert all(a.process.poll() is None for a in agents)
    for n in ("a", "b"):  # each its own name only: b can't dial a yet
        net.hosts(n, {**known, f"{n}.test": address[f"{n}.test"]})
    run.wait_group(2, ev="boot", within_s=90)
    for n in ("a", "b"):
        net.hosts(n, address)
    first = run.wait_group(2, ev="step", within_s=90)
    assert members(net, run) == {"a": "a.test", "b": "b.test"}
    assert first[0]["restarts"] == 0, "waiting for a name is no fault"
    run.finish(*agents)


@pytest.mark.slow
def test_an_agents_own_name_may_go_away_again(two: tuple[Net, Run]) -> None:
    """pytorch/pytorch#73682, the other way round: it listens already, and needs no name to open the generation's store."""
    net, run = two
    for n in ("a", "b"):
        net.hosts(n, {"a.test": net.address("a")})
    a = run.start("a", nnodes="2", flags=["--local-addr=a.test"], inside=net.inside("a"))
    run.wait(lambda: "checking -> ready" in a.text(), "a waits for b", 90)
    net.hosts("a", {})
    b = run.start("b", nnodes="2", inside=net.inside("b"))
    first = run.wait_group(2, within_s=90)
    assert first[0]["generation"] == 1 and first[0]["env"]["MASTER_ADDR"] == "a.test"
    run.finish(a, b)


@pytest.mark.slow
def test_a_name_that_never_resolves_ends_at_the_join_timeout(two: tuple[Net, Run]) -> None:
    """pytorch/pytorch#73682"""
    net, run = two
    config = "membership: {join_timeout_s: 3}\nstore: {timeout_s: 1}\n"
    own = run.start("a", flags=["--local-addr=a.test"], config=config, inside=net.inside("a", "pod-a"))
    run.endpoint = "store.test:2379"
    store = run.start("b", config=config, inside=net.inside("b"))
    assert store.wait(60) == ExitStatus.STORE_UNREACHABLE and own.wait(60) == ExitStatus.BAD_CONFIG, run.story()
    assert "store.test:2379 has a name that this host can't resolve" in store.text()
    assert "a.test" in own.text() and "this host calls itself 'pod-a'" in own.text()
    assert not run.events() and "Traceback" not in own.text() + store.text()


@pytest.mark.slow
def test_a_host_that_does_not_know_its_public_name(two: tuple[Net, Run]) -> None:
    """pytorch/pytorch#73380: a pod is dialed by a service name whose address is translated on the way, and can't be dialed
    from the pod itself.  Both names and their addresses are said, and the group forms."""
    net, run = two
    public = "10.88.0.9"
    for line in (
        "sysctl -q -w net.ipv4.ip_forward=1",
        f"iptables -t nat -A PREROUTING -d {public} -j DNAT --to-destination {net.address('a')}",
        "iptables -t nat -A POSTROUTING -j MASQUERADE",
        f"iptables -A FORWARD -s {net.address('a')} -d {net.address('a')} -j DROP",
    ):
        net.do("hub", *line.split())
    for n in ("a", "b"):
        net.do(n, "ip", "route", "add", "default", "via", V4_HUB)
        net.hosts(n, {"svc-a": public, "pod-a": net.address("a")})
    a = run.start("a", nnodes="2", flags=["--local-addr=svc-a"], inside=net.inside("a", "pod-a"))
    b = run.start("b", nnodes="2", inside=net.inside("b"))
    first = run.wait_group(2)
    assert members(net, run)["a"] == "svc-a" and first[1]["env"]["MASTER_ADDR"] == "svc-a"
    assert f"'svc-a' is {public}; 'pod-a' is {net.address('a')}" in a.text()
    assert net.listening("a", a.pid) <= {"0.0.0.0", "*"}
    lose_a_worker_and_finish(run, first, [a, b])


@pytest.mark.slow
def test_two_names_of_one_address_are_the_same_host(two: tuple[Net, Run]) -> None:
    """pytorch/pytorch#73380: addresses are compared, not names."""
    net, run = two
    net.hosts("a", {"svc-a": net.address("a"), "pod-a": net.address("a")})
    agent = run.start("a", flags=["--local-addr=svc-a"], inside=net.inside("a", "pod-a"))
    run.wait_group(1)
    assert "pod-a" not in agent.text() and net.listening("a", agent.pid) == {net.address("a")}
    run.finish(agent)


@pytest.mark.slow
def test_occupied_ports(folder: Path, one_etcd: object) -> None:
    """A link port that is taken ends the agent with a message; MASTER_PORT that is taken concerns nobody."""
    with a_run(folder, one_etcd.endpoints[0]) as run, socket.create_server(("127.0.0.1", 0)) as taken:  # type: ignore[attr-defined]
        port = taken.getsockname()[1]
        refused = run.start("a", flags=[f"--rdzv-conf=listen={port}"])
        agent = run.start("b", env={"MASTER_PORT": str(port), "MASTER_ADDR": "192.0.2.1"}, flags=[f"--master-port={port}"])
        assert refused.wait(60) == ExitStatus.BAD_CONFIG, refused.text()
        assert f"127.0.0.1:{port}" in refused.text() and "in use" in refused.text() and "listen= in --rdzv-conf" in refused.text()
        assert "Traceback" not in refused.text()
        (only,) = run.wait_group(1)
        assert only["env"]["MASTER_ADDR"] == "127.0.0.1" and only["env"]["MASTER_PORT"] != str(port)
        run.finish(agent)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["0.0.0.0", "::", "host:port:x"])
def test_a_local_addr_that_is_none(folder: Path, one_etcd: object, given: str) -> None:
    with a_run(folder, one_etcd.endpoints[0]) as run:  # type: ignore[attr-defined]
        agent = run.start("a", flags=[f"--local-addr={given}"])
        assert agent.wait(60) == ExitStatus.BAD_CONFIG, agent.text()
        assert "expected" in agent.text() and "Traceback" not in agent.text()


V4_HUB = "10.77.0.1"
