"""`elastic-health runs delete`: takes a run's keys out of etcd, and nothing from any disk."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_health.cli.codes import Code
from elastic_health.cli.reach import NotFound, add_arguments, by_run, me, reached, utc
from elastic_health.cli.show import few, say, say_json
from elastic_health.codec import dump
from elastic_health.errors import ConfigError, RunRefused
from elastic_health.recovery.deletion import Which, check, holders, left_on_disk, needs_mark, newest_at, settle_s, transactions
from elastic_health.recovery.snapshot import snapshot
from elastic_health.rendezvous.keys import RunKeys, check_segment
from elastic_health.rendezvous.store import Compare, Delete, KeyValue, Put, Store, StoreAmbiguous, Target, Txn

_TRIES = 5
_UNITS: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True)
class Mark:
    """`runs/<run>/deleting`: while it is there, nobody joins."""


@dataclass(frozen=True)
class Outcome:
    """What became of one run.  `folders` still hold its checkpoints."""

    run: str
    deleted: bool
    keys: int = 0
    transactions: int = 0
    folders: tuple[str, ...] = ()
    why: str = ""


def add_command(runs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `runs delete`."""
    one = runs.add_parser("delete", help="remove runs that nobody works on from etcd; checkpoints on disk stay")
    one.add_argument("run", nargs="*", help="run ids; without one, every run that --finished or --older-than picks")
    one.add_argument("--finished", action="store_true", help="only runs that finished")
    one.add_argument("--older-than", default="", metavar="AGE", help="only runs last written to so long ago: 90s, 45m, 12h, 30d, 8w")
    one.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    add_arguments(one)
    one.set_defaults(do=delete)


def age_s(text: str, option: str = "--older-than") -> float:
    """`30d` in seconds; 0 for "".

    Raises:
        ConfigError: not a number and a unit.
    """
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhdw])", text)
    if found is None:
        raise ConfigError("a time such as 12h or 30d", f"{option} {text!r}", "write a number and one of s, m, h, d, w")
    return float(found[1]) * _UNITS[found[2]]


def delete(arguments: argparse.Namespace) -> Code:
    which = Which(arguments.finished, age_s(arguments.older_than))
    named: Sequence[str] = [check_segment("run id", run) for run in arguments.run]
    if not named and which == Which():
        raise ConfigError("which runs to delete", "no run id and no filter", "name a run, or write --finished or --older-than AGE")
    with reached(arguments) as (store, prefix):
        if named:
            outcomes = [_one(store, RunKeys(run, prefix), which, arguments.dry_run) for run in named]
        else:
            outcomes = [_one(store, RunKeys(run, prefix), which, arguments.dry_run) for run in by_run(store, prefix)]
    if arguments.json:
        say_json({"dry_run": arguments.dry_run, "runs": outcomes})
    else:
        say(_lines(outcomes, arguments.dry_run) or [f"no run below {prefix} is to be deleted"])
    return Code.RUN_REFUSED if named and not all(o.deleted for o in outcomes) else Code.OK


def _lines(outcomes: Sequence[Outcome], dry_run: bool) -> list[str]:
    would, lines = "would be deleted" if dry_run else "deleted", []
    for o in outcomes:
        if not o.deleted:
            lines.append(f"run {o.run} stays: {o.why}")
            continue
        lines.append(f"run {o.run} {would}: {o.keys} keys in {o.transactions} transactions")
        lines.append(f"  its checkpoints on disk are not touched: {few(o.folders) if o.folders else 'no record names any'}")
    return lines


def _one(store: Store, keys: RunKeys, which: Which, dry_run: bool) -> Outcome:
    """Mark, read again, delete; an unknown run is refused like a living one."""
    kvs = store.range(keys.root).kvs
    if not kvs:
        raise NotFound(f"expected a run below {keys.prefix}runs/; found nothing of {keys.run}; see `elastic-health runs list`")
    try:
        _check(kvs, keys, which)
    except RunRefused as e:
        return Outcome(keys.run, False, why=str(e))
    snap = snapshot(keys, kvs)
    folders = left_on_disk(snap)
    if dry_run:
        return Outcome(keys.run, True, len(kvs), len(transactions(snap, kvs)), folders)
    try:
        if needs_mark(snap):
            kvs = _marked(store, keys, settle_s(snap))
        parts = transactions(snap, kvs)
        for part in parts:
            _send(store, part)
    except RunRefused as e:
        return Outcome(keys.run, False, why=str(e))
    return Outcome(keys.run, True, sum(kv.key != keys.deleting for kv in kvs), len(parts), folders)


def _marked(store: Store, keys: RunKeys, settle: float) -> tuple[KeyValue, ...]:
    """Everything of the run, once nobody can join it any more and nobody has before that.

    Raises:
        RunRefused: somebody had; the mark is gone again.
    """
    _mark(store, keys)
    try:
        deadline = time.monotonic() + settle
        while True:
            kvs = store.range(keys.root).kvs
            _check(kvs, keys, Which())
            if time.monotonic() >= deadline:
                return kvs
            time.sleep(0.5)
    except BaseException:
        _send(store, Txn((), (Delete(keys.deleting),)))
        raise


def _check(kvs: Sequence[KeyValue], keys: RunKeys, which: Which) -> None:
    snap = snapshot(keys, kvs)
    newest = newest_at(at for key, at in snap.at.items() if key != keys.deleting)
    check(snap, holders(kvs, keys), which, None if newest is None else time.time() - newest)


def _mark(store: Store, keys: RunKeys) -> None:
    """There already: an earlier deletion was interrupted, and is taken up."""
    value = dump(Mark(), at=utc(time.time()), by=me())
    _send(store, Txn((Compare(keys.deleting, Target.CREATE, 0),), (Put(keys.deleting, value),)), there=True)


def _send(store: Store, txn: Txn, *, there: bool = False) -> None:
    """Until answered: each of these lands twice without harm.  `there`: refused means that it is done already.

    Raises:
        RunRefused: the run is not as it was read.
    """
    unanswered = there
    for left in reversed(range(_TRIES)):
        try:
            if store.txn(txn).succeeded or unanswered:
                return
            raise RunRefused("the run as it was read", "that it changed meanwhile", "look at it again and repeat the command")
        except StoreAmbiguous:
            unanswered = True
            if not left:
                raise
