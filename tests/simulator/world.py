"""All nodes of a run, the store and the training, on one event heap, and what an observer of all of it checks."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_health.codec import load
from elastic_health.generations import Candidate, CandidateState, GenerationKind
from elastic_health.policies import Policies
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.state import Phase, Purpose
from elastic_health.rendezvous.store import Compare, LeaseGone, Put, Target, Txn, WatchBatch
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from elastic_health.windows import Window, outside
from tests.simulator.ledger import Ledger, need
from tests.simulator.links import Links
from tests.simulator.network import LATEST_WRITE_S, Clockwork
from tests.simulator.node import PROGRESS_S, Crew, Node
from tests.simulator.told import told

if TYPE_CHECKING:
    from tests.simulator.strikes import Plan

STEP_S = 0.2
GUARDIAN_S = 0.05
SKEW_MARGIN_S = 0.6


class World:
    """One run.  `total` positions are to be consumed, one a step (None: not yet known); a commit each `every` steps."""

    def __init__(self, seed: int, *, nodes: int, least: int, most: int, total: int | None, every: int, policies: Policies) -> None:
        self.clockwork, self.keys = Clockwork(seed), RunKeys(f"sim{seed}")
        self.quarantine = f"{FleetKeys(self.keys.prefix).quarantine}nodes/"
        self.memory = MemoryStore(min_ttl_s=2.0)
        self.policies = policies
        self.few = random.Random(seed * 17 + 3).choice((2, 2, 3))  # with one alone, a stuck former would be waited for longer
        self.least, self.most, self.total, self.every = least, most, total, every
        self.ledger = Ledger(self.memory, self.keys, least, most, policies.recovery.caps.total, lambda: self.clockwork.now)
        self.nodes = [Node(self, f"n{i}") for i in range(nodes)]
        self.by_name = {n.name: n for n in self.nodes}
        self.links: Links = Links(self)
        self.outage, self.pages, self._count = False, 0, 0
        self.saves, self.unaware = True, 0
        self.compacting, self.loss, self.loaded_until = False, 0.02, 0.0
        self.plan: Plan | None = None
        self.moments: Counter[str] = Counter()
        self.requests: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.removed: set[str] = set()
        self.seen_at: dict[tuple[str, int, int], int] = {}
        self.forced: set[int] = set()
        self.skips: list[tuple[int, Window]] = []
        self.newest_communicator, self.stepped_at, self._told_progress = 0, -1.0, 0.0
        self.memory.subscribe("", self._changed)
        self._expiry()
        self._train()

    def count(self) -> int:
        self._count += 1
        return self._count

    def _changed(self, _: WatchBatch) -> None:
        for n in self.nodes:
            n.watch()

    def named(self, name: str) -> Node:
        return self.by_name[name]

    def happened(self, moment: str, node: Node) -> None:
        """A step boundary was passed: a planned fault may strike exactly here."""
        if moment == "boundary" and self.finished:
            return
        self.moments[moment] += 1
        if self.plan is not None:
            self.plan.at_moment(moment, self.moments[moment], node)

    # ---- the store, with its faults
    def _expiry(self) -> None:
        """Leases end; whoever held one that ended by itself must have known before."""
        before = self.memory.leases()
        self.memory.advance(self.clockwork.now)
        for lease in before.keys() - self.memory.leases().keys():
            self._lease_ended(lease)
        due = self.memory.next_due()
        self.clockwork.at(min(due, self.clockwork.now + 1.0) if due is not None else self.clockwork.now + 0.5, self._expiry)

    def _lease_ended(self, lease: int) -> None:
        owner = next((n for n in self.nodes if n.running and n.state.lease == lease), None)
        if owner is not None and lease not in self.forced:
            late = owner.state.lease_deadline - owner.now
            allowed = 0.01 if owner.rate == 1.0 else SKEW_MARGIN_S
            need(
                "R10",
                late <= allowed or owner.state.lease_gone,
                f"{owner.name} counts on its lease for {late:.2f} s after the store ended it",
            )
            self.happened("lease ended", owner)

    def _trip(self, node: Node, ask: Callable[[], ev.Event], lost: Callable[[bool], ev.Event], purpose: str) -> None:
        """One request and its answer.  Either may be lost; a lost write may land late.  `lost(ambiguous)`."""
        c, life = self.clockwork, node.life
        write = purpose not in ("grant", "renew")

        def reply(event: ev.Event) -> None:
            if node.life == life:
                node.feed(event)

        def arrive(loaded: bool = False) -> None:
            if not node.reaches_store():
                return c.after(1.0, lambda: reply(lost(False)))
            queue = self.requests.get((node.name, purpose))
            fate = queue.pop() if queue else ""
            if not fate and c.random.random() < self.loss:
                fate = c.random.choice(("request lost", "reply lost", "write late"))
            if fate:
                c.note(f"      {node.name}'s {purpose}: {fate}")
            if fate == "store full" and write:
                e = lost(False)
                assert isinstance(e, ev.TxnFailed)
                return c.after(c.delay(), lambda: reply(ev.TxnFailed(e.id, False, "full", full=True)))
            if fate == "request lost":
                return c.after(1.0, lambda: reply(lost(write)))
            if fate == "write late":
                if write:
                    c.after(c.random.uniform(0.5, LATEST_WRITE_S), lambda: None if self.outage else ask())
                return c.after(1.0, lambda: reply(lost(write)))
            if c.now < self.loaded_until and not loaded:
                return c.after(c.random.uniform(0.2, 5.0), lambda: arrive(True))
            event = ask()
            if fate == "reply lost" or not node.reaches_store():
                return c.after(1.0, lambda: reply(lost(write)))
            slow = c.random.uniform(0.3, 4.0) if c.now < node.slow_until else 0.0
            c.after(c.delay() + slow, lambda: reply(event))

        c.after(c.delay(), arrive)

    def send(self, node: Node, e: ev.Send) -> None:
        purpose = next((s.purpose for s in node.state.sent.values() if s.id == e.id), Purpose.LEAVE)
        if purpose is Purpose.FORM and node.former_stuck:
            life = node.life

            def unanswered() -> None:
                if node.former_stuck:
                    self.clockwork.after(1.0, unanswered)
                elif node.life == life:
                    node.feed(ev.TxnFailed(e.id, True))

            return self.clockwork.after(1.0, unanswered)

        seen = self.seen_at.setdefault((node.name, node.life, e.id), node.told)

        def ask() -> ev.Event:
            self.memory.advance(self.clockwork.now)
            try:
                result = self.ledger.apply(e.txn)
            except LeaseGone:
                return ev.TxnFailed(e.id, False, "lease gone", lease_gone=True)
            if result.succeeded:
                self._landed(node, purpose, e.txn, seen)
            return ev.TxnDone(e.id, result)

        self._trip(node, ask, lambda ambiguous: ev.TxnFailed(e.id, ambiguous), purpose.value)

    def _landed(self, node: Node, purpose: Purpose, txn: Txn, seen: int) -> None:
        if text := told(txn):
            self.clockwork.note(f"      store <- {node.name}: {text}")
        if purpose is Purpose.READY:
            self._ready_landed(txn)
        if purpose is Purpose.FORM:
            self._formed(node, seen)
        if purpose is Purpose.VERDICT and self.ledger.verdicts[max(self.ledger.verdicts)].kind is VerdictKind.ROLLBACK:
            self.happened("rollback verdict", node)
        self.happened(f"txn {purpose.value}", node)
        self.happened("boundary", node)

    def _ready_landed(self, txn: Txn) -> None:
        """Only `ready` counts: it must not be said of one whose workers live, or whose checks have not passed."""
        for op in txn.then:
            if isinstance(op, Put):
                c = load(Candidate, op.value, op.key)
                n = self.named(c.node)
                if c.state is CandidateState.READY and n.running and n.state.who == (c.node, c.incarnation):
                    need("I2", n.checked, f"{c.node} is written `ready` before its checks have passed")
                    need(
                        "R2", n.crew is None, f"{c.node} is written `ready` while its workers of {n.crew.generation if n.crew else 0} live"
                    )

    def _formed(self, former: Node, seen: int) -> None:
        """`seen`: the revision up to which the former had been told when it sent this."""
        g = self.ledger.generations[self.ledger.current]
        barred = {kv.key.rsplit("/", 1)[1] for kv in self.memory.range(self.quarantine).kvs if kv.mod_revision <= seen}
        need("I2", not barred & {m.node for m in g.members}, f"generation {g.number} holds a quarantined node of {sorted(barred)}")
        for revision, w in self.skips:
            kept = revision > seen or all(outside(p, g.plan.windows) != p for p in range(w.start, w.end))
            need("I4", kept, f"generation {g.number} ignores the window {w.start}..{w.end} that a person had recorded")
        if g.kind is GenerationKind.IN_PLACE:
            self.happened("in-place form", former)
            return
        # Its leaving was under way when the former still read it as ready.
        self.unaware += sum(n.left is not None and g.member(*n.state.who) is not None for n in self.nodes)
        for n in self.nodes:
            if n.crew is None or n.crew.communicator >= g.number:
                continue
            if n.frozen:  # nothing of that host runs, and its workers look at their deadline first when it goes on
                continue
            # A dead agent's guardian ends them; who rides through where nobody can tell it, trains on for nothing; so do, until
            # their page's deadline, the workers of a stopped agent whose lease somebody ended before its time.
            revoked = n.paused and n.state.lease in self.forced
            n.crew.left_over = not n.alive or revoked or (n.isolated and self.links.parted(n, former) and self.links.whole(n))
            need("R10", n.crew.left_over, f"generation {g.number} forms while workers of {n.crew.generation} live on {n.name}")

    def grant(self, node: Node, ttl_s: float) -> None:
        sent = node.now

        def ask() -> ev.Event:
            self.memory.advance(self.clockwork.now)
            lease = self.memory.grant(ttl_s)
            return ev.LeaseHeld(lease.id, sent, lease.ttl_s)

        self._trip(node, ask, lambda _: ev.LeaseFailed(0, False), "grant")

    def renew(self, node: Node, lease: int) -> None:
        sent = node.now

        def ask() -> ev.Event:
            self.memory.advance(self.clockwork.now)
            try:
                return ev.LeaseHeld(lease, sent, self.memory.renew(lease))
            except LeaseGone:
                return ev.LeaseFailed(lease, True)

        self._trip(node, ask, lambda _: ev.LeaseFailed(lease, False), "renew")

    def revoke(self, node: Node, lease: int) -> None:
        if node.reaches_store():
            self.clockwork.after(self.clockwork.delay(), lambda: self.expire(lease))

    def expire(self, lease: int) -> None:
        self.forced.add(lease)
        self.memory.expire(lease)

    def page(self, node: Node, verdict: Verdict) -> None:
        """As the pager does: who creates the key calls the person."""
        key = self.keys.paged
        if self.memory.apply(Txn((Compare(key, Target.CREATE, 0),), (Put(key, b"{}"),))).succeeded:
            self.pages += 1
            self.clockwork.note(f"{node.name} pages: {verdict.reason}")

    # ---- training
    def _train(self) -> None:
        now = self.clockwork.now
        groups: dict[int, list[tuple[Node, Crew]]] = {}
        for n in self.nodes:
            crew = n.crew
            if crew is None or n.frozen:
                continue
            if n.now > crew.deadline:  # the watchdog in the workers, or the guardian beside a dead agent
                self.clockwork.note(f"{n.name}: workers end by the deadline in their page")
                n.lose_crew(Cause.WORKER_KILLED, "deadline passed")
            else:
                groups.setdefault(crew.communicator, []).append((n, crew))
        for communicator, team in groups.items():
            if len(team) == len(self.ledger.generations[communicator].members):
                self._step(team)
        self.clockwork.at(now + STEP_S, self._train)

    def _step(self, team: list[tuple[Node, Crew]]) -> None:
        first = team[0][1]
        g = self.ledger.generations[first.generation]
        if {n.name for n, _ in team} != {m.node for m in g.members}:
            return
        if any(c.held or c.generation != first.generation for _, c in team):
            return  # some have not taken the in-place generation up yet: the barrier of the hand-over holds the others
        if not any(c.left_over for _, c in team):
            need("R10", g.communicator >= self.newest_communicator, f"workers of {g.number} step after those of {self.newest_communicator}")
        self.newest_communicator = max(self.newest_communicator, g.communicator)
        need(
            "I4",
            all((c.position, c.mask) == (first.position, first.mask) for _, c in team),
            f"workers of {g.number} stand at different positions",
        )
        rank0, lead = next((n, c) for n, c in team if n.name == g.members[0].node)
        self.stepped_at = self.clockwork.now
        if self._stepped_at_due():
            rank0.feed(ev.PublishAsked(self.keys.progress, str(lead.generation).encode()))
            if rank0.crew is not lead:
                return  # a fault struck just there
        position = outside(first.position, g.plan.windows)
        if self.total is not None and position >= self.total:
            self._end(team, rank0, lead, g.plan.step)
            return
        need("I4", not first.mask >> position & 1, f"position {position} is consumed twice")
        for _, c in team:
            c.mask, c.position, c.steps = c.mask | 1 << position, position + 1, c.steps + 1
        wished = any(c.wish for _, c in team)
        if (lead.steps % self.every == 0 or wished) and not lead.pending:
            for _, c in team:
                c.wish = False
            rank0.ask_commit()

    def _stepped_at_due(self) -> bool:
        if self.clockwork.now < self._told_progress + PROGRESS_S:
            return False
        self._told_progress = self.clockwork.now
        return True

    def _end(self, team: list[tuple[Node, Crew]], rank0: Node, lead: Crew, start: int) -> None:
        if lead.committed < lead.position and lead.steps > start:
            if not lead.pending:  # the end waits for the last commit
                rank0.ask_commit()
            return
        for n, c in team:
            if not c.done:
                c.done = True
                n.feed(ev.WorkersDone(c.generation))
                self.happened("workers done", n)

    def halt(self) -> bool:
        """All ranks agree to halt: roll back a few steps and skip the last one."""
        g = self.ledger.generations.get(self.ledger.current)
        team = [
            n
            for n in self.nodes
            if n.crew is not None and g is not None and n.crew.generation == g.number and n.state.phase is Phase.RUNNING
        ]
        if g is None or len(team) != len(g.members) or g.number in self.ledger.verdicts or any(n.paused or not n.alive for n in team):
            return False
        crew = team[0].crew
        assert crew is not None
        if crew.position == 0 or crew.done or crew.held:
            return False
        for n in team:
            assert n.crew is not None
            n.crew.held = True
        rank0 = next(n for n in team if n.name == g.members[0].node)
        own = [c.name for c in self.ledger.checkpoints.values() if c.generation == g.number and c.state.value == "committed"]
        target = max(own, default=g.plan.checkpoint)
        while target is not None and self.ledger.checkpoints[target].position > crew.position - self.clockwork.random.choice((1, 3, 9)):
            target = self.ledger.checkpoints[target].parent
        window = (Window(crew.position - 1, crew.position, "halt"),)
        self.clockwork.note(f"all ranks of {g.number} halt at {crew.position}; target {target}")
        rank0.judge(Cause.NUMERIC_HALT, "halt", target=target, windows=window)
        return True

    # ---- judgement of the whole
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
