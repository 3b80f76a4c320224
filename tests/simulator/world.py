"""All nodes of a run, the store, the links and the training, on one event heap; and the faults that strike them."""

from __future__ import annotations

from collections.abc import Callable

from elastic_health.generations import GenerationKind
from elastic_health.messages import LinkMessage
from elastic_health.policies import Policies
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.state import Phase
from elastic_health.rendezvous.store import LeaseGone, TxnResult, WatchBatch
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause, VerdictKind
from elastic_health.windows import Window, outside
from tests.simulator.ledger import Ledger, need
from tests.simulator.network import Clockwork
from tests.simulator.node import Crew, Node

STEP_S = 0.05


class StoreFace:
    """What nodes may ask of the store directly (reads of a watch); transactions go through the ledger."""

    def __init__(self, memory: MemoryStore) -> None:
        self.memory = memory

    @property
    def revision(self) -> int:
        return self.memory.revision

    def range_all(self, prefix: str):  # type: ignore[no-untyped-def]
        return self.memory.range(prefix).kvs

    def since(self, prefix: str, seen: int, compacted: bool) -> WatchBatch | None:
        if seen >= self.memory.revision:
            return None
        if compacted:
            return WatchBatch(self.memory.revision, (), True, self.memory.range(prefix).kvs)
        events = tuple(e for b in self.memory.since(prefix, seen + 1) for e in b.events)
        return WatchBatch(self.memory.revision, events)


class World:
    """One run.  `total` positions are to be consumed, one a step; a commit each `every` steps."""

    def __init__(self, seed: int, *, nodes: int, least: int, most: int, total: int = 60, every: int = 5, policies: Policies | None = None) -> None:
        self.clockwork, self.keys = Clockwork(seed), RunKeys(f"sim{seed}")
        self.memory = MemoryStore(min_ttl_s=2.0)
        self.store = StoreFace(self.memory)
        self.policies = policies or Policies()
        self.least, self.most, self.total, self.every = least, most, total, every
        self.ledger = Ledger(self.memory, self.keys, least, most, self.policies.recovery.caps.total)
        self.nodes = [Node(self, f"n{i}") for i in range(nodes)]
        self.outage, self.pages, self._count = False, 0, 0
        self.compaction, self.loss = 0.02, 0.02
        self.applied: dict[int, tuple[VerdictKind, str]] = {}
        self.heads: dict[int, str | None] = {}
        self._expiry()
        self._train()

    def count(self) -> int:
        self._count += 1
        return self._count

    # ---- the store, with its faults
    def _expiry(self) -> None:
        self.memory.advance(self.clockwork.now)
        self.clockwork.after(0.05, self._expiry)

    def _trip(self, node: Node, ask: Callable[[], ev.Event], lost: Callable[[bool], ev.Event | None], *, write: bool) -> None:
        """One request and its answer.  Either may be lost; a lost write may land late."""
        c, life = self.clockwork, node.life

        def reply(event: ev.Event | None) -> None:
            if event is not None and node.life == life:
                node.feed(event)

        def arrive() -> None:
            if not node.reaches_store():
                c.after(1.0, lambda: reply(lost(False)))
                return
            if c.random.random() < self.loss:  # the request is lost, or only late
                if write and c.random.random() < 0.5:
                    c.after(c.random.uniform(0.5, 8.0), lambda: None if self.outage else ask())
                c.after(1.0, lambda: reply(lost(write)))
                return
            event = ask()
            if c.random.random() < self.loss or not node.reaches_store():
                c.after(1.0, lambda: reply(lost(write)))
            else:
                c.after(c.delay(), lambda: reply(event))

        c.after(c.delay(), arrive)

    def send(self, node: Node, e: ev.Send) -> None:
        def ask() -> ev.Event:
            self.memory.advance(self.clockwork.now)
            try:
                result: TxnResult = self.ledger.apply(e.txn)
            except LeaseGone:
                return ev.TxnFailed(e.id, False, "lease gone", lease_gone=True)
            return ev.TxnDone(e.id, result)

        self._trip(node, ask, lambda ambiguous: ev.TxnFailed(e.id, ambiguous), write=True)

    def grant(self, node: Node, ttl_s: float) -> None:
        sent = self.clockwork.now

        def ask() -> ev.Event:
            self.memory.advance(self.clockwork.now)
            lease = self.memory.grant(ttl_s)
            return ev.LeaseHeld(lease.id, sent, lease.ttl_s)

        self._trip(node, ask, lambda _: ev.LeaseFailed(0, False), write=False)

    def renew(self, node: Node, lease: int) -> None:
        sent = self.clockwork.now

        def ask() -> ev.Event:
            self.memory.advance(self.clockwork.now)
            try:
                return ev.LeaseHeld(lease, sent, self.memory.renew(lease))
            except LeaseGone:
                return ev.LeaseFailed(lease, True)

        self._trip(node, ask, lambda _: ev.LeaseFailed(lease, False), write=False)

    def revoke(self, node: Node, lease: int) -> None:
        if node.reaches_store():
            self.clockwork.after(self.clockwork.delay(), lambda: self.memory.expire(lease))

    # ---- links
    def find(self, who: Who) -> Node | None:
        """The living agent of that name and process; a later incarnation of the same process is the same agent."""
        node = next(n for n in self.nodes if n.name == who[0])
        return node if node.alive and node.left is None and who[1].split("-")[0] == f"life{node.life}" else None

    def parted(self, a: Node, b: Node) -> bool:
        return b.name in a.cut_peers or a.name in b.cut_peers

    def connect(self, node: Node, who: Who) -> None:
        c, life, me = self.clockwork, node.life, node.state.who

        def dial() -> None:
            peer = self.find(who)
            if node.life != life or not node.alive or node.state.who != me or who in node.linked:
                return
            if node.state.phase not in (Phase.STARTING, Phase.RUNNING, Phase.HOLDING):
                return
            if peer is None or peer.paused or self.parted(node, peer):
                c.after(0.5, dial)
                return
            node.linked[who], peer.linked[me] = peer.life, node.life
            node.feed(ev.LinkUp(who))
            peer.feed(ev.LinkUp(me))

        c.after(c.delay(), dial)

    def break_links(self, node: Node, *, silent: bool = False) -> None:
        """The other ends notice: at once (EOF), or after the link timeout when nothing says so."""
        wait = self.policies.membership.bounds.link_timeout_s if silent else 0.001
        me = {w for n in self.nodes for w in n.linked if w[0] == node.name}
        for other in self.nodes:
            for who in [w for w in other.linked if w in me or (w[0] == node.name)]:
                del other.linked[who]
                other.later(wait + self.clockwork.delay(), ev.LinkDown(who, "eof"))
        for who in list(node.linked):
            del node.linked[who]
            if silent:
                node.later(wait, ev.LinkDown(who, "timeout"))

    def close_links(self, node: Node) -> None:
        self.break_links(node)

    def tell(self, node: Node, e: ev.Tell) -> None:
        for who in [e.who] if e.who is not None else list(node.linked):
            if who in node.linked:
                self._deliver(node, who, e.message)

    def _deliver(self, node: Node, who: Who, message: LinkMessage) -> None:
        peer, me = self.find(who), node.state.who
        if peer is not None and not self.parted(node, peer):
            peer.later(self.clockwork.delay(), ev.PeerSaid(me, message))

    def probe(self, node: Node, who: Who) -> None:
        target = next(n for n in self.nodes if n.name == who[0])
        if self.parted(node, target):
            return
        dead = self.find(who) is None or target.state.who != who
        if not dead and target.paused:
            return
        node.later(self.clockwork.delay(), ev.Probed(who, dead))

    # ---- training
    def _train(self) -> None:
        self._deadlines()
        groups: dict[int, list[tuple[Node, Crew]]] = {}
        for n in self.nodes:
            if n.crew is not None:
                groups.setdefault(n.crew.communicator, []).append((n, n.crew))
        for communicator, team in groups.items():
            record = self.ledger.generations[communicator]
            if len(team) == len(record.members) and {n.name for n, _ in team} == {m.node for m in record.members}:
                self._step(team)
        self.clockwork.after(STEP_S, self._train)

    def _deadlines(self) -> None:
        """The watchdog in the workers, and the guardian beside a dead agent (rule 7)."""
        for n in self.nodes:
            crew = n.crew
            if crew is not None and self.clockwork.now > crew.deadline:
                self.clockwork.note(f"{n.name}: workers end by the deadline in their page")
                n.lose_crew(Cause.WORKER_KILLED, "deadline passed")

    def _step(self, team: list[tuple[Node, Crew]]) -> None:
        crews = [c for _, c in team]
        if any(c.held for c in crews):
            return
        if len({c.generation for c in crews}) > 1:
            return  # some have not taken the in-place generation up yet; the barrier of the hand-over holds the others
        g = self.ledger.generations[crews[0].generation]
        need("I4", len({(c.position, c.mask) for c in crews}) == 1, f"workers of generation {g.number} stand at different positions")
        position = outside(crews[0].position, g.plan.windows)
        rank0, lead = next((n, c) for n, c in team if n.name == g.members[0].node)
        if position >= self.total:
            if lead.committed < crews[0].position and crews[0].steps > g.plan.step:
                if not lead.pending:  # the end waits for the last commit
                    rank0.ask_commit()
                return
            for n, c in team:
                if not c.done:
                    c.done = True
                    n.feed(ev.WorkersDone(c.generation))
            return
        need("I4", position not in crews[0].mask, f"position {position} is consumed twice")
        for c in crews:
            c.mask, c.position, c.steps = c.mask | {position}, position + 1, c.steps + 1
        if crews[0].steps % self.every == 0 and not lead.pending:
            rank0.ask_commit()

    # ---- faults that need the whole group
    def halt(self, generation: int) -> bool:
        """All ranks agree to halt: roll back three steps and skip the last one."""
        team = [n for n in self.nodes if n.crew is not None and n.crew.generation == generation and n.state.phase is Phase.RUNNING]
        g = self.ledger.generations.get(generation)
        if g is None or len(team) != len(g.members) or generation in self.ledger.verdicts:
            return False
        crew = team[0].crew
        assert crew is not None
        if crew.position == 0 or crew.done:
            return False
        for n in team:
            assert n.crew is not None
            n.crew.held = True
        rank0 = next(n for n in team if n.name == g.members[0].node)
        own = [c for c in self.ledger.checkpoints.values() if c.generation == generation and c.state.value == "committed" and c.position < crew.position - 2]
        target = max(own, key=lambda c: c.position).name if own else g.plan.checkpoint
        while target is not None and self.ledger.checkpoints[target].position > crew.position - 1:
            target = self.ledger.checkpoints[target].parent
        window = (Window(crew.position - 1, crew.position, "halt"),)
        self.clockwork.note(f"all ranks of {generation} halt at {crew.position}; target {target}")
        rank0.judge(Cause.NUMERIC_HALT, "halt", target=target, windows=window)
        return True

    def observe(self, node: Node) -> None:
        """I3: whoever applies a verdict applies the stored one."""
        v = node.state.ended
        if v is not None:
            stored = self.ledger.verdicts.get(v.generation)
            need("I3", stored == v, f"{node.name} applies {v} where {stored} is stored")

    @property
    def finished(self) -> bool:
        v = self.ledger.verdicts.get(self.ledger.current)
        return v is not None and v.kind in (VerdictKind.FINISH, VerdictKind.ABORT)

    def check_history(self) -> None:
        """I4: every committed checkpoint has consumed each position before it once, apart from its windows."""
        for name, c in self.ledger.checkpoints.items():
            windows = self.ledger.generations[c.generation].plan.windows
            want = frozenset(p for p in range(c.position) if outside(p, windows) == p)
            need("I4", self.ledger.masks[name] == want, f"{name} has consumed {sorted(self.ledger.masks[name])}, expected {sorted(want)}")


def in_place(world: World) -> int:
    """How many in-place generations there were."""
    return sum(g.kind is GenerationKind.IN_PLACE for g in world.ledger.generations.values())
