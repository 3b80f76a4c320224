"""Agents and hosts that die, each timed: a real group of three hosts loses one in different ways, and takes it back.

`python -m tests.death` prints the figures; the same drill is a test.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psutil

from elastic_health.generations import Bounds
from tests.death.hosts import Hosts, hosts
from tests.outage.drill import Result
from tests.outage.group import NODES, Watched
from tests.torchrun.runs import PLENTY, a_run, gone

B = Bounds()
OWN_END_S = B.lease_s + B.link_timeout_s
"""Workers end by themselves so long after their agent last renewed its lease."""
WRITTEN_OFF_S = B.lease_s + B.link_timeout_s + B.kill_grace_s
"""Who vanished without proof is written off so long after its last renewal."""
AT_ONCE_S = 2.0
"""A proven death: a refused connection."""
CUT_END_S = B.link_timeout_s + B.kill_grace_s
"""A silent link is broken after the one, and the workers end within the other."""
ROOM_S = 6.0
"""What a busy machine may add to each."""


@contextmanager
def group(folder: Path) -> Iterator[tuple[Watched, Hosts]]:
    """Three hosts that train, two are enough."""
    with hosts(folder, *NODES) as net, a_run(folder / "run", net.start_etcd()) as run:
        env = {"EVERY": "20", "GLOO_SOCKET_IFNAME": "eth0"}
        w = Watched(net, run, [], env, PLENTY, "2:3", net.inside)
        for node in NODES:
            w.start(node)
        run.wait_group(3, ev="trains", within_s=240)
        yield w, net


def newest(w: Watched, nodes: int) -> tuple[int, dict[str, int]]:
    """Number and workers' pids, by node, of the newest generation that trains with so many nodes."""
    events = [e for e in w.run.events("trains") if e["world"] == nodes]
    number = max(int(e["generation"]) for e in events)
    return number, {str(e["node"]): int(e["pid"]) for e in events if e["generation"] == number}


def at_of(w: Watched, key: str) -> float:
    """When a key was written, seconds since the epoch."""
    return datetime.fromisoformat(str(w.keys(key)[""]["at"])).timestamp()


def lose(r: Result, w: Watched, name: str, victim: str, strike: Callable[[], None], bound_s: float, own_s: float) -> int:
    """Strike, and time what follows: the victim's own workers end, the verdict, the next group, its first step.

    Args:
        bound_s: within which the next group has formed.
        own_s: within which the victim's workers have ended.

    Returns:
        The number of the generation that follows.
    """
    number, pids = newest(w, 3)
    struck = time.time()
    strike()
    left = gone([pids[victim]], own_s + ROOM_S + 20)
    own_end_s = time.time() - struck
    steps = w.steps(victim, pids[victim])
    w.run.wait(lambda: w.keys(f"generations/{number + 1:010d}"), f"{name}: the next generation", bound_s + ROOM_S + 30)
    verdict_s, formed_s = (at_of(w, f"{kind}/{n:010d}") - struck for kind, n in (("verdicts", number), ("generations", number + 1)))
    again = w.run.wait_group(2, after=number, ev="trains", within_s=90)
    cause = w.keys(f"verdicts/{number:010d}")[""]["cause"]
    r.figures |= {
        f"{name}: own workers ended s": own_end_s,
        f"{name}: verdict s": verdict_s,
        f"{name}: next group s": formed_s,
        f"{name}: trains again s": again[0]["t"] - struck,
        f"{name}: cause": str(cause),
    }
    r.need(not left, f"{name}: workers {left} of {victim} live on")
    r.need(own_end_s < own_s + ROOM_S, f"{name}: own workers ended after {own_end_s:.1f} s, bound {own_s:g} s")
    r.need(formed_s < bound_s + ROOM_S, f"{name}: the next group formed after {formed_s:.1f} s, bound {bound_s:g} s")
    r.need(not steps or steps[-1].at < struck + formed_s, f"{name}: an old worker stepped after the next group had formed")
    late = [c for c in w.commits() if c["generation"] == number and datetime.fromisoformat(str(c["at"])).timestamp() > struck + verdict_s]
    r.need(not late, f"{name}: generation {number} committed after its verdict: {late}")
    return number + 1


def take_back(r: Result, w: Watched, name: str, after: int) -> None:
    """The lost node is a member again, with all its patience."""
    began = time.time()
    w.run.wait_group(3, after=after, ev="trains", within_s=150)
    r.figures[f"{name}: back after s"] = time.time() - began


def half_open(r: Result, w: Watched, net: Hosts, victim: str) -> None:
    """The link's packets vanish for longer than its timeout, in the middle of a live connection; all else works."""
    number, pids = newest(w, 3)
    record = w.keys(f"generations/{number:010d}")[""]
    first = record["members"][0]
    port = int(first["address"].rpartition(":")[2])
    before = _connections(net, victim, port)
    steps = len(w.steps("a"))
    net.drop(victim, port)
    w.run.wait(lambda: not before & _connections(net, victim, port), "the dead link is given up", B.link_timeout_s + ROOM_S)
    time.sleep(2.0)  # the fault goes on
    net.pass_all(victim)
    w.run.wait(lambda: _connections(net, victim, port) - before, "a new link", 30)
    w.run.wait(lambda: len(w.steps("a")) > steps + 20, "training goes on", 30)
    r.need(newest(w, 3) == (number, pids), "half-open link: the group was formed anew")
    r.need(not w.keys(f"verdicts/{number:010d}"), "half-open link: a verdict")
    r.figures["half-open link: steps meanwhile"] = len(w.steps("a")) - steps


def idle(r: Result, w: Watched, net: Hosts, victim: str) -> None:
    """From the rank-0 agent to a member nothing needs to be said for minutes: it pings."""
    number, _ = newest(w, 3)
    first = w.keys(f"generations/{number:010d}")[""]["members"][0]
    port, began = int(first["address"].rpartition(":")[2]), time.time()
    received = _bytes_received(net, victim, port)
    w.run.wait(lambda: _bytes_received(net, victim, port) >= received + 3 * 50, "three pings", 3 * B.link_timeout_s + ROOM_S)
    r.figures["idle link: seconds for three pings"] = time.time() - began


def _connections(net: Hosts, name: str, port: int) -> set[str]:
    """Local ends of this host's established connections to that port."""
    lines = net.do(name, f"ss -tnH state established dport = :{port}").splitlines()
    return {line.split()[2] for line in lines}


def _bytes_received(net: Hosts, name: str, port: int) -> int:
    found = re.findall(r"bytes_received:(\d+)", net.do(name, f"ss -tniH state established dport = :{port}"))
    return max(map(int, found), default=0)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def cut_in_an_outage(r: Result, w: Watched, net: Hosts, victim: str) -> int:
    """The store is out and a cable is pulled: the silent link ends riding through, on both sides.

    Returns:
        The number of the generation that ended so.
    """
    number, pids = newest(w, 3)
    commits = len(w.commits())
    net.freeze_etcd()
    time.sleep(B.lease_s + 3.0)  # all leases are over, and the group rides
    steps = len(w.steps(victim, pids[victim]))
    net.pull(victim)
    struck = time.time()
    left = gone(list(pids.values()), CUT_END_S + ROOM_S + 20)
    ended_s = time.time() - struck
    last = max(s.at for n in NODES for s in w.steps(n, pids[n]))
    net.plug(victim)
    net.thaw_etcd()
    back = time.time()
    # Of those left, or of all: who was cut off comes back at the same time as the store.
    again = w.run.wait(lambda: [e for e in w.run.events("trains") if e["generation"] > number], "a later group trains", 120)
    own = [c for c in w.commits() if c["generation"] == number]
    r.figures |= {
        "cut in an outage: all workers ended s": ended_s,
        "cut in an outage: trains again after the store s": again[0]["t"] - back,
    }
    r.need(steps > 0 and not left, f"cut in an outage: workers {left} live on")
    r.need(ended_s < CUT_END_S + ROOM_S, f"cut in an outage: workers ended after {ended_s:.1f} s, bound {CUT_END_S:g} s")
    r.need(last < back, "cut in an outage: an old worker stepped after the store was back")
    r.need(len(own) <= commits + 1, "cut in an outage: the ended generation committed afterwards")
    return number


def deaths(folder: Path) -> Result:
    """All of it, one after the other, on one group."""
    r = Result("deaths")
    with group(folder) as (w, net):
        number, _ = newest(w, 3)
        first = str(w.keys(f"generations/{number:010d}")[""]["members"][0]["node"])
        c = next(n for n in reversed(NODES) if n != first)
        idle(r, w, net, c)
        half_open(r, w, net, c)

        last = lose(r, w, "killed agent", c, w.agent(c).kill_agent, AT_ONCE_S, AT_ONCE_S)
        w.start(c)
        take_back(r, w, "killed agent", last)

        stopped = w.agent(c)
        last = lose(r, w, "stopped agent", c, lambda: stopped.signal(signal.SIGSTOP), WRITTEN_OFF_S, OWN_END_S)
        os.kill(stopped.pid, signal.SIGCONT)
        take_back(r, w, "stopped agent", last)

        last = lose(r, w, "silent host", c, lambda: net.pull(c), WRITTEN_OFF_S, OWN_END_S)
        net.plug(c)
        take_back(r, w, "silent host", last)

        number, _ = newest(w, 3)
        lead = str(w.keys(f"generations/{number:010d}")[""]["members"][0]["node"])
        last = lose(r, w, "silent rank-0 host", lead, lambda: net.pull(lead), WRITTEN_OFF_S, OWN_END_S)
        net.plug(lead)
        take_back(r, w, "silent rank-0 host", last)

        last = cut_in_an_outage(r, w, net, c)
        take_back(r, w, "cut in an outage", last)
        w.end()
    return r
