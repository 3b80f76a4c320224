"""elastic-health: a torchrun plugin.  The worker API, loaded by name on first use (importing this costs nothing).

    run = elastic_health.init()
    stream = elastic_health.SampleStream(len(dataset), global_batch=64, seed=7, epochs=1)
    loader = elastic_health.Loader(dataset, stream, num_workers=2)
    state = elastic_health.TrainState(model=model, optimizer=optimizer, stream=stream)
    checkpoints = elastic_health.Checkpoints("ckpt", state, every=100)
    for step, batch in run.steps(loader, checkpoints):
        loss = model(batch.data) * batch.weight
        ...

The same script runs under this plugin, under stock torchrun, and by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_health._version import __version__

if TYPE_CHECKING:
    from elastic_health.checkpoints.checkpoints_torch import Checkpoints
    from elastic_health.data.loader_torch import Batch, Loader
    from elastic_health.data.sampler_torch import Sampler
    from elastic_health.data.stream import SampleStream
    from elastic_health.run_torch import Run, init
    from elastic_health.state_torch import TrainState
    from elastic_health.windows import Window

_HOMES: Mapping[str, str] = {
    "Batch": "elastic_health.data.loader_torch",
    "Checkpoints": "elastic_health.checkpoints.checkpoints_torch",
    "Loader": "elastic_health.data.loader_torch",
    "Run": "elastic_health.run_torch",
    "SampleStream": "elastic_health.data.stream",
    "Sampler": "elastic_health.data.sampler_torch",
    "TrainState": "elastic_health.state_torch",
    "Window": "elastic_health.windows",
    "init": "elastic_health.run_torch",
}

__all__ = ["Batch", "Checkpoints", "Loader", "Run", "SampleStream", "Sampler", "TrainState", "Window", "__version__", "init"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'elastic_health' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
