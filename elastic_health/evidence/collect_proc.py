"""Collects evidence about this node's workers before anything is torn down, and writes it into the incident's folder.

Law: it ends within its time limit whatever the workers and the disk do, raises nothing, and changes nothing in a worker:
no signal, no debugger stop.  Each item comes by a thread of its own with the time it took; what is late is noted as
late.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_health.evidence import layout
from elastic_health.evidence.kernel_proc import kernel_facts, state_letter
from elastic_health.evidence.layout import Item, ItemStatus, RankEvidence
from elastic_health.evidence.server_net import ServerAnswer, ServerTrouble, ask

log = logging.getLogger("elastic_health.evidence")

WRITE_SHARE = 0.2
"""The part of the time limit that is kept for writing."""
TRIES = 2


@dataclass(frozen=True)
class Target:
    """One local worker.

    Attributes:
        server: path of its worker server's socket, "" if it has none.
        page: facts of its progress page, JSON-ready.
        stderr_tail: the end of what it wrote, as the caller has it.
    """

    rank: int
    local_rank: int
    pid: int
    server: str = ""
    page: Mapping[str, Any] = field(default_factory=dict)
    stderr_tail: str = ""


@dataclass(frozen=True)
class _Ask:
    """What a source needs to know."""

    target: Target
    deadline: float
    stacks: bool

    @property
    def left_s(self) -> float:
        return max(0.01, self.deadline - time.monotonic())


class _Board:
    """Where the threads leave what they found; what comes after the end is dropped."""

    def __init__(self, missing: int) -> None:
        self._lock = threading.Lock()
        self._items: dict[tuple[int, str], Item] = {}
        self._missing, self.complete = missing, threading.Event()
        if not missing:
            self.complete.set()

    def put(self, rank: int, item: Item) -> None:
        with self._lock:
            self._items[rank, item.name] = item
            if len(self._items) == self._missing:
                self.complete.set()

    def take(self) -> dict[tuple[int, str], Item]:
        with self._lock:
            return dict(self._items)


def collect(
    targets: tuple[Target, ...], folder: str, *, incident: str, node: str, time_limit_s: float = 2.0, stacks: bool = True
) -> dict[str, Any]:
    """Collect and write; blocks for at most `time_limit_s` (and a few hundredths).

    Args:
        targets: this node's workers, living or dead.
        folder: evidence folder; the files go to `<folder>/<incident>/node-<node>/rank-<r>.json`.
        stacks: whether Python stacks are taken.

    Returns:
        A small JSON-ready summary for the record (see `layout.summary`): per rank the state of each item, the main
        thread's innermost frames, each process group's newest operation.
    """
    began, began_at = time.monotonic(), time.time()
    deadline = began + time_limit_s * (1 - WRITE_SHARE)
    board = _Board(len(targets) * len(_SOURCES))
    for target in targets:
        for name in _SOURCES:
            _in_background(_gather, board, name, _Ask(target, deadline, stacks))
    board.complete.wait(max(0.0, deadline - time.monotonic()))
    found, took_s = board.take(), time.monotonic() - began
    evidence = tuple(_evidence_of(t, found, began_at, took_s) for t in targets)
    written, note = _write_in_time(evidence, folder, incident, node, began + time_limit_s)
    took_s = time.monotonic() - began
    return layout.summary(evidence, incident=incident, node=node, folder=folder, took_s=took_s, written=written, note=note)


def _in_background(work: Callable[..., None], *args: object) -> None:
    threading.Thread(target=work, args=args, name="eh-evidence", daemon=True).start()


def _gather(board: _Board, name: str, about: _Ask) -> None:
    board.put(about.target.rank, _run(name, about))


def _run(name: str, about: _Ask) -> Item:
    began, at = time.monotonic(), time.time()
    try:
        item = _SOURCES[name](about)
    except Exception as e:  # evidence must never end an agent: the fault becomes the item, and is logged
        log.exception("collecting %s of rank %d failed", name, about.target.rank)
        item = Item(name, ItemStatus.FAILED, at, note=f"{type(e).__name__}: {e}")
    return layout.timed(item, time.monotonic() - began)


def _evidence_of(target: Target, found: Mapping[tuple[int, str], Item], at: float, took_s: float) -> RankEvidence:
    items = [found.get((target.rank, name)) or layout.late(name, at, took_s) for name in _SOURCES]
    tail = target.stderr_tail[-layout.MAX_TEXT_BYTES :]
    items.append(Item("page", ItemStatus.OK if target.page else ItemStatus.MISSING, at, data=dict(target.page)))
    items.append(Item("stderr", ItemStatus.OK if tail else ItemStatus.MISSING, at, data=tail))
    return RankEvidence(target.rank, target.local_rank, target.pid, tuple(items))


# ---- sources
def _kernel(about: _Ask) -> Item:
    at, facts = time.time(), kernel_facts(about.target.pid)
    return Item("kernel", ItemStatus.OK if facts else ItemStatus.MISSING, at, note="" if facts else "process gone", data=facts)


def _flight_recorder(about: _Ask) -> Item:
    """Only the groups' newest operations are kept as data; the whole trace goes to the file as it came."""
    name, at = "flight_recorder", time.time()
    answer = _ask_server(about, "fr_trace_json", layout.MAX_TRACE_BYTES)
    if answer.trouble is not None:
        return Item(name, _status_of(answer), at, note=answer.note)
    groups, why = layout.read_trace(answer.body)
    if why:
        return Item(name, ItemStatus.FAILED, at, note=why)
    return Item(name, ItemStatus.OK, at, data=groups, raw=answer.body)


def _python_stacks(about: _Ask) -> Item:
    """py-spy reads the process's memory without stopping it; where it can't, the worker's own server is asked."""
    name, at = "python_stacks", time.time()
    if not about.stacks:
        return Item(name, ItemStatus.SKIPPED, at, note="switched off")
    why = "no py-spy on the path"
    spy = _py_spy()
    for _ in range(TRIES if spy else 0):  # read while it runs, a stack may not hang together; the next look mostly does
        said, why = _run_bounded([str(spy), "dump", "--pid", str(about.target.pid), "--nonblocking", "--json"], about.left_s)
        threads, bad = layout.read_stacks(said) if not why else ([], why)
        if threads and not bad:
            return Item(name, ItemStatus.OK, at, note="py-spy, not stopped for it", data=threads)
        why = bad or "no threads"
    answer = _ask_server(about, "dump_traceback", layout.MAX_TEXT_BYTES)
    if answer.trouble is not None:
        return Item(name, _status_of(answer), at, note=f"py-spy: {why}; worker server: {answer.note}")
    return Item(name, ItemStatus.OK, at, note=f"worker server (py-spy: {why})", data=answer.body.decode("utf-8", "replace"))


_SOURCES: Mapping[str, Callable[[_Ask], Item]] = {
    "flight_recorder": _flight_recorder,
    "python_stacks": _python_stacks,
    "kernel": _kernel,
}


def _ask_server(about: _Ask, handler: str, max_bytes: int) -> ServerAnswer:
    letter = state_letter(about.target.pid)
    if not about.target.server or letter in ("", "Z", "X"):
        return ServerAnswer(trouble=ServerTrouble.ABSENT, note="no worker server" if letter else "process gone")
    if letter in "Tt":
        return ServerAnswer(trouble=ServerTrouble.SILENT, note="the process is stopped")
    return ask(about.target.server, handler, timeout_s=about.left_s, max_bytes=max_bytes)


def _status_of(answer: ServerAnswer) -> ItemStatus:
    if answer.trouble is ServerTrouble.ABSENT:
        return ItemStatus.MISSING
    if answer.trouble is ServerTrouble.SILENT:
        return ItemStatus.SKIPPED if "stopped" in answer.note else ItemStatus.TIMED_OUT
    return ItemStatus.FAILED


def _py_spy() -> str | None:
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)


def _run_bounded(command: list[str], time_limit_s: float, max_bytes: int = 4 * 1024 * 1024) -> tuple[bytes, str]:
    """Run a program; returns its output and why it can't be used ("" if it can)."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as e:
        return b"", e.strerror or str(e)
    try:
        said = _read_until(process, time.monotonic() + time_limit_s, max_bytes)
        if said is None:
            return b"", f"no end within {time_limit_s:.2g} s or {max_bytes} bytes"
        code = process.wait(1.0)
        return said, "" if code == 0 else said.decode("utf-8", "replace").strip()[-200:] or f"status {code}"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _read_until(process: subprocess.Popen[bytes], deadline: float, max_bytes: int) -> bytes | None:
    assert process.stdout is not None
    said = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(said) <= max_bytes and (left_s := deadline - time.monotonic()) > 0:
            if selector.select(left_s):
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    return bytes(said)
                said += piece
    return None


# ---- files
def _write_in_time(evidence: tuple[RankEvidence, ...], folder: str, incident: str, node: str, deadline: float) -> tuple[bool, str]:
    """Write from a thread: a folder on a dead file server must not hold up the teardown."""
    if not folder:
        return False, "no evidence folder"
    result: list[str] = []
    done = threading.Event()

    def work() -> None:
        try:
            _write(evidence, folder, incident, node)
            result.append("")
        except OSError as e:
            result.append(f"{e.strerror or e}: {e.filename}" if e.filename else str(e))
        finally:
            done.set()

    _in_background(work)
    if not done.wait(max(0.05, deadline - time.monotonic())):
        return False, "writing took too long"
    why = result[0] if result else "writing failed"
    if why:
        log.warning("evidence of incident %s was not written: %s", incident, why)
    return not why, why


def _write(evidence: tuple[RankEvidence, ...], folder: str, incident: str, node: str) -> None:
    target = layout.node_folder(folder, incident, node)
    os.makedirs(target, mode=0o750, exist_ok=True)
    for one in evidence:
        path = os.path.join(target, layout.rank_file(one.rank))
        with open(f"{path}.new", "wb") as f:
            f.write(layout.rank_document(one, incident=incident, node=node))
        os.replace(f"{path}.new", path)
