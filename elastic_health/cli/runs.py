"""`elastic-health runs`: list, show, skip, reopen (and, in `deleting`, delete)."""

from __future__ import annotations

import argparse
import os
import time

from elastic_health.cli import deleting
from elastic_health.cli.codes import Code
from elastic_health.cli.reach import NotFound, add_arguments, by_run, me, reached, read_run, run_keys, utc
from elastic_health.cli.show import say, say_json, table
from elastic_health.cli.told import as_lines, as_object
from elastic_health.codec import dump
from elastic_health.errors import RunRefused
from elastic_health.ids import RANDOM_BYTES, ulid
from elastic_health.recovery.reopen import Who, reopen
from elastic_health.recovery.skips import covers
from elastic_health.recovery.snapshot import RunSnapshot, snapshot
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Compare, Put, Store, StoreAmbiguous, Target, Txn
from elastic_health.windows import Window

_TRIES = 5


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `runs …`."""
    runs = commands.add_parser("runs", help="list, show, reopen, delete runs, skip data").add_subparsers(required=True, metavar="COMMAND")
    one = runs.add_parser("list", help="every run below the prefix")
    add_arguments(one)
    one.set_defaults(do=list_runs)
    one = runs.add_parser("show", help="one run: members, progress, budget")
    one.add_argument("run")
    add_arguments(one)
    one.set_defaults(do=show)
    one = runs.add_parser("skip", help="leave out positions [START, END) of the data; the next formation jumps them")
    one.add_argument("run")
    one.add_argument("start", type=int)
    one.add_argument("end", type=int)
    one.add_argument("--reason", required=True)
    one.add_argument("--new", action="store_true", help="record it though nothing is known of the run yet")
    add_arguments(one)
    one.set_defaults(do=skip)
    one = runs.add_parser("reopen", help="let a run that was stopped or capped go on, its restarts forgiven")
    one.add_argument("run")
    one.add_argument("--reason", default="")
    add_arguments(one)
    one.set_defaults(do=reopen_run)
    deleting.add_command(runs)


def list_runs(arguments: argparse.Namespace) -> Code:
    with reached(arguments) as (store, prefix):
        snaps = [snapshot(RunKeys(run, prefix), kvs) for run, kvs in by_run(store, prefix).items()]
    if arguments.json:
        say_json({"runs": [_in_short(s) for s in snaps]})
    elif not snaps:
        say([f"no runs below {prefix}"])
    else:
        rows = [tuple("" if v is None else v for v in _in_short(s).values()) for s in snaps]
        say(table(("run", "state", "generation", "nodes", "checkpoint step", "restarts", "rollbacks"), rows))
    return Code.OK


def _in_short(snap: RunSnapshot) -> dict[str, object]:
    g, newest = snap.generation, snap.newest_committed
    return {
        "run": snap.keys.run,
        "state": snap.state.value,
        "generation": snap.current,
        "nodes": len(g.members) if g else 0,
        "checkpoint_step": newest.step if newest else None,
        "restarts": snap.budget.restarts,
        "rollbacks": snap.budget.rollbacks,
    }


def show(arguments: argparse.Namespace) -> Code:
    with reached(arguments) as (store, prefix):
        snap = read_run(store, run_keys(arguments, prefix))
    say_json(as_object(snap)) if arguments.json else say(as_lines(snap))
    return Code.OK


def skip(arguments: argparse.Namespace) -> Code:
    """Idempotent: a window that a recorded one already covers is not recorded again."""
    window = Window(arguments.start, arguments.end, arguments.reason)
    with reached(arguments) as (store, prefix):
        keys = run_keys(arguments, prefix)
        if not arguments.new and not store.range(keys.root).kvs:
            raise NotFound(f"expected a run below {keys.prefix}runs/; found nothing of {keys.run}; write --new to record it all the same")
        there = covers(store.range(keys.skips).kvs, window.start, window.end)
        key = there or keys.skip(new_id())
        if there is None:
            _create(store, key, dump(window, at=utc(time.time()), by=me()))
    if arguments.json:
        say_json({"key": key, "start": window.start, "end": window.end, "recorded": there is None})
    else:
        done = "recorded already" if there else "recorded; the next formation jumps it"
        say([f"positions [{window.start}, {window.end}) of run {arguments.run}: {done} ({key})"])
    return Code.OK


def reopen_run(arguments: argparse.Namespace) -> Code:
    now = time.time()
    with reached(arguments) as (store, prefix):
        snap = read_run(store, run_keys(arguments, prefix))
        txn, record = reopen(snap, new_id(), Who(me(), utc(now), now, arguments.reason))
        _send(store, txn, snap.keys.record(record.id))
    if arguments.json:
        say_json({"run": snap.keys.run, "reopened": True, "record": record.id})
    else:
        say([f"run {snap.keys.run} is open again; start torchrun as before ({record.decision})"])
    return Code.OK


def _create(store: Store, key: str, value: bytes) -> None:
    _send(store, Txn((Compare(key, Target.CREATE, 0),), (Put(key, value),)), key)


def _send(store: Store, txn: Txn, proof: str) -> None:
    """Send until answered; `proof` is a key with a fresh id that only this transaction creates."""
    unanswered = False
    for left in reversed(range(_TRIES)):
        try:
            done = store.txn(txn).succeeded
        except StoreAmbiguous:
            unanswered = True
            if not left:
                raise
            continue
        if done or (unanswered and store.get(proof) is not None):
            return
        raise RunRefused("the run as it was read", "that it changed meanwhile", "look at it again and repeat the command")


def new_id() -> str:
    return ulid(time.time(), os.urandom(RANDOM_BYTES))
