"""One simulated agent with its workers: the shipped machine, its effects carried out with delays and faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_health.exits import ExitStatus
from elastic_health.generations import CheckpointRecord, CheckpointState, Generation, RunSpec, StoreAddress
from elastic_health.incidents import Incident
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous import membership
from elastic_health.rendezvous.serve import page_deadline
from elastic_health.rendezvous.state import Me, Phase, Settings, State, Workers
from elastic_health.rendezvous.store import WatchBatch
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause
from tests.simulator.ledger import need
from tests.simulator.network import LATEST_WRITE_S

if TYPE_CHECKING:
    from tests.simulator.world import World

HOME = (Phase.STARTING, Phase.RUNNING, Phase.HOLDING, Phase.STOPPING)
PROGRESS_S = 2.0
LATE_S = 3.0
"""Teardown and telling, after the deadline of a drain."""


@dataclass
class Crew:
    """The workers of one node for one communicator, all in one: they step together.  `deadline`: the node's own clock."""

    communicator: int
    generation: int
    position: int
    mask: int
    steps: int
    deadline: float
    held: bool = False
    done: bool = False
    pending: int = 0
    asked: int = -1
    committed: int = -1
    wish: bool = False
    left_over: bool = False


@dataclass
class Node:
    """A host with at most one agent process at a time, and a clock of its own (`rate` times true time, plus `offset`)."""

    world: World
    name: str
    rate: float = 1.0
    offset: float = 0.0
    alive: bool = False
    paused: bool = False
    cut_store: bool = False
    cut_peers: set[str] = field(default_factory=set)
    life: int = 0
    crew: Crew | None = None
    left: int | None = None
    seen: int = 0
    told: int = 0
    lag: float = 0.0
    slow_until: float = 0.0
    former_stuck: bool = False
    unfit: bool = False
    stuck_process: bool = False
    drain_until: float = float("inf")
    slept: bool = False
    place: str = ""
    linked: dict[Who, int] = field(default_factory=dict)
    backlog: list[ev.Event] = field(default_factory=list)
    outside_since: float = 0.0
    _watching: bool = False
    _tick: float = float("inf")
    _said: str = ""

    # ---- life
    def boot(self) -> None:
        w = self.world
        self.alive, self.paused, self.life, self.linked, self.backlog = True, False, self.life + 1, {}, []
        self.former_stuck = self._watching = False
        self._tick, self.outside_since = float("inf"), w.clockwork.now
        self.drain_until, self.slept = float("inf"), False
        spec = RunSpec(w.least, w.most, "script", "train.py", 0)
        me = Me(self.name, f"life{self.life}", f"{self.name}:{self.life}", 2, spec, topology=self.place)
        self.settings = Settings(w.keys, me, w.policies)
        self.state: State = membership.start(self.settings, self.clock())
        self.left, self.seen, self.told = None, 0, 0
        self.mine(w.clockwork.delay(), self.sync)
        self.tick_at(self.now)

    @property
    def now(self) -> float:
        """This node's monotonic clock."""
        return self.world.clockwork.now * self.rate + self.offset

    def clock(self) -> ev.Clock:
        return ev.Clock(self.now, 1.7e9 + self.world.clockwork.now)

    @property
    def running(self) -> bool:
        return self.alive and self.left is None

    @property
    def isolated(self) -> bool:
        """It can't have heard of anything new in the store yet."""
        return self.cut_store or self.world.outage or self.seen < self.world.memory.revision

    def mine(self, delay: float, what: Callable[[], object]) -> None:
        """Later, if this process still lives then."""
        life = self.life
        self.world.clockwork.after(delay, lambda: what() if self.life == life and self.running else None)

    # ---- what it sees of the store
    def reaches_store(self) -> bool:
        return not self.cut_store and not self.world.outage

    def sync(self) -> None:
        """The first read; again later when the store can't be reached."""
        w = self.world
        if not self.reaches_store() or self.paused:
            self.mine(0.3, self.sync)
            return
        self.seen = w.memory.revision
        self.feed(ev.StoreChanged(WatchBatch(self.seen, (), True, w.memory.range(w.keys.root).kvs)))
        self.feed(ev.StoreChanged(WatchBatch(self.seen, (), True, w.memory.range(w.quarantine).kvs), True))
        self.watch()

    def watch(self) -> None:
        """Something may be new: deliver it a little late.  Called again when a cut, an outage or a pause ends."""
        if self.running and self.seen and not self._watching and self.seen < self.world.memory.revision:
            self._watching = True
            self.mine(self.lag + self.world.clockwork.delay(0.03), self._deliver)

    def _deliver(self) -> None:
        self._watching = False
        w = self.world
        if not self.reaches_store() or self.paused or self.seen >= w.memory.revision:
            return
        compacted = w.clockwork.random.random() < w.compaction
        seen, self.seen = self.seen, w.memory.revision
        for prefix, fleet in ((w.keys.root, False), (w.quarantine, True)):
            if compacted:
                batch = WatchBatch(self.seen, (), True, w.memory.range(prefix).kvs)
            else:
                batch = WatchBatch(self.seen, tuple(e for b in w.memory.since(prefix, seen + 1) for e in b.events))
            if batch.snapshot or batch.events:
                self.feed(ev.StoreChanged(batch, fleet))
        self.told = self.seen

    # ---- the machine
    def feed(self, event: ev.Event) -> None:
        if not self.running:
            return
        if self.paused:
            self.backlog.append(event)
            return
        before, life = self.state, self.life
        self.state, effects = membership.step(before, event, self.clock())
        membership.check(before, self.state)
        if before.phase is not self.state.phase:
            self._moved(before)
        self.world.observe(self)
        for effect in effects:
            if self.running and self.life == life:  # a fault may strike between two effects
                self.carry_out(effect)
        if not self.running or self.life != life:
            return
        if self.crew is not None:
            self.crew.deadline = page_deadline(self.state, self.now)
        self.tick_at(self.state.wake_at)

    def _moved(self, before: State) -> None:
        s, w = self.state, self.world
        w.clockwork.note(f"{self.name} {s.who[1]}: {before.phase.value} -> {s.phase.value} (g{s.generation}) {s.stop_reason}")
        if before.phase in HOME and s.phase not in HOME:
            self.outside_since = w.clockwork.now
        w.happened(f"phase {s.phase.value}", self)

    def tick_at(self, when: float) -> None:
        if when == float("inf"):
            return
        c = self.world.clockwork
        due = max((when - self.offset) / self.rate, c.now + 0.001) + 1e-9
        if self._tick <= due and self._tick > c.now:
            return
        self._tick = due

        def tick() -> None:
            if self._tick == due:
                self._tick = float("inf")
                self.feed(ev.Tick())

        self.mine(due - c.now, tick)

    def later(self, delay: float, event: ev.Event) -> None:
        self.mine(delay, lambda: self.feed(event))

    def carry_out(self, e: ev.Effect) -> None:
        _CARRY[type(e)](self, e)

    # ---- workers
    def spawn(self, g: Generation) -> None:
        if self.state.generation != g.number or self.state.workers is not Workers.ASKED:
            return
        w = self.world
        need("R9", self.crew is None, f"{self.name} spawns beside old workers")
        need(
            "R9",
            (g.number, self.state.who) in w.ledger.members,
            f"{self.name} spawns workers of {g.number} before it is written as a member",
        )
        self.crew = Crew(g.communicator, g.number, 0, 0, 0, page_deadline(self.state, self.now))
        self.restore(self.crew, g)
        self.feed(ev.WorkersUp(g.number))
        w.happened("spawned", self)

    def take_up(self, g: Generation) -> None:
        if self.crew is not None:
            self.restore(self.crew, g)
        self.world.happened("taken up", self)

    def restore(self, crew: Crew, g: Generation) -> None:
        name, w = g.plan.checkpoint, self.world
        need("I7", name not in w.removed, f"generation {g.number} restores {name}, whose files are gone")
        crew.mask = w.ledger.masks[name] if name is not None else 0
        crew.generation, crew.position, crew.steps = g.number, g.plan.position, g.plan.step
        crew.held, crew.pending, crew.committed, crew.wish = False, 0, -1, False

    def reap(self, generation: int) -> None:
        self.crew = None
        stuck, self.stuck_process = self.stuck_process, False
        self.feed(ev.WorkersReaped(generation, "pid 7" if stuck else ""))

    def lose_crew(self, cause: Cause, text: str, **fields: Any) -> None:
        """The workers die by themselves; the agent sees it at once if it can."""
        crew, self.crew = self.crew, None
        if crew is not None and self.running:
            self.judge(cause, text, **fields)

    def end_with_peer(self, crew: Crew) -> None:
        if self.crew is crew:
            self.lose_crew(Cause.WORKER_EXIT, "connection closed by peer", secondary=True)

    def judge(self, cause: Cause, text: str, **fields: Any) -> None:
        g, w = self.state.generation, self.world
        if g and self.state.phase in (Phase.STARTING, Phase.RUNNING, Phase.HOLDING):
            signature = f"{cause.value}:{w.clockwork.random.randrange(3)}"
            self.feed(ev.Judged(Incident(f"i{w.count()}", g, cause, signature, text, self.clock().wall, nodes=(self.name,), **fields)))

    def ask_commit(self) -> None:
        crew = self.crew
        assert crew is not None
        record = CheckpointRecord(
            crew.steps, crew.generation, f"step-{crew.steps}", crew.position, 0, None, f"m{crew.steps}.{crew.generation}"
        )
        self.world.ledger.masks[record.name] = crew.mask
        crew.pending, crew.asked = self.world.count(), crew.position
        self.feed(ev.CommitAsked(crew.pending, record))


# ---- effects: one arm each
def _run_preflight(n: Node, e: ev.RunPreflight) -> None:
    unfit, n.unfit = n.unfit, False
    n.later(n.world.clockwork.delay(0.1), ev.PreflightDone(not unfit, "planted" if unfit else ""))


def _open_store(n: Node, e: ev.OpenStore) -> None:
    g = e.generation.number
    n.later(n.world.clockwork.delay(), ev.StoreOpened(g, StoreAddress(n.name, g, "")))


def _start_workers(n: Node, e: ev.StartWorkers) -> None:
    n.mine(n.world.clockwork.delay(0.3), lambda: n.spawn(e.generation))


def _stop_workers(n: Node, e: ev.StopWorkers) -> None:
    slow = n.world.clockwork.random.uniform(0.0, max(0.0, e.until - n.now)) if n.crew is not None else 0.0
    n.mine(n.world.clockwork.delay(0.2) + slow / n.rate, lambda: n.reap(e.generation))


def _wish_checkpoint(n: Node, e: ev.WishCheckpoint) -> None:
    if n.crew is not None:
        n.crew.wish = True


def _pass_signal(n: Node, e: ev.PassSignal) -> None:
    """Most programs end by it, some take no notice; who waits for them in a collective fails then."""
    crew, r = n.crew, n.world.clockwork.random
    if crew is None or r.random() < 0.25:
        return

    def end() -> None:
        if n.crew is not crew:
            return
        n.crew = None
        n.feed(ev.WorkersLeft(e.generation, True))
        for peer in n.world.nodes:
            if peer.crew is not None and peer.crew.communicator == crew.communicator and r.random() < 0.5:
                there = peer.crew
                peer.mine(r.uniform(0.02, 0.4), lambda p=peer, c=there: p.end_with_peer(c))  # type: ignore[misc]

    n.mine(r.uniform(0.0, 1.5), end)


def _hold_workers(n: Node, e: ev.HoldWorkers) -> None:
    n.later(n.world.clockwork.delay(), ev.Held(e.generation, n.crew is not None and n.crew.held))


def _commit_answered(n: Node, e: ev.CommitAnswered) -> None:
    crew, c = n.crew, n.world.clockwork
    if e.committed and e.record is not None:
        need("I7", e.record.name in n.world.ledger.checkpoints, f"{e.record.name} is called committed and is not in the store")
        c.note(f"{n.name}: committed {e.record.name}")
    if crew is not None and crew.pending == e.request:
        if e.waits:
            crew.committed = crew.asked
        crew.pending = 0
        if e.committed and e.record is not None:
            crew.committed = e.record.position
        else:
            c.note(f"{n.name}: not committed: {e.reason}")


def _remove_files(n: Node, e: ev.RemoveFiles) -> None:
    name, ledger = e.record.name, n.world.ledger
    need(
        "I8",
        ledger.checkpoints[name].state is CheckpointState.DELETING,
        f"files of {name} go, and its record says {ledger.checkpoints[name].state.value}",
    )
    n.world.removed.add(name)
    # As in an agent: files, and so the record, go later than any write of that record could still land.
    n.later(LATEST_WRITE_S + n.world.clockwork.delay(), ev.FilesGone(name))


def _say(n: Node, e: ev.Say) -> None:
    line = f"{n.name}: {e.what}: {e.text}"
    if line != n._said:  # as the real shell does
        n._said = line
        n.world.clockwork.note(line)


def _leave(n: Node, e: ev.Leave) -> None:
    w = n.world
    w.clockwork.note(f"{n.name}: leaves with {e.status}: {e.text}")
    late = n.now - n.drain_until
    need("R2", n.slept or late < LATE_S, f"{n.name} leaves {late:.1f} s after the deadline of its drain")
    g = w.ledger.generations.get(w.ledger.current)
    if g is not None and g.number not in w.ledger.verdicts and g.member(*n.state.who) is not None and n.state.view.current < g.number:
        w.unaware += 1
    n.left, n.crew = e.status, None
    w.links.cut(n)
    patience = w.policies.membership.join_timeout_s
    if e.status in (ExitStatus.REPLACED, ExitStatus.NOT_FORMED, ExitStatus.STORE_UNREACHABLE):
        waited = w.clockwork.now - n.outside_since
        need("I6", waited >= patience * 0.9, f"{n.name} gives up ({e.text}) after {waited:.1f} s outside, join timeout {patience:g} s")
    life = n.life
    w.clockwork.after(w.clockwork.random.uniform(1.0, 5.0), lambda: n.boot() if n.life == life and not w.finished else None)


_CARRY: dict[type, Callable[[Node, Any], object]] = {
    ev.Send: lambda n, e: n.world.send(n, e),
    ev.GrantLease: lambda n, e: n.world.grant(n, e.ttl_s),
    ev.RenewLease: lambda n, e: n.world.renew(n, e.lease),
    ev.RevokeLease: lambda n, e: n.world.revoke(n, e.lease),
    ev.RunPreflight: _run_preflight,
    ev.OpenStore: _open_store,
    ev.StartWorkers: _start_workers,
    ev.StopWorkers: _stop_workers,
    ev.WishCheckpoint: _wish_checkpoint,
    ev.PassSignal: _pass_signal,
    ev.HoldWorkers: _hold_workers,
    ev.TakeUp: lambda n, e: n.take_up(e.generation),
    ev.Connect: lambda n, e: n.world.links.connect(n, e.who),
    ev.CloseLinks: lambda n, e: n.world.links.close(n),
    ev.Tell: lambda n, e: n.world.links.tell(n, e),
    ev.Probe: lambda n, e: n.world.links.probe(n, e.who),
    ev.CommitAnswered: _commit_answered,
    ev.RemoveFiles: _remove_files,
    ev.WriteRecord: lambda n, e: None,
    ev.PageHuman: lambda n, e: n.world.page(n, e.verdict),
    ev.Say: _say,
    ev.Leave: _leave,
}
