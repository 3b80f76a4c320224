"""The gate in the agent: runs a stage's checks in a thread of its own and answers the membership loop.

Laws:
 - the main loop never waits for it; one preflight has at most one answer, and one that was cancelled has none;
 - who is refused has its table on stderr and its record in the store before it leaves;
 - a gate that breaks itself keeps nobody out: it says so and lets the node in.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from elastic_health.errors import HealthError
from elastic_health.incidents import Record
from elastic_health.preflight.checks import Stage
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.gate import Decision, Verdict, record
from elastic_health.preflight.gate_text import headline, table_lines
from elastic_health.preflight.policy import PreflightPolicy
from elastic_health.preflight.standing import ACTION, repaired
from elastic_health.preflight.standing_etcd import note_quarantine, read, settle
from elastic_health.records_etcd import write_record
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.state import State
from elastic_health.rendezvous.store import Store, StoreError
from elastic_health.variables import REPAIRED

if TYPE_CHECKING:
    from elastic_health.preflight.clock import ClockSample

log = logging.getLogger("elastic_health")
END_S = 1.0
"""At the agent's end: what running checks may take to end; after that their reapers see to them."""
SETTLE_S = 5.0
"""And what the store may take to hear of a decision."""


class Gatekeeper:
    """Runs preflights for one agent, one at a time.

    Args:
        state: what the membership loop knows.
        clock: looks at the store's clock.
        environ: what the agent was started with.
        make_id: of a record.
        post: takes the answer, from any thread.
    """

    def __init__(
        self,
        policy: PreflightPolicy,
        store: Store,
        clock: Callable[[], tuple[ClockSample, ...]] | None,
        environ: Mapping[str, str],
        state: Callable[[], State],
        make_id: Callable[[], str],
        post: Callable[[ev.Event], None],
    ) -> None:
        self._policy, self._store, self._clock, self._state, self._make_id, self._post = policy, store, clock, state, make_id, post
        self._lock = threading.Lock()
        self._current: Order | None = None
        self._spare: Order | None = None
        self._thread: threading.Thread | None = None
        self._decided = threading.Event()
        self._repaired = environ.get(REPAIRED, "") not in ("", "0")

    def preflight(self, stage: str) -> None:
        """Begin; what still runs of an older one is ended and not answered."""
        self._cancel()
        possible = (Stage.JOIN, Stage.AFTER_REPAIR) if stage == Stage.JOIN.value else (Stage(stage),)
        if not any(self._policy.at(one) for one in possible):
            self._post(ev.PreflightDone(True))
            return
        self._decided.clear()
        with self._lock:
            self._current, self._spare = self._spare or Order(), None
            order = self._current
        self._thread = threading.Thread(target=self._run, args=(order, Stage(stage)), name="eh-preflight", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The agent ends: so do all checks."""
        self._cancel()
        if self._thread is not None:
            self._thread.join(SETTLE_S if self._decided.is_set() else END_S)

    def left_quarantined(self) -> None:
        """The agent leaves because its node is in quarantine; the next admission is one after a repair."""
        try:
            note_quarantine(self._store, self._fleet, self._node, _utc())
        except StoreError as e:
            log.info("that this node was in quarantine is not remembered: %s", e)

    def _cancel(self) -> None:
        with self._lock:
            if self._current is not None:
                self._current.give()
            self._current = None

    # ---- in the thread
    def _run(self, order: Order, stage: Stage) -> None:
        decision: Decision | None = None
        try:
            decision = self._decide(order, stage)
            if not order.is_set():
                self._decided.set()
                self._carry_out(order, decision)
        except Exception:  # whatever it is, it is no fault of the node's
            log.exception("preflight: the gate itself broke; %s", "this node is let in unchecked" if decision is None else "it has decided")
            self._answer(order, decision is None or decision.verdict.lets_in, "" if decision is None else decision.reason)
        with self._lock:
            if self._current is order:  # not closed: a check that never returned may still listen to it
                self._current, self._spare = None, order

    def _decide(self, order: Order, stage: Stage) -> Decision:
        # psutil and the parsers take a tenth of a second to import; a group that forms meanwhile needs them not.
        from elastic_health.preflight.admission_proc import Site, admit
        from elastic_health.preflight.runners_proc import Stored

        me, keys = self._state().settings.me, self._state().settings.keys
        host, expect = me.address.rpartition(":")[0].strip("[]"), me.spec.min_nodes
        stored = Stored(self._store, self._fleet, self._barred)
        site = Site(me.node, keys.run, me.workers, stored, self._clock, host=host, expect=expect)
        return admit(self._policy, self._stage(stage), site, order)

    @property
    def _node(self) -> str:
        return self._state().settings.me.node

    @property
    def _fleet(self) -> FleetKeys:
        return FleetKeys(self._state().settings.keys.prefix)

    def _barred(self) -> frozenset[str]:
        view, wall = self._state().view, time.time()
        return frozenset(node for node in view.quarantined if view.barred(node, wall) is not None)

    def _stage(self, stage: Stage) -> Stage:
        if stage is not Stage.JOIN:
            return stage
        known = self._repaired
        if not known:
            try:
                known = repaired(read(self._store, self._fleet, self._node))
            except StoreError as e:
                log.info("preflight: whether this node was repaired is not known: %s", e)
        return Stage.AFTER_REPAIR if known else stage

    def _carry_out(self, order: Order, decision: Decision) -> None:
        again = decision.stage is Stage.RESTART
        self._tell(decision)
        if decision.verdict is Verdict.ADMIT:
            self._repaired = False
            self._answer(order, True, "")
            if not again and decision.rows:
                self._settle(decision)
            return
        self._record(decision)
        # Answered before it may be put into quarantine, which would end the agent too, but with that status.
        self._answer(order, decision.verdict.lets_in, f"this node failed its preflight ({decision.stage.value}): {decision.reason}")
        self._settle(decision)

    def _answer(self, order: Order, fit: bool, reason: str) -> None:
        with self._lock:
            if self._current is order:
                self._post(ev.PreflightDone(fit, "" if fit else reason))

    def _tell(self, decision: Decision) -> None:
        refused = decision.verdict is not Verdict.ADMIT
        log.log(logging.WARNING if refused else logging.INFO, "%s", headline(decision))
        lines = table_lines(decision)
        if refused:
            sys.stderr.write("\n".join(["", *lines, ""]) + "\n")
            sys.stderr.flush()
        else:
            for line in lines[2:]:
                log.info("preflight: %s", line)

    def _record(self, decision: Decision) -> None:
        node, keys = self._node, self._state().settings.keys
        gpus = tuple(sorted({gpu for row in decision.refusing for f in row.result.findings for gpu in f.gpus}))
        signature = decision.signatures[0] if decision.signatures else ""
        one = Record(
            self._make_id(), ACTION, decision.reason, ACTION, signature, self._state().view.current, nodes=(node,),
            decision=decision.verdict.value, who=node, at=time.time(), done=decision.verdict is Verdict.REFUSE, resources=gpus,
            details=record(decision),
        )  # fmt: skip
        try:
            write_record(self._store, keys, one, at=_utc(), by=node)
        except HealthError as e:
            log.warning("preflight: no record of this: %s", e)

    def _settle(self, decision: Decision) -> None:
        try:
            _, note = settle(self._store, self._fleet, self._policy, decision, self._state().settings.keys.run, _utc())
        except HealthError as e:
            log.info("preflight: what it came to is not remembered: %s", e)
            return
        if note:
            log.warning("preflight: %s", note)


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
