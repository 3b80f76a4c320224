"""What a check is: its specification, when it runs, and the one interface that every kind of check has.

Laws:
 - a check is a function (specification, context, cancel) -> `CheckResult`; it has no other way to speak;
 - at one stage a name stands for one check; checks of one lane never run at the same time, all others may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar

from elastic_health.errors import ConfigError
from elastic_health.preflight.results import CheckResult

T = TypeVar("T")


class Stage(Enum):
    """When a node is checked.

    `join`: an agent that is new to the run, or a node that was blamed.  `restart`: an unblamed node that comes back after
    the group was restarted; checks of seconds only.  `after_repair`: the first admission after a repair.
    """

    JOIN = "join"
    RESTART = "restart"
    AFTER_REPAIR = "after_repair"


class Kind(Enum):
    """Of a check: who measures."""

    HOST = "host"
    DCGM = "dcgm"
    BANDWIDTH = "bandwidth"
    PAIR = "pair"
    CANARY = "canary"
    OWN = "own"
    ENTRY = "entry"


class Unmeasured(Enum):
    """What it means for the node that a check could not measure."""

    ADMIT = "admit"
    REFUSE = "refuse"


GPU_LANE = "gpu"
"""Checks that load the GPUs disturb each other's figures, and DCGM refuses GPUs that are in use: one after another."""


@dataclass(frozen=True)
class CheckSpec:
    """One check as it shall run.

    Attributes:
        name: as the table and the record spell it.
        stages: at which it runs.
        required: a check that is skipped (no such tool on this machine) refuses the node.
        when_not_measured: whether a check that ran and could not measure refuses the node.
        time_limit_s: its own limit; at it, everything that it started is ended.
        lane: checks of one lane run one after another, in order; "" for a check that disturbs no other.
        parameters: of its kind, plain values (JSON-ready).
    """

    name: str
    kind: Kind
    stages: frozenset[Stage]
    required: bool = False
    when_not_measured: Unmeasured = Unmeasured.ADMIT
    time_limit_s: float = 60.0
    lane: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What a check may know of where it runs.

    Attributes:
        node: this node's name, as quarantine spells it.
        node_type: the name under which baselines of like nodes are kept.
        workers: how many workers the node will run.
    """

    stage: Stage
    node: str
    run: str = ""
    node_type: str = ""
    workers: int = 0


class Cancel(Protocol):
    """An order to stop: `fileno()` becomes readable when it is given."""

    def fileno(self) -> int: ...

    def is_set(self) -> bool: ...


Runner = Callable[[CheckSpec, Context, Cancel], CheckResult]
"""Runs one check.  It may block for the specification's limit and raise what it likes: the gate tells that as `not_measured`."""
Registry = Mapping[Kind, Runner]
"""Who runs which kind of check."""


def stage_of(*, new: bool, blamed: bool, repaired: bool) -> Stage:
    """The stage of a node that asks to be let in.

    Args:
        new: its agent process has not been a member of this run before.
        blamed: its own device, network card or host was named for the last fault.
        repaired: it was repaired since it was last admitted.
    """
    if repaired:
        return Stage.AFTER_REPAIR
    return Stage.JOIN if new or blamed else Stage.RESTART


def due(specs: Iterable[CheckSpec], stage: Stage) -> tuple[CheckSpec, ...]:
    """The checks of a stage, in their order.

    Raises:
        ConfigError: two of them have one name.
    """
    found = tuple(spec for spec in specs if stage in spec.stages)
    names = [spec.name for spec in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"one check of a name at stage {stage.value}", f"several named {', '.join(twice)}", "name them apart")
    return found


def lanes(specs: Iterable[CheckSpec]) -> tuple[tuple[CheckSpec, ...], ...]:
    """Groups that may run side by side; the checks within a group run one after another."""
    alone: list[tuple[CheckSpec, ...]] = []
    shared: dict[str, tuple[CheckSpec, ...]] = {}
    for spec in specs:
        if spec.lane:
            shared[spec.lane] = (*shared.get(spec.lane, ()), spec)
        else:
            alone.append((spec,))
    return (*alone, *shared.values())


def parameter(spec: CheckSpec, name: str, kind: type[T], default: T) -> T:
    """A parameter of the right type, `default` where it is not said (an int does where a float is asked for).

    Raises:
        ConfigError: it has another type.
    """
    value = spec.parameters.get(name, default)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return type(default)(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"check {spec.name}: {name} as {kind.__name__}", f"{type(value).__name__}", "correct it in the YAML")
    return value


def words(spec: CheckSpec, name: str) -> tuple[str, ...]:
    """A parameter that is a list of words, () where it is not said.

    Raises:
        ConfigError: it is none.
    """
    value = spec.parameters.get(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"check {spec.name}: {name} as a list of words", repr(value)[:80], "correct it in the YAML")
    return tuple(value)
