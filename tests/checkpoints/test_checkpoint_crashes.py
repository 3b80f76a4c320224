"""A process killed at every boundary of a commit, and a restore after each: always the newest committed and intact one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic_health.checkpoints.agent_os import complete, orphans
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from elastic_health.checkpoints.layout import folder_name
from elastic_health.checkpoints.line import choose
from elastic_health.generations import Generation, GenerationKind, RestorePlan, RunSpec
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from tests.checkpoints.parts import FileHome, TinyState, run_ranks

pytestmark = pytest.mark.spec("R3", "R10")

# torch is imported once; each child commits step 1, then dies by SIGKILL inside the commit of step 2.
KILLER = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from elastic_health.checkpoints import checkpoints_torch, files_os, write_torch
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from elastic_health.checkpoints.write_torch import CommitStep
from tests.checkpoints.parts import FileHome, TinyState

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class DyingHome(FileHome):
    def before_record(self):
        if dying == "after marker": die()

def observe(step):
    if dying == step.value: die()

def mid_write(size):
    # The shard writer's stream dies when the first bytes are out.
    from torch.distributed.checkpoint import filesystem
    def dying_sync(fd):
        os.ftruncate(fd, size)
        die()
    filesystem.os = type("os", (), {**vars(os), "fsync": staticmethod(dying_sync)})

def before_marker(root):
    real = os.replace
    def replace(a, b):
        if str(b).endswith("COMMITTED.json"): die()
        real(a, b)
    os.replace = replace

for at in json.loads(sys.argv[2]):
    root = Path(sys.argv[1]) / at.replace(" ", "-")
    child = os.fork()
    if child == 0:
        try:
            dying = ""
            state = TinyState(1.0)
            home = DyingHome(root / "records") if sys.argv[3] == "agent" else None
            c = Checkpoints(root / "c", state, every=1, home=home, observe=observe)
            c.restore(None)
            assert c.save(1, 64)
            state.set(2.0)
            dying = at
            if at == "mid write": mid_write(100)
            if at == "before marker": before_marker(root)
            c.save(2, 128)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (at, status)
"""
BEFORE = ["folder", "nonce", "mid write", "shards", "verified", "manifest", "before marker"]
SPEC = RunSpec(1, 1, "digest")


@pytest.fixture(scope="module")
def with_agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("agent"), [*BEFORE, "after marker", "committed"], "agent")


@pytest.fixture(scope="module")
def without_agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("alone"), [*BEFORE, "committed"], "alone")


def killed(root: Path, at: list[str], home: str) -> Path:
    [ended] = run_ranks(KILLER, 1, root, str(root), json.dumps(at), home, name="killer.py")
    assert ended.code == 0, ended.out
    return root


@pytest.mark.parametrize("at", [*BEFORE, "after marker"])
def test_killed_before_the_record_the_one_before_is_restored(with_agent: Path, at: str) -> None:
    """facebookresearch/metaseq#53: whatever a killed save leaves, cut shards and temporary files, it never counts."""
    root = with_agent / at.replace(" ", "-")
    home, plan = FileHome(root / "records", generation=2), next_plan(root)
    assert plan.step == 1
    state = TinyState()
    c = Checkpoints(root / "c", state, every=1, home=home)
    restored = c.restore(plan)
    assert (restored.step, restored.position, state.value()) == (1, 64, 1.0)
    assert home.told == []
    left = root / "c" / folder_name(2, 1)
    assert (complete(left) is not None) == (at == "after marker")
    # The next generation reaches the same step and commits it, beside what is left; then that is known as an orphan.
    state.set(2.5)
    assert c.save(2, 128)
    assert orphans(root / "c", "run", 2, list(home.records())) == ((left,) if at != "folder" else ())
    assert next_plan(root, 2, plan).path.endswith("gen-0002")


def test_killed_after_the_record_it_counts(with_agent: Path) -> None:
    root = with_agent / "committed"
    state = TinyState()
    restored = Checkpoints(root / "c", state, home=FileHome(root / "records", generation=2)).restore(next_plan(root))
    assert (restored.step, state.value()) == (2, 2.0)


@pytest.mark.parametrize("at", [*BEFORE, "committed"])
def test_without_an_agent_the_marker_decides(without_agent: Path, at: str) -> None:
    root = without_agent / at.replace(" ", "-")
    state = TinyState()
    c = Checkpoints(root / "c", state, every=1)
    expected = 2 if at == "committed" else 1
    assert c.restore().step == expected and state.value() == expected
    # The same step is reached again: what the killed save left under that name makes way.
    state.set(7.0)
    assert c.save(2, 128)
    again = TinyState()
    assert Checkpoints(root / "c", again).restore().step == 2 and again.value() == 7.0


def next_plan(root: Path, last: int = 1, plan: RestorePlan | None = None) -> RestorePlan:
    """What the next generation would get, from the records alone."""
    records = FileHome(root / "records").records()
    generation = Generation(last, GenerationKind.FORMED, last - 1, last, (), plan or RestorePlan(), SPEC)
    return choose(records, generation, Verdict(VerdictKind.RESTART, Cause.WORKER_KILLED, last)).plan
