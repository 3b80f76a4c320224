"""The hands of the membership loop in our agent: carries out what membership asks, and tells it what it sees.

Law: the main thread never blocks for long.  Evidence and teardown run in a thread of their own while the loop goes on
turning (a lease must live through a slow teardown); starting and clearing happen in the main thread only, since the
parent-death signal is tied to the thread that starts a process.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from elastic_health.agents.crew_torch import Crew
from elastic_health.agents.desk_os import Desk
from elastic_health.agents.files_os import KeptFiles
from elastic_health.agents.gatekeeper_proc import Gatekeeper
from elastic_health.agents.guardian_proc import Guardian
from elastic_health.agents.incidents import from_exit
from elastic_health.agents.leave_os import Leave
from elastic_health.agents.lookout_os import Lookout
from elastic_health.agents.observe_os import Observer
from elastic_health.agents.paging_os import Pager
from elastic_health.agents.room_os import Room, prune_evidence
from elastic_health.agents.teardown import TeardownReport
from elastic_health.codec import dump, load
from elastic_health.errors import BadValue, HealthError
from elastic_health.exits import ExitStatus
from elastic_health.findings import Finding
from elastic_health.generations import CheckpointRecord, Generation, StoreAddress
from elastic_health.incidents import Incident
from elastic_health.liveness.exits import classify
from elastic_health.liveness.facts import ExitFacts
from elastic_health.liveness.summary import Published, Summary
from elastic_health.messages import LinkMessage, Progress
from elastic_health.pager_net import Page
from elastic_health.policies import Policies, TeardownPolicy, Warm
from elastic_health.preflight.clock import ClockSample
from elastic_health.records_etcd import prune, write_incident
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.loop_net import MembershipLoop
from elastic_health.rendezvous.state import Phase, State
from elastic_health.rendezvous.store import Store, StoreError
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause, Verdict, VerdictKind

log = logging.getLogger("elastic_health")
ORDER_EVERY_S = 0.25
PUBLISH_EVERY_S = 5.0
SUMMARY_EVERY_S = 30.0
SUMMARY_FIRST_S = 3.0
WARM_AFTER_S = 1.0
"""A generation that has run this long without trouble gets warm processes beside it."""
TRY_AGAIN_S = 0.5
FILING_S = 6.0
"""At the agent's end: what the last incident may still take to be written (a request's deadline, and a little)."""
EXIT_EVIDENCE_S = 0.3
"""When a worker has ended by itself the others are only asked briefly: the cause is known."""


class AgentHands:
    """See the module docstring.  `loop` is set once the handler has made it."""

    loop: MembershipLoop

    def __init__(
        self,
        crew: Crew,
        desk: Desk,
        room: Room,
        guardian: Guardian,
        policies: Policies,
        session: Store,
        evidence_folder: str,
        environ: Mapping[str, str],
        host_store: Callable[[], tuple[Any, StoreAddress]],
        clock: Callable[[], tuple[ClockSample, ...]] | None = None,
    ) -> None:
        self.crew, self._desk, self._room, self._guardian, self._policies = crew, desk, room, guardian, policies
        self._folder, self._environ, self._host_store = evidence_folder, environ, host_store
        self._store: Any = None
        self._record: Generation | None = None
        self._rank = -1
        self._collected = ""
        self._collecting: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ordered_at = self._published_at = self._summarized_at = self._cared_at = self._learned_at = 0.0
        self._running_since: float | None = None
        self._ids = 0
        self._warned_of_restarts = False
        self._told: dict[str, Incident] = {}
        self.leave = Leave(crew, policies, lambda event: self.loop.post(event), self._calls.put)
        self.last_result: Any = None
        self._session = session
        self._files = KeptFiles()
        self._pager = Pager(policies.page, session, environ)
        state, post = (lambda: self.loop.state), (lambda event: self.loop.post(event))
        self.gate = Gatekeeper(policies.preflight, session, clock, environ, state, self.make_id, post)
        self.lookout = Lookout(policies.stall, self._tell, self._judged, self._warned, self.make_id, time.time)

    def make_id(self) -> str:
        from elastic_health.rendezvous.judging import make_id

        self._ids += 1
        return make_id(self.loop.state, time.time(), 1_000_000 + self._ids)

    # ---- Hands: formation
    def preflight(self, stage: str) -> None:
        self.gate.preflight(stage)

    def open_store(self, generation: Generation) -> None:
        me, cause = generation.members[0], Cause.NOT_STARTED
        try:
            self._store, address = self._host_store()
            self.loop.post(ev.StoreOpened(generation.number, address))
        except (HealthError, RuntimeError) as e:
            reason = f"{me.node} can't open the generation's store: {e}"
            incident = Incident(self.make_id(), generation.number, cause, cause.value, reason, time.time(), nodes=(me.node,))
            self.loop.post(ev.Judged(incident))

    def start_workers(self, generation: Generation, rank: int, store: StoreAddress) -> None:
        me = generation.members[rank]
        self._record, self._rank, self._collected = generation, rank, ""
        self._desk.serve(generation, me.first_rank, me.node, lambda: self.loop.state)
        if generation.moved:
            log.warning("ranks moved: %s (files that go by rank are elsewhere now)", _few(generation.moved))
        self._compare_max_restarts(generation)
        try:
            self.crew.start(generation, rank, store, self._exited)
        except (OSError, ValueError) as e:
            self.crew.clear()
            reason = f"the workers can't be started: {e}"
            self.loop.post(ev.Judged(self._incident(Cause.WORKER_EXIT, f"can't start: {type(e).__name__}", reason)))
            self.loop.post(ev.WorkersUp(generation.number))
            return
        self.lookout.start(generation, rank, Observer(me.node, self.crew.watched(generation), self.crew.look))
        self._running_since = time.monotonic()
        self._summarized_at = self._running_since - SUMMARY_EVERY_S + SUMMARY_FIRST_S
        if rank == 0:
            threading.Thread(target=self._prune, name="eh-prune", daemon=True).start()
        log.info(
            "generation %d: rank %d of %d, %d workers, from %s", generation.number, rank, len(generation.members), generation.world_size,
            generation.plan.checkpoint or "the beginning",
        )  # fmt: skip
        self.loop.post(ev.WorkersUp(generation.number))

    def _prune(self) -> None:
        """Once a generation: the run's records and incidents stay bounded."""
        try:
            prune(self._session, self.loop.state.settings.keys)
        except StoreError as e:
            log.info("old records stay for now: %s", e)

    def _compare_max_restarts(self, generation: Generation) -> None:
        """The first generation's --max-restarts binds the whole run; another one here is said to be of no effect, once."""
        mine, binding = self.loop.state.settings.me.spec.max_restarts, generation.spec.max_restarts
        if mine != binding and not self._warned_of_restarts:
            self._warned_of_restarts = True
            log.warning("--max-restarts=%d is not used: this run began with %d, which binds for all of it", mine, binding)

    def hold_workers(self, generation: int) -> None:
        self.loop.post(ev.Held(generation, ok=self.crew.processes is not None))

    def take_up(self, generation: Generation) -> None:
        self._record = generation
        me = generation.members[self._rank]
        self._desk.serve(generation, me.first_rank, me.node, lambda: self.loop.state)

    # ---- Hands: the end of a generation
    def stop_workers(self, generation: int, verdict: Verdict | None, reason: str, until: float) -> None:
        self._running_since = None
        log.log(logging.INFO if verdict is not None else logging.WARNING, "ending generation %d: %s", generation, reason)
        facts = self.lookout.facts()
        self.lookout.stop()
        self._ending = threading.Thread(target=self._end, args=(generation, verdict, facts, until), name="eh-teardown", daemon=True)
        self._ending.start()

    def _end(self, generation: int, verdict: Verdict | None, facts: Any, until: float) -> None:
        finished, incident, seen = verdict is not None and verdict.kind is VerdictKind.FINISH, "", None
        if verdict is not None and not finished:
            stall = verdict.cause in (Cause.STALL, Cause.MISMATCHED_COLLECTIVES, Cause.WATCHDOG_TIMEOUT)
            limit = self._policies.evidence.time_limit_s if stall else min(EXIT_EVIDENCE_S, self._policies.evidence.time_limit_s)
            if self._collecting is not None:
                self._collecting.join(limit)
            incident = verdict.incident or f"generation-{generation}"
            seen = self._collect(incident, limit, facts)
        report = self._end_crew(finished, self.leave.patience(until))
        stuck = "" if report is None or report.clean else "; ".join(str(p) for p in report.leftovers)

        def clear() -> None:
            processes = self.crew.processes
            if processes is not None:
                self.last_result = processes.result() or self.last_result
            self.crew.clear()
            self.loop.post(ev.WorkersReaped(generation, stuck))

        self._calls.put(clear)
        self.loop.post(ev.Tick())
        if seen is not None:
            self._file(incident, seen)  # last: a store that doesn't answer holds no teardown up

    def _end_crew(self, finished: bool, policy: TeardownPolicy) -> TeardownReport | None:
        """Again until it can be looked at what is left: without a free descriptor nothing can be said to be gone."""
        kill_s = self._policies.membership.bounds.kill_grace_s
        while True:
            try:
                return self.crew.end(policy, finished=finished, kill_s=kill_s, signal=self.leave.first_signal, holding=self._desk.busy)
            except OSError as e:
                if not self._files.full(e):
                    raise
                self.crew.kill()
                time.sleep(TRY_AGAIN_S)

    def _collect(self, incident: str, limit_s: float, facts: Any) -> dict[str, Any] | None:
        """A summary of what was seen; None if there is nothing new to see."""
        if self._collected == incident or limit_s <= 0:
            return None
        self._collected, summary = incident, None
        with self._files.bearing():
            summary = self.crew.evidence(self._folder, incident, self._policies.evidence, limit_s, facts)
            prune_evidence(self._folder)
        return summary

    def _file(self, id: str, summary: dict[str, Any]) -> None:
        """The incident that this agent told and whose verdict won, with what was seen here, goes to the store."""
        told = self._told.get(id)
        if told is None or not told.findings:
            return
        first = dataclasses.replace(told.findings[0], evidence={**told.findings[0].evidence, "seen": summary})
        state = self.loop.state
        try:
            full = dataclasses.replace(told, findings=(first, *told.findings[1:]))
            write_incident(self._session, state.settings.keys, full, at=_utc(), by=state.settings.me.node)
        except StoreError as e:
            log.warning("incident %s is only in its files: %s", id, e)

    # ---- Hands: leaving on purpose
    def wish_checkpoint(self, generation: int) -> None:
        log.info("generation %d: asking all ranks for a checkpoint", generation)
        self.crew.wish_checkpoint()
        self._ordered_at = 0.0

    def pass_signal(self, generation: int) -> None:
        assert self._record is not None
        self.leave.pass_signal(self._record.number)

    # ---- what the agent sees
    def _incident(self, cause: Cause, signature: str, reason: str) -> Incident:
        assert self._record is not None
        return Incident(self.make_id(), self._record.number, cause, signature, reason, time.time(), step=self.lookout.newest_step())

    def _exited(self, exit: ExitFacts) -> None:
        """From the exit watch's thread."""
        self._calls.put(lambda: self._weigh_exit(exit))
        self.loop.post(ev.Tick())

    def _weigh_exit(self, exit: ExitFacts) -> None:
        record, processes = self._record, self.crew.processes
        if record is None or processes is None or self._running_since is None:
            return
        if self.leave.passed == record.number:
            self.loop.post(ev.WorkersLeft(record.number, not processes.alive()))
            return
        if exit.code == 0:
            if not processes.alive() and all(e.code == 0 for e in processes.exits()):
                self.loop.post(ev.WorkersDone(record.number))
            return
        found = classify(exit)
        ran_s = -1.0 if self.lookout.progressed() else exit.ran_s
        log.warning("rank %d ended: %s", exit.rank, found.reason)
        generation = self.loop.state.generation
        step = self.lookout.newest_step()
        ended = {e.rank for e in processes.exits() if e.code == 0} | self.lookout.ended_elsewhere()
        wall = time.time()
        self._judged(from_exit(found, id=self.make_id(), generation=generation, wall=wall, step=step, ran_s=ran_s, ended=ended))

    def _judged(self, incident: Incident) -> None:
        if len(self._told) >= 64:
            self._told.clear()
        self._told[incident.id] = incident
        self.loop.post(ev.Judged(incident))

    def _warned(self, finding: Finding) -> None:
        """At the warning bound: take evidence while the operation may still end."""
        if self._collecting is not None and self._collecting.is_alive():
            return
        observer, facts = self.lookout.observer, self.lookout.facts()

        def take() -> None:
            if observer is not None:
                with observer.evidence(), self._files.bearing():
                    policy = self._policies.evidence
                    self.crew.evidence(self._folder, f"warning-{finding.kind.value}", policy, policy.time_limit_s, facts)

        self._collecting = threading.Thread(target=take, name="eh-evidence", daemon=True)
        self._collecting.start()

    def _tell(self, progress: Progress) -> None:
        record = self._record
        if record is not None:
            self.loop.tell(record.members[0].who, progress)

    # ---- Hands: the rest
    def commit_answered(self, answer: ev.CommitAnswered) -> None:
        self._desk.answered(answer)

    def remove_files(self, record: CheckpointRecord) -> None:
        self._desk.remove(record, self._policies.membership.bounds.lease_s + self._policies.outage.bound_s)

    def page_human(self, verdict: Verdict) -> None:
        """Claimed in the store, so that one page goes out whoever is first."""
        keys, me = self.loop.state.settings.keys, self.loop.state.settings.me.node
        self._pager.page(keys, Page(self.make_id(), keys.run, verdict.generation, verdict.reason, verdict.exit_status, me, _utc()))

    def page_if_last(self) -> None:
        """At the end of a run that a person must look at: whoever wrote the verdict may have died before it paged."""
        verdict = self.loop.state.view.verdict
        aborted = verdict is not None and verdict.kind is VerdictKind.ABORT
        if verdict is not None and aborted and verdict.exit_status in (ExitStatus.CAPPED, ExitStatus.NO_CHECKPOINT):
            self.page_human(verdict)
        self._pager.wait()

    def heard(self, who: Who, message: LinkMessage) -> None:
        if isinstance(message, Progress):
            self.lookout.heard(message, time.monotonic())

    def look(self, state: State, deadline: float, now: float) -> None:
        """Once a turn: calls from other threads, the workers' deadline, judging, care for guardian and warm processes."""
        while not self._calls.empty():
            self._calls.get_nowait()()
        if self.crew.processes is not None and now >= self._ordered_at + ORDER_EVERY_S:
            self._ordered_at = now
            self.crew.order(deadline, state.generation, now)
        with self._files.bearing():
            self.lookout.look(now)
        if now >= self._cared_at + 1.0:
            self._cared_at = now
            with self._files.bearing():
                self._guardian.ensure()
                self._care(state, now)
                self._files.refill()
        if state.phase is Phase.RUNNING and state.rank == 0 and now >= self._published_at + PUBLISH_EVERY_S:
            self._published_at = now
            told = self.lookout.published(state.generation, self.crew.warmable, self.crew.modules, now)
            self._publish(state, state.settings.keys.progress, told)
        if state.phase is Phase.RUNNING and state.rank == 0 and now >= self._summarized_at + SUMMARY_EVERY_S:
            self._summarized_at = now
            self._publish(state, state.settings.keys.summary, self.lookout.summary(state.generation, now))

    def _care(self, state: State, now: float) -> None:
        if self._policies.warm is not Warm.AUTO:
            return
        if state.phase is Phase.READY and state.view.generation is not None and state.view.verdict is None:
            self._learn_from_others(now)
            if self.crew.warmable:
                self.crew.warm_up()
        if self._running_since is None or state.phase is not Phase.RUNNING:
            return
        self.crew.learn()
        # The first time a group must have shown progress; later ones only leave the start alone for a moment.
        quiet = now >= self._running_since + WARM_AFTER_S and state.pending_incident is None
        if quiet and self.crew.warmable and (self.crew.pool is not None or self.lookout.progressed()):
            self.crew.warm_up()

    def _learn_from_others(self, now: float) -> None:
        """A spare reads, now and then, what the running group's rank-0 agent has seen of the script."""
        if self.crew.warmable is not None or now < self._learned_at + PUBLISH_EVERY_S:
            return
        self._learned_at = now

        def read() -> None:
            try:
                kv = self._session.get(self.loop.state.settings.keys.progress)
                told = load(Published, kv.value, kv.key) if kv is not None else Published()
            except (StoreError, BadValue):
                return  # again in a moment; until then a takeover starts cold
            if told.warm is not None:
                warm, modules = told.warm, told.modules
                self._calls.put(lambda: self.crew.adopt(warm, modules))

        threading.Thread(target=read, name="eh-learn", daemon=True).start()

    def _publish(self, state: State, key: str, what: Published | Summary | None) -> None:
        """Fenced, by membership."""
        if what is not None:
            self.loop.post(ev.PublishAsked(key, dump(what, at=_utc(), by=state.settings.me.node)))

    def close(self) -> None:
        """The agent ends: nothing of ours stays."""
        self.gate.stop()
        if self._ending is not None:
            self._ending.join(FILING_S)
        self._desk.close()
        self._files.close()
        self.crew.close()
        self._guardian.bye()
        self._room.close()


def _few(moved: tuple[str, ...], most: int = 8) -> str:
    return "; ".join(moved[:most]) + (f"; and {len(moved) - most} more, see `elastic-health why`" if len(moved) > most else "")


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
