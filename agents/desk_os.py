"""Answers what workers ask over the worker link: the plan, whether files are on disk, commits, unusable checkpoints, halts.

Law: a worker of an ended generation gets nothing done; what needs the store goes to membership as an event, and its
answer comes back by request number.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elastic_health import messages as m
from elastic_health.checkpoints.agent_os import delete, orphans, prepare_commit, set_aside, verify_files
from elastic_health.checkpoints.line import rollback_target
from elastic_health.errors import CheckpointError
from elastic_health.generations import CheckpointRecord, Generation
from elastic_health.incidents import Incident
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import State
from elastic_health.verdicts import Cause
from elastic_health.windows import Window

log = logging.getLogger("elastic_health")
Reply = Callable[[m.AgentReply], None]


class Desk:
    """One for the agent's life; `serve` names the generation whose workers may ask.

    Args:
        post: events for membership.
        make_id: a fresh incident id.
    """

    def __init__(self, run: str, post: Callable[[ev.Event], None], make_id: Callable[[], str]) -> None:
        self._run, self._post, self._make_id = run, post, make_id
        self._requests = itertools.count(1)
        self._waiting: dict[int, Reply] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="eh-disk")
        self._record: Generation | None = None
        self._first_rank = 0
        self._at_work = ""
        self._node = ""
        self._view: Callable[[], State] | None = None

    def serve(self, record: Generation, first_rank: int, node: str, view: Callable[[], State]) -> None:
        self._record, self._first_rank, self._node, self._view = record, first_rank, node, view

    def close(self) -> None:
        self._record = None
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- from the link's thread
    def handle(self, hello: m.Hello, message: object, reply: Reply) -> None:
        record = self._record
        if record is None:
            reply(m.Refused("a running generation", "none: it has ended", "the worker is about to be stopped"))
        elif isinstance(message, m.AskPlan):
            reply(m.PlanReply(self._run, record.number, record.plan, self._first_rank + hello.local_rank, record.world_size))
        elif isinstance(message, m.AskVerify):
            self._pool.submit(self._verify, message, reply)
        elif isinstance(message, m.AskCommit):
            self._pool.submit(self._commit, message, record.number, reply)
        elif isinstance(message, m.TellUnusable):
            self._unusable(record, hello, message)
            reply(m.Told())
        elif isinstance(message, m.TellHalt):
            self._halt(record, message)
            reply(m.Told())
        else:
            reply(m.Refused("a message of the worker link", type(message).__name__, "use one version of elastic-health on a node"))

    def _verify(self, ask: m.AskVerify, reply: Reply) -> None:
        reply(m.VerifyReply(verify_files(ask.folder, ask.nonce, ask.files)))

    def _commit(self, ask: m.AskCommit, generation: int, reply: Reply) -> None:
        """Everything on disk first; then only the store's record commits."""
        if ask.generation not in (0, generation):
            reply(m.CommitReply(False, f"generation {ask.generation} has ended"))
            return
        self._at_work = f"the marker of {ask.folder}"
        try:
            wrong = prepare_commit(ask.folder, ask.manifest)
        except (CheckpointError, OSError) as e:
            wrong = (str(e),)
        finally:
            self._at_work = ""
        if wrong:
            reply(m.CommitReply(False, "; ".join(wrong)))
            return
        request = next(self._requests)
        with self._lock:
            self._waiting[request] = reply
        record = CheckpointRecord(ask.step, generation, ask.folder, ask.position, ask.world, None, ask.manifest)
        self._post(ev.CommitAsked(request, record, ask.keep))

    def _incident(self, record: Generation, cause: Cause, reason: str, step: int, **fields: object) -> None:
        signature = str(fields.pop("signature", "")) or cause.value
        self._post(ev.Judged(Incident(self._make_id(), record.number, cause, signature, reason, time.time(), step=step, **fields)))  # type: ignore[arg-type]

    def _unusable(self, record: Generation, hello: m.Hello, told: m.TellUnusable) -> None:
        if told.checkpoint != record.plan.checkpoint:
            log.warning("rank %d calls %s unusable, which is not this plan's", self._first_rank + hello.local_rank, told.checkpoint)
            return
        try:
            set_aside(record.plan.path)
        except CheckpointError as e:
            log.warning("not set aside: %s", e)
        self._incident(record, Cause.CHECKPOINT_UNUSABLE, f"{told.checkpoint}: {told.reason}", record.plan.step, torn=told.checkpoint)

    def _halt(self, record: Generation, told: m.TellHalt) -> None:
        assert self._view is not None
        records = self._view().view.checkpoints
        target = rollback_target(records, record.number, record.plan.checkpoint, told.before_step)
        window = (Window(told.start, told.end, told.reason),) if told.end > told.start else ()
        self._incident(record, Cause.NUMERIC_HALT, told.reason, told.step, target=target, windows=window, signature=told.signature)

    def busy(self) -> str:
        """A commit's work on the disk that is under way, "" if none: a teardown waits for it, within its bound."""
        return self._at_work

    # ---- from the loop's thread
    def answered(self, answer: ev.CommitAnswered) -> None:
        with self._lock:
            reply = self._waiting.pop(answer.request, None)
        if reply is not None:
            reply(m.CommitReply(answer.committed, answer.reason, answer.record, answer.waits))
        if answer.record is not None:
            self._pool.submit(self._sweep, answer.record)

    def _sweep(self, committed: CheckpointRecord) -> None:
        """Folders of interrupted saves that no record names: nothing will ever restore them."""
        known = self._view().view.checkpoints if self._view is not None else {}
        root = Path(committed.path).parent
        for folder in orphans(root, self._run, committed.generation, known):
            try:
                delete(folder)
                log.info("removed %s, left by an interrupted save", folder)
            except (CheckpointError, OSError) as e:
                log.warning("left by an interrupted save, and not removed: %s: %s", folder, e)

    def remove(self, record: CheckpointRecord, after_s: float) -> None:
        """Delete a checkpoint's files once no lease nor outage can hide a reader of it any more, and tell membership."""

        def run() -> None:
            try:
                delete(record.path)
            except (CheckpointError, OSError) as e:
                log.warning("checkpoint %s is retired, but its files stay: %s", record.name, e)
                return
            self._post(ev.FilesGone(record.name))

        timer = threading.Timer(after_s, run)
        timer.daemon = True
        timer.start()
