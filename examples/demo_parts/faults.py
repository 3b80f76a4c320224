"""The demo's faults: what is broken, and what must come of it.

Each fault waits until the group trains again and has something to lose, breaks one thing, and then reads from etcd who
was named for it, and from rank 0's own lines when training went on.  A fault's `problems` say what was not as it must be.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from demo_parts.nodes import Node
from demo_parts.scene import Scene
from elastic_health.generations import CheckpointRecord, CheckpointState, Generation, Member
from elastic_health.verdicts import Cause, Verdict

CHECKPOINTS, STEPS_AT_RISK = 2, 2
"""A group is left alone until it has committed so many checkpoints, and then done so many steps: something to lose."""
QUIET_S = 6.0
"""And has trained for so long: faults are hours apart in earnest, and by then the processes that wait to take a dead
worker's place have done their imports."""


@dataclass
class Fault:
    """One fault and what came of it.  Times are wall clock; `*_s` count from `at`, -1 while unknown.

    `rank`, `node`: where it was done.  `generation`: the one that it broke, `step`: the last one that it completed.
    `pause_s`: time between two completed steps.  `repeated`: steps done again.
    """

    title: str
    done: str
    rank: int
    node: str
    generation: int
    at: float = 0.0
    step: int = 0
    cause: str = ""
    named_ranks: tuple[int, ...] = ()
    named_nodes: tuple[str, ...] = ()
    why: str = ""
    found_s: float = -1.0
    next_step_s: float = -1.0
    pause_s: float = -1.0
    repeated: int = 0
    world_before: int = 0
    world_after: int = 0
    note: str = ""
    problems: list[str] = field(default_factory=list)

    def must(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


@dataclass
class Stage:
    """What faults act on.  `start(node)` runs torchrun for it; `tell(text)` is for whoever watches."""

    scene: Scene
    orders: Path
    start: Callable[[Node], None]
    tell: Callable[[str], None]

    # ---- the faults, in the order of the show
    def kill_worker(self) -> Fault:
        g = self.settled()
        member = g.members[1]
        fault = self._begin("worker killed", g, member, f"SIGKILL to the training process of rank {member.first_rank} on {member.node}")
        self._kill_worker_of(member, g)
        self._named(fault, g, (Cause.WORKER_KILLED,), ranks=(member.first_rank,))
        return self._trains_again(fault, g.number + 1)

    def hang_rank(self) -> Fault:
        g = self.settled()
        member = g.members[-1]
        fault = self._begin("rank hangs", g, member, f"rank {member.first_rank} on {member.node} falls asleep before the step's all-reduce")
        (self.orders / f"hang.{g.number}.{member.first_rank}").touch()
        self._named(fault, g, (Cause.STALL,), ranks=(member.first_rank,))
        return self._trains_again(fault, g.number + 1)

    def lose_node(self, title: str, world_after: int) -> Fault:
        """The node of group rank 0: its agent keeps the group's store, and commits its checkpoints."""
        g = self.settled()
        member = g.members[0]
        fault = self._begin(title, g, member, f"SIGKILL to all of {member.node}, agent and worker alike")
        self._node(member.node).kill()
        self._named(fault, g, (Cause.LOST_MEMBER,))
        self._trains_again(fault, g.number + 1)
        fault.must(fault.world_after == world_after, f"the next group has {fault.world_after} ranks instead of {world_after}")
        return fault

    def rejoin(self, node: Node) -> Fault:
        """No fault, but the way back from one: the group must grow at a checkpoint, and repeat no step."""
        g = self.settled()
        fault = self._begin("node joins again", g, None, f"{node.name} is started again")
        fault.node = node.name
        self.start(node)
        v = self.scene.until("the group to take it in", lambda: self.scene.now.verdicts.get(g.number))
        self._read(fault, v)
        fault.must(v.cause is Cause.SCALE_UP, f"the group ended by {v.cause.value}, not to grow")
        self._trains_again(fault, g.number + 1)
        fault.must(fault.world_after == g.world_size + 1, f"the group did not grow from {g.world_size}: {fault.world_after}")
        # The step that was under way when the checkpoint was committed may complete before the group ends.
        fault.must(fault.repeated <= 1, f"{fault.repeated} steps were done again to grow")
        return fault

    def tear_checkpoint(self) -> Fault:
        g = self.settled()
        member, before = g.members[1], self._newest(g)
        newest = self.scene.until("a checkpoint", lambda: n if (n := self._newest(g)) != before else None)
        assert newest is not None
        fault = self._begin("checkpoint torn", g, member, "")
        torn = _tear(Path(newest.path))
        self._kill_worker_of(member, g)
        fault.done = f"{torn} of the newest checkpoint (step {newest.step}) cut in half; then SIGKILL to rank {member.first_rank}"
        self._named(fault, g, (Cause.WORKER_KILLED,), ranks=(member.first_rank,))
        self._set_aside(fault, g.number + 1, newest)
        return self._trains_again(fault, g.number + 2)

    # ---- waiting
    def settled(self) -> Generation:
        """The current generation, once it has committed a checkpoint and gone on from there."""

        def check() -> Generation | None:
            g = self.scene.now.generation
            if g is None or self.scene.now.verdict is not None:
                return None
            mine = [c.step for c in self.scene.now.checkpoints if c.generation == g.number and c.state is CheckpointState.COMMITTED]
            first = self.scene.first_of(g.number)
            quiet = first is not None and time.time() >= first.at + QUIET_S
            return g if quiet and len(mine) >= CHECKPOINTS and self.scene.step >= max(mine) + STEPS_AT_RISK else None

        return self.scene.until("the group to train and save checkpoints", check)

    def _trains_again(self, fault: Fault, number: int) -> Fault:
        """Wait for the first step of generation `number`, which must be the next that trains."""
        first = self.scene.until("the next completed step", lambda: self.scene.first_of(number))
        g = self.scene.now.generations[number]
        last = [s for s in self.scene.steps if s.gen == fault.generation][-1]
        fault.step, fault.next_step_s, fault.pause_s = last.step, first.at - fault.at, first.at - last.at
        fault.world_after, fault.repeated = g.world_size, last.step - g.plan.step
        fault.must(self.scene.now.current == number, f"generation {self.scene.now.current} runs instead of {number}")
        verdict = "; ".join(fault.problems) or "as it must be"
        self.tell(f"    training again after {fault.next_step_s:.1f} s, {fault.repeated} steps repeated: {verdict}")
        return fault

    # ---- breaking
    def _begin(self, title: str, g: Generation, member: Member | None, done: str) -> Fault:
        rank, node = (member.first_rank, member.node) if member is not None else (-1, "")
        fault = Fault(title, done, rank, node, g.number, world_before=g.world_size)
        self.tell(f"FAULT: {title}" + (f": {done}" if done else ""))
        fault.at = time.time()
        return fault

    def _kill_worker_of(self, member: Member, g: Generation) -> None:
        os.kill(int((self.orders / f"pid.{g.number}.{member.first_rank}").read_text()), signal.SIGKILL)

    def _node(self, name: str) -> Node:
        return next(n for n in self.scene.nodes if n.name == name)

    def _newest(self, g: Generation) -> CheckpointRecord | None:
        mine = [c for c in self.scene.now.checkpoints if c.generation == g.number and c.state is CheckpointState.COMMITTED]
        return max(mine, key=lambda c: c.step, default=None)

    # ---- judging
    def _named(self, fault: Fault, g: Generation, causes: tuple[Cause, ...], ranks: tuple[int, ...] | None = None) -> None:
        v = self.scene.until(f"a verdict on: {fault.title}", lambda: self.scene.now.verdicts.get(g.number))
        self._read(fault, v)
        fault.must(v.cause in causes, f"the cause was given as {v.cause.value}, not {causes[0].value}")
        fault.must(v.nodes == (fault.node,), f"{', '.join(v.nodes) or 'no node'} was named, not {fault.node}")
        fault.must(ranks is None or v.ranks == ranks, f"rank {v.ranks} was named, not {ranks}")

    def _read(self, fault: Fault, v: Verdict) -> None:
        fault.cause, fault.named_ranks, fault.named_nodes, fault.why = v.cause.value, v.ranks, v.nodes, v.reason
        fault.found_s = self.scene.when(self.scene.keys.verdict(v.generation)) - fault.at

    def _set_aside(self, fault: Fault, number: int, torn: CheckpointRecord) -> None:
        """Generation `number` was given the torn checkpoint: it must refuse it, and the next one must start before it."""
        g = self.scene.until("a group that is given the torn checkpoint", lambda: self.scene.now.generations.get(number))
        fault.must(g.plan.checkpoint == torn.name, f"the next group began from {g.plan.checkpoint}, not from the torn {torn.name}")
        v = self.scene.until("a verdict on the torn checkpoint", lambda: self.scene.now.verdicts.get(number))
        fault.must(v.cause is Cause.CHECKPOINT_UNUSABLE and v.torn == torn.name, f"{v.cause.value} instead of {torn.name} set aside")
        after = self.scene.until("the group after it", lambda: self.scene.now.generations.get(number + 1))
        fault.must(after.plan.checkpoint == torn.parent, f"then {after.plan.checkpoint} was used, not {torn.parent} before it")
        aside = [p.name for p in Path(torn.path).parent.glob(f"{Path(torn.path).name}.torn-*")]
        fault.must(bool(aside), f"{torn.path} was not renamed")
        fault.note = f"{v.reason}; set aside as {', '.join(aside) or 'nothing'}, {torn.parent} was used"


def _tear(folder: Path) -> str:
    """Cut the largest file in half, as a file system does that loses its tail; returns its name."""
    largest = max((p for p in folder.iterdir() if p.is_file()), key=lambda p: p.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    return largest.name
