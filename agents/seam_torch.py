"""The one place where torch is changed: the launcher's agent class becomes a factory.

torch has no hook for the agent: `torch.distributed.launcher.api.launch_agent` builds `LocalElasticAgent` by its global
name *after* it has created the rendezvous handler.  The handler's creator calls `install`, which rebinds that name: our
agent for our handler, the stock one for any other.  A signature check makes a torch that differs fail loudly.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from elastic_health.errors import ConfigError

_NEEDED = ("spec", "logs_specs")


def install() -> None:
    """Rebind `LocalElasticAgent` in torch's launcher; safe to call again.

    Raises:
        ConfigError: this torch builds its agent in another way.
    """
    api: Any = importlib.import_module("torch.distributed.launcher.api")
    stock: Any = getattr(api, "LocalElasticAgent", None)
    if getattr(stock, "elastic_health_factory", False):
        return
    parameters = inspect.signature(stock).parameters if isinstance(stock, type) else {}
    if any(name not in parameters for name in _NEEDED) or "LocalElasticAgent(" not in inspect.getsource(api.launch_agent):
        import torch

        raise ConfigError(
            "a torch whose launcher builds LocalElasticAgent(spec, logs_specs, …)",
            f"torch {torch.__version__}, which does not",
            "use a torch version listed in the README, or --rdzv-backend=c10d",
        )
    api.LocalElasticAgent = _factory(stock)


def _factory(stock: Any) -> Any:
    """A callable that stands where the class stood; passes every keyword on."""

    def make_agent(spec: Any, *args: Any, **kwargs: Any) -> Any:
        from elastic_health.rendezvous.handler_torch import HealthyHandler

        if not isinstance(spec.rdzv_handler, HealthyHandler):
            return stock(spec, *args, **kwargs)
        from elastic_health.agents.agent_torch import HealthyAgent

        return HealthyAgent(spec, *args, **kwargs)

    make_agent.elastic_health_factory = True  # type: ignore[attr-defined]
    make_agent.stock = stock  # type: ignore[attr-defined]
    return make_agent
