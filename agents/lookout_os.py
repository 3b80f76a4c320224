"""The agent's lookout: samples its own workers, tells the rank-0 agent, and there judges the whole group.

Decides nothing: it hands facts to the pure judge and its findings on.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from elastic_health.agents.incidents import from_stall
from elastic_health.agents.observe_os import Observer
from elastic_health.findings import Finding
from elastic_health.generations import Generation
from elastic_health.incidents import Incident
from elastic_health.liveness.facts import GroupFrontier, ProcState, RankFacts
from elastic_health.liveness.judge import judge
from elastic_health.liveness.memory import JudgeMemory, is_gone
from elastic_health.liveness.summary import Pace, Published, Summary, oldest_heartbeat_s, summarize
from elastic_health.messages import Progress
from elastic_health.policies import StallPolicy

log = logging.getLogger("elastic_health")
LOOK_EVERY_S = 0.25
"""Up to `SMALL_GROUP` members; larger ones look half as often, above `LARGE_GROUP` a quarter as often, since the rank-0 agent
reads every member's progress.  Never less than once a second, or the judge takes itself for absent."""
SMALL_GROUP = 64
LARGE_GROUP = 512


def _short(fact: RankFacts) -> tuple[GroupFrontier, ...]:
    return tuple(g.short() for g in fact.frontier)


class Lookout:
    """For one generation at a time.

    Args:
        tell: sends `Progress` to the rank-0 agent.
        found: hears the incident of a stall, once a generation.
        warned: hears findings that are not final yet, when they are new.
    """

    def __init__(
        self,
        policy: StallPolicy,
        tell: Callable[[Progress], None],
        found: Callable[[Incident], None],
        warned: Callable[[Finding], None],
        make_id: Callable[[], str],
        wall: Callable[[], float],
    ) -> None:
        self._policy, self._tell, self._found, self._warned, self._make_id, self._wall = policy, tell, found, warned, make_id, wall
        self._memory = JudgeMemory()
        self._seen: set[object] = set()
        self._record: Generation | None = None
        self._observer: Observer | None = None
        self._heard: dict[int, tuple[RankFacts, float]] = {}
        self._rank, self._next, self._told = -1, 0.0, False
        self._pace = Pace()

    def start(self, record: Generation, rank: int, observer: Observer) -> None:
        self._record, self._rank, self._observer = record, rank, observer
        self._heard = {}
        self._next, self._told, self._seen, self._pace = 0.0, False, set(), Pace()

    def stop(self) -> None:
        self._record, self._observer, self._heard = None, None, {}
        self._rank, self._next, self._told = -1, 0.0, False

    @property
    def observer(self) -> Observer | None:
        return self._observer

    def heard(self, message: Progress, now: float) -> None:
        """Facts of another member's workers."""
        if self._record is not None and message.generation == self._record.communicator:
            self._heard.update({f.rank: (f, now) for f in message.ranks})

    def newest_step(self) -> int:
        """The newest completed step that any rank told, -1 for none."""
        return max((f.steps for f, _ in self._heard.values()), default=-1)

    def progressed(self) -> bool:
        """Has any rank shown progress of any kind?"""
        return any(f.steps > 0 or f.activity > 0 or any(g.completed > 8 for g in f.frontier) for f, _ in self._heard.values())

    def facts(self, ranks: Iterable[int] | None = None) -> Mapping[int, RankFacts]:
        return {r: f for r, (f, _) in self._heard.items() if ranks is None or r in ranks}

    def ended_elsewhere(self) -> frozenset[int]:
        """Ranks of other nodes whose process is gone; what failed there has its own agent to tell of it, at once."""
        mine = self._observer.ranks if self._observer is not None else frozenset()
        return frozenset(r for r, (f, _) in self._heard.items() if r not in mine and is_gone(f))

    def published(self, generation: int, warm: bool | None, modules: int, now: float) -> Published:
        """For the run's `progress`."""
        world = self._record.world_size if self._record else 0
        oldest = oldest_heartbeat_s(self._heard, now)
        return Published(self.newest_step(), generation, world, self._pace.median_s, oldest, warm, modules)

    def summary(self, generation: int, now: float) -> Summary | None:
        """For the run's `summary`; None while no generation runs."""
        if self._record is None:
            return None
        return summarize(dataclasses.replace(self._record, number=generation), self._heard, self._pace, now, self._policy.stall_after_s)

    def look(self, now: float) -> None:
        """Sample if it is time; rank 0 judges."""
        if self._record is None or self._observer is None or now < self._next:
            return
        members = len(self._record.members)
        self._next = now + LOOK_EVERY_S * (1 if members <= SMALL_GROUP else 2 if members <= LARGE_GROUP else 4)
        mine = self._observer.observe(now)
        self._heard.update({f.rank: (f, now) for f in mine})
        self._pace = self._pace.seen(self.newest_step(), now)
        if self._rank != 0:
            self._tell(Progress(self._record.communicator, tuple(dataclasses.replace(f, frontier=_short(f)) for f in mine)))
            return
        facts = tuple(dataclasses.replace(f, age_s=max(0.0, now - at)) for f, at in self._heard.values())
        if all(f.heartbeat_age_s is None for f in facts):
            # No worker has a page (`--no-python`, a script still starting): only the kernel's word counts.
            facts = tuple(f for f in facts if f.proc is ProcState.STOPPED)
        self._memory, findings = judge(facts, self._memory, self._policy, now, self._record.world_size)
        self._pass_on(findings)

    def _pass_on(self, findings: tuple[Finding, ...]) -> None:
        assert self._record is not None
        for f in findings:
            if f.identity not in self._seen:
                self._seen.add(f.identity)
                log.warning("%s %s: %s", "found" if f.final else "suspected", f.kind.value, f.reason)
                if not f.final:
                    self._warned(f)
        if not self._told:
            incident = from_stall(findings, id=self._make_id(), record=self._record, wall=self._wall(), step=self.newest_step())
            if incident is not None:
                self._told = True
                self._found(incident)
