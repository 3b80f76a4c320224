"""All that a run must get back to go on as if nothing had happened, as one state for torch.distributed.checkpoint.

Law: what is large and sharded (model, optimizer, extras) stays tensors, so that it can be loaded on another number of
ranks; what is small goes in as one packed value each (`scheduler`, `stream`).  `state_dict` is the same on all ranks and
loads at any world size.  `to_save` adds what belongs to one rank alone, its random states, under its rank
(`rng.rank-3`); `to_load(world)` asks for them only from a checkpoint of the same world.
"""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from elastic_health.data.stream import SampleStream
from elastic_health.errors import CheckpointError


class Stateful(Protocol):
    """Anything with the usual pair."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


OWN_KEYS = frozenset({"model", "optimizer", "stateless", "scheduler", "stream", "rng"})


class TrainState:
    """The state of a training run.

    Args:
        model: a module, wrapped by DDP or FSDP or not (its names in the checkpoint are those of the bare module).
        optimizer: one, or several, over the model's parameters.
        scheduler: one, or several.
        stream: the data position.
        rng: keep the generators of Python, torch, CUDA and numpy (if loaded), each rank its own.
        extra: anything else with `state_dict`/`load_state_dict`, by name (`scaler=scaler`, `ema=averaged_model`).

    Raises:
        CheckpointError: an extra without that pair, or an optimizer without a model.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        scheduler: Stateful | Iterable[Stateful] | None = None,
        stream: SampleStream | None = None,
        rng: bool = True,
        **extra: Stateful,
    ) -> None:
        self.model, self.stream, self.rng, self.extra = model, stream, rng, extra
        self.optimizers = _several(optimizer, torch.optim.Optimizer)
        self.schedulers: tuple[Stateful, ...] = _several(scheduler, object)
        if self.optimizers and model is None:
            raise CheckpointError("the model whose parameters the optimizer updates", "model=None", "pass model= too")
        for name, part in extra.items():
            if name in OWN_KEYS or not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                found = f"{name}={type(part).__name__}"
                raise CheckpointError("an object with state_dict and load_state_dict", found, "wrap it in one")

    def state_dict(self) -> dict[str, Any]:
        """All but random states: to save, or as a form to load into, at any world size."""
        state: dict[str, Any] = {}
        if self.model is not None and self.optimizers:
            state["model"], state["optimizer"] = get_state_dict(self.model, self.optimizers)
            state["stateless"] = json.dumps(_fill(state["optimizer"], state["model"]))
        elif self.model is not None:
            state["model"] = get_model_state_dict(self.model)
        if self.schedulers:
            state["scheduler"] = _pack([s.state_dict() for s in self.schedulers])
        if self.stream is not None:
            state["stream"] = json.dumps(self.stream.state_dict())
        for name, part in self.extra.items():
            state[name] = part.state_dict()
        return state

    def to_save(self) -> dict[str, Any]:
        """A state to save, this rank's random states included."""
        state = self.state_dict()
        if self.rng:
            state["rng"] = {_rank_key(): _pack(generators())}
        return state

    def to_load(self, world: int) -> dict[str, Any]:
        """A form to load a checkpoint into that `world` ranks wrote with `to_save`."""
        return self.to_save() if world == _world() else self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a loaded state.

        Without random states for this rank torch, Python and numpy are seeded anew from this rank's
        own `torch.initial_seed()` and the data position: ranks that were seeded alike stay alike, and nothing that was
        drawn before is drawn again.

        Raises:
            CheckpointError: a part is missing.
            DataError: the stream's state is of another data set or seed.
        """
        self._load_weights(state)
        if self.schedulers:
            for scheduler, saved in zip(self.schedulers, _unpack(_part(state, "scheduler")), strict=True):
                scheduler.load_state_dict(saved)
        if self.stream is not None:
            self.stream.load_state_dict(json.loads(_part(state, "stream")))
        for name, part in self.extra.items():
            part.load_state_dict(_part(state, name))
        if self.rng:
            mine = state.get("rng", {}).get(_rank_key())
            if mine is not None:
                set_generators(_unpack(mine))
            else:
                _seed_anew(0 if self.stream is None else self.stream.position)

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        if self.model is None:
            return
        set_model_state_dict(self.model, _part(state, "model"))
        if self.optimizers:
            optimizer, without = dict(_part(state, "optimizer")), frozenset(json.loads(_part(state, "stateless")))
            optimizer["state"] = {name: kept for name, kept in optimizer["state"].items() if name not in without}
            options = StateDictOptions(strict=not without)
            set_optimizer_state_dict(self.model, self.optimizers, optim_state_dict=optimizer, options=options)


def _fill(optimizer: dict[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Give parameters that never had a gradient, and so have no optimizer state, zeros in the shape of such a state.

    Without them a fresh optimizer's form, in which every parameter has a state, would ask for what was never saved.
    The names are saved too; on loading their zeros are dropped again.
    """
    filled = []
    for group in optimizer["param_groups"]:
        like = next((name for name in group["params"] if name in optimizer["state"]), None)
        if like is None:
            continue
        for name in group["params"]:
            if name not in optimizer["state"] and name in model and model[name].is_floating_point():
                optimizer["state"][name] = _zeros(optimizer["state"][like], model[like], model[name])
                filled.append(name)
    return filled


def _zeros(state: Mapping[str, Any], its: torch.Tensor, mine: torch.Tensor) -> dict[str, Any]:
    def zero(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.zeros_like(mine, dtype=value.dtype) if value.shape == its.shape else torch.zeros_like(value)

    return {key: zero(value) for key, value in state.items()}


def generators() -> dict[str, Any]:
    """The states of this process's random number generators."""
    out: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        out["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        out["cuda"] = torch.cuda.get_rng_state()
    return out


def set_generators(saved: Mapping[str, Any]) -> None:
    """Put them back, those that both the saved and this process have."""
    random.setstate(saved["python"])
    torch.set_rng_state(saved["torch"])
    if "numpy" in saved and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(saved["numpy"])
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])


def _seed_anew(position: int) -> None:
    text = f"{torch.initial_seed()}/{position}".encode()
    seed = int.from_bytes(blake2b(text, person=b"eh seed anew 1", digest_size=8).digest(), "little") >> 1
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _several(given: Any, one: type) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) or not isinstance(given, one) else (given,)


def _part(state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        found = f"only {', '.join(sorted(state))}"
        raise CheckpointError(f"a checkpoint with {name!r}", found, "load one that this script's TrainState wrote")
    return state[name]


def _rank_key() -> str:
    return f"rank-{dist.get_rank() if dist.is_available() and dist.is_initialized() else 0}"


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _pack(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(raw: bytes) -> Any:
    # Generator states are tuples and numpy arrays, which the restricted unpickler refuses.  The bytes come from a
    # checkpoint whose manifest was verified before anything in it was opened.
    return torch.load(io.BytesIO(raw), weights_only=False)
