"""What a dial proves: only a refusal, or an answer under another incarnation, is death."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from elastic_health.agents.link_types import Down, LinkHello, Up
from elastic_health.agents.prober_net import ProbeOutcome, ProbeResult, probe, start_probe
from tests.links.parts import SECRET, Heard, agent, process, until

ME = LinkHello("run", "prober", "p-1")
pytestmark = pytest.mark.spec("R2")


def ask(address: str, timeout_s: float = 5.0) -> ProbeResult:
    return probe(address, SECRET, ME, timeout_s)


def test_a_living_agent_says_its_incarnation_and_its_links_do_not_notice() -> None:
    heard = Heard()
    with agent("a", heard) as a:
        result = ask(a.address)
        assert (result.outcome, result.node, result.incarnation) == (ProbeOutcome.ACCEPTED, "a", "a-1")
        assert not result.proves_dead("a", "a-1")
        assert heard.events == []
        until(lambda: not a._wires)


def test_a_killed_process_refuses() -> None:
    with process("b") as b:
        assert ask(b.address).outcome is ProbeOutcome.ACCEPTED
        b.signal(signal.SIGKILL)
        b.popen.wait(10)
        result = ask(b.address)
        assert result.outcome is ProbeOutcome.REFUSED
        assert result.proves_dead("b", "1")


def test_a_stopped_process_is_not_dead() -> None:
    """The kernel accepts for it; it says nothing."""
    with process("b") as b:
        b.signal(signal.SIGSTOP)
        result = ask(b.address, 0.7)
        assert result.outcome is ProbeOutcome.TIMEOUT
        assert not result.proves_dead("b", "1")
        b.signal(signal.SIGCONT)
        assert ask(b.address).outcome is ProbeOutcome.ACCEPTED


def test_a_process_killed_while_it_is_dialed_is_found_dead_in_the_same_probe() -> None:
    with process("b") as b, agent("a") as a:
        b.signal(signal.SIGSTOP)
        results: list[ProbeResult] = []
        answered = threading.Event()

        def take(result: ProbeResult) -> None:
            results.append(result)
            answered.set()

        start_probe(a, b.address, 10.0, take)
        until(lambda: any(w.link.state.value == "nonce" and not w.connecting and not w.out for w in list(a._wires.values())))
        b.signal(signal.SIGKILL)
        assert answered.wait(10)
        assert results[0].outcome is ProbeOutcome.REFUSED


def test_a_restarted_agent_on_the_same_port_proves_the_old_one_dead() -> None:
    with process("b", "1") as old:
        port = int(old.address.rsplit(":", 1)[1])
        old.signal(signal.SIGKILL)
        old.popen.wait(10)
        with process("b", "2", port=port) as new:
            assert new.address == old.address
            result = ask(old.address)
    assert result.proves_dead("b", "1")
    assert not result.proves_dead("b", "2")
    assert not result.proves_dead("c", "1")  # another node's agent there proves nothing about c


def test_a_foreign_program_proves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(4096)
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        result = ask(f"127.0.0.1:{server.getsockname()[1]}")
        assert result.outcome is ProbeOutcome.FOREIGN
        assert not result.proves_dead("b", "1")


def test_an_agent_of_another_secret_proves_nothing() -> None:
    with agent("a", secret=os.urandom(32)) as a:
        assert ask(a.address).outcome is ProbeOutcome.FOREIGN


def test_an_unresolvable_name_proves_nothing() -> None:
    assert ask("no.such.name.invalid:80").outcome in (ProbeOutcome.UNREACHABLE, ProbeOutcome.TIMEOUT)


# ---- a second network namespace, whose route can be cut
NETWORK = "10.213.77.0/30"


@pytest.fixture
def other_network() -> Iterator[str]:
    """Name of a namespace that reaches this one over 10.213.77.0/30: we are .1, it is .2; skips without the right."""
    name = f"eh{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network namespace needs root and iproute2")
    steps = [
        # Without the pair's own route nothing may leave this machine by its default one.
        f"ip route add unreachable {NETWORK} metric 4000000001",
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip addr add 10.213.77.1/30 dev {name}a",
        f"ip link set {name}a up",
        f"ip -n {name} addr add 10.213.77.2/30 dev {name}b",
        f"ip -n {name} link set {name}b up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True, timeout=10, check=False)
            if done.returncode != 0:
                pytest.skip(f"no network namespace here: {step}: {done.stderr.strip()}")
        yield name
    finally:
        subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True, timeout=10, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10, check=False)
        subprocess.run(f"ip route del unreachable {NETWORK} metric 4000000001".split(), capture_output=True, timeout=10, check=False)


def test_a_cut_route_is_a_timeout_and_the_link_goes_down(other_network: str) -> None:
    heard = Heard()
    inside = ("ip", "netns", "exec", other_network)
    with agent("a", heard) as a, process("b", host="10.213.77.2", inside=inside) as b:
        assert ask(b.address).outcome is ProbeOutcome.ACCEPTED
        a.dial(b.address, 7)
        heard.wait(Up)
        # Frames go to a station that isn't there: every packet is lost and nobody says so.
        lost = f"ip neigh replace 10.213.77.2 lladdr 02:00:00:00:00:01 dev {other_network}a"
        subprocess.run(lost.split(), check=True, timeout=10)
        assert heard.wait(Down).reason.value == "timeout"
        result = ask(b.address, 0.7)
        assert result.outcome is ProbeOutcome.TIMEOUT
        assert not result.proves_dead("b", "1")
        subprocess.run(["ip", "link", "set", f"{other_network}a", "down"], check=True, timeout=10)
        assert not ask(b.address, 0.7).proves_dead("b", "1")
        assert ask(b.address, 0.7).outcome is ProbeOutcome.UNREACHABLE


@pytest.mark.spec("R10")
@pytest.mark.parametrize("where", ["there", "here"])
def test_a_firewall_that_rejects_proves_nothing(other_network: str, where: str) -> None:
    """Its ICMP message comes out of connect() as the same "connection refused" that a dead process leaves behind."""
    if shutil.which("iptables") is None:
        pytest.skip("rejecting packets needs iptables")
    inside = ("ip", "netns", "exec", other_network)
    with process("b", host="10.213.77.2", inside=inside) as b:
        rule = f"-p tcp -d 10.213.77.2 --dport {b.address.rpartition(':')[2]} -j REJECT".split()
        chain = (*inside, "iptables", "{}", "INPUT", *rule) if where == "there" else ("iptables", "{}", "OUTPUT", *rule)
        done = subprocess.run([w.format("-I") for w in chain], capture_output=True, text=True, timeout=10, check=False)
        if done.returncode != 0:
            pytest.skip(f"no packet filter here: {done.stderr.strip()}")
        try:
            result = ask(b.address)
        finally:
            subprocess.run([w.format("-D") for w in chain], timeout=10, check=True)
        assert result.outcome is ProbeOutcome.UNREACHABLE and not result.proves_dead("b", "1")
        assert ask(b.address).outcome is ProbeOutcome.ACCEPTED
    assert ask(b.address).proves_dead("b", "1"), "the host's own reset still does"
