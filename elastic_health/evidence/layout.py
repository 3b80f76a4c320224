"""The form of evidence: what one item is, where an incident's files lie, and the small summary that goes into the record.

    <folder>/<incident>/node-<node>/rank-<r>.json

Law: what a worker says is untrusted.  It is JSON of bounded size and never anything that runs when read; nothing in it
chooses a path; a figure that is not what it should be is left out, not guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

VERSION = 1
MAX_TRACE_BYTES = 16 * 1024 * 1024
MAX_TEXT_BYTES = 256 * 1024
MAX_THREADS, MAX_FRAMES, MAX_GROUPS = 256, 200, 64
SUMMARY_FRAMES = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9._@:+-]")


class ItemStatus(Enum):
    """`missing`: there is no source (no socket, no py-spy, process gone); `skipped`: asking could only wait in vain."""

    OK = "ok"
    MISSING = "missing"
    SKIPPED = "skipped"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


@dataclass(frozen=True)
class Item:
    """One piece of evidence about one worker.

    Attributes:
        at: seconds since the epoch when it was asked for; `took_s` how long the answer took.
        note: why there is none, or how it was come by.
        data: JSON-ready; `raw`: JSON text to be kept as it came instead, checked to be JSON.
    """

    name: str
    status: ItemStatus
    at: float
    took_s: float = 0.0
    note: str = ""
    data: Any = None
    raw: bytes = b""


@dataclass(frozen=True)
class RankEvidence:
    """All items of one worker."""

    rank: int
    local_rank: int
    pid: int
    items: tuple[Item, ...]

    def item(self, name: str) -> Item | None:
        return next((i for i in self.items if i.name == name), None)


def safe_name(name: str) -> str:
    """`name` as one path segment: nothing that a path gives a meaning to, at most 200 characters."""
    cleaned = _UNSAFE.sub("_", name)[:200]
    return f"_{cleaned}" if not cleaned or cleaned.startswith(".") else cleaned


def incident_folder(folder: str, incident: str) -> str:
    return f"{folder.rstrip('/')}/{safe_name(incident)}"


def node_folder(folder: str, incident: str, node: str) -> str:
    return f"{incident_folder(folder, incident)}/node-{safe_name(node)}"


def rank_file(rank: int) -> str:
    return f"rank-{rank}.json"


def rank_document(evidence: RankEvidence, *, incident: str, node: str) -> bytes:
    """The file of one rank.  Raw JSON is put in as it came: encoding a megabyte again would hold up the agent."""
    head = {"v": VERSION, "incident": incident, "node": node, "rank": evidence.rank, "local_rank": evidence.local_rank, "pid": evidence.pid}
    items = b",".join(_item_text(i) for i in evidence.items)
    return _text(head)[:-1] + b',"items":{' + items + b"}}\n"


def _item_text(item: Item) -> bytes:
    body = {"status": item.status.value, "at": item.at, "took_s": round(item.took_s, 4), "note": item.note}
    data = item.raw or _text(item.data)
    return _text(item.name) + b":" + _text(body)[:-1] + b',"data":' + data + b"}"


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=str).encode("utf-8", "replace")


def summary(
    evidence: Iterable[RankEvidence], *, incident: str, node: str, folder: str, took_s: float, written: bool, note: str
) -> dict[str, Any]:
    """What goes into the record: JSON-ready and small, whatever the workers said.

    `folder` is where the files are, or would have been.
    """
    ranks = {str(e.rank): _rank_summary(e) for e in sorted(evidence, key=lambda e: e.rank)}
    about = {"incident": incident, "node": node, "folder": node_folder(folder, incident, node)}
    return {**about, "took_s": round(took_s, 3), "written": written, "note": note, "ranks": ranks}


def _rank_summary(evidence: RankEvidence) -> dict[str, Any]:
    items = {i.name: i.status.value if not i.note else f"{i.status.value}: {i.note[:200]}" for i in evidence.items}
    out: dict[str, Any] = {"pid": evidence.pid, "items": items}
    stacks, kernel = evidence.item("python_stacks"), evidence.item("kernel")
    if stacks is not None and stacks.status is ItemStatus.OK:
        out["main_stack"] = main_stack(stacks.data)
    if kernel is not None and isinstance(kernel.data, Mapping):
        out["state"], out["wchan"] = kernel.data.get("state", ""), kernel.data.get("wchan", "")
    trace = evidence.item("flight_recorder")
    if trace is not None and isinstance(trace.data, list):
        out["groups"] = trace.data
    return out


# ---- what programs answer, made plain
def read_trace(body: bytes) -> tuple[list[dict[str, Any]], str]:
    """Check a flight recorder's JSON; returns its groups' newest operations and why it can't be used ("" if it can)."""
    if len(body) > MAX_TRACE_BYTES:
        return [], f"longer than {MAX_TRACE_BYTES} bytes"
    try:
        trace = json.loads(body)
    except (ValueError, RecursionError) as e:
        return [], f"no JSON: {type(e).__name__}"
    if not isinstance(trace, dict):
        return [], "no JSON object"
    return groups_of(trace), ""


def groups_of(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each process group's newest operation: `group`, `enqueued`, `completed` (-1 unknown), `op`.

    Groups are named by the keys of `pg_status`, as on a progress page; the numbers there are text.
    """
    status = trace.get("pg_status")
    if not isinstance(status, Mapping):
        return []
    newest = _newest_entries(trace.get("entries"))
    out = []
    for key, told in list(status.items())[:MAX_GROUPS]:
        if isinstance(told, Mapping):
            done, begun = (_number(told.get(f"last_{what}_collective")) for what in ("completed", "enqueued"))
            out.append({"group": str(key)[:80], "enqueued": begun, "completed": done, "op": newest.get(key, "")})
    return out


def _newest_entries(entries: Any) -> dict[str, str]:
    """Group -> operation of its last entry (they come in order of launching)."""
    newest: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping):
            names = entry.get("process_group")
            name = names[0] if isinstance(names, list) and names else entry.get("pg_id")
            newest[str(name)] = str(entry.get("profiling_name", ""))[:80]
    return newest


def _number(value: Any) -> int:
    try:
        return int(value) if isinstance(value, str | int) and len(str(value)) < 20 else -1
    except ValueError:
        return -1


def read_stacks(body: bytes) -> tuple[list[dict[str, Any]], str]:
    """Threads of `py-spy dump --json`, shortened: `thread`, `tid`, `gil`, `frames` as `file:line function`, innermost first."""
    try:
        threads = json.loads(body)
    except (ValueError, RecursionError) as e:
        return [], f"no JSON: {type(e).__name__}"
    if not isinstance(threads, list):
        return [], "no list of threads"
    return [_thread(t) for t in threads[:MAX_THREADS] if isinstance(t, Mapping)], ""


def _thread(thread: Mapping[str, Any]) -> dict[str, Any]:
    frames = thread.get("frames")
    lines = [_frame(f) for f in (frames if isinstance(frames, list) else [])[:MAX_FRAMES] if isinstance(f, Mapping)]
    name = str(thread.get("thread_name") or "")[:80]
    return {"thread": name, "tid": _number(thread.get("os_thread_id")), "gil": thread.get("owns_gil") is True, "frames": lines}


def _frame(frame: Mapping[str, Any]) -> str:
    return f"{frame.get('short_filename') or frame.get('filename')}:{frame.get('line')} {frame.get('name')}"[:300]


def main_stack(stacks: Any) -> list[str]:
    """The main thread's innermost frames, whichever way the stacks were come by."""
    if isinstance(stacks, str):
        lines = [line.strip() for line in stacks.splitlines()]
        return _last_thread(lines)[:SUMMARY_FRAMES]
    threads = [t for t in stacks if isinstance(t, Mapping)] if isinstance(stacks, list) else []
    main = next((t for t in threads if t.get("thread") == "MainThread"), None)
    return [str(f)[:160] for f in main["frames"][:SUMMARY_FRAMES]] if main else []


def _last_thread(lines: list[str]) -> list[str]:
    """faulthandler lists the main thread last; its frames are `File "…", line n in f`."""
    starts = [i for i, line in enumerate(lines) if line.startswith(("Thread 0x", "Current thread 0x"))]
    return [line[:160] for line in lines[starts[-1] + 1 :] if line.startswith("File ")] if starts else []


def late(name: str, at: float, took_s: float) -> Item:
    """What stands for an item that did not come in time."""
    return Item(name, ItemStatus.TIMED_OUT, at, took_s, "no answer in time")


def timed(item: Item, took_s: float) -> Item:
    return replace(item, took_s=took_s)
