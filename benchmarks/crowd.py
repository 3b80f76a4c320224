"""Many agents in one process: the shipped membership machine of each, on a real etcd, with workers and links made up.

Law: all that an agent reads, writes and watches goes through the shipped session to a real etcd, each agent with its own
lease and its own watchers; what it would do beside that (checks, processes, sockets) answers at once.  One thread takes all
decisions, as n agents on n machines would take theirs each for itself: its time is counted, not hidden.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from benchmarks.streams import PooledStore, SharedStream
from elastic_health.generations import Bounds, RunSpec, StoreAddress
from elastic_health.messages import LinkMessage
from elastic_health.policies import Caps, MembershipPolicy, Policies, RecoveryPolicy
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.inbox import merged
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.loop_net import answer
from elastic_health.rendezvous.membership import start, step
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.sight_net import Sight
from elastic_health.rendezvous.state import Me, Phase, Settings, State
from elastic_health.rendezvous.store import Lease, LeaseGone, StoreAmbiguous, StoreError, TxnResult
from elastic_health.rendezvous.view import Who

LEASE_S = 900.0
"""One process renews for all, which n machines would not: so rarely that it does not disturb."""
LAST_CALL_S = 600.0
"""All n are awaited, as stock is told to by MIN = MAX."""
AGENTS_A_SESSION = 64
TIMEOUT_S = 120.0
NAME_CHARS = 40
STEADY = (Phase.RUNNING,)


def node_name(i: int) -> str:
    """As long as a cloud's host names are."""
    return f"gpu-worker-{i:05d}-".ljust(NAME_CHARS, "x")


def policies() -> Policies:
    """The shipped ones, but for the lease (see `LEASE_S`) and caps that a benchmark would run into."""
    caps = Caps(None, None, None, None, None, None, mismatches=None, rollbacks_per_day=None, backoff_s=(0.0,))
    membership = MembershipPolicy(last_call_s=LAST_CALL_S, bounds=Bounds(lease_s=LEASE_S, start_s=600.0))
    return replace(Policies(), recovery=RecoveryPolicy(caps), membership=membership)


@dataclass
class Agent:
    """One simulated agent.  `pending`: what it has not taken in yet."""

    index: int
    state: State
    store: PooledStore
    sight: Sight
    alive: bool = True
    queued: bool = False
    wake_at: float = float("inf")
    pending: deque[ev.Event] = field(default_factory=deque)
    linked: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Crowd:
    """n agents of one run.  `spent_s`: seconds of deciding, by kind of event; `turns`: how many."""

    def __init__(self, endpoint: str, run: str, n: int) -> None:
        self._inbox: queue.SimpleQueue[Agent] = queue.SimpleQueue()
        self._wakes: list[tuple[float, int]] = []
        sessions = [EtcdSession.connect(endpoint, timeout_s=TIMEOUT_S, first=i) for i in range(-(-n // AGENTS_A_SESSION))]
        self._sessions, self._streams = sessions, [SharedStream(s) for s in sessions]
        stores = [PooledStore(s, stream) for s, stream in zip(sessions, self._streams, strict=True)]
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="lease")
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.turns: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self.reached_at = 0.0
        self.keys, given = RunKeys(run), policies()
        spec = RunSpec(max(1, n // 2), n, "digest", "train.py", 0)
        self.agents = [self._agent(i, stores[i % len(stores)], spec, given) for i in range(n)]
        self.by_who = {(node_name(i), f"{i:08x}"): a for i, a in enumerate(self.agents)}

    def _agent(self, i: int, store: PooledStore, spec: RunSpec, given: Policies) -> Agent:
        me = Me(node_name(i), f"{i:08x}", f"{node_name(i)}:{20000 + i % 40000}", 8, spec)
        settings = Settings(self.keys, me, given)
        return Agent(i, start(settings, _clock()), store, Sight(store, self.keys, lambda e: self.post(self.agents[i], e)))

    def open(self) -> None:
        """First reads and watches of all, before the clock of the benchmark starts; no agent takes anything in yet."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda a: a.sight.open(), self.agents))

    def close(self) -> None:
        """Watches, sessions, threads: all away; leases are left to run out."""
        for agent in self.agents:
            agent.sight.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for stream in self._streams:
            stream.close()
        for session in self._sessions:
            session.close()

    # ---- events
    def post(self, agent: Agent, event: ev.Event) -> None:
        """From any thread."""
        with agent.lock:
            agent.pending.append(event)
            if agent.queued:
                return
            agent.queued = True
        self._inbox.put(agent)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Turn the agents until the condition holds; False when time is up."""
        end, looked = time.monotonic() + limit_s, 0
        while (now := time.monotonic()) < end:
            self.reached_at = now
            if looked <= 0:
                if until():
                    return True
                looked = len(self.agents) // 8
            looked -= 1
            if self._wakes and self._wakes[0][0] <= now:
                _, i = heapq.heappop(self._wakes)
                agent = self.agents[i]
                if agent.wake_at <= now:
                    agent.wake_at = float("inf")
                    if not agent.queued:  # as an agent's own loop does: a tick comes only when nothing else waits
                        self._take(agent, (ev.Tick(),))
            nap = min(0.02, self._wakes[0][0] - now) if self._wakes else 0.02
            try:
                agent = self._inbox.get(timeout=max(nap, 0.0005))
            except queue.Empty:
                looked = 0
                continue
            with agent.lock:
                events, agent.queued = tuple(agent.pending), False
                agent.pending.clear()
            self._take(agent, events)
        return until()

    def _take(self, agent: Agent, events: Sequence[ev.Event]) -> None:
        for event in merged(events):
            if not agent.alive:
                return
            began = time.perf_counter()
            agent.state, effects = step(agent.state, event, _clock())
            kind = type(event).__name__
            self.spent_s[kind] += time.perf_counter() - began
            self.turns[kind] += 1
            for effect in effects:
                self._carry_out(agent, effect)
        wake = agent.state.wake_at
        if wake < agent.wake_at:
            agent.wake_at = wake
            heapq.heappush(self._wakes, (wake, agent.index))

    # ---- effects
    def _carry_out(self, a: Agent, e: ev.Effect) -> None:
        match e:
            case ev.Send():
                a.store.txn_async(e.txn, self._answered(a, e.id))
            case ev.Attend():
                self._pool.submit(a.sight.attend)
            case ev.GrantLease():
                a.store.grant_async(e.ttl_s, self._granted(a, time.monotonic()))
            case ev.RenewLease():
                a.store.renew_async(e.lease, self._renewed(a, e.lease, time.monotonic()))
            case ev.RunPreflight():
                self.post(a, ev.PreflightDone(True))
            case ev.OpenStore():
                self.post(a, ev.StoreOpened(e.generation.number, StoreAddress(a.state.settings.me.node, 29500, a.state.settings.me.address)))
            case ev.StartWorkers():
                self.post(a, ev.WorkersUp(e.generation.number))
            case ev.StopWorkers():
                self.post(a, ev.WorkersReaped(e.generation))
            case ev.Connect():
                self._link(a, e.who)
            case ev.CloseLinks():
                self._unlink(a)
            case ev.Tell():
                self._tell(a, e)
            case ev.Probe():
                other = self.by_who[_agent_of(e.who)]
                self.post(a, ev.Probed(e.who, not other.alive))
            case ev.Say():
                self.said[e.what] += 1

    def _answered(self, a: Agent, id: int) -> Callable[[TxnResult | StoreError], None]:
        def done(found: TxnResult | StoreError) -> None:
            if isinstance(found, StoreAmbiguous):
                self.said["ambiguous"] += 1
            self.post(a, answer(id, found))

        return done

    def _granted(self, a: Agent, sent_at: float) -> Callable[[Lease | StoreError], None]:
        def done(found: Lease | StoreError) -> None:
            if isinstance(found, StoreError):
                self.said["no lease"] += 1
                self.post(a, ev.LeaseFailed(0, False))
            else:
                self.post(a, ev.LeaseHeld(found.id, sent_at, found.ttl_s))

        return done

    def _renewed(self, a: Agent, lease: int, sent_at: float) -> Callable[[float | StoreError], None]:
        def done(found: float | StoreError) -> None:
            if isinstance(found, StoreError):
                self.post(a, ev.LeaseFailed(lease, isinstance(found, LeaseGone)))
            else:
                self.post(a, ev.LeaseHeld(lease, sent_at, found))

        return done

    def _link(self, a: Agent, who: Who) -> None:
        other = self.by_who[_agent_of(who)]
        if not other.alive:
            self.post(a, ev.LinkDown(who, "refused"))
            return
        a.linked.add(other.index)
        other.linked.add(a.index)
        self.post(a, ev.LinkUp(who))
        self.post(other, ev.LinkUp(a.state.who))

    def _unlink(self, a: Agent) -> None:
        for i in a.linked:
            self.agents[i].linked.discard(a.index)
            self.post(self.agents[i], ev.LinkDown(a.state.who, "eof"))
        a.linked.clear()

    def _tell(self, a: Agent, e: ev.Tell) -> None:
        for i in tuple(a.linked) if e.who is None else (self.by_who[_agent_of(e.who)].index,):
            if i in a.linked:
                self._say(a, self.agents[i], e.message)

    def _say(self, a: Agent, to: Agent, message: LinkMessage) -> None:
        self.post(to, ev.PeerSaid(a.state.who, message))

    # ---- the benchmark's hand
    def kill(self, agent: Agent) -> None:
        """SIGKILL of an agent: its sockets close, its port refuses, its lease stays until it runs out."""
        agent.alive = False
        self._unlink(agent)

    def settled(self, generation: int) -> bool:
        """All living agents run in this generation or a later one."""
        return all(a.state.phase is Phase.RUNNING and a.state.generation >= generation for a in self.living())

    def living(self) -> Iterator[Agent]:
        return (a for a in self.agents if a.alive)


def _agent_of(who: Who) -> Who:
    """The agent behind an incarnation."""
    return (who[0], who[1].rpartition("-")[0])


def _clock() -> ev.Clock:
    return ev.Clock(time.monotonic(), time.time())
