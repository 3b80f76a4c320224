"""`Checkpoints`: what a training loop calls to save and restore; all ranks call the same methods in the same order.

Laws: at most one save is in flight; a save that fails warns and changes nothing, the last committed checkpoint stays and
the next save tries again; a restore loads only what was proven, the same on all ranks.

Under an agent the plan says what to restore and the record in etcd commits.  Without one (plain python, stock torchrun)
the marker commits, the newest complete and intact folder is restored, and rank 0 keeps the newest `keep`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from elastic_health.checkpoints.agent_os import complete_folders, delete, owner_of, probe_folder, set_aside
from elastic_health.checkpoints.files_os import explained, write_durably
from elastic_health.checkpoints.group_torch import Group
from elastic_health.checkpoints.home import Home
from elastic_health.checkpoints.layout import Manifest, newest_first
from elastic_health.checkpoints.restore_torch import Restored, State, Torn, load_state, prove, to_save
from elastic_health.checkpoints.wishes_torch import Wishes
from elastic_health.checkpoints.write_torch import (
    SHARED_WAIT_S,
    CommitStep,
    Outcome,
    Place,
    check_shared,
    commit_files,
    commit_state,
    place_of,
)
from elastic_health.errors import CheckpointError, CheckpointFolderError, CheckpointUnusable
from elastic_health.generations import RestorePlan, checkpoint_name
from elastic_health.liveness.facts import Phase
from elastic_health.messages import TellUnusable

log = logging.getLogger("elastic_health.checkpoints")
END_WAIT_S = 30.0
"""After an unusable checkpoint was reported: how long to wait for the agent to end this worker."""


@contextlib.contextmanager
def _said_first(here: bool) -> Iterator[None]:
    """A mistake in the set-up is one plain sentence, `here` and once, before the interpreter prints its traceback."""
    try:
        yield
    except CheckpointFolderError as e:
        if here:
            log.error("%s", e)
        raise


def _ignore(step: CommitStep) -> None:
    del step


class Checkpoints:
    """Sharded, committed checkpoints of a training state.

    Args:
        folder: shared by all nodes; made if it is missing.
        state: has `state_dict()` and `load_state_dict()`; nested dicts of tensors and picklable values.
        every: `maybe_save` saves when the step is a multiple of it.
        keep: how many of the newest committed ones stay (under an agent: at least; a rollback may need older ones).
        mode: `sync` saves before it returns; `async` copies the state to CPU memory and commits in a background thread.
        home: the agent; usually given later by `bind`.
        observe: called at each boundary of a commit (tests, progress page).

    Raises:
        CheckpointFolderError: the folder can't be written.
        CheckpointError: an argument makes no sense.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        state: State,
        every: int = 100,
        keep: int = 3,
        mode: str = "sync",
        home: Home | None = None,
        observe: Callable[[CommitStep], None] = _ignore,
    ) -> None:
        if mode not in ("sync", "async"):
            raise CheckpointError('mode "sync" or "async"', repr(mode), "correct this argument of Checkpoints")
        if every < 1 or keep < 1:
            raise CheckpointError("every >= 1 and keep >= 1", f"every={every}, keep={keep}", "correct these arguments of Checkpoints")
        with _said_first(os.environ.get("LOCAL_RANK", "0") == "0"):
            self.folder = probe_folder(folder).path
        self.every, self.keep, self.mode = every, keep, mode
        self.last: Outcome | None = None
        """How the newest finished save ended."""
        self._state, self._home, self._observe = state, home, observe
        self._group: Group | None = None
        self._wishes: Wishes | None = None
        self._shared = False
        # Run and generation as they were at the restore: the home may know of the next one before this state is of it.
        self._writer: tuple[str, int] | None = None
        self._parent: str | None = None
        self._saved: tuple[int, int] | None = None
        self._in_flight: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._stager: DefaultStager | None = None

    def bind(self, home: Home | None) -> None:
        """Set the agent that later calls speak to; None: there is none."""
        self._home, self._writer = home, None

    # ---- restoring
    def restore(self, plan: RestorePlan | None = None) -> Restored:
        """Bring the state to where the plan says.  Collective.  Call it before the first step and after each new plan.

        A checkpoint that `commit_folder` committed is proven but not loaded: load it from `Restored.folder`.

        Raises:
            CheckpointUnusable: the plan's checkpoint is torn; the agent was told and restarts one further back.
            CheckpointFolderError: the folder is not shared.
            CheckpointError: the state does not fit, or nothing is usable.
        """
        self._wait()
        self._writer = (self._home.run, self._home.generation) if self._home else None
        with self._phase(Phase.INIT):
            group = self._ready()
            if self._wishes is not None:
                self._wishes.begin()
            restored = self._restore_planned(group, plan) if self._home else self._restore_newest(group, plan)
        self._saved = None
        return restored

    def _restore_planned(self, group: Group, plan: RestorePlan | None) -> Restored:
        plan = plan or RestorePlan()
        self._parent = plan.checkpoint
        if plan.checkpoint is None:
            group.gather(None)
            return Restored(0, plan.position)
        folder = self._locate(plan.path)
        try:
            manifest = self._load(group, folder, plan.manifest)
        except Torn as e:
            self._report(group, plan.checkpoint, e)
            raise CheckpointUnusable(e.expected, e.found, "nothing: the group restarts from the checkpoint before it") from e
        return Restored(manifest.step, manifest.position, folder)

    def _locate(self, path: str) -> Path:
        """The record's path; or the same folder here, should the whole checkpoint folder have moved."""
        folder, here = Path(path), self.folder / Path(path).name
        return here if not folder.is_dir() and here.is_dir() else folder

    def _report(self, group: Group, name: str, error: Torn) -> None:
        # Rank 0 tells before any rank ends, so that the verdict speaks of the checkpoint and not of a worker's exit.
        if group.rank == 0 and self._home is not None:
            log.error("checkpoint %s is unusable: %s", name, error.found)
            self._home.unusable(TellUnusable(name, error.found))
        group.gather(None)
        threading.Event().wait(END_WAIT_S)

    def _restore_newest(self, group: Group, plan: RestorePlan | None) -> Restored:
        """Without an agent: the newest complete and intact one; torn ones are set aside."""
        names = list(group.first(lambda: complete_folders(self.folder)))
        folders = [self.folder / n for n in names]
        if plan is not None and plan.path:
            folders.insert(0, self._locate(plan.path))
        for folder in folders:
            try:
                manifest = self._load(group, folder, "")
            except Torn as e:
                aside = group.first(lambda f=folder: set_aside(f))  # type: ignore[misc]
                self._warn(group, "checkpoint %s is torn (%s): set aside as %s, the one before it is used", folder.name, e.found, aside)
                continue
            self._parent = checkpoint_name(manifest.step, manifest.generation)
            return Restored(manifest.step, manifest.position, folder)
        if folders:
            found = f"{len(folders)} in {self.folder}, all torn and set aside"
            raise CheckpointError("one usable checkpoint", found, "look at the *.torn-* folders; started again, it begins anew")
        self._parent = None
        return Restored(0, plan.position if plan else 0)

    def _load(self, group: Group, folder: Path, sha256: str) -> Manifest:
        manifest = prove(group, folder, sha256)
        if manifest.form == "dcp":
            load_state(group, folder, self._state, manifest.world)
        return manifest

    # ---- saving
    def maybe_save(self, step: int, position: int) -> bool:
        """Save if `step` is a multiple of `every`, or if `wished`.  Arguments and answer as `save`."""
        wished = self.wished(step)
        return self.save(step, position) if wished or (step > 0 and step % self.every == 0) else False

    def wished(self, step: int) -> bool:
        """Should all ranks save after `step`, since a node is to leave?  The same answer on all ranks, True once a wish.

        Collective.  For loops that save in their own way: call it after each step, and `commit_folder` when it is true.
        """
        return self._wishes.wished(step) if self._wishes is not None else False

    def save(self, step: int, position: int) -> bool:
        """Save the state as it is now.  Collective.

        Args:
            step: completed steps.
            position: global sample position after them.

        Returns:
            `sync`: whether it is committed; False with `last.waits` while the store can't be reached (the commit is made
            when it is back).  `async`: True, the save has begun; `last` tells later how it ended.  False for a step
            already saved.

        Raises:
            CheckpointError: only for a folder that is not shared between the nodes; all else warns.
        """
        self._wait()
        place = self._place(step, position)
        if self._saved == (place.generation, step):
            return False
        with self._phase(Phase.CHECKPOINT):
            group = self._ready()
            if self.mode == "sync":
                self._finished(group, place, commit_state(group, self._home, place, to_save(self._state), self._observe))
                return self.last is not None and self.last.committed
            self._begin(group, place, self._snapshot())
            return True

    def commit_folder(self, folder: str | os.PathLike[str], step: int, position: int) -> bool:
        """Commit a folder whose files you wrote yourself, in any format.  Collective; every rank has written its part.

        The folder must lie on storage that all nodes share, and hold this checkpoint only.  The answer is as `save`'s,
        always synchronous.
        """
        self._wait()
        path = Path(os.path.abspath(folder))
        run, generation = self._whose()
        with self._phase(Phase.CHECKPOINT):
            group = self._ready()
            place = Place(path, run, generation, step, position, self._parent, "files", self.keep)
            self._finished(group, place, commit_files(group, self._home, place, self._observe))
        return self.last is not None and self.last.committed

    def finish(self) -> Outcome | None:
        """Wait for a save in flight; returns how the newest one ended.  Call it before the process ends."""
        self._wait()
        if self._stager is not None:
            self._stager.close()
            self._stager = None
        return self.last

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.finish()

    # ---- inside
    def _place(self, step: int, position: int) -> Place:
        run, generation = self._whose()
        return place_of(self.folder, run, generation, step, position, self._parent, self.keep)

    def _whose(self) -> tuple[str, int]:
        if self._home is not None and self._writer is None:
            self._writer = (self._home.run, self._home.generation)
        return self._writer or ("", 0)

    def _phase(self, phase: Phase) -> AbstractContextManager[None]:
        return self._home.phase(phase) if self._home else contextlib.nullcontext()

    def _ready(self) -> Group:
        """The group, made at first use; and once, the proof that all nodes share the folder, before work is at stake."""
        if self._group is None:
            self._group = Group()
            # A background thread may be using that one.
            talk = Group() if self.mode == "async" and self._home else self._group
            self._wishes = Wishes(self._home, talk) if self._home else None
            # A process that ends with open gloo groups aborts now and then (SIGABRT after all work was done).
            weakref.finalize(self, _release, (self._group, talk), self._in_flight)
        if not self._shared:
            group, trial = self._group, f".shared-{secrets.token_hex(8)}"
            path = self.folder / group.first(lambda: trial)
            try:
                group.first(lambda: _put(path))
                with _said_first(group.rank == 0):
                    check_shared(group, path, b"shared", SHARED_WAIT_S)
                group.gather(None)
            finally:
                if group.rank == 0:
                    path.unlink(missing_ok=True)
            self._shared = True
        return self._group

    def _begin(self, group: Group, place: Place, state: dict[str, Any]) -> None:
        home = self._home

        def run() -> None:
            try:
                self._finished(group, place, commit_state(group, home, place, state, self._observe))
            except BaseException as e:  # whatever it is, the main thread raises it at its next call
                self._error = e

        # A daemon: a worker that fails must not wait at exit for peers that are gone; `finish` waits when all is well.
        thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._in_flight.append(thread)
        thread.start()

    def _wait(self) -> None:
        if self._in_flight:
            with self._phase(Phase.CHECKPOINT):
                self._in_flight[0].join()
            self._in_flight.clear()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _finished(self, group: Group, place: Place, outcome: Outcome) -> None:
        self.last = outcome
        if outcome.committed or outcome.waits:
            self._parent = place.name
            if self._home is None and group.rank == 0:
                self._retain(place)
            if outcome.waits:
                self._warn(group, "checkpoint of step %d waits to be committed: etcd does not answer; training goes on", place.step)
        else:
            kept = f"{self._parent} stays the newest" if self._parent else "there is none before it"
            self._warn(group, "checkpoint of step %d not committed (%s); training goes on: %s", place.step, outcome.reason, kept)
        if outcome.committed or outcome.waits or not outcome.known:
            # A lost answer: the record may have landed.  The same step is not written again.
            self._saved = (place.generation, place.step)

    def _retain(self, place: Place) -> None:
        """Without an agent: keep the newest `keep`, and remove what interrupted saves before them left."""
        try:
            with explained(self.folder):
                done = complete_folders(self.folder)
                older = [n for n in newest_first(os.listdir(self.folder)) if n < place.folder.name and owner_of(self.folder / n) == ""]
            for name in older:
                if name not in done[: self.keep]:
                    delete(self.folder / name)
        except CheckpointError as e:
            log.warning("old checkpoints stay: %s", e)

    def _snapshot(self) -> dict[str, Any]:
        """A copy in CPU memory that training can't change any more (torch's stager; sharded tensors stay sharded)."""
        if self._stager is None:
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=torch.cuda.is_available(),
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            )
        # The stager keeps its buffers: free to be written again, since the save that used them has ended.
        staged = self._stager.stage(to_save(self._state))
        assert isinstance(staged, dict)  # a future only with async staging
        return staged

    @staticmethod
    def _warn(group: Group, message: str, *args: object) -> None:
        if group.rank == 0:
            log.warning(message, *args)


def _release(groups: tuple[Group, ...], in_flight: list[threading.Thread]) -> None:
    if not any(t.is_alive() for t in in_flight):  # closing a group under a collective may wait for dead peers
        for group in groups:
            group.close()


def _put(path: Path) -> None:
    write_durably(path, b"shared")

