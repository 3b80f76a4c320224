"""The drills: a real group of three trains while its store goes away, loses a member, or goes away as a link breaks.

Each returns figures and a list of what was wrong, so that a test and the command line judge alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.etcd_fixture import Etcd, EtcdCluster
from tests.outage.group import BATCH, NODES, Watched, quantile, wait_until, watched
from tests.torchrun.runs import gone

PAUSE_S = 3.0
"""More than this between two steps of an outage is a pause: below the lease, above what a busy machine makes of 0.5 s."""
CATCH_UP_S = 15.0
"""After the store's return: everything that waited is committed."""
QUIET_S = 10.0
"""Watched after an outage: longer than lease and return, so that a false alarm would have come."""
END_LINK_S = 6.0
"""A dead agent's link breaks at once, and its group's workers end within the kill grace; with room for a busy machine."""
P50_RATIO, LONGER_S = 1.5, 1.5
"""Beside a calm window of the same run: the median step's ratio, and what the longest step may take more (a commit's
patience is 0.5 s; the rest is what a busy machine does)."""


@dataclass
class Result:
    """`figures`: what was measured, in order; `wrong`: what did not hold."""

    name: str
    figures: dict[str, float | int | str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def need(self, holds: object, text: str) -> None:
        if not holds:
            self.wrong.append(text)

    def line(self) -> str:
        shown = ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in self.figures.items())
        return f"{self.name}: {shown}" + "".join(f"\n  WRONG: {w}" for w in self.wrong)


# ---- the store goes away
def down(etcd: EtcdCluster, how: str) -> None:
    for m in etcd.members:
        m.freeze() if how == "freeze" else m.kill()


def back(etcd: EtcdCluster, how: str) -> None:
    """Thawed, or started on the same data folders; returns when all are healthy."""
    for m in etcd.members:
        m.thaw() if how == "freeze" else m.start()
    for m in etcd.members:
        m.wait_healthy()


def ride(folder: Path, how: str, members: int, outage_s: float, mode: str = "sync", every: int = 50) -> Result:
    """All members stopped for `outage_s` (`how`: freeze or kill) while the group trains and saves."""
    r = Result(f"{how} all {members} for {outage_s:g} s, {mode} saves")
    with watched(folder, members, every=every, mode=mode) as (w, etcd):
        w.wait_steps("a", 3 * every)
        before = time.time() - 5.0
        was = w.leases()
        gone_at = time.time()
        down(etcd, how)
        wait_until(gone_at + outage_s)
        back_at = time.time()
        back(etcd, how)
        waited = [s.number for s in w.steps("a") if gone_at < s.at < back_at and s.number % every == 0]
        healthy_at = time.time()
        w.run.wait(lambda: {c["step"] for c in w.commits()} >= set(waited), "what waited is committed", CATCH_UP_S + 30)
        caught_up_s = time.time() - healthy_at
        wait_until(healthy_at + QUIET_S)
        _judge_ride(r, w, before, gone_at, back_at, was)
        r.need(caught_up_s < CATCH_UP_S, f"what waited was committed only {caught_up_s:.1f} s after etcd was healthy")
        r.need(waited, "no checkpoint fell into the outage; nothing was shown")
        w.end()
        _judge_commits(r, w, every)
        r.figures |= {"commits that waited": len(waited), "committed after s": caught_up_s, "commits in all": len(w.commits())}
    return r


def _judge_ride(r: Result, w: Watched, before: float, gone_at: float, back_at: float, was: dict[str, int]) -> None:
    calm, out = w.gaps("a", before, gone_at), w.gaps("a", gone_at, back_at)
    after = w.gaps("a", back_at, time.time())
    r.figures |= {
        "steps in the outage": len(out),
        "median step before s": quantile(calm, 0.5),
        "median during": quantile(out, 0.5),
        "median after": quantile(after, 0.5),
        "longest before": max(calm, default=0.0),
        "longest during": max(out, default=0.0),
        "longest after": max(after, default=0.0),
        "leases retaken": w.said("reattached:"),
        "leases kept": sum(was.get(n) == lease for n, lease in w.leases().items()),
    }
    r.need(max(out, default=99.0) < PAUSE_S, f"training paused for {max(out, default=99.0):.1f} s in the outage")
    r.need(max(after, default=99.0) < PAUSE_S, f"training paused for {max(after, default=99.0):.1f} s after the outage")
    boots = [(e["node"], e["generation"]) for e in w.run.events("boot")]
    r.need(len(boots) == len(NODES), f"workers started again: {boots}")
    r.need(set(w.keys("generations/")) == {"0000000001"}, f"generations {sorted(w.keys('generations/'))}")
    r.need(not w.keys("verdicts/"), f"a verdict: {w.keys('verdicts/')}")
    r.need(not w.keys("incidents/"), f"incidents: {w.keys('incidents/')}")
    r.need(w.said(" found ") == 0, "a stall was found where there was none")
    candidates = {str(c["node"]): c["state"] for c in w.keys("candidates/").values()}
    r.need(candidates == dict.fromkeys(NODES, "member"), f"candidates after the outage: {candidates}")


def _judge_commits(r: Result, w: Watched, every: int) -> None:
    """In order, each once, records right: every multiple of `every`, and the last step."""
    commits, last = w.commits(), max(s.number for s in w.steps("a"))
    steps = [int(c["step"]) for c in commits]
    wanted = sorted({*range(every, last + 1, every), last})
    r.need(steps == wanted, f"committed, in order: {steps}; wanted {wanted}")
    r.need(all(c["version"] == 1 for c in commits), "a record was written twice")
    names = [f"{c['step']:012d}.{c['generation']:06d}" for c in commits]
    r.need([c["parent"] for c in commits] == [None, *names[:-1]], "a record names another parent than the one before it")
    right = all((c["position"], c["world"], c["state"], c["generation"]) == (c["step"] * BATCH, 3, "committed", 1) for c in commits)
    r.need(right, f"records: {commits}")


# ---- the store goes away, and a link breaks
def broken(folder: Path, members: int = 1, outage_s: float = 8.0) -> Result:
    """In the outage an agent is killed: the others' workers end, and with the store they form again."""
    r, every = Result("an agent killed in an outage"), 20
    with watched(folder, members, every=every) as (w, etcd):
        w.wait_steps("a", every + 5)
        down(etcd, "freeze")
        wait_until(time.time() + outage_s)
        pids = {str(e["node"]): int(e["pid"]) for e in w.run.events("boot")}
        w.agent("c").kill_agent()
        killed = time.time()
        left = gone(list(pids.values()), 30.0)
        ended_s = time.time() - killed
        r.need(not left, f"workers {left} live on after their link broke")
        r.need(ended_s < END_LINK_S, f"workers ended {ended_s:.1f} s after the link broke, bound {END_LINK_S:g} s")
        back(etcd, "freeze")
        back_at = time.time()
        committed = w.commits()
        w.start("c")
        again = w.run.wait_group(len(NODES), after=1, ev="trains", within_s=120)
        r.figures |= {"workers ended after s": ended_s, "trains again after s": again[0]["t"] - back_at, "from step": again[0]["step"]}
        own = [c for c in w.commits() if c["generation"] == 1]
        r.need([c["step"] for c in own] == [c["step"] for c in committed], "an ended generation committed after the store came back")
        newest = max(int(c["step"]) for c in own)
        r.need(again[0]["step"] == newest + 1, f"began at {again[0]['step']}, and {newest} was the newest committed")
        r.need(all(s.at < back_at for n, pid in pids.items() for s in w.steps(n, pid)), "old workers stepped after they were told to end")
        verdict = w.keys("verdicts/")["0000000001"]
        r.figures["told cause"] = str(verdict["cause"])
        w.end()
    return r


# ---- one of three members
def members(folder: Path, window_s: float = 5.0) -> Result:
    """Leader moved, leader killed, a follower killed: the steps of each window beside those of the calm ones around it."""
    r = Result("one of three members")
    with watched(folder, 3, every=20) as (w, etcd):
        w.wait_steps("a", 60)
        killed: list[Etcd] = []

        def move() -> None:
            leader = etcd.leader()
            other = next(m for m in etcd.members if m is not leader)
            etcd.ctl("move-leader", _member_id(etcd, other), endpoints=[leader.endpoint])

        def kill(leads: bool) -> None:
            leader = etcd.leader()
            killed.append(leader if leads else next(m for m in etcd.members if m is not leader))
            killed[-1].kill()

        calm = _window(w, window_s)
        faults = {"leader moved": move, "leader killed": lambda: kill(True), "follower killed": lambda: kill(False)}
        for name, strike in faults.items():
            start = time.time()
            strike()
            wait_until(start + window_s)
            gaps = w.gaps("a", start, time.time())
            while killed:
                killed[-1].start()
                killed.pop().wait_healthy()
            before, calm = calm, _window(w, window_s)
            _judge_window(r, name, gaps, before, calm)
        r.need(len(w.run.events("boot")) == len(NODES), "workers started again")
        w.end()
    return r


def _window(w: Watched, window_s: float) -> list[float]:
    start = time.time()
    wait_until(start + window_s)
    return w.gaps("a", start, time.time())


def _member_id(etcd: EtcdCluster, member: Etcd) -> str:
    lines = etcd.ctl("member", "list").splitlines()
    return next(line.split(",")[0] for line in lines if line.split(", ")[2] == member.name)


def _judge_window(r: Result, name: str, gaps: list[float], before: list[float], after: list[float]) -> None:
    """Quantiles as ratios to those of the slower calm window beside it; the longest step is bounded by a commit's patience."""
    longest, calm_longest = max(gaps, default=99.0), max((*before, *after))
    p50, p95 = (quantile(gaps, q) / max(quantile(before, q), quantile(after, q)) for q in (0.5, 0.95))
    figures = {"steps": len(gaps), "p50 ×": p50, "p95 ×": p95, "longest s": longest, "longest calm s": calm_longest}
    r.figures |= {f"{name}: {k}": v for k, v in figures.items()}
    r.need(p50 < P50_RATIO, f"{name}: the median step took {p50:.2f} × as long")
    r.need(longest < calm_longest + LONGER_S, f"{name}: a step of {longest:.2f} s, calm {calm_longest:.2f} s")
