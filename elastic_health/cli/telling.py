"""`records`, `why` and `status`: what happened, why, and how it stands."""

from __future__ import annotations

import argparse
import queue
import sys
import time

from elastic_health.cli.codes import Code
from elastic_health.cli.reach import add_arguments, reached, read_run, run_keys
from elastic_health.cli.show import few, say, say_json, table, when
from elastic_health.cli.told import as_lines, as_object
from elastic_health.recovery.snapshot import RunSnapshot, RunState
from elastic_health.recovery.story import headline, story
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Store, WatchBatch

_ENDS = (RunState.FINISHED, RunState.CAPPED, RunState.STOPPED)
_CLEAR = "\x1b[2J\x1b[H"


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `records`, `why` and `status`."""
    one = commands.add_parser("records", help="every automatic action of a run, oldest first")
    one.add_argument("run")
    one.add_argument("--last", type=int, default=0, metavar="N", help="only the newest N")
    add_arguments(one)
    one.set_defaults(do=records)
    one = commands.add_parser("why", help="the story of a run: each generation, how it ended, who was named, what was done")
    one.add_argument("run")
    add_arguments(one)
    one.set_defaults(do=why)
    one = commands.add_parser("status", help="how a run stands now")
    one.add_argument("run")
    one.add_argument("--watch", action="store_true", help="again at each change, until the run ends")
    one.add_argument("--every", type=float, default=1.0, metavar="S", help="with --watch: at most once in so many seconds")
    add_arguments(one)
    one.set_defaults(do=status)


def records(arguments: argparse.Namespace) -> Code:
    with reached(arguments) as (store, prefix):
        snap = read_run(store, run_keys(arguments, prefix))
    found = snap.records[-arguments.last :] if arguments.last > 0 else snap.records
    if arguments.json:
        say_json({"run": snap.keys.run, "records": found, "unreadable": snap.unreadable})
        return Code.OK
    head = ("when", "gen", "action", "cause", "step", "ranks", "nodes", "decision")
    rows = [
        (when(r.at), r.generation, r.action if r.done else f"({r.action})", r.cause, r.step, few(r.ranks), few(r.nodes), r.decision)
        for r in found
    ]
    say(table(head, rows) if rows else [f"no records of run {snap.keys.run}"])
    say(f"could not be read: {text}" for text in snap.unreadable)
    return Code.OK


def why(arguments: argparse.Namespace) -> Code:
    with reached(arguments) as (store, prefix):
        snap = read_run(store, run_keys(arguments, prefix))
    if arguments.json:
        generations = [{"generation": g, "verdict": snap.verdicts.get(n)} for n, g in sorted(snap.generations.items())]
        say_json({**as_object(snap), "generations": generations, "records": snap.records, "story": story(snap)})
    else:
        say(story(snap))
    return Code.OK


def status(arguments: argparse.Namespace) -> Code:
    with reached(arguments) as (store, prefix):
        keys = run_keys(arguments, prefix)
        snap = read_run(store, keys)
        if not arguments.watch:
            say_json(as_object(snap)) if arguments.json else say(as_lines(snap))
        else:
            _watch(store, keys, snap, arguments)
    return Code.OK


def _watch(store: Store, keys: RunKeys, snap: RunSnapshot, arguments: argparse.Namespace) -> None:
    """Print now, and again after changes, until the run ends.  On a pipe: a line whenever the headline changes."""
    changed: queue.Queue[None] = queue.Queue(maxsize=1)

    def on_batch(_: WatchBatch) -> None:
        try:
            changed.put_nowait(None)
        except queue.Full:
            pass  # one note is enough: the whole state is read again

    revision = max(snap.mods.values(), default=0)
    watch = store.watch(keys.root, revision + 1, on_batch)
    shown = ""
    try:
        while True:
            shown = _print(snap, shown, arguments)
            if snap.state in _ENDS:
                return
            changed.get()
            _pause(changed, arguments.every)
            snap = read_run(store, keys)
    finally:
        watch.close()


def _pause(changed: queue.Queue[None], every_s: float) -> None:
    """Let a burst of changes pass, and drop the note that it leaves: everything is read after this."""
    time.sleep(max(0.0, every_s))
    try:
        changed.get_nowait()
    except queue.Empty:
        pass


def _print(snap: RunSnapshot, shown: str, arguments: argparse.Namespace) -> str:
    if arguments.json:
        say_json(as_object(snap), line=True)
    elif sys.stdout.isatty():
        sys.stdout.write(_CLEAR)
        say(as_lines(snap))
    elif headline(snap) != shown:
        say([headline(snap)])
    return headline(snap)
