"""The pair check over real links: machines as network namespaces on a bridge, gloo between them, one link or route slowed by `tc`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_health.preflight.pairs_etcd import pool_of
from elastic_health.rendezvous.keys import FleetKeys
from tests.etcd_fixture import wait_until
from tests.networks import Net, a_net

pytestmark = [pytest.mark.spec("P3"), pytest.mark.slow]
PARAMETERS = {
    "sizes": [65536, 1048576],
    "iterations": 5,
    "warmup": 1,
    "wait_s": 120,
    "round_s": 90,
    "backend": "gloo",
    "meeting_ratio": 0.4,
}
LIMIT_S = 500
USUAL, SLOW = "400mbit", "40mbit"
KEYS, POOL = FleetKeys(), pool_of("r", "box")
ROOT = Path(__file__).resolve().parents[2]


class Nodes:
    """Processes, one a machine; all are ended."""

    def __init__(self, net: Net, folder: Path) -> None:
        self.net, self.folder = net, folder
        self.endpoint = net.start_etcd(folder)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, names: Sequence[str], **more: object) -> None:
        parameters = json.dumps({"expect": len(names), **PARAMETERS, **more})
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
        for name in names:
            words = [
                sys.executable,
                "-m",
                "tests.preflight.pair_node",
                name,
                self.net.address(name),
                self.endpoint,
                parameters,
                str(LIMIT_S),
            ]
            with open(self.folder / f"{name}.out", "wb") as out, open(self.folder / f"{name}.err", "wb") as err:
                process = subprocess.Popen([*self.net.inside(name), *words], stdout=out, stderr=err, cwd=ROOT, env=environment)
            self.running[name] = process

    def results(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        deadline = time.monotonic() + LIMIT_S
        for name in names:
            self.running[name].wait(deadline - time.monotonic())
        said = {name: (self.folder / f"{name}.out").read_text() for name in names}
        for name, text in said.items():
            assert text, (self.folder / f"{name}.err").read_text()[-2000:]
        return {name: json.loads(text) for name, text in said.items()}

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def nodes(folder: Path, *names: str) -> Iterator[Nodes]:
    if shutil.which("tc") is None:
        pytest.skip("slowing a link needs tc, of iproute2")
    with a_net(names) as net:
        usual_links(net, *names)
        some = Nodes(net, folder)
        try:
            yield some
        finally:
            some.close()


def usual_links(net: Net, *names: str) -> None:
    """Every machine sends at one rate, far below what the processors can do: figures are of the network alone."""
    for name in names:
        net.do(name, *"tc qdisc add dev eth0 root handle 1: htb default 1".split())
        for number, rate in ((1, USUAL), (4, SLOW)):
            net.do(name, *f"tc class add dev eth0 parent 1: classid 1:{number} htb rate {rate} burst 64kb".split())


def slow_link(net: Net, name: str) -> None:
    """All that this machine sends, and all that is sent to it."""
    net.do(name, *f"tc qdisc add dev eth0 parent 1:1 handle 10: tbf rate {SLOW} burst 64kb latency 400ms".split())
    net.do("hub", *f"tc qdisc add dev to-{name} root tbf rate {SLOW} burst 64kb latency 400ms".split())


def slow_route(net: Net, one: str, other: str) -> None:
    """Only what these two send to each other."""
    for here, there in ((one, other), (other, one)):
        match = f"tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {net.address(there)}/32 flowid 1:4"
        net.do(here, *match.split())


def outcomes(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: result["outcome"] for name, result in results.items()}


def blamed(results: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {node for result in results.values() for finding in result["findings"] for node in finding["nodes"]}


def one(results: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    """What all of a meeting's results say of it."""
    said = [result["details"][name] for result in results.values()]
    assert all(value == said[0] for value in said), said
    return said[0]


def nothing_left(there: Nodes) -> None:
    wait_until(
        lambda: not there.net.ctl("get", "--prefix", "--keys-only", "/elastic-health/pairs/").strip(), "the meeting is cleared away", 30
    )


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "b", "c", "d")])
def test_a_slow_link_is_found_and_its_node_is_named(names: tuple[str, ...], tmp_path: Path) -> None:
    with nodes(tmp_path, *names) as there:
        slow_link(there.net, "b")
        there.start(names)
        results = there.results(names)
        assert outcomes(results) == {name: "fail" if name == "b" else "pass" for name in names}, results
        assert blamed(results) == {"b"} and one(results, "bad_nodes") == ["b"] and one(results, "bad_routes") == []
        found = next(f for f in results["b"]["findings"] if f["nodes"])
        assert found["kind"] == "low_bandwidth" and found["measured"] < found["required"] and found["unit"] == "GB/s"
        nothing_left(there)


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "b", "c", "d")])
def test_a_slow_route_is_named_and_no_node(names: tuple[str, ...], tmp_path: Path) -> None:
    with nodes(tmp_path, *names) as there:
        slow_route(there.net, "a", "b")
        there.start(("a", "b"), expect=len(names))
        wait_until(lambda: there.net.ctl("get", "--prefix", "--keys-only", f"{KEYS.pairs_here(POOL)}").count("here/") == 2, "a and b", 120)
        there.start(names[2:], expect=len(names))  # the first two meet each other first
        results = there.results(names)
        assert outcomes(results) == {name: "warn" if name in "ab" else "pass" for name in names}, results
        assert blamed(results) == set() and one(results, "bad_nodes") == [] and one(results, "bad_routes") == ["a+b"]
        assert "a+b" in results["a"]["summary"] and results["a"]["findings"][0]["evidence"]["route"] == "a+b"
        nothing_left(there)


def test_a_node_that_is_killed_in_the_middle_takes_nobody_with_it(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    with nodes(tmp_path, *names) as there:
        there.start(names)
        told = f"{KEYS.pairs(POOL)}meetings/"
        wait_until(lambda: "/offers/" in there.net.ctl("get", "--prefix", "--keys-only", told), "a pair is about to measure", 180)
        there.running["d"].kill()  # the machine's command is replaced by the node itself, so this is its process
        results = there.results(("a", "b", "c"))
        assert outcomes(results) == dict.fromkeys("abc", "pass"), results
        assert blamed(results) == set() and one(results, "bad_routes") == []
        measured = [pair["route"] for pair in one(results, "pairs") if pair["state"] == "good"]
        assert sorted(route for route in measured if "d" not in route) == ["a+b", "a+c", "b+c"], "its partners have met each other"
        nothing_left(there)


def test_a_machine_that_is_cut_off_in_the_middle_is_missed_and_gives_up_itself(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    with nodes(tmp_path, *names) as there:
        there.start(names)
        told = f"{KEYS.pairs(POOL)}meetings/"
        wait_until(lambda: "/offers/" in there.net.ctl("get", "--prefix", "--keys-only", told), "a pair is about to measure", 180)
        there.net.do("hub", *"ip link set to-d down".split())
        began = time.monotonic()
        results = there.results(names)
        assert outcomes(results) == {"a": "pass", "b": "pass", "c": "pass", "d": "not_measured"}, results
        assert blamed(results) == set()
        assert time.monotonic() - began < 150, "nobody has waited for the check's own limit"
