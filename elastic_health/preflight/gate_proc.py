"""Runs a stage's checks side by side, each with its own limit and all with one, and hands their results to the gate.

Laws:
 - every check of the stage has a result when `run_stage` returns, and it returns within the total limit and a little;
 - a check that raises, or that doesn't return at its limit, is `not_measured` and takes no other with it.
"""

from __future__ import annotations

import dataclasses
import logging
import select
import threading
import time
from collections.abc import Callable, Sequence

from elastic_health.preflight.checks import Cancel, CheckSpec, Context, Registry, lanes
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.commands import GRACE_S, KILL_S
from elastic_health.preflight.results import CheckResult, not_measured

logger = logging.getLogger(__name__)
PATIENCE_S = GRACE_S + KILL_S + 2.0
"""After its limit, what a check may take to end what it started; then it is left behind."""


def run_stage(
    specs: Sequence[CheckSpec],
    context: Context,
    registry: Registry,
    *,
    total_s: float,
    cancel: Cancel | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> tuple[CheckResult, ...]:
    """Run the checks of a stage; results in the order of `specs`.

    Args:
        specs: see `checks.due`.
        total_s: for all of them.
        cancel: an order to stop; all that runs is ended, all else is not begun.
        on_result: told each result as it comes, from the thread of its check.
    """
    if not specs:
        return ()
    never = Order()
    stage = _Stage(context, registry, cancel or never, time.monotonic() + total_s, on_result)
    if stage.run(lanes(specs), total_s):
        never.close()
        stage.done.close()
    return stage.results(specs)


class _Stage:
    def __init__(
        self, context: Context, registry: Registry, cancel: Cancel, deadline: float, on_result: Callable[[CheckResult], None] | None
    ) -> None:
        self._context, self._registry, self._cancel, self._deadline = context, registry, cancel, deadline
        self._on_result = on_result
        self._found: dict[str, CheckResult] = {}
        self._lock = threading.Lock()
        self._going = 0
        self.done = Order()

    def run(self, groups: Sequence[Sequence[CheckSpec]], total_s: float) -> bool:
        """A thread a group; True when all have returned in time, otherwise they are left behind."""
        self._going = len(groups)
        longest = max(sum(spec.time_limit_s for spec in group) for group in groups)
        last = time.monotonic() + min(total_s, longest) + PATIENCE_S
        for group in groups:
            threading.Thread(target=self._lane, args=(group,), name=f"eh-check-{group[0].name}", daemon=True).start()
        poll = select.poll()
        for fd in (self.done, self._cancel):
            poll.register(fd, select.POLLIN)
        while not self.done.is_set() and (left := last - time.monotonic()) > 0:
            if any(fd == self._cancel.fileno() for fd, _ in poll.poll(left * 1000)):
                poll.unregister(self._cancel)
                last = min(last, time.monotonic() + PATIENCE_S)
        return self.done.is_set()

    def _lane(self, specs: Sequence[CheckSpec]) -> None:
        """One after another."""
        for spec in specs:
            result = self._run(spec)
            with self._lock:
                self._found[spec.name] = result
            if self._on_result is not None:
                self._on_result(result)
        with self._lock:
            self._going -= 1
            if not self._going:
                self.done.give()

    def _run(self, spec: CheckSpec) -> CheckResult:
        started = time.monotonic()
        left = self._deadline - started
        if self._cancel.is_set():
            return not_measured(spec.name, "not begun: the agent was told to stop")
        if left <= 0:
            return not_measured(spec.name, "not begun: the checks before it used up the stage's time", advice="raise preflight.total_s")
        runner = self._registry.get(spec.kind)
        if runner is None:
            return not_measured(spec.name, f"nothing here runs checks of kind {spec.kind.value}")
        try:
            result = runner(dataclasses.replace(spec, time_limit_s=min(spec.time_limit_s, left)), self._context, self._cancel)
        except Exception as error:  # whatever a check raises, the others go on and the node is judged
            logger.exception("check %s broke", spec.name)
            result = not_measured(spec.name, f"the check itself broke: {type(error).__name__}: {error}")
        return dataclasses.replace(result, check=spec.name, seconds=time.monotonic() - started)

    def results(self, specs: Sequence[CheckSpec]) -> tuple[CheckResult, ...]:
        with self._lock:
            return tuple(self._found.get(spec.name) or not_measured(spec.name, "did not return at its limit") for spec in specs)
