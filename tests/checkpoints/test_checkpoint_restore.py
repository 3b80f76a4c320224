"""Restoring after damage of every kind: nothing unproven is loaded, and the newest intact one is used."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_health.checkpoints import checkpoints_torch, restore_torch
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from elastic_health.checkpoints.layout import DCP_METADATA, LOADING, MANIFEST, MARKER, NONCE, folder_name
from elastic_health.checkpoints.line import choose
from elastic_health.errors import CheckpointError, CheckpointUnusable
from elastic_health.generations import Generation, GenerationKind, RestorePlan, RunSpec
from elastic_health.liveness.facts import Phase
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from elastic_health.windows import Window
from tests.checkpoints.parts import FileHome, TinyState, run_ranks

pytestmark = [pytest.mark.spec("R3"), pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]
SHARD = "__0_0.distcp"


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def poison(path: Path) -> None:
    """A pickle that would leave a trace if anyone loaded it."""
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(path.parent.parent / "executed").encode() + b"'\ntR.")


DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    (SHARD, flip),
    (SHARD, cut),
    (SHARD, empty),
    (SHARD, Path.unlink),
    (DCP_METADATA, flip),
    (DCP_METADATA, Path.unlink),
    (DCP_METADATA, poison),
    (MANIFEST, flip),
    (MANIFEST, cut),
    (MANIFEST, Path.unlink),
]
KINDS = [f"{name}-{damage.__name__}" for name, damage in DAMAGE]


def three(root: Path, home: FileHome | None = None) -> TinyState:
    """Checkpoints at 10, 20 and 30; the state's value is the step."""
    state = TinyState()
    c = Checkpoints(root / "c", state, every=10, keep=5, home=home)
    c.restore()
    for step in range(1, 31):
        state.set(step)
        assert c.maybe_save(step, step * 64) == (step % 10 == 0)
    return state


def plan_of(home: FileHome, last: int = 1, plan: RestorePlan | None = None, torn: str | None = None) -> RestorePlan:
    generation = Generation(last, GenerationKind.FORMED, last - 1, last, (), plan or RestorePlan(), RunSpec(1, 1, "d"))
    return choose(home.records(), generation, Verdict(VerdictKind.RESTART, Cause.WORKER_KILLED, last, torn=torn)).plan


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=KINDS)
def test_alone_a_damaged_one_is_set_aside_and_the_one_before_is_used(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    """facebookresearch/metaseq#53, awslabs/awsome-distributed-ai#190 and #251: cut shards, no .metadata."""
    three(tmp_path)
    damage(tmp_path / "c" / folder_name(30, 0) / name)
    state = TinyState()
    restored = Checkpoints(tmp_path / "c", state).restore()
    assert (restored.step, restored.position, state.value()) == (20, 1280, 20.0)
    assert not (tmp_path / "c" / "executed").exists()
    aside = {p.name for p in (tmp_path / "c").iterdir() if "torn" in p.name}
    # Without a fitting manifest it is simply not complete; with one it was proven torn.
    assert aside == (set() if name == MANIFEST else {f"{folder_name(30, 0)}.torn-1"})


@pytest.mark.parametrize(("name", "damage"), [*DAMAGE, (MARKER, Path.unlink)], ids=[*KINDS, "marker-unlink"])
def test_with_an_agent_the_torn_one_is_reported_and_one_further_back_is_planned(
    tmp_path: Path, name: str, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_torch, "END_WAIT_S", 0.0)
    home = FileHome(tmp_path / "records")
    three(tmp_path, home)
    plan = plan_of(home)
    damage(Path(plan.path) / name)
    state = TinyState()
    with pytest.raises(CheckpointUnusable):
        Checkpoints(tmp_path / "c", state, home=home).restore(plan)
    assert [t.checkpoint for t in home.told] == [plan.checkpoint] and home.told[0].reason
    assert state.value() == 0.0, "nothing of it was loaded"
    assert not (tmp_path / "c" / "executed").exists()
    older = plan_of(home, 2, plan, torn=plan.checkpoint)
    assert Checkpoints(tmp_path / "c", state, home=home).restore(older).step == 20 and state.value() == 20.0


def test_all_torn_ends_with_a_reason(tmp_path: Path) -> None:
    """llnl/scr#174: no endless tries of the same bad checkpoints."""
    three(tmp_path)
    for step in (10, 20, 30):
        cut(tmp_path / "c" / folder_name(step, 0) / SHARD)
    with pytest.raises(CheckpointError, match=r"3 in .* all torn"):
        Checkpoints(tmp_path / "c", TinyState()).restore()


CRASHING = """
import os, signal, sys
from pathlib import Path
import torch
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from tests.checkpoints.parts import TinyState

class Crashing(TinyState):
    def load_state_dict(self, state_dict):
        if state_dict["extra"]["count"] == 30: os.kill(os.getpid(), signal.SIGKILL)
        super().load_state_dict(state_dict)

for attempt in range(1, 9):
    child = os.fork()
    if child == 0:
        restored = Checkpoints(Path(sys.argv[1]), Crashing()).restore()
        print("restored", restored.step, "at attempt", attempt, flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0: break
"""


def test_one_that_kills_its_loader_is_left_behind_after_three_tries(tmp_path: Path) -> None:
    """llnl/scr#174: restart again and again from the same checkpoint that crashes on load."""
    three(tmp_path)
    [ended] = run_ranks(CRASHING, 1, tmp_path, str(tmp_path / "c"))
    assert "restored 20 at attempt 4" in ended.out, ended.out
    assert not (tmp_path / "c" / folder_name(20, 0) / LOADING).exists()


def test_a_state_that_does_not_fit_is_the_scripts_fault_and_gives_up_no_checkpoint(tmp_path: Path) -> None:
    three(tmp_path)
    for _ in range(5):
        with pytest.raises(CheckpointError, match="fit"):
            Checkpoints(tmp_path / "c", TinyState(rows=32)).restore()
    state = TinyState()
    assert Checkpoints(tmp_path / "c", state).restore().step == 30


def test_no_permission_to_read_is_not_a_torn_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three(tmp_path)

    def refuse(*args: object) -> object:
        raise PermissionError(13, "Permission denied", "shard")

    monkeypatch.setattr(restore_torch, "wrong_files", refuse)
    with pytest.raises(CheckpointError, match="Permission denied"):
        Checkpoints(tmp_path / "c", TinyState()).restore()
    assert not [p for p in (tmp_path / "c").iterdir() if "torn" in p.name]


def test_the_plan_s_manifest_hash_is_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole and consistent folder of another history under the plan's path is not what was committed."""
    monkeypatch.setattr(checkpoints_torch, "END_WAIT_S", 0.0)
    home = FileHome(tmp_path / "records")
    three(tmp_path, home)
    other = FileHome(tmp_path / "x" / "records")
    (tmp_path / "x").mkdir()
    three(tmp_path / "x", other)
    plan = plan_of(home)
    Path(plan.path).rename(tmp_path / "gone")
    (tmp_path / "x" / "c" / Path(plan.path).name).rename(plan.path)
    with pytest.raises(CheckpointUnusable, match="SHA-256"):
        Checkpoints(tmp_path / "c", TinyState(), home=home).restore(plan)


def test_a_moved_checkpoint_folder_is_found(tmp_path: Path) -> None:
    home = FileHome(tmp_path / "records")
    three(tmp_path, home)
    (tmp_path / "c").rename(tmp_path / "moved")
    state = TinyState()
    assert Checkpoints(tmp_path / "moved", state, home=home).restore(plan_of(home)).step == 30


def test_a_plan_without_checkpoint_starts_at_its_position_whatever_lies_there(tmp_path: Path) -> None:
    home = FileHome(tmp_path / "records")
    three(tmp_path, home)
    state = TinyState(5.0)
    c = Checkpoints(tmp_path / "c", state, home=home)
    restored = c.restore(RestorePlan(windows=(Window(1, 2),)))
    assert (restored.step, restored.position, restored.folder, state.value()) == (0, 0, None, 5.0)


def test_a_later_rollback_in_place_commits_under_its_own_generation(tmp_path: Path) -> None:
    home = FileHome(tmp_path / "records")
    three(tmp_path, home)
    state = TinyState()
    c = Checkpoints(tmp_path / "c", state, every=10, home=home)
    target = home.records()[sorted(home.records())[0]]
    home.generation = 2
    c.restore(RestorePlan(target.name, target.path, target.step, target.position, (), target.manifest))
    assert state.value() == 10.0
    assert c.save(20, 1280)
    assert home.records()["000000000020.000002"].path.endswith(folder_name(20, 2))
    assert Phase.CHECKPOINT in home.phases and Phase.INIT in home.phases


@pytest.mark.spec("R10")
def test_a_save_of_the_old_branch_never_speaks_for_the_new_generation(tmp_path: Path) -> None:
    """The home knows of a rollback before this state has been rolled back: such a save still names its own generation."""
    home = FileHome(tmp_path / "records", generation=4)
    c = Checkpoints(tmp_path / "c", TinyState(), every=1, home=home)
    c.restore(RestorePlan())
    home.generation = 5
    assert c.save(1, 64) is False and c.last is not None and "generation" in c.last.reason
    assert home.records() == {}


def test_a_fenced_commit_warns_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = FileHome(tmp_path / "records", fenced=True)
    c = Checkpoints(tmp_path / "c", TinyState(1.0), every=1, home=home)
    c.restore(RestorePlan())
    assert c.save(1, 64) is False
    assert c.last is not None and "fenced" in c.last.reason and c.last.known
    assert len([r for r in caplog.records if r.levelname == "WARNING" and "not committed" in r.message]) == 1
    home.fenced = False
    assert c.save(2, 128) is True


def test_an_answer_that_got_lost_leaves_the_folder_alone(tmp_path: Path) -> None:
    """The record may have landed: removing the folder would tear a committed checkpoint."""

    class Deaf(FileHome):
        def commit(self, ask):  # type: ignore[no-untyped-def]
            super().commit(ask)
            raise CheckpointError("an answer of the agent", "none", "look at the agent")

    home = Deaf(tmp_path / "records")
    c = Checkpoints(tmp_path / "c", TinyState(1.0), every=1, home=home)
    c.restore(RestorePlan())
    assert c.save(1, 64) is False
    assert c.last is not None and not c.last.known
    assert c.save(1, 64) is False, "the same step is not written over it"
    state = TinyState()
    assert Checkpoints(tmp_path / "c", state, home=home).restore(plan_of(home)).step == 1 and state.value() == 1.0


def test_two_runs_in_one_folder_are_told_and_nothing_is_overwritten(tmp_path: Path) -> None:
    three(tmp_path, FileHome(tmp_path / "records"))
    other = FileHome(tmp_path / "records2", run="other")
    c = Checkpoints(tmp_path / "c", TinyState(), every=10, home=other)
    c.restore(RestorePlan())
    assert c.save(10, 640) is False
    assert c.last is not None and "written by run 'run'" in c.last.reason
    assert plan_of(FileHome(tmp_path / "records")).step == 30


def test_any_format_commits_through_the_same_call(tmp_path: Path) -> None:
    home = FileHome(tmp_path / "records")
    c = Checkpoints(tmp_path / "c", TinyState(), home=home)
    c.restore(RestorePlan())
    mine = tmp_path / "c" / "my-format-7"
    (mine / "deep").mkdir(parents=True)
    assert c.commit_folder(mine, 7, 448) is False, "an empty folder is no checkpoint"
    (mine / "deep" / "weights.pkl").write_bytes(pickle.dumps([1, 2, 3]))
    (mine / "README").write_text("x")
    assert c.commit_folder(mine, 7, 448) is True
    assert c.commit_folder(mine, 8, 512) is False, "a committed folder is not committed again"
    plan = plan_of(home)
    restored = Checkpoints(tmp_path / "c", TinyState(), home=home).restore(plan)
    assert (restored.step, restored.position, restored.folder) == (7, 448, mine)


def test_alone_the_newest_are_kept_and_leftovers_go(tmp_path: Path) -> None:
    state = TinyState(1.0)
    c = Checkpoints(tmp_path / "c", state, every=1, keep=2)
    left = tmp_path / "c" / folder_name(2, 0)
    left.mkdir()
    (left / NONCE).write_text("/abc")
    strange = tmp_path / "c" / folder_name(1, 9)
    strange.mkdir()
    for step in (3, 4, 5):
        assert c.save(step, step)
    assert {p.name for p in (tmp_path / "c").iterdir()} == {folder_name(4, 0), folder_name(5, 0), strange.name}


def test_async_saves_the_state_of_the_call_and_one_at_a_time(tmp_path: Path) -> None:
    state = TinyState(1.0)
    threads = []

    def watch(step: object) -> None:
        threads.append(sum(t.name == "checkpoint" for t in threading.enumerate()))

    with Checkpoints(tmp_path / "c", state, every=1, keep=9, mode="async", observe=watch) as c:
        for step in range(1, 6):
            state.set(step)
            assert c.save(step, step * 64)
            state.set(-1.0)
    assert c.last is not None and c.last.committed and set(threads) == {1}
    for step in range(1, 6):
        again = TinyState()
        path = str(tmp_path / "c" / folder_name(step, 0))
        assert Checkpoints(tmp_path / "c", again).restore(RestorePlan(path=path)).position == step * 64
        assert again.value() == step


def test_a_failure_in_the_background_is_raised_at_the_next_call(tmp_path: Path) -> None:
    def broken(step: object) -> None:
        raise ZeroDivisionError("in the background")

    c = Checkpoints(tmp_path / "c", TinyState(), mode="async", observe=broken)
    c.save(1, 1)
    with pytest.raises(ZeroDivisionError):
        c.finish()


@pytest.mark.parametrize("wrong", [{"mode": "often"}, {"every": 0}, {"keep": 0}])
def test_arguments_that_make_no_sense(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        Checkpoints(tmp_path / "c", TinyState(), **wrong)  # type: ignore[arg-type]


def test_the_tries_file_is_readable_by_people(tmp_path: Path) -> None:
    three(tmp_path)
    folder = tmp_path / "c" / folder_name(30, 0)
    assert restore_torch._count_try(folder) == 1
    assert json.loads((folder / LOADING).read_text()) == {"tries": 1}
