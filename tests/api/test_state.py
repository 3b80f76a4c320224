"""`TrainState` through torch.distributed.checkpoint, in one process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp

import elastic_health as eh
from elastic_health.errors import CheckpointError, DataError

# One process without a process group is what these tests are about.
pytestmark = [pytest.mark.spec("R3"), pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]


def made(seed: int, **changes: Any) -> eh.TrainState:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4])
    stream = eh.SampleStream(100, global_batch=4, seed=1)
    average = torch.optim.swa_utils.AveragedModel(model)
    return eh.TrainState(**{"model": model, "optimizer": optimizer, "scheduler": scheduler, "stream": stream, "ema": average, **changes})


def train(state: eh.TrainState, steps: int) -> list[float]:
    model, (optimizer,), (scheduler,) = state.model, state.optimizers, state.schedulers
    assert model is not None and state.stream is not None
    losses = []
    for _ in range(steps):
        step = state.stream.next_step(1)
        assert step is not None
        loss = (model(torch.randn(4, 4)) - random.random() - float(numpy.random.random())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()  # type: ignore[attr-defined]
        state.extra["ema"].update_parameters(model)  # type: ignore[attr-defined]
        state.stream.complete(step)
        losses.append(loss.item())
    return losses


def test_a_restored_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    first = made(1)
    train(first, 3)
    dcp.save(first.to_save(), checkpoint_id=tmp_path)
    wanted = train(first, 3)

    other = made(2)
    train(other, 1)
    form = other.to_load(1)
    dcp.load(form, checkpoint_id=tmp_path)
    other.load_state_dict(form)
    assert other.stream is not None and other.stream.position == 12
    assert train(other, 3) == wanted
    for a, b in ((first.model, other.model), (first.extra["ema"], other.extra["ema"])):
        assert a is not None and b is not None
        assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    assert first.optimizers[0].param_groups[0]["lr"] == other.optimizers[0].param_groups[0]["lr"]


def test_another_world_loads_all_but_the_random_states_and_draws_nothing_twice(tmp_path: Path) -> None:
    first = made(1)
    train(first, 3)
    dcp.save(first.to_save(), checkpoint_id=tmp_path)
    form = made(5).to_load(2)
    assert "rng" not in form
    dcp.load(form, checkpoint_id=tmp_path)
    drawn = []
    for start in (1, 1, 7):
        other = made(start)
        at_start = torch.rand(1).item()
        other.load_state_dict(form)
        drawn.append((torch.rand(1).item(), random.random(), float(numpy.random.random())))
        assert drawn[-1][0] != at_start
    assert drawn[0] == drawn[1], "a function of the script's own seed and the position"
    assert drawn[0] != drawn[2], "ranks that were seeded apart stay apart"


class Partly(torch.nn.Module):
    """One part gets no gradient at first, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.late, self.frozen = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1), torch.nn.Linear(2, 2)
        self.frozen.requires_grad_(False)


def partly() -> tuple[Partly, torch.optim.Optimizer, eh.TrainState]:
    model = Partly()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, eh.TrainState(model=model, optimizer=optimizer, scaler=torch.amp.GradScaler("cpu"))


def test_parameters_that_had_no_gradient_yet_are_saved_and_restored_as_such(tmp_path: Path) -> None:
    model, optimizer, state = partly()
    model.used(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    dcp.save(state.to_save(), checkpoint_id=tmp_path)
    assert model.late.weight not in optimizer.state, "saving changes nothing"

    again, optimizer_2, state_2 = partly()
    form = state_2.to_load(1)
    dcp.load(form, checkpoint_id=tmp_path)
    state_2.load_state_dict(form)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())
    assert again.late.weight not in optimizer_2.state
    assert torch.equal(optimizer_2.state[again.used.weight]["exp_avg"], optimizer.state[model.used.weight]["exp_avg"])
    for net, optim in ((model, optimizer), (again, optimizer_2)):
        net.zero_grad()
        net.late(net.used(torch.ones(1, 2))).sum().backward()
        optim.step()
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


def test_a_plain_model_without_optimizer_and_without_random_states(tmp_path: Path) -> None:
    torch.manual_seed(1)
    a, b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    dcp.save(eh.TrainState(model=a, rng=False).to_save(), checkpoint_id=tmp_path)
    state = eh.TrainState(model=b, rng=False)
    form = state.to_load(1)
    dcp.load(form, checkpoint_id=tmp_path)
    before = torch.get_rng_state()
    state.load_state_dict(form)
    assert torch.equal(a.weight, b.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_does_not_belong_is_refused() -> None:
    with pytest.raises(CheckpointError, match="model=None"):
        eh.TrainState(optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    with pytest.raises(CheckpointError, match="step=int"):
        eh.TrainState(step=3)  # type: ignore[arg-type]
    state = made(1)
    saved = state.to_save()
    with pytest.raises(CheckpointError, match="a checkpoint with 'ema'"):
        state.load_state_dict({k: v for k, v in saved.items() if k != "ema"})
    other = made(1, stream=eh.SampleStream(101, global_batch=4, seed=1))
    with pytest.raises(DataError, match=r"n=101.*found n=100"):
        other.load_state_dict(saved)
