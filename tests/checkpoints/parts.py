"""Pieces for the checkpoint tests: a state, an agent that keeps its records in a file, and a way to run real ranks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from elastic_health.checkpoints.agent_os import prepare_commit, verify_files
from elastic_health.codec import build, plain
from elastic_health.generations import CheckpointRecord
from elastic_health.liveness.facts import Phase
from elastic_health.messages import AskCommit, AskVerify, CommitReply, TellUnusable, VerifyReply

REPO = Path(__file__).parents[2]


class TinyState:
    """A weight matrix, a step count and a text: tensors and other values."""

    def __init__(self, value: float = 0.0, rows: int = 64) -> None:
        self.weight = torch.full((rows, 64), value)
        self.count, self.note = int(value), f"note {float(value)}"

    def state_dict(self) -> dict[str, object]:
        return {"model": {"weight": self.weight}, "extra": {"count": self.count, "note": self.note}}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        model, extra = state_dict["model"], state_dict["extra"]
        assert isinstance(model, dict) and isinstance(extra, dict)
        self.weight.copy_(model["weight"])
        self.count, self.note = extra["count"], extra["note"]

    def set(self, value: float) -> None:
        self.weight.fill_(value)
        self.count, self.note = int(value), f"note {float(value)}"

    def value(self) -> float:
        assert bool((self.weight == self.weight[0, 0]).all())
        assert self.note == f"note {float(self.weight[0, 0])}"
        return float(self.weight[0, 0])


@dataclass
class FileHome:
    """Stands in for the agent: looks at the disk with the shipped functions, and keeps records in a JSON-lines file."""

    records_file: Path
    run: str = "run"
    generation: int = 1
    fenced: bool = False
    told: list[TellUnusable] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    told_saves: bool = False
    wished: int = 0

    def verify(self, ask: AskVerify) -> VerifyReply:
        return VerifyReply(verify_files(ask.folder, ask.nonce, ask.files))

    def commit(self, ask: AskCommit) -> CommitReply:
        if self.fenced:
            return CommitReply(False, "fenced: generation 1 is over")
        if ask.generation != self.generation:
            return CommitReply(False, f"fenced: generation {ask.generation} is over")
        wrong = prepare_commit(ask.folder, ask.manifest)
        if wrong:
            return CommitReply(False, "; ".join(wrong))
        newest = max(self.records(), default=None)
        record = CheckpointRecord(ask.step, self.generation, ask.folder, ask.position, ask.world, newest, ask.manifest)
        self.before_record()
        with open(self.records_file, "a") as f:
            f.write(json.dumps(plain(record)) + "\n")
        return CommitReply(True, record=record)

    def before_record(self) -> None:
        """A place to die in: the marker is there, the record is not."""

    def unusable(self, tell: TellUnusable) -> None:
        self.told.append(tell)

    def saves(self) -> None:
        self.told_saves = True

    def wish(self) -> int:
        return self.wished

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.phases.append(phase)
        yield

    def records(self) -> dict[str, CheckpointRecord]:
        if not self.records_file.exists():
            return {}
        lines = self.records_file.read_text().splitlines()
        found = [build(CheckpointRecord, json.loads(line), "record") for line in lines]
        return {r.name: r for r in found}


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    code: int
    out: str


def run_ranks(script: str, world: int, folder: Path, *args: str, timeout_s: float = 60.0, name: str = "script.py") -> list[Ended]:
    """Run `script` as `world` real processes that rendezvous through a file; kills what is left at the deadline."""
    path = folder / name
    path.write_text(script)
    meet = folder / f"meet-{os.urandom(4).hex()}"
    ranks = [_spawn(path, rank, world, meet, args) for rank in range(world)]
    out: list[Ended] = []
    try:
        for process in ranks:
            text, _ = process.communicate(timeout=timeout_s)
            out.append(Ended(process.returncode, text))
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait(10)
    return out


def _spawn(path: Path, rank: int, world: int, meet: Path, args: tuple[str, ...]) -> subprocess.Popen[str]:
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MEET": str(meet), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(path), *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


JOIN = """
import logging, os, sys
from pathlib import Path
import torch, torch.distributed as dist
logging.basicConfig(format="%(levelname)s %(message)s")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=rank, world_size=world)
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from elastic_health.errors import CheckpointError
from tests.checkpoints.parts import FileHome, TinyState
"""
"""First lines of a script for `run_ranks`: joins the group and imports what the tests use."""
