"""The training loop's side of a run: `run.steps` is the one place where a plan becomes a position.

Law: on every rank, first the plan (the same one, verified), then weights, then position and windows, then steps.  A
step counts as complete when its body has ended; only then does the position move, is the step marked, and may a
checkpoint be saved.  Restart and rollback in place take this same path.

Steps are numbered from 1: checkpoint 100 holds the result of step 100, and the first step after it is 101.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist

from elastic_health.codec import plain
from elastic_health.data.loader_torch import Batch
from elastic_health.data.stream import SampleStream
from elastic_health.errors import CheckpointError, DataError, HealthError
from elastic_health.generations import RestorePlan
from elastic_health.home import Alone, Home, Saves, Steps
from elastic_health.liveness.facts import Phase
from elastic_health.state_torch import generators, set_generators
from elastic_health.worker.current import here


class PlansDiffer(HealthError):
    """Ranks were given different plans: nothing may be restored."""


class Run:
    """One process's part in a run; made by `init()`.

    Attributes:
        step: newest completed step, 0 before the first.
        generation: number of the generation, 0 without an agent.
        plan: what this start or rollback restored, None before `steps` and without an agent.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self.step = 0
        self.generation = 0
        self.plan: RestorePlan | None = None
        self._stream: SampleStream | None = None
        self._stopping = False
        self._plan_again = False
        self._not_applied = ""

    def steps(self, loader: Steps, checkpoints: Saves | None = None) -> Iterator[tuple[int, Batch]]:
        """Yields (step number, batch) from where the plan says to the end of the data.

        The body does everything up to and including the optimizer's step.  Leave the loop early by `stop()`, not by
        `break`: a step that was broken off counts as not done, and is neither marked nor saved.  The last step is
        always saved.  A second call goes on where the first one ended.

        Raises:
            PlansDiffer: not all ranks were given the same plan.
            DataError: more ranks than samples in a step, or state and data set that do not belong together.
            CheckpointError: the plan's checkpoint can't be restored.
        """
        stream = loader.stream
        self._stopping = False
        if self._stream is None:
            self._take_plan(stream, checkpoints)
        elif self._stream is not stream:
            raise DataError("one stream a run", "a second one", "use the same SampleStream in every call of run.steps")
        batches, saved = iter(loader), self.step
        while not self._stopping:
            with self.home.phase(Phase.DATA):
                batch = next(batches, None)
            if batch is None:
                break
            with self.home.phase(Phase.STEP):
                yield self.step + 1, batch
            if self._plan_again:
                self._take_plan(stream, checkpoints)
                saved = self.step
                continue
            self._complete(stream, batch)
            if checkpoints is not None and checkpoints.maybe_save(self.step, stream.position):
                saved = self.step
        if checkpoints is not None:
            if self.step != saved:
                checkpoints.save(self.step, stream.position)
            checkpoints.finish()

    def stop(self) -> None:
        """End the loop after the step that is running; call it on all ranks at the same step."""
        self._stopping = True

    def not_applied(self, reason: str) -> None:
        """Say that this step's update was skipped, on all ranks: its samples count as consumed, and are recorded."""
        self._not_applied = reason or "not applied"

    def plan_again(self) -> None:
        """After this body, forget the step and take a new plan: a rollback in place.  Call it on all ranks alike."""
        self._plan_again = True

    def warm_up(self, model: torch.nn.Module, once: Callable[[], object], times: int = 2) -> None:
        """Run a throw-away forward and backward pass, before `steps`, without a trace.

        From three ranks on, DDP sums the gradients of its first iteration in other buckets than later ones, so that a
        restart changes the last bits of a result.  Two passes before restoring remove the difference.

        Args:
            once: forward and backward on any batch of the usual shape; no optimizer step.  Buffers of `model`,
                gradients and random number generators are put back afterwards.
        """
        buffers = [(b, b.detach().clone()) for b in model.buffers()]
        kept = generators()
        for _ in range(times):
            once()
        for parameter in model.parameters():
            parameter.grad = None
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        set_generators(kept)

    def _take_plan(self, stream: SampleStream, checkpoints: Saves | None) -> None:
        self._plan_again, self._not_applied = False, ""
        with self.home.phase(Phase.INIT):
            plan = self._ask(checkpoints)
            step, position = (plan.step, plan.position) if plan is not None else (0, stream.position)
            if checkpoints is not None:
                place = checkpoints.restore(plan)
                step, position = place.step, place.position
            if plan is not None:
                _check_position(plan, position)
            stream.place(position, plan.windows if plan is not None else ())
            self.step, self.plan, self._stream = step, plan, stream

    def _ask(self, checkpoints: Saves | None) -> RestorePlan | None:
        """The agents' plan, the same on all ranks; None without agents."""
        reply = self.home.plan()
        if checkpoints is not None:
            _check_group()
            checkpoints.bind(self.home if reply is not None else None)
        if reply is None:
            return None
        self.generation = reply.generation
        check_agreed([reply.run, reply.generation, plain(reply.plan)])
        _check_possible(reply.plan, checkpoints, self.step)
        return reply.plan

    def _complete(self, stream: SampleStream, batch: Batch) -> None:
        stream.complete(batch.step, applied=not self._not_applied, reason=self._not_applied)
        self._not_applied = ""
        self.step += 1
        self.home.mark_step(self.step, stream.position)


def _check_possible(plan: RestorePlan, checkpoints: Saves | None, done: int) -> None:
    if plan.checkpoint is not None and checkpoints is None:
        raise CheckpointError(f"checkpoints= to restore {plan.checkpoint}", "none", "pass the Checkpoints to run.steps")
    if plan.checkpoint is None and done > 0:
        found = f"weights after step {done} and no checkpoint to replace them"
        raise CheckpointError("fresh weights for a start at the beginning", found, "nothing: the group starts again in new processes")


def _check_position(plan: RestorePlan, position: int) -> None:
    if plan.checkpoint is not None and position != plan.position:
        raise CheckpointError(
            f"data position {plan.position}, as the record of checkpoint {plan.checkpoint} says",
            f"{position} in the checkpoint",
            "folder and record do not belong together: abandon this checkpoint",
        )


def _check_group() -> None:
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and not (dist.is_available() and dist.is_initialized()):
        raise CheckpointError(
            f"a process group of the {started} ranks that were started",
            "none",
            "call torch.distributed.init_process_group before run.steps: saving a checkpoint is a collective",
        )


def check_agreed(value: Any) -> None:
    """Verify that all ranks hold an equal (JSON) value.

    Raises:
        PlansDiffer: they don't; on every rank.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    mine = sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, mine)
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise PlansDiffer(
            "one plan on all ranks",
            f"ranks {others} have another one than rank 0 (this rank: {value})",
            "agents of two generations are mixed: stop the run and start it again",
        )


def init(home: Home | None = None) -> Run:
    """Join the agent of this node, if there is one.  Leaves process groups and devices to the script.

    Args:
        home: in place of the agent (tests).
    """
    if home is None:
        home = here() or Alone()
    return Run(home)
