"""Agents around one in-memory store, without delays: what is asked is done at once, unless the test withholds it.

`run` goes on until nothing follows any more; `wait` moves the clock through every wake-up on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from elastic_health.generations import CheckpointRecord, Generation, RunSpec, StoreAddress
from elastic_health.incidents import Incident
from elastic_health.policies import Policies
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.membership import check, start, step
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.state import Me, Phase, Purpose, Settings
from elastic_health.rendezvous.store import LeaseGone, WatchBatch
from elastic_health.rendezvous.view import View, Who, apply
from elastic_health.verdicts import Cause, Verdict

KEYS = RunKeys("job")


class Agent:
    """One agent; `out` holds every effect in order.  `withheld` names effects (or purposes of transactions) not carried out."""

    def __init__(self, group: Group, node: str, *, life: int = 1, topology: str = "", spec: RunSpec | None = None) -> None:
        self.group, self.node = group, node
        me = Me(node, f"{node}life{life}", f"{node}:{life}", 2, spec or group.spec, topology=topology)
        self.state = start(Settings(KEYS, me, group.policies), group.clock)
        self.seen, self.store_up, self.alive = 0, True, True
        self.inbox: deque[ev.Event] = deque([ev.Tick()])
        self.out: list[ev.Effect] = []
        self.withheld: set[type | Purpose] = set()
        self.links: dict[Who, Agent] = {}
        self.fit = True
        self.skew_s = 0.0

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def left(self) -> int | None:
        return self.state.left[0] if self.state.left else None

    def told(self, kind: type) -> list[ev.Effect]:
        return [e for e in self.out if isinstance(e, kind)]

    def said(self, what: str) -> list[str]:
        return [e.text for e in self.out if isinstance(e, ev.Say) and e.what == what]

    def feed(self, *events: ev.Event) -> None:
        self.inbox.extend(events)
        self.group.run()

    def judge(self, cause: Cause, reason: str = "seen", **fields: object) -> None:
        wall = self.group.clock.wall
        self.feed(ev.Judged(Incident("i", self.state.generation, cause, cause.value, reason, wall, **fields)))  # type: ignore[arg-type]

    def commit(self, number: int, position: int) -> None:
        g = self.state.generation
        self.feed(ev.CommitAsked(number, CheckpointRecord(position, g, f"step-{position}", position, 0, None, f"m{position}")))

    def kill(self) -> None:
        """The agent process is gone with its workers: its links are reset, its lease runs out by itself."""
        self.alive = False
        self.group.cut(self)

    # ---- inside
    def turn(self) -> bool:
        if not self.alive:
            return False
        self._watch()
        if not self.inbox:
            return False
        before = self.state
        clock = ev.Clock(self.group.clock.now, self.group.clock.wall + self.skew_s)
        self.state, effects = step(before, self.inbox.popleft(), clock)
        check(before, self.state)
        for e in effects:
            self.out.append(e)
            if type(e) not in self.withheld:
                self._carry_out(e)
        return True

    def _watch(self) -> None:
        store = self.group.store
        if not self.store_up or self.seen >= store.revision:
            return
        for prefix, fleet in ((KEYS.root, False), (FleetKeys(KEYS.prefix).quarantine, True)):
            if self.seen:
                events = tuple(e for b in store.since(prefix, self.seen + 1) for e in b.events)
                self.inbox.append(ev.StoreChanged(WatchBatch(store.revision, events), fleet))
            else:
                self.inbox.append(ev.StoreChanged(WatchBatch(store.revision, (), True, store.range(prefix).kvs), fleet))
        self.seen = store.revision

    def _carry_out(self, e: ev.Effect) -> None:
        g, box, now = self.group, self.inbox, self.group.clock.now
        if isinstance(e, ev.Send):
            self._send(e)
        elif isinstance(e, ev.GrantLease) and self.store_up:
            lease = g.store.grant(e.ttl_s)
            box.append(ev.LeaseHeld(lease.id, now, lease.ttl_s))
        elif isinstance(e, ev.RenewLease):
            box.append(self._renewed(e.lease))
        elif isinstance(e, ev.RevokeLease) and self.store_up:
            g.store.expire(e.lease)
        elif isinstance(e, ev.RunPreflight):
            box.append(ev.PreflightDone(self.fit, "" if self.fit else "too slow"))
        elif isinstance(e, ev.OpenStore):
            box.append(ev.StoreOpened(e.generation.number, StoreAddress(self.node, 1000 + e.generation.number, "")))
        elif isinstance(e, ev.StartWorkers):
            box.append(ev.WorkersUp(e.generation.number))
        elif isinstance(e, ev.StopWorkers):
            box.append(ev.WorkersReaped(e.generation))
        elif isinstance(e, ev.HoldWorkers):
            box.append(ev.Held(e.generation))
        elif isinstance(e, ev.Connect):
            g.link(self, e.who)
        elif isinstance(e, ev.CloseLinks):
            g.cut(self)
        elif isinstance(e, ev.Tell):
            g.tell(self, e)
        elif isinstance(e, ev.Probe):
            g.probe(self, e.who)

    def _renewed(self, lease: int) -> ev.Event:
        if not self.store_up:
            return ev.LeaseFailed(lease, False)
        try:
            return ev.LeaseHeld(lease, self.group.clock.now, self.group.store.renew(lease))
        except LeaseGone:
            return ev.LeaseFailed(lease, True)

    def _send(self, e: ev.Send) -> None:
        purpose = self.state.sent[e.id].purpose if e.id in self.state.sent else Purpose.LEAVE
        if purpose in self.withheld:
            return
        if not self.store_up:
            self.inbox.append(ev.TxnFailed(e.id, False, "no endpoint answers"))
            return
        try:
            self.inbox.append(ev.TxnDone(e.id, self.group.store.apply(e.txn)))
        except LeaseGone:
            self.inbox.append(ev.TxnFailed(e.id, False, "lease gone", lease_gone=True))


class Group:
    """The store, the clock and all agents of a test."""

    def __init__(self, least: int, most: int, policies: Policies | None = None) -> None:
        self.spec = RunSpec(least, most, "digest", "train.py", 0)
        self.policies = policies or Policies()
        self.store = MemoryStore(min_ttl_s=2.0)
        self.clock = ev.Clock(100.0, 1.7e9)
        self.store.advance(100.0)
        self.agents: list[Agent] = []

    def add(self, *nodes: str, **about: object) -> Agent:
        """Agents join in this order; returns the last one."""
        for node in nodes:
            self.agents.append(Agent(self, node, **about))  # type: ignore[arg-type]
            self.run()
        return self.agents[-1]

    def run(self) -> None:
        for _ in range(5000):
            turned = [a.turn() for a in self.agents]  # each one gets its turn
            if not any(turned):
                return
        raise AssertionError("the agents never come to rest")

    def wait(self, seconds: float) -> None:
        """Let time pass, with every wake-up and lease end on the way."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            wakes = [a.state.wake_at for a in self.agents if a.alive and a.left is None]
            due = min([end, *(w for w in wakes if w > self.clock.now), *([d] if (d := self.store.next_due()) is not None else [])])
            due = min(end, max(due, self.clock.now + 1e-3))
            self.clock = ev.Clock(due, self.clock.wall + due - self.clock.now)
            self.store.advance(due)
            for a in self.agents:
                a.inbox.append(ev.Tick())
            self.run()

    def store_down(self, *agents: Agent) -> None:
        """No endpoint answers these agents (all: a whole outage, in which no lease runs out)."""
        for a in agents or self.agents:
            a.store_up = False
        if not agents:
            self.store.freeze()

    def store_back(self) -> None:
        for a in self.agents:
            a.store_up = True
        self.store.thaw()
        self.run()

    # ---- links
    def find(self, who: Who) -> Agent | None:
        return next((a for a in self.agents if a.alive and a.left is None and a.state.who == who), None)

    def link(self, a: Agent, who: Who) -> None:
        b = self.find(who)
        if b is not None and who not in a.links:
            a.links[who], b.links[a.state.who] = b, a
            a.inbox.append(ev.LinkUp(who))
            b.inbox.append(ev.LinkUp(a.state.who))

    def cut(self, a: Agent) -> None:
        for b in a.links.values():
            for who in [w for w, x in b.links.items() if x is a]:
                del b.links[who]
                b.inbox.append(ev.LinkDown(who, "eof"))
        a.links = {}

    def tell(self, a: Agent, e: ev.Tell) -> None:
        """Under the name that the link was made with, whatever incarnation its end is by now."""
        for b in [a.links[e.who]] if e.who in a.links else a.links.values() if e.who is None else ():
            b.inbox.extend(ev.PeerSaid(who, e.message) for who, x in b.links.items() if x is a)

    def probe(self, a: Agent, who: Who) -> None:
        a.inbox.append(ev.Probed(who, self.find(who) is None))

    # ---- what the store says
    def current(self) -> Generation:
        g = self._fresh().generation
        assert g is not None
        return g

    def verdict(self, number: int) -> Verdict | None:
        return self._fresh().verdicts.get(number)

    def members(self) -> list[str]:
        return [m.node for m in self.current().members]

    def _fresh(self) -> View:
        """The store's own content, whatever any agent has seen."""
        store = self.store
        return apply(View(), WatchBatch(store.revision, (), True, store.range(KEYS.root).kvs), KEYS)


def phases(agents: Iterable[Agent]) -> list[str]:
    return [a.phase.value for a in agents]
