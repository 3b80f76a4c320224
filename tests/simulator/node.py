"""One simulated agent with its workers: the shipped machine, its effects carried out with delays and faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_health.generations import CheckpointRecord, Generation, RunSpec
from elastic_health.incidents import Incident
from elastic_health.rendezvous import events as ev, membership
from elastic_health.rendezvous.inbox import merged
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.serve import page_deadline
from elastic_health.rendezvous.state import Me, Phase, Settings, State, Workers
from elastic_health.rendezvous.store import WatchBatch, WatchEvent
from elastic_health.rendezvous.view import Part, Who
from elastic_health.verdicts import Cause
from tests.simulator.arms import CARRY, LATE_S, UNSEEN
from tests.simulator.ledger import need

if TYPE_CHECKING:
    from tests.simulator.world import World

HOME = (Phase.STARTING, Phase.RUNNING, Phase.HOLDING, Phase.STOPPING)
PROGRESS_S = 2.0
COMPACTION = 0.05
"""How often a delivery finds its past compacted though nobody planned it."""
PART_LATE = 0.3
"""How often a watch beside the main one lags behind it."""

TOGETHER = 0.3
"""How often all that a delivery brings is taken in at once."""


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
    frozen: bool = False
    cut_store: bool = False
    cut_peers: set[str] = field(default_factory=set)
    life: int = 0
    crew: Crew | None = None
    left: int | None = None
    seen: int = 0
    fleet_seen: int = 0
    heard: dict[Part, int] = field(default_factory=dict)
    told: int = 0
    lag: float = 0.0
    slow_until: float = 0.0
    former_stuck: bool = False
    unfit: bool = False
    checked: bool = False
    stuck_process: bool = False
    drain_until: float = float("inf")
    slept: bool = False
    place: str = ""
    linked: dict[Who, int] = field(default_factory=dict)
    backlog: list[ev.Event] = field(default_factory=list)
    unfinished: list[ev.Effect] = field(default_factory=list)
    outside_since: float = 0.0
    _watching: bool = False
    _together: list[ev.Event] | None = None
    _tick: float = float("inf")
    _said: str = ""

    # ---- life
    def boot(self) -> None:
        w = self.world
        self.alive, self.paused, self.frozen, self.life, self.linked, self.backlog = True, False, False, self.life + 1, {}, []
        self.unfinished = []
        self.former_stuck = self._watching = self.checked = False
        self._together = None
        self._tick, self.outside_since = float("inf"), w.clockwork.now
        self.drain_until, self.slept = float("inf"), False
        spec = RunSpec(w.least, w.most, "script", "train.py", 0)
        me = Me(self.name, f"life{self.life}", f"{self.name}:{self.life}", 2, spec, topology=self.place)
        self.settings = Settings(w.keys, me, w.policies, w.few)
        self.state: State = membership.start(self.settings, self.clock())
        self.left, self.seen, self.told, self.heard = None, 0, 0, {}
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
        self.feed(ev.StoreChanged(WatchBatch(self.seen, (), True, w.memory.range(w.quarantine).kvs), True))
        some = w.memory.range(w.keys.candidates, limit=1).kvs
        self.feed(ev.StoreChanged(WatchBatch(self.seen, tuple(WatchEvent(False, kv) for kv in some)), part=Part.GONE))
        self.fleet_seen = self.seen
        self.heard = dict.fromkeys((Part.REST, Part.BUDGET, Part.GONE), self.seen)
        for part in (Part.BUDGET, Part.REST):
            self.feed(ev.StoreChanged(self._present(part), part=part))
        self.watch()

    def attend(self) -> None:
        """As the shell does: the old watches end, all is read, one watch of all begins."""
        w = self.world
        self.heard = {}
        if not self.reaches_store() or self.paused:
            self.mine(0.3, self.attend)
            return
        self.seen = w.memory.revision
        self.heard = {Part.ALL: self.seen}
        self.feed(ev.StoreChanged(self._present(Part.ALL)))
        self.watch()

    def _present(self, part: Part) -> WatchBatch:
        w = self.world
        return WatchBatch(w.memory.revision, (), True, w.memory.range(*_wanted(w.keys, part)[:2]).kvs)

    def watch(self) -> None:
        """Something may be new: deliver it a little late.  Called again when a cut, an outage or a pause ends."""
        behind = any(at < self.world.memory.revision for at in self.heard.values())
        if self.running and self.seen and not self._watching and behind:
            self._watching = True
            self.mine(self.lag + self.world.clockwork.delay(0.03), self._deliver)

    def _deliver(self) -> None:
        self._watching = False
        w = self.world
        if not self.reaches_store() or self.paused or not self.heard:
            return
        if w.compacting or w.clockwork.random.random() < COMPACTION:
            w.memory.compact(w.memory.revision)
        now = w.memory.revision
        since, self.fleet_seen = self.fleet_seen, now
        self._together = [] if w.clockwork.random.random() < TOGETHER else None
        for part in tuple(self.heard):
            late = part in (Part.BUDGET, Part.GONE) and w.clockwork.random.random() < PART_LATE
            if part in self.heard and self.heard[part] < now and not late:
                begins, self.heard[part] = self.heard[part], now
                if part in (Part.ALL, Part.REST):
                    self.seen = now
                prefix, after, deletions = _wanted(w.keys, part)
                self._hear(_missed(w.memory.since(prefix, begins + 1, after, deletions), now), part)
        batch = _missed(w.memory.since(w.quarantine, since + 1), now)
        if batch.snapshot or batch.events:
            self._take(ev.StoreChanged(batch, True))
        waiting, self._together = self._together or [], None
        for event in merged(waiting):
            self.feed(event)
        self.told = self.seen if self.heard else self.told
        self.watch()

    def _hear(self, batch: WatchBatch, part: Part) -> None:
        if batch.snapshot or batch.events:
            self._take(ev.StoreChanged(batch, part=part))

    def _take(self, event: ev.Event) -> None:
        """At once, or with what else has come meanwhile: as a loop finds it that was busy."""
        if self._together is None:
            self.feed(event)
        else:
            self._together.append(event)

    # ---- the machine
    def feed(self, event: ev.Event) -> None:
        if not self.running:
            return
        if self.paused:
            self.backlog.append(event)
            return
        late = self.now - self.drain_until
        need("R2", self.slept or late < LATE_S, f"{self.name} is still here {late:.1f} s after the deadline of its drain")
        before, life = self.state, self.life
        self.state, effects = membership.step(before, event, self.clock())
        membership.check(before, self.state)
        if before.phase is not self.state.phase:
            self._moved(before)
        self.world.observe(self)
        for effect in effects:
            if type(effect) not in UNSEEN:
                self.world.happened("boundary", self)
            self._carry_out_here(effect, life)
        if not self.running or self.life != life:
            return
        if self.crew is not None:
            self.crew.deadline = page_deadline(self.state, self.now)
        self.tick_at(self.state.wake_at)

    def _carry_out_here(self, effect: ev.Effect, life: int) -> None:
        """A fault may have struck just now, between two effects."""
        if not self.running or self.life != life:
            return
        if self.paused:  # stopped right here, and goes on from here
            self.unfinished.append(effect)
        else:
            self.carry_out(effect)

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
        CARRY[type(e)](self, e)

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

    def thaw(self) -> None:
        """The host goes on: its workers' watchdogs look at their deadline before anything else; then the agent ends what it
        was about to do when it was stopped."""
        if self.frozen:
            self.frozen = False
            if self.crew is not None and self.now > self.crew.deadline:
                self.world.clockwork.note(f"{self.name}: workers end on waking, by the deadline in their page")
                self.lose_crew(Cause.WORKER_KILLED, "deadline passed")
        unfinished, self.unfinished = self.unfinished, []
        life = self.life
        for effect in unfinished:
            if self.running and self.life == life:
                self.carry_out(effect)

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


def _wanted(keys: RunKeys, part: Part) -> tuple[str, str, bool]:
    """Prefix, what comes before it, and deletions alone: as `sight_net` watches each part."""
    if part is Part.ALL:
        return (keys.root, "", False)
    if part is Part.REST:
        return (keys.root, keys.candidates, False)
    return (keys.budget, "", False) if part is Part.BUDGET else (keys.candidates, "", True)


def _missed(batches: list[WatchBatch], now: int) -> WatchBatch:
    """What a watch tells of the time since it last told something: all at once, or a snapshot."""
    return batches[0] if batches and batches[0].snapshot else WatchBatch(now, tuple(e for b in batches for e in b.events))
