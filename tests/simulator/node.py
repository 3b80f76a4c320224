"""One simulated agent with its workers: the shipped machine, its effects carried out with delays and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_health.generations import CheckpointRecord, Generation, RunSpec, StoreAddress
from elastic_health.incidents import Incident
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.membership import check, start, step
from elastic_health.rendezvous.serve import page_deadline
from elastic_health.rendezvous.state import Me, Phase, Settings, Workers
from elastic_health.rendezvous.store import WatchBatch
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause
from tests.simulator.ledger import need

if TYPE_CHECKING:
    from tests.simulator.world import World


@dataclass
class Crew:
    """The workers of one node for one communicator, all in one: they step together."""

    communicator: int
    generation: int
    position: int
    mask: frozenset[int]
    steps: int
    deadline: float
    held: bool = False
    reported: bool = False
    done: bool = False
    pending: int = 0
    committed: int = -1


@dataclass
class Node:
    """A host with at most one agent process at a time."""

    world: World
    name: str
    alive: bool = False
    paused: bool = False
    cut_store: bool = False
    cut_peers: set[str] = field(default_factory=set)
    life: int = 0
    crew: Crew | None = None
    seen: int = 0
    linked: dict[Who, int] = field(default_factory=dict)
    backlog: list[ev.Event] = field(default_factory=list)

    # ---- life
    def boot(self) -> None:
        w = self.world
        self.alive, self.paused, self.life, self.linked, self.backlog = True, False, self.life + 1, {}, []
        spec = RunSpec(w.least, w.most, "script", "train.py", 0)
        me = Me(self.name, f"life{self.life}", f"{self.name}:{self.life}", 2, spec)
        self.settings = Settings(w.keys, me, w.policies)
        self.state = start(self.settings, self.clock())
        self.left: int | None = None
        self.seen = 0
        life = self.life
        w.clockwork.after(w.clockwork.delay(), lambda: self.alive and self.life == life and self.sync())
        self.tick_at(w.clockwork.now)

    def clock(self) -> ev.Clock:
        now = self.world.clockwork.now
        return ev.Clock(now, 1.7e9 + now)

    def sync(self) -> None:
        """The first read; again later when the store can't be reached."""
        w, life = self.world, self.life
        if not self.reaches_store():
            w.clockwork.after(0.3, lambda: self.alive and self.life == life and self.sync())
            return
        self.seen, kvs = w.store.revision, w.store.range_all(w.keys.root)
        self.feed(ev.StoreChanged(WatchBatch(self.seen, (), True, kvs)))
        self.feed(ev.StoreChanged(WatchBatch(self.seen, (), True, ()), True))
        self.pump_watch()

    def pump_watch(self) -> None:
        """Deliver what the store has that this agent has not seen, a little late; resumes after cuts."""
        w, life = self.world, self.life
        if self.alive and self.reaches_store() and not self.paused:
            batch = w.store.since(w.keys.root, self.seen, compacted=w.clockwork.random.random() < w.compaction)
            if batch is not None:
                self.seen = batch.revision
                self.feed(ev.StoreChanged(batch))
        w.clockwork.after(w.clockwork.delay(0.03), lambda: self.alive and self.life == life and self.pump_watch())

    def reaches_store(self) -> bool:
        return not self.cut_store and not self.world.outage

    # ---- the machine
    def feed(self, event: ev.Event) -> None:
        if not self.alive or self.left is not None:
            return
        if self.paused:
            self.backlog.append(event)
            return
        before = self.state
        self.state, effects = step(before, event, self.clock())
        check(before, self.state)
        if before.phase is not self.state.phase:
            self.world.clockwork.note(f"{self.name} {self.state.who[1]}: {before.phase.value} -> {self.state.phase.value} (g{self.state.generation}) {self.state.stop_reason}")
        self.world.observe(self)
        for effect in effects:
            self.carry_out(effect)
        if self.crew is not None and self.left is None:
            self.crew.deadline = page_deadline(self.state, self.world.clockwork.now)
        self.tick_at(self.state.wake_at)

    def tick_at(self, when: float) -> None:
        if when == float("inf"):
            return
        life, c = self.life, self.world.clockwork
        due = max(when, c.now + 0.001)
        if getattr(self, "_tick", 0.0) > c.now and self._tick <= due and getattr(self, "_tick_life", 0) == life:
            return
        self._tick, self._tick_life = due, life

        def tick() -> None:
            if self.life == life and self.alive and self._tick == due:
                self._tick = 0.0
                self.feed(ev.Tick())

        c.at(due, tick)

    def later(self, delay: float, event: ev.Event) -> None:
        life = self.life
        self.world.clockwork.after(delay, lambda: self.life == life and self.feed(event))

    def carry_out(self, e: ev.Effect) -> None:
        w, c = self.world, self.world.clockwork
        if isinstance(e, ev.Send):
            w.send(self, e)
        elif isinstance(e, ev.GrantLease):
            w.grant(self, e.ttl_s)
        elif isinstance(e, ev.RenewLease):
            w.renew(self, e.lease)
        elif isinstance(e, ev.RevokeLease):
            w.revoke(self, e.lease)
        elif isinstance(e, ev.RunPreflight):
            self.later(c.delay(0.1), ev.PreflightDone(True))
        elif isinstance(e, ev.OpenStore):
            self.later(c.delay(), ev.StoreOpened(e.generation.number, StoreAddress(self.name, e.generation.number, "")))
        elif isinstance(e, ev.StartWorkers):
            life, number = self.life, e.generation.number
            c.after(c.delay(0.3), lambda: self.life == life and self.alive and self.spawn(e.generation, number))
        elif isinstance(e, ev.StopWorkers):
            life = self.life
            c.after(c.delay(0.2), lambda: self.life == life and self.alive and self.reap(e.generation))
        elif isinstance(e, ev.HoldWorkers):
            ok = self.crew is not None and self.crew.held
            self.later(c.delay(), ev.Held(e.generation, ok))
        elif isinstance(e, ev.TakeUp):
            self.take_up(e.generation)
        elif isinstance(e, ev.Connect):
            w.connect(self, e.who)
        elif isinstance(e, ev.CloseLinks):
            w.close_links(self)
        elif isinstance(e, ev.Tell):
            w.tell(self, e)
        elif isinstance(e, ev.Probe):
            w.probe(self, e.who)
        elif isinstance(e, ev.CommitAnswered):
            crew = self.crew
            if crew is not None and crew.pending == e.request:
                crew.pending = 0
                if not e.committed:
                    c.note(f"{self.name}: not committed: {e.reason}")
                if e.committed and e.record is not None:
                    crew.committed = e.record.position
                    c.note(f"{self.name}: committed {e.record.name}")
        elif isinstance(e, ev.PageHuman):
            w.pages += 1
            need("I5", w.pages <= 1, "a human was paged twice")
        elif isinstance(e, ev.Say):
            line = f"{self.name}: {e.what}: {e.text}"
            if line != getattr(self, "_said", ""):  # as the real shell does
                self._said = line
                c.note(line)
        elif isinstance(e, ev.Leave):
            self.left, self.crew = e.status, None
            c.note(f"{self.name}: leaves with {e.status}: {e.text}")
            w.break_links(self)

    # ---- workers
    def spawn(self, g: Generation, number: int) -> None:
        if self.state.generation != number or self.state.workers is not Workers.ASKED:
            return
        need("L", self.crew is None, f"{self.name} spawns beside old workers")
        plan = g.plan
        mask = self.world.ledger.masks[plan.checkpoint] if plan.checkpoint else frozenset()
        self.crew = Crew(g.communicator, number, plan.position, mask, plan.step, page_deadline(self.state, self.world.clockwork.now))
        self.feed(ev.WorkersUp(number))

    def take_up(self, g: Generation) -> None:
        crew = self.crew
        if crew is None:
            return
        plan = g.plan
        crew.mask = self.world.ledger.masks[plan.checkpoint] if plan.checkpoint else frozenset()
        crew.generation, crew.position, crew.steps, crew.held, crew.pending = g.number, plan.position, plan.step, False, 0
        crew.committed = -1

    def reap(self, generation: int) -> None:
        self.crew = None
        self.feed(ev.WorkersReaped(generation))

    def lose_crew(self, cause: Cause, text: str) -> None:
        """The workers die by themselves; the agent sees it at once if it can."""
        crew, self.crew = self.crew, None
        if crew is not None and self.alive:
            self.judge(cause, text)

    def judge(self, cause: Cause, text: str, **fields: object) -> None:
        g = self.state.generation
        if not g or self.state.phase not in (Phase.STARTING, Phase.RUNNING, Phase.HOLDING):
            return
        n = self.world.count()
        self.feed(ev.Judged(Incident(f"i{n}", g, cause, f"{cause.value}:{self.world.clockwork.random.randrange(3)}", text, self.clock().wall, nodes=(self.name,), **fields)))  # type: ignore[arg-type]

    def ask_commit(self) -> None:
        crew = self.crew
        assert crew is not None
        record = CheckpointRecord(crew.steps, crew.generation, f"step-{crew.steps}", crew.position, 0, None, f"m{crew.steps}.{crew.generation}")
        self.world.ledger.masks[record.name] = crew.mask
        crew.pending = self.world.count()
        self.feed(ev.CommitAsked(crew.pending, record))
