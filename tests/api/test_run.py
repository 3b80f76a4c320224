"""`run.steps`: plans become positions, steps complete after their bodies, and a rollback takes the same path as a start."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elastic_health as eh
from elastic_health.errors import CheckpointError, DataError
from elastic_health.generations import RestorePlan
from elastic_health.home import Alone
from elastic_health.liveness.facts import Phase
from tests.api.parts import MemorySaves, PlansHome

pytestmark = pytest.mark.spec("R4")
DATA = list(range(1000))


def parts(plans: list[RestorePlan] | None = None, **numbers: Any) -> tuple[eh.Run, eh.Loader, MemorySaves, Any]:
    stream = eh.SampleStream(len(DATA), **{"global_batch": 4, "seed": 1, "samples": 40, **numbers})
    home = Alone() if plans is None else PlansHome(plans)
    return eh.init(home), eh.Loader(DATA, stream, rank=0, world=1), MemorySaves(stream), home


def test_a_fresh_run_counts_from_one_saves_when_due_and_at_the_end() -> None:
    run, loader, saves, home = parts([RestorePlan()])
    seen = []
    for step, batch in run.steps(loader, saves):
        assert run.step == step - 1, "the step counts as complete only after its body"
        assert loader.stream.position == batch.positions[0][0]
        seen.append((step, batch.positions))
    assert seen == [(k, ((4 * k - 4, 4 * k),)) for k in range(1, 11)]
    assert home.marks == [(k, 4 * k) for k in range(1, 11)]
    assert saves.saved == [3, 6, 9, 10]
    assert saves.finished == 1
    assert run.generation == 1
    assert saves.bound == [home]
    assert [*home.phases[:3], *home.phases[-2:]] == [Phase.INIT, Phase.DATA, Phase.STEP, Phase.STEP, Phase.DATA]


def test_a_step_whose_body_raises_is_not_complete() -> None:
    run, loader, saves, home = parts([RestorePlan()])
    with pytest.raises(ZeroDivisionError):
        for step, _ in run.steps(loader, saves):
            if step == 4:
                raise ZeroDivisionError
    assert home.marks[-1] == (3, 12)
    assert loader.stream.position == 12
    assert list(saves.kept.values())[-1][0] == 3


def test_a_restart_goes_on_from_the_plan_and_jumps_its_windows() -> None:
    run, loader, saves, _ = parts([RestorePlan()])
    for step, _ in run.steps(loader, saves):
        if step == 7:
            run.stop()
    again, loader_2, _, home = parts([saves.plan_of(6, windows=(eh.Window(28, 34, "spike"),))])
    saves_2 = MemorySaves(loader_2.stream, kept=dict(saves.kept))
    seen = [(step, batch.positions) for step, batch in again.steps(loader_2, saves_2)]
    assert seen == [(7, ((24, 28),)), (8, ((34, 38),)), (9, ((38, 40),))]
    assert home.marks == [(7, 34), (8, 38), (9, 40)]


def test_a_rollback_in_place_is_the_same_path() -> None:
    plans = [RestorePlan()]
    run, loader, saves, home = parts(plans)
    seen = []
    for step, batch in run.steps(loader, saves):
        seen.append((step, batch.positions[0]))
        if len(seen) == 8:
            plans.append(saves.plan_of(3, windows=(eh.Window(16, 36),)))
            run.plan_again()
    assert seen == [*((k, (4 * k - 4, 4 * k)) for k in range(1, 9)), (4, (12, 16)), (5, (36, 40))]
    assert home.marks[-3:] == [(7, 28), (4, 36), (5, 40)], "the step that was given up is not marked"
    assert run.generation == 2


def test_what_is_saved_already_is_not_saved_again_at_the_end() -> None:
    run, loader, saves, _ = parts([RestorePlan()], samples=24)
    assert len(list(run.steps(loader, saves))) == 6
    assert saves.saved == [3, 6]
    again, loader_2, _, _ = parts([saves.plan_of(6)], samples=24)
    saves_2 = MemorySaves(loader_2.stream, kept=saves.kept)
    assert list(again.steps(loader_2, saves_2)) == []
    assert (saves_2.saved, saves_2.finished) == ([], 1)

    plans = [RestorePlan()]
    run, loader, saves, _ = parts(plans, samples=24)
    for step, _ in run.steps(loader, saves):
        if step == 5:  # roll back to step 3, and the window takes all that is left
            plans.append(saves.plan_of(3, windows=(eh.Window(12, 24),)))
            run.plan_again()
    assert run.step == 3
    assert saves.saved == [3]


def test_a_skipped_update_is_consumed_and_recorded() -> None:
    run, loader, saves, _ = parts([RestorePlan()])
    for step, _ in run.steps(loader, saves):
        if step == 5:
            run.not_applied("nonfinite gradient")
    assert loader.stream.not_applied == (eh.Window(16, 20, "nonfinite gradient"),)
    assert loader.stream.position == 40
    assert list(saves.kept.values())[-1][1]["not_applied"] == [[16, 20, "nonfinite gradient"]]


def test_without_an_agent_the_folder_decides() -> None:
    run, loader, saves, _ = parts()
    for step, _ in run.steps(loader, saves):
        if step == 4:
            run.stop()
    again, loader_2, saves_2, _ = parts()
    saves_2.kept = saves.kept
    assert [step for step, _ in again.steps(loader_2, saves_2)] == [5, 6, 7, 8, 9, 10]
    assert saves_2.bound == [None]
    assert again.plan is None


def test_a_second_loop_goes_on_and_does_not_restore_again() -> None:
    run, loader, saves, home = parts([RestorePlan()])
    for step, _ in run.steps(loader, saves):
        if step == 4:
            run.stop()
    assert [step for step, _ in run.steps(loader, saves)] == [5, 6, 7, 8, 9, 10]
    assert home.asked == 1
    with pytest.raises(DataError, match="one stream a run"):
        next(run.steps(parts()[1], saves))


def test_a_plan_that_can_not_be_carried_out_is_refused() -> None:
    run, loader, saves, _ = parts([RestorePlan("000000000003.000001", "/c", 3, 12)])
    with pytest.raises(CheckpointError, match="pass the Checkpoints"):
        next(run.steps(loader))

    run, loader, saves, _ = parts([RestorePlan(), RestorePlan()])
    steps = run.steps(loader, saves)
    for _ in range(2):
        next(steps)
    run.plan_again()
    with pytest.raises(CheckpointError, match=r"fresh weights.*weights after step 1"):
        next(steps)

    run, loader, saves, _ = parts([RestorePlan("000000000003.000001", "/c", 3, 99)])
    saves.kept["000000000003.000001"] = (3, {**loader.state_dict(), "position": 12})
    with pytest.raises(CheckpointError, match=r"data position 99.*12 in the checkpoint"):
        next(run.steps(loader, saves))


def test_several_ranks_without_a_process_group_are_told_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    run, loader, saves, _ = parts()
    with pytest.raises(CheckpointError, match="init_process_group"):
        next(run.steps(loader, saves))


def test_a_warm_up_leaves_no_trace() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rng = torch.get_rng_state()
    ran = []

    def once() -> None:
        model(torch.randn(8, 4)).sum().backward()
        ran.append(int(model[1].num_batches_tracked))

    eh.init(Alone()).warm_up(model, once)
    assert ran == [1, 2]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(p.grad is None for p in model.parameters())
