"""`elastic-health quarantine`: list, show, add, release.  Equal to `etcdctl get/put/del` on the same keys."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from elastic_health.cli.codes import Code
from elastic_health.cli.deleting import age_s
from elastic_health.cli.reach import NotFound, add_arguments, me, reached, utc
from elastic_health.cli.show import few, say, say_json, table, when
from elastic_health.codec import dump, plain, shown
from elastic_health.errors import ConfigError
from elastic_health.rendezvous import quarantine as q
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.store import Store, StoreAmbiguous, StoreError

_TRIES = 5


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `quarantine …`."""
    what = "nodes, GPUs, NICs and routes that are kept out of every run"
    room = commands.add_parser("quarantine", help=what).add_subparsers(required=True, metavar="COMMAND")
    one = room.add_parser("list", help="everything in quarantine, and apart from it what has expired")
    add_arguments(one)
    one.set_defaults(do=list_all)
    one = _named(room, "show", "one entry, with all that it says")
    one.set_defaults(do=show)
    one = _named(room, "add", "put something into quarantine, or replace what its entry says")
    one.add_argument("--reason", required=True)
    one.add_argument("--signature", default="", help="what it failed by, where that has a name")
    one.add_argument("--incident", action="append", default=[], metavar="ID", help="an incident that led to it; may be given again")
    end = one.add_mutually_exclusive_group()
    end.add_argument("--for", dest="lasting", default="", metavar="TIME", help="it ends by itself after 90s, 45m, 12h, 30d, 8w")
    end.add_argument("--until", default="", metavar="TIME", help="it ends by itself at 2030-01-31T12:00:00Z (UTC where no zone is said)")
    one.set_defaults(do=add)
    one = _named(room, "release", "take something out of quarantine")
    one.set_defaults(do=release)


def _named(room: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str) -> argparse.ArgumentParser:
    one = room.add_parser(name, help=what)
    one.add_argument("node", nargs="?", help="a node's name")
    one.add_argument("--gpu", metavar="UUID", help="instead: a GPU")
    one.add_argument("--nic", metavar="NODE/NIC", help="instead: a network card of a node")
    one.add_argument("--route", metavar="NODE+NODE", help="instead: the route between two nodes")
    add_arguments(one)
    return one


def resource(arguments: argparse.Namespace) -> q.Resource:
    """What the command names.

    Raises:
        ConfigError: nothing, several things, or a name that can't stand in a key.
    """
    given = [w for w in ("node", "gpu", "nic", "route") if getattr(arguments, w) is not None]
    if len(given) != 1:
        found = "none of them" if not given else " and ".join(given)
        raise ConfigError("one of NODE, --gpu UUID, --nic NODE/NIC, --route NODE+NODE", found, "name one thing")
    text: str = getattr(arguments, given[0])
    if given[0] == "node":
        return q.node(text)
    if given[0] == "gpu":
        return q.gpu(text)
    sign, form = ("/", "--nic NODE/NIC") if given[0] == "nic" else ("+", "--route NODE+NODE")
    first, between, second = text.partition(sign)
    if not between:
        raise ConfigError(form, repr(text), f"put {sign} between the two names")
    return q.nic(first, second) if given[0] == "nic" else q.route(first, second)


def end_of(lasting: str, until: str, now: float) -> float:
    """Epoch second at which an entry made now ends; 0: never by itself.

    Raises:
        ConfigError: not a time, or one that is over.
    """
    if lasting:
        seconds = age_s(lasting, "--for")
        if not seconds or not math.isfinite(now + seconds) or not when(now + seconds):
            raise ConfigError("a time above 0 that a calendar has", f"--for {lasting!r}", "write e.g. --for 12h, or leave it out")
        return now + seconds
    if not until:
        return 0.0
    try:
        at = datetime.fromisoformat(until.removesuffix("Z") + ("+00:00" if until.endswith("Z") else ""))
        end = (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError) as e:
        raise ConfigError("a time such as 2030-01-31T12:00:00Z", f"--until {until!r}", "correct it") from e
    if end <= now:
        raise ConfigError("a time to come", f"--until {until!r}, while it is {utc(now)}", "correct it, or leave it out")
    return end


# ---- commands
def list_all(arguments: argparse.Namespace) -> Code:
    now = time.time()
    with reached(arguments) as (store, prefix):
        keys = FleetKeys(prefix)
        entries, strays = _read(store, keys)
    holding = q.active(entries, now)
    expired = [e for e in entries if not e.holds(now)]
    if arguments.json:
        lists = {"quarantine": holding, "expired": expired}
        say_json({**{name: [_object(e, now) for e in some] for name, some in lists.items()}, "strays": list(strays)})
        return Code.OK
    say(_rows(holding) if holding else [f"nothing is in quarantine below {keys.quarantine}"])
    if expired:
        say(["", "expired, and without effect:", *_rows(expired)])
    say(f"means nothing: {shown(key, 160)}" for key in strays)
    return Code.OK


def show(arguments: argparse.Namespace) -> Code:
    what, now = resource(arguments), time.time()
    with reached(arguments) as (store, prefix):
        found = _found(store, FleetKeys(prefix), what)
    if arguments.json:
        say_json({"entries": [_object(e, now) for e in found]})
    else:
        say(line for e in found for line in _lines(e, now))
    return Code.OK


def add(arguments: argparse.Namespace) -> Code:
    what, now = resource(arguments), time.time()
    until = end_of(arguments.lasting, arguments.until, now)
    said = q.Quarantine(arguments.reason, arguments.signature, tuple(arguments.incident), now, until)
    value = dump(said, at=utc(now), by=me())
    with reached(arguments) as (store, prefix):
        keys = FleetKeys(prefix)
        before = _put(store, keys, what, value)
    if arguments.json:
        say_json(
            {
                "kind": what.kind.value,
                "name": what.name,
                "key": what.key(keys),
                "until": until,
                "replaced": [_object(e, now) for e in before],
            }
        )
        return Code.OK
    end = f"until {when(until)}" if until else "until it is released"
    say([f"{what} is in quarantine {end} ({what.key(keys)})", *(f"  replaced: {_story(e, now)}" for e in before)])
    return Code.OK


def release(arguments: argparse.Namespace) -> Code:
    what, now = resource(arguments), time.time()
    with reached(arguments) as (store, prefix):
        found = _found(store, FleetKeys(prefix), what)
        _delete(store, found)
    if arguments.json:
        say_json({"kind": what.kind.value, "name": what.name, "released": [_object(e, now) for e in found]})
    else:
        say([f"{what} is released", *(f"  was: {_story(e, now)}" for e in found)])
    return Code.OK


# ---- the store
def _read(store: Store, keys: FleetKeys) -> tuple[tuple[q.Entry, ...], tuple[str, ...]]:
    return q.read(store.range(keys.quarantine).kvs, keys)


def _found(store: Store, keys: FleetKeys, what: q.Resource) -> tuple[q.Entry, ...]:
    """Its entries.

    Raises:
        NotFound: there is none.
    """
    found = q.of(_read(store, keys)[0], what)
    if not found:
        raise NotFound(f"expected {what} in quarantine; found no key {what.key(keys)}; see `elastic-health quarantine list`")
    return found


def _put(store: Store, keys: FleetKeys, what: q.Resource, value: bytes) -> tuple[q.Entry, ...]:
    """Write it over whatever is there; returns what was.

    Raises:
        StoreError: it kept changing, or the store did not answer.
    """
    key = what.key(keys)
    before = q.of(_read(store, keys)[0], what)
    for _ in range(_TRIES):
        try:
            if store.txn(q.put(before, key, value)).succeeded:
                return before
        except StoreAmbiguous:
            pass  # sent again: refused, if it has landed
        kv = store.get(key)
        if kv is not None and kv.value == value:
            return before
        before = q.of(_read(store, keys)[0], what)
    raise _changes(what)


def _delete(store: Store, found: Sequence[q.Entry]) -> None:
    """Delete these, as they were read.

    Raises:
        StoreError: they were changed meanwhile, or the store did not answer.
    """
    unanswered = False
    for left in reversed(range(_TRIES)):
        try:
            done = store.txn(q.release(found))
        except StoreAmbiguous:
            unanswered = True
            if not left:
                raise
            continue
        if done.succeeded or (unanswered and not any(read.kvs for read in done.reads)):
            return
        raise _changes(found[0].resource)


def _changes(what: q.Resource) -> StoreError:
    return StoreError(f"the entry of {what} as it was read", "that it changed meanwhile", "look at it again and repeat the command")


# ---- telling
def _object(e: q.Entry, now: float) -> dict[str, Any]:
    """For `--json`: always these fields."""
    said: dict[str, Any] = plain(e.said)
    said["since"], said["until"] = _number(e.said.since), _number(e.said.until)
    head = {"kind": e.resource.kind.value, "name": e.resource.name, "key": e.key, "holds": e.holds(now)}
    return {**head, **said, "by": e.stamps.by, "at": e.stamps.at, "note": e.note}


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _rows(entries: Sequence[q.Entry]) -> list[str]:
    rows = [(e.resource.kind.value, shown(e.resource.name), _until(e), shown(_by(e)), _reason(e)) for e in entries]
    return table(("kind", "name", "until", "by", "reason"), rows)


def _until(e: q.Entry) -> str:
    return when(e.said.until) or "released"


def _by(e: q.Entry) -> str:
    return e.stamps.by + (" (by policy)" if e.said.automatic else "")


def _reason(e: q.Entry) -> str:
    signature = f" [{shown(e.said.signature)}]" if e.said.signature else ""
    incidents = f" (incidents {shown(few(e.said.incidents))})" if e.said.incidents else ""
    return f"{shown(e.said.reason, 160)}{signature}{incidents}{' (unreadable in part: see `quarantine show`)' if e.note else ''}"


def _story(e: q.Entry, now: float) -> str:
    """Who put it there, when and why, in one line."""
    since = when(e.said.since) or e.stamps.at
    return (
        f"{_reason(e) or 'no reason given'}; by {shown(_by(e)) or 'nobody who said so'}{f', {shown(since)}' if since else ''}; "
        f"{'until' if e.holds(now) else 'expired at'} {_until(e)}"
    )


def _lines(e: q.Entry, now: float) -> list[str]:
    fields = (
        ("key", e.key),
        ("reason", e.said.reason),
        ("signature", e.said.signature),
        ("incidents", ", ".join(e.said.incidents)),
        ("since", when(e.said.since) or e.stamps.at),
        ("until", _until(e) if e.holds(now) else f"{_until(e)} (expired, and without effect)"),
        ("by", _by(e)),
        ("note", e.note),
    )
    return [f"{e.resource}", *(f"  {name}: {shown(text, 320)}" for name, text in fields if text)]
