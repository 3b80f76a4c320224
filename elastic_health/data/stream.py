"""The sample stream: a global position, counted in samples, and all that follows from it.

Law: position p is sample `permute(p % n)` of epoch `p // n`, whatever the world size; the position moves only when a
step *completes*, by exactly that step's samples and the windows that it jumps.  So along one line of committed states
each position is used exactly once, apart from windows and from what was recorded as not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elastic_health.data.permutation import grid, permute, place_of
from elastic_health.data.shares import GlobalBatch, Runs, before, check_world, total
from elastic_health.errors import DataError
from elastic_health.windows import Window, advance, normal

STATE_VERSION = 1


@dataclass(frozen=True)
class StreamSpec:
    """What a stream is made of; the numbers that a script gives.

    Attributes:
        n: samples in the data set.
        seed: of the order.
        batch: samples a step over all ranks (`per_rank` false) or for each rank (`per_rank` true).
        end: positions in the whole run, None for an endless stream.
    """

    n: int
    seed: int
    batch: int
    per_rank: bool = False
    end: int | None = None
    drop_last: bool = False

    def global_batch(self, world: int) -> int:
        """Samples of one full step.

        Raises:
            DataError: the world is larger than the global batch.
        """
        size = self.batch * world if self.per_rank else self.batch
        check_world(size, world)
        return size

    def sample(self, position: int) -> tuple[int, int]:
        """Epoch and sample index at a position."""
        epoch, place = divmod(position, self.n)
        return epoch, permute(place, self.n, self.seed, epoch)

    def position(self, epoch: int, index: int) -> int:
        """At which position sample `index` comes in `epoch`: for `runs skip` and for the search of a bad sample."""
        return epoch * self.n + place_of(index, self.n, self.seed, epoch)


def plan_step(spec: StreamSpec, windows: tuple[Window, ...], at: int, world: int) -> GlobalBatch | None:
    """The step that is due at position `at`, or None at the end of the data.

    At the end of the data a remainder of at least one sample a rank is a step of its own; a smaller one joins the step
    before it, so that no rank is left without a sample and none is read twice.  (`drop_last`: it is not used at all.)
    Only when there is no step before it, because the group grew just there, is a step smaller than the world.
    """
    size = spec.global_batch(world)
    runs, after = advance(at, size, windows)
    if spec.end is None:
        return GlobalBatch(at, runs, after)
    runs = before(runs, spec.end)
    if not runs or (spec.drop_last and total(runs) < size):
        return None
    rest = before(advance(after, world, windows)[0], spec.end)
    if 0 < total(rest) < world and not spec.drop_last:
        runs += rest
        after = spec.end
    return GlobalBatch(at, _joined(runs), min(after, spec.end))


def _joined(runs: Runs) -> Runs:
    out: list[tuple[int, int]] = []
    for start, end in runs:
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return tuple(out)


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{name} to be a whole number >= {least}", f"{name}={value!r}", f"correct {name}")
    return value


def make_spec(
    n: int,
    *,
    global_batch: int | None,
    per_rank_batch: int | None,
    seed: int,
    epochs: int | None,
    samples: int | None,
    drop_last: bool,
) -> StreamSpec:
    """Check a script's numbers.

    Raises:
        DataError: a number out of range, both or neither of the batch sizes, or both of `epochs` and `samples`.
    """
    grid(_whole("the length of the data set", n, 1))
    if (global_batch is None) == (per_rank_batch is None):
        found = "neither" if global_batch is None else "both"
        raise DataError("global_batch= or per_rank_batch=", found, "give one: it is what stays the same when the world changes")
    if epochs is not None and samples is not None:
        raise DataError("epochs= or samples=", "both", "give one")
    end = _whole("samples", samples, 1) if samples is not None else None
    if epochs is not None:
        end = _whole("epochs", epochs, 1) * n
    per_rank = global_batch is None
    batch = _whole("per_rank_batch", per_rank_batch, 1) if per_rank else _whole("global_batch", global_batch, 1)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise DataError("seed to be a whole number", f"seed={seed!r}", "correct seed")
    return StreamSpec(n, seed, batch, per_rank, end, drop_last)


class SampleStream:
    """Where a run stands in its data; the same on every rank.

    Args:
        n: samples in the data set, 1 … 2**62.
        global_batch: samples of one step over all ranks; stays the same when the number of ranks changes.
        per_rank_batch: instead, samples of one step for each rank: the global batch then changes with the world.
        seed: of the order; same seed, same order, for ever.
        epochs, samples: where the data ends (positions, windows included); neither: never.
        drop_last: at the end, leave a remainder smaller than a global batch unused.

    Raises:
        DataError: numbers that make no sense together.
    """

    def __init__(
        self,
        n: int,
        *,
        global_batch: int | None = None,
        per_rank_batch: int | None = None,
        seed: int = 0,
        epochs: int | None = None,
        samples: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.spec = make_spec(
            n,
            global_batch=global_batch,
            per_rank_batch=per_rank_batch,
            seed=seed,
            epochs=epochs,
            samples=samples,
            drop_last=drop_last,
        )
        self._position = 0
        self._windows: tuple[Window, ...] = ()
        self._not_applied: tuple[Window, ...] = ()
        self._token = 0

    @property
    def position(self) -> int:
        """Everything before it is done with: used, jumped or recorded as not applied."""
        return self._position

    @property
    def windows(self) -> tuple[Window, ...]:
        """Positions to jump, in normal form, for the whole run."""
        return self._windows

    @property
    def not_applied(self) -> tuple[Window, ...]:
        """Positions that were consumed by a step whose update was skipped (a nonfinite value), in normal form."""
        return self._not_applied

    @property
    def token(self) -> int:
        """Changes with every new plan (`place`, `load_state_dict`): batches of an older plan are stale."""
        return self._token

    def next_step(self, world: int, at: int | None = None) -> GlobalBatch | None:
        """The step due at `at` (default: now), None at the end of the data.

        Raises:
            DataError: the world is larger than the global batch.
        """
        step = plan_step(self.spec, self._windows, self._position if at is None else at, world)
        return None if step is None else replace(step, token=self._token)

    def complete(self, step: GlobalBatch, *, applied: bool = True, reason: str = "not applied") -> None:
        """The step is done: move behind it.

        Args:
            applied: false if its update was skipped on all ranks: consumed all the same, and recorded.

        Raises:
            DataError: the step is not the one that is due (out of order, done twice, or of an older plan).
        """
        if step.token != self._token or step.at != self._position:
            raise DataError(
                f"the step due at position {self._position} of plan {self._token}",
                f"one planned at position {step.at} of plan {step.token}",
                "complete each batch once, in order, and drop the batches fetched before a new plan",
            )
        if not applied:
            self._not_applied = normal((*self._not_applied, *(Window(a, b, reason) for a, b in step.runs)))
        self._position = step.after

    def place(self, position: int, windows: Iterable[Window] = ()) -> None:
        """A new plan: stand at `position` and jump `windows` too (they are added: a window once known stays)."""
        self._position = _whole("position", position, 0)
        self._windows = normal((*self._windows, *windows))
        self._not_applied = tuple(Window(w.start, min(w.end, position), w.reason) for w in self._not_applied if w.start < position)
        self._token += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values.  Batch sizes and end are for people: a later script may choose others."""
        return {
            "version": STATE_VERSION,
            "position": self._position,
            "windows": [[w.start, w.end, w.reason] for w in self._windows],
            "not_applied": [[w.start, w.end, w.reason] for w in self._not_applied],
            "n": self.spec.n,
            "seed": self.spec.seed,
            "batch": self.spec.batch,
            "per_rank": self.spec.per_rank,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` was saved.  Its windows are merged with those known already.

        Raises:
            DataError: not such a state, or one of another data set length or seed; nothing is changed then.
        """
        position, windows, not_applied = _read_state(state, self.spec)
        self._not_applied = not_applied
        self.place(position, windows)


def _read_state(state: Mapping[str, Any], spec: StreamSpec) -> tuple[int, tuple[Window, ...], tuple[Window, ...]]:
    if state.get("version") != STATE_VERSION:
        raise DataError(f"a sample stream's state, version {STATE_VERSION}", f"version {state.get('version')!r}", "load the right state")
    for name, mine in (("n", spec.n), ("seed", spec.seed)):
        if state.get(name) != mine:
            raise DataError(
                f"a state of the same data order ({name}={mine})",
                f"{name}={state.get(name)!r}",
                "positions have another meaning there: use the same data set and seed, or start a new run",
            )
    position = _whole("position", state.get("position"), 0)
    return position, _read_windows(state, "windows"), _read_windows(state, "not_applied")


def _read_windows(state: Mapping[str, Any], name: str) -> tuple[Window, ...]:
    rows = state.get(name, [])
    try:
        return normal(Window(int(start), int(end), str(reason)) for start, end, reason in rows)
    except (TypeError, ValueError) as e:
        raise DataError(f"{name} as a list of [start, end, reason]", f"{rows!r}: {e}", "load the right state") from e
