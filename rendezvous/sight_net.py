"""What an agent hears of the store: the first reads, the watches, and the change from hearing little to hearing all.

Law: whatever is read is posted as `StoreChanged`; each part of the run is told in order, and all that is decided together
(`current`, generations, verdicts, checkpoints) is one part, so that no one sees a verdict before the commits that came
first.  Nothing is decided here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.store import Store, StoreError, Watch, WatchBatch, WatchEvent
from elastic_health.rendezvous.view import Part

log = logging.getLogger("elastic_health")
_AGAIN_S = 0.5


class Sight:
    """The watches of one agent on one run; `post` takes events from any thread."""

    def __init__(self, store: Store, keys: RunKeys, post: Callable[[ev.Event], None]) -> None:
        self._store, self._keys, self._post = store, keys, post
        self._watches: list[Watch] = []
        self._fleet: Watch | None = None
        self._closed = threading.Event()
        self._changing = threading.Lock()

    def open(self, timeout_s: float | None = None) -> None:
        """Read the run without its candidates, and the quarantine, each for `timeout_s` at most; then watch.

        Raises:
            StoreError: the first read failed.
        """
        quarantine = FleetKeys(self._keys.prefix).quarantine
        found = self._store.range(quarantine, timeout_s=timeout_s)
        self._post(ev.StoreChanged(WatchBatch(found.revision, (), True, found.kvs), True))
        self._fleet = self._store.watch(quarantine, found.revision + 1, lambda batch: self._post(ev.StoreChanged(batch, True)))
        # What this run was started with, while it has no generation.
        some = self._store.range(self._keys.candidates, limit=1, timeout_s=timeout_s)
        self._post(ev.StoreChanged(WatchBatch(some.revision, tuple(WatchEvent(False, kv) for kv in some.kvs)), part=Part.GONE))
        self._watches.append(self._store.watch(self._keys.candidates, some.revision + 1, self._on_batch(Part.GONE), deletions=True))
        self._read_and_watch(self._keys.budget, Part.BUDGET, timeout_s=timeout_s)
        self._read_and_watch(self._keys.root, Part.REST, after=self._keys.candidates, timeout_s=timeout_s)

    def attend(self) -> None:
        """Hear of all from now on; returns when that is so, or after `close`."""
        with self._changing:
            for watch in self._watches:  # first: what is read then must not be followed by something older
                watch.close()
            self._watches.clear()
            while not self._closed.is_set():
                try:
                    return self._read_and_watch(self._keys.root, Part.ALL)
                except StoreError as e:
                    log.info("the candidates can't be read yet: %s", e)
                    self._closed.wait(_AGAIN_S)

    def _read_and_watch(self, prefix: str, part: Part, after: str = "", timeout_s: float | None = None) -> None:
        found = self._store.range(prefix, after=after, timeout_s=timeout_s)
        self._post(ev.StoreChanged(WatchBatch(found.revision, (), True, found.kvs), part=part))
        self._watches.append(self._store.watch(prefix, found.revision + 1, self._on_batch(part), after=after))

    def _on_batch(self, part: Part) -> Callable[[WatchBatch], None]:
        return lambda batch: self._post(ev.StoreChanged(batch, part=part))

    def close(self) -> None:
        """Stop watching; the session stays open."""
        self._closed.set()
        with self._changing:
            for watch in (*self._watches, *((self._fleet,) if self._fleet else ())):
                watch.close()
            self._watches.clear()
