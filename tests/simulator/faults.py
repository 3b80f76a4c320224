"""What can strike: one function a kind of fault.  When and where is in `strikes`; every chance comes from the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.inbox import merged
from elastic_health.rendezvous.state import Purpose
from elastic_health.rendezvous.store import Delete, Put, Txn
from elastic_health.verdicts import Cause
from elastic_health.windows import Window
from tests.simulator.node import Node
from tests.simulator.world import GUARDIAN_S, World


# ---- what strikes
def _kill_agent(w: World, n: Node) -> None:
    c = w.clockwork
    n.alive = False
    w.links.cut(n)
    crew = n.crew

    def guardian() -> None:
        if n.crew is crew:
            n.crew = None

    c.after(c.random.uniform(0.0, GUARDIAN_S), guardian)
    _reboot(w, n, 0.3, 8.0)


def _lose_node(w: World, n: Node) -> None:
    n.alive, n.crew = False, None
    w.links.cut(n, silent=w.clockwork.random.random() < 0.5)
    _reboot(w, n, 3.0, 15.0)


def _reboot(w: World, n: Node, least: float, most: float) -> None:
    life = n.life
    w.clockwork.after(
        w.clockwork.random.uniform(least, most), lambda: n.boot() if not n.alive and n.life == life and not w.finished else None
    )


def _pause(w: World, n: Node) -> None:
    n.paused = n.slept = True
    w.links.cut(n, silent=True)
    life = n.life
    w.clockwork.after(w.clockwork.random.choice((0.5, 3.0, 9.0, 15.0)), lambda: wake(n) if n.life == life and n.running else None)


def _freeze(w: World, n: Node) -> None:
    """The whole host stands still, workers and guardian too, while its clock goes on."""
    n.frozen = n.crew is not None
    _pause(w, n)


def _sleep_over_the_next(w: World, n: Node) -> None:
    """A stale agent: it sleeps until the run has a later generation than it knows, and wakes in the middle of that one."""
    n.paused = n.slept = True
    w.links.cut(n, silent=True)
    life, known, latest = n.life, w.ledger.current, w.clockwork.now + 22.0
    more = w.clockwork.random.uniform(0.0, 2.0)

    def look() -> None:
        if n.life != life or not n.running:
            return
        if w.ledger.current > known or w.clockwork.now > latest:
            w.clockwork.after(more, lambda: wake(n) if n.life == life and n.running else None)
        else:
            w.clockwork.after(0.3, look)

    look()


def wake(n: Node) -> None:
    """A stopped process goes on: what had come meanwhile is delivered first."""
    if not n.paused:
        return
    n.paused = False
    n.thaw()
    backlog, n.backlog = n.backlog, []
    for event in merged(backlog):
        n.feed(event)
    n.feed(ev.Tick())
    n.watch()


def _cut_store(w: World, n: Node) -> None:
    n.cut_store = True

    def back() -> None:
        n.cut_store = False
        n.watch()

    w.clockwork.after(w.clockwork.random.choice((1.0, 4.0, 12.0)), back)


def _cut_peers(w: World, n: Node) -> None:
    n.cut_peers = {m.name for m in w.nodes if m is not n and w.clockwork.random.random() < 0.7}
    w.links.cut(n, silent=True)
    w.clockwork.after(w.clockwork.random.choice((1.0, 6.0, 15.0)), n.cut_peers.clear)


def _outage(w: World, n: Node) -> None:
    w.outage = True
    w.memory.freeze()
    w.clockwork.after(w.clockwork.random.choice((2.0, 8.0, 20.0)), lambda: store_back(w))


def store_back(w: World) -> None:
    w.outage = False
    w.memory.thaw()
    for n in w.nodes:
        n.watch()


def _leader_changed(w: World, n: Node) -> None:
    """No answers during the election; after it every lease has its full time again."""
    w.outage = True
    w.memory.freeze()
    w.clockwork.after(w.clockwork.random.choice((0.1, 0.8, 2.0)), lambda: store_back(w))


def _store_loaded(w: World, n: Node) -> None:
    """Every request and every answer is seconds late, those that renew leases too: some leases end."""
    w.loaded_until = w.clockwork.now + w.clockwork.random.choice((4.0, 10.0))


def _exit(w: World, n: Node) -> None:
    n.lose_crew(Cause.WORKER_EXIT, "a worker ended with 1")


def _stall(w: World, n: Node) -> None:
    n.judge(Cause.STALL, "no progress")


def _halt(w: World, n: Node) -> None:
    w.halt()


def _torn(w: World, n: Node) -> None:
    g = w.ledger.generations.get(n.state.generation)
    if g is not None and g.plan.checkpoint is not None and n.crew is not None:
        n.judge(Cause.CHECKPOINT_UNUSABLE, "torn", torn=g.plan.checkpoint)


def _lease_lost(w: World, n: Node) -> None:
    if n.state.lease:
        w.expire(n.state.lease)


def _partition(w: World, n: Node) -> None:
    """The host's network is gone: neither store nor peers."""
    n.cut_store, n.cut_peers = True, {m.name for m in w.nodes if m is not n}
    w.links.cut(n, silent=True)

    def back() -> None:
        n.cut_store = False
        n.cut_peers.clear()
        n.watch()

    w.clockwork.after(w.clockwork.random.choice((4.0, 12.0, 20.0)), back)


def _halves(w: World, n: Node) -> None:
    """Two halves that don't see each other; the store is beside the one, the other, or both."""
    half = max(1, len(w.nodes) // 2)
    order = sorted(w.nodes, key=lambda m: (m is not n, m.name))
    ours, theirs = order[:half], order[half:]
    for side, other in ((ours, theirs), (theirs, ours)):
        for m in side:
            m.cut_peers = {x.name for x in other}
            w.links.cut_between(m, m.cut_peers)
    cut = w.clockwork.random.choice((ours, theirs, []))
    for m in cut:
        m.cut_store = True

    def back() -> None:
        for m in w.nodes:
            m.cut_peers.clear()
        for m in cut:
            m.cut_store = False
            m.watch()

    w.clockwork.after(w.clockwork.random.choice((4.0, 12.0, 20.0)), back)


def _links_reset(w: World, n: Node) -> None:
    w.links.cut(n)


def _former_stuck(w: World, n: Node) -> None:
    """It lives, renews and answers, but what it sends to form is never carried out."""
    n.former_stuck = True


def _slow_replies(w: World, n: Node) -> None:
    n.slow_until = w.clockwork.now + 3.0


def _watch_lags(w: World, n: Node) -> None:
    n.lag = w.clockwork.random.choice((0.3, 1.5, 5.0))

    def back() -> None:
        n.lag = 0.0

    w.clockwork.after(w.clockwork.random.uniform(1.0, 8.0), back)


def _compacted(w: World, n: Node) -> None:
    """For a while this watch lags, and resumes on a history that is compacted: a list instead of changes."""
    n.lag, w.compacting = 0.7, True

    def back() -> None:
        n.lag, w.compacting = 0.0, False

    w.clockwork.after(3.0, back)


def _skip(w: World, n: Node) -> None:
    """A person records a window, anywhere, and never takes it back."""
    start = w.clockwork.random.randrange(0, 150)
    window = Window(start, start + w.clockwork.random.choice((1, 4, 12)), "person")
    value = f'{{"start":{window.start},"end":{window.end},"reason":"person"}}'.encode()
    r = w.memory.apply(Txn((), (Put(w.keys.skip(f"p{w.count()}"), value),)))
    w.skips.append((r.revision, window))


def _drain(w: World, n: Node) -> None:
    """SIGTERM, with a deadline."""
    until = n.now + w.policies.drain.deadline_s
    n.drain_until = min(n.drain_until, until)
    n.feed(ev.DrainAsked("SIGTERM", until, w.saves, n.crew.steps if n.crew is not None else -1))


def _drain_all(w: World, n: Node) -> None:
    """As a scheduler ends a job: every node, within a moment."""
    for m in w.nodes:
        if m.running and not m.paused:
            life = m.life
            w.clockwork.after(w.clockwork.delay(0.3), lambda m=m, life=life: _drain(w, m) if m.life == life and m.running else None)  # type: ignore[misc]


def _stop(w: World, n: Node) -> None:
    """Ctrl-C, or a second signal while it drains."""
    n.feed(ev.StopAsked("SIGINT"))


def _quarantined(w: World, n: Node) -> None:
    w.memory.apply(Txn((), (Put(w.quarantine + n.name, b'{"reason":"planted"}'),)))
    w.clockwork.after(w.clockwork.random.uniform(2.0, 10.0), lambda: w.memory.apply(Txn((), (Delete(w.quarantine + n.name),))))


def _unfit(w: World, n: Node) -> None:
    n.unfit = True


def _unkillable(w: World, n: Node) -> None:
    n.stuck_process = n.crew is not None


def _fate(fate: str) -> Callable[[World, Node], None]:
    """The next requests of one purpose, of one node, meet this fate."""

    def strike(w: World, n: Node) -> None:
        r = w.clockwork.random
        purpose = r.choice((*(p.value for p in Purpose), "renew", "grant"))
        w.clockwork.note(f"      of {n.name}, the next {purpose}")
        w.requests[n.name, purpose] += [fate] * r.choice((1, 1, 2, 4))

    return strike


def _retention_late(w: World, n: Node) -> None:
    for node in w.nodes:
        w.requests[node.name, Purpose.DELETE.value] += ["write late"] * 3


FAULTS: Mapping[str, Callable[[World, Node], None]] = {
    "agent killed": _kill_agent,
    "node lost": _lose_node,
    "agent paused": _pause,
    "node frozen": _freeze,
    "stale agent wakes": _sleep_over_the_next,
    "cut from store": _cut_store,
    "cut from peers": _cut_peers,
    "node partitioned": _partition,
    "halves parted": _halves,
    "links reset": _links_reset,
    "store outage": _outage,
    "leader changed": _leader_changed,
    "store loaded": _store_loaded,
    "worker exits": _exit,
    "stall": _stall,
    "halt and roll back": _halt,
    "checkpoint torn": _torn,
    "lease lost": _lease_lost,
    "former stuck": _former_stuck,
    "replies slow": _slow_replies,
    "request lost": _fate("request lost"),
    "reply lost": _fate("reply lost"),
    "write late": _fate("write late"),
    "store full": _fate("store full"),
    "retention late": _retention_late,
    "watch lags": _watch_lags,
    "watch compacted": _compacted,
    "window recorded": _skip,
    "node drained": _drain,
    "all drained": _drain_all,
    "node stopped": _stop,
    "node quarantined": _quarantined,
    "node unfit": _unfit,
    "process unkillable": _unkillable,
}
