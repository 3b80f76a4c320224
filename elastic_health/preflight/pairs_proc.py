"""The runner of the pair check: meets other nodes that wait to be let in, runs the benchmark with each, and judges.

Laws:
 - it returns at its limit, whatever the others do; a meeting that it did not see to its end has measured nothing;
 - a measurement ends, with all that it started, at its own limit, on the agent's order, and when the partner dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets as tokens
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator

from elastic_health.codec import build
from elastic_health.errors import BaselineError
from elastic_health.preflight import baselines_etcd
from elastic_health.preflight.baselines import Baseline
from elastic_health.preflight.checks import Cancel, CheckSpec, Context, Runner
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.commands import Ended, Ran
from elastic_health.preflight.pair_bench import (
    LATE_S,
    PairRules,
    bench_command,
    checked,
    endpoint_of,
    nccl_command,
    told_by_bench,
    told_by_nccl,
)
from elastic_health.preflight.pair_verdict import CHECK, judge_pairs
from elastic_health.preflight.pairs import GONE, Close, Form, Here, Leave, Meet, Open, Over, Tell, Told, View, Wait, step
from elastic_health.preflight.pairs_etcd import Hall, pool_of
from elastic_health.preflight.results import CheckResult, not_measured
from elastic_health.preflight.tool import skipped
from elastic_health.preflight.tool_proc import run_for
from elastic_health.rendezvous.keys import FleetKeys, check_segment
from elastic_health.rendezvous.store import Store, StoreError

Baselines = Callable[[Context], Baseline | None]
MARGIN_S = 3.0
"""Before the check's own limit, to leave and to tell."""
ECHO_S = LATE_S / 2
"""Beyond the limit of who measures, until its telling must have come."""


def pair_runner(
    store: Store,
    host: str,
    *,
    keys: FleetKeys = FleetKeys(),
    expect: int = 0,
    baselines: Baselines | None = None,
    secrets: Collection[str] = (),
    python: str = sys.executable,
) -> Runner:
    """The runner of the pair check.  Its parameters are the fields of `pair_bench.PairRules`.

    Args:
        host: this node's address, at which the others reach it.
        expect: how many nodes will come, where the YAML doesn't say (the MIN of `--nnodes`).
        baselines: of pairs, by node type; default: those in the store.
        secrets: names of variables that the benchmark must not see.
    """

    def stored(context: Context) -> Baseline | None:
        return baselines_etcd.read(store, keys, context.node_type, CHECK) if context.node_type else None

    def run(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        deadline = time.monotonic() + spec.time_limit_s - MARGIN_S
        rules = checked(build(PairRules, dict(spec.parameters), f"check {spec.name}"), spec.name)
        rules = dataclasses.replace(rules, expect=rules.expect or expect)
        if not host:
            return skipped(spec, "no address at which other nodes reach this one", "pass --local-addr")
        me = Here(context.node, tokens.token_hex(8), host)
        pool = check_segment("pool", rules.pool) if rules.pool else pool_of(context.run, context.node_type)
        try:
            good = (baselines or stored)(context)
            with _Visit(store, keys, pool, me, cancel) as visit:
                measuring = _Measuring(spec, context, rules, visit, secrets, python)
                left = _go(visit, rules, measuring, deadline)
            if left is not None:
                return not_measured(spec.name, left.reason, advice=left.advice)
            ratios = {"min_ratio": rules.min_ratio, "meeting_ratio": rules.meeting_ratio}
            return judge_pairs(visit.hall.view, context.node, good, check=spec.name, fewest=rules.fewest_sizes, **ratios)
        except BaselineError as error:
            return not_measured(spec.name, f"its baseline can't be used: {error}", advice=error.do)
        except StoreError as error:
            advice = f"look at the store, and at the rights below {keys.prefix}pairs/"
            return not_measured(spec.name, f"no meeting with other nodes: {error}", advice=advice)

    return run


# ---- the course of a meeting


class _Visit:
    """This node in the hall, and what may stop what it is doing there: an order to the agent, or a partner that dies."""

    def __init__(self, store: Store, keys: FleetKeys, pool: str, me: Here, cancel: Cancel) -> None:
        self.hall = Hall(store, keys, pool, me, self._seen)
        self._cancel = cancel
        self._lock = threading.Lock()
        self._with = (0, "")
        self._order: Order | None = None
        self._ended = Order()
        self._relay = threading.Thread(target=self._pass_on, name="eh-pair-cancel", daemon=True)

    def __enter__(self) -> _Visit:
        try:
            self.hall.enter()
        except StoreError:
            self.hall.leave()
            raise
        self._relay.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.hall.leave()
        self._ended.give()
        self._relay.join()
        self._ended.close()

    @property
    def cancelled(self) -> bool:
        return self._cancel.is_set()

    @contextlib.contextmanager
    def with_partner(self, number: int, partner: str) -> Iterator[Order]:
        """An order that is given when the partner dies or can't measure, or the agent is told to stop."""
        order = Order()
        with self._lock:
            self._with, self._order = (number, partner), order
        self._seen(self.hall.view)
        if self.cancelled:
            order.give()
        try:
            yield order
        finally:
            with self._lock:
                self._order = None
            order.close()

    def why_ended(self) -> str:
        """Why the order was given."""
        if self.cancelled:
            return "the agent was told to stop"
        return GONE if not self.hall.view.alive(self._with[1]) else "its partner could not measure"

    def _seen(self, view: View) -> None:
        with self._lock:
            told = view.told.get(self._with)
            failed = told is not None and bool(told.failed) and not told.broke
            there = view.alive(self._with[1]) and view.alive(self.hall.me.node)
            if self._order is not None and (failed or not there):
                self._order.give()

    def _pass_on(self) -> None:
        poll = select.poll()
        for fd in (self._cancel, self._ended):
            poll.register(fd, select.POLLIN)
        poll.poll()
        with self._lock:
            if self._order is not None and not self._ended.is_set():
                self._order.give()
        self.hall.wake()


def _go(visit: _Visit, rules: PairRules, measuring: _Measuring, deadline: float) -> Leave | None:
    """Take part until the end; None when the meeting has ended and can be judged."""
    hall = visit.hall
    while True:
        seen, now = hall.version, time.monotonic()
        if visit.cancelled:
            return Leave("ended before its time: the agent was told to stop")
        if now >= deadline:
            return Leave("the meeting with other nodes did not end within the check's limit", "raise time_limit_s of this check")
        act = step(hall.view, hall.me, hall.since, rules.pace, now)
        if isinstance(act, Over):
            return None
        if isinstance(act, Leave):
            return act
        if isinstance(act, Wait):
            hall.wait(seen, min(act.until, deadline))
        elif isinstance(act, Meet):
            told = measuring.meet(act, deadline)
            if not hall.lost:
                hall.tell(act.number, told)
        else:
            _write(hall, act, rules)


def _write(hall: Hall, act: Form | Open | Close | Tell, rules: PairRules) -> None:
    if isinstance(act, Form):
        hall.form(act, rules.pace)
    elif isinstance(act, Open):
        hall.open(act)
    elif isinstance(act, Close):
        hall.close(act)
    else:
        hall.tell(act.number, act.told)


# ---- one appointment


@dataclasses.dataclass(frozen=True)
class _Measuring:
    spec: CheckSpec
    context: Context
    rules: PairRules
    visit: _Visit
    secrets: Collection[str]
    python: str

    def meet(self, act: Meet, deadline: float) -> Told:
        """What this node has to tell of an appointment; it takes `round_s` at most."""
        ends = min(deadline, time.monotonic() + self.rules.round_s)
        with self.visit.with_partner(act.number, act.partner.node) as order:
            told = self._host(act, order, ends) if act.host else self._guest(act, order, ends)
            if order.is_set() and not told.measured:
                return Told(told.figures, told.wrong, failed=self.visit.why_ended())
            return told

    def _host(self, act: Meet, order: Order, ends: float) -> Told:
        mine = self.visit.hall.me.host
        try:
            port = self.rules.port or _free_port(mine)
        except OSError as error:
            return Told(failed=f"it can't listen at its own address {mine}: {error.strerror}")
        endpoint = endpoint_of(mine, port)
        if self.rules.command:
            return told_by_nccl(self._run(nccl_command(self.rules, mine, act.partner.host, endpoint), order, ends), self.rules)
        self.visit.hall.offer(act.number, endpoint)
        return self._bench(0, endpoint, order, ends)

    def _guest(self, act: Meet, order: Order, ends: float) -> Told:
        if self.rules.command:
            return self._echo(act, order, ends)
        key = (act.number, act.partner.node)
        if not self._seen(lambda view: key in view.offers, order, ends):
            return Told(failed="its partner did not say where to be met")
        return self._bench(1, self.visit.hall.view.offers[key], order, ends)

    def _echo(self, act: Meet, order: Order, ends: float) -> Told:
        """The first of the pair measures for both."""
        key = (act.number, act.partner.node)
        if not self._seen(lambda view: key in view.told, order, ends + ECHO_S):
            return Told(failed="its partner did not tell in time")
        return Told(stalled=self.visit.hall.view.told[key].stalled)

    def _seen(self, what: Callable[[View], bool], order: Order, ends: float) -> bool:
        hall = self.visit.hall
        while True:
            version = hall.version
            if what(hall.view):
                return True
            if order.is_set() or time.monotonic() >= ends:
                return False
            hall.wait(version, ends)

    def _bench(self, rank: int, endpoint: str, order: Order, ends: float) -> Told:
        argv = bench_command(self.python, self.rules, rank, endpoint, self.visit.hall.me.host, ends)
        return told_by_bench(self._run(argv, order, ends), self.rules)

    def _run(self, argv: tuple[str, ...], order: Order, ends: float) -> Ran:
        left = ends - time.monotonic()
        if left <= 0 or order.is_set():
            return Ran(argv, Ended.CANCELLED)
        return run_for(dataclasses.replace(self.spec, time_limit_s=left), self.context, order, argv, self.secrets)


def _free_port(host: str) -> int:
    """A port that is free at this address now; the benchmark takes it within seconds, or says that it could not."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        return int(listener.getsockname()[1])
