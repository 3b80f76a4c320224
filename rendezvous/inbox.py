"""Events that wait together, made fewer: what a storm of them costs an agent must not grow with their number.

Law: the same facts are taken in, in the same order; only the decisions between them are left out.  Nothing that an effect of
this agent asked for (an answer, a finished check) is taken together with anything: its meaning hangs on the phase.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.store import WatchBatch

Fact = ev.StoreChanged | ev.LinkUp | ev.LinkDown | ev.PeerSaid | ev.Probed


def merged(waiting: Iterable[ev.Event]) -> list[ev.Event]:
    """Neighbouring facts as one event; of these, neighbouring batches of one watch as one batch."""
    out: list[ev.Event] = []
    run: list[Fact] = []
    for event in waiting:
        if isinstance(event, Fact):
            _add(run, event)
        else:
            out += _together(run)
            run = []
            out.append(event)
    return [*out, *_together(run)]


def _together(run: list[Fact]) -> list[ev.Event]:
    return [ev.Together(tuple(run))] if len(run) > 1 else [*run]


def _add(run: list[Fact], fact: Fact) -> None:
    last = run[-1] if run else None
    if isinstance(last, ev.StoreChanged) and isinstance(fact, ev.StoreChanged) and _follows(last, fact):
        run[-1] = _joined(last, fact)
    else:
        run.append(fact)


def _follows(first: ev.StoreChanged, then: ev.StoreChanged) -> bool:
    return (first.fleet, first.part) == (then.fleet, then.part) and not then.batch.snapshot


def _joined(first: ev.StoreChanged, then: ev.StoreChanged) -> ev.StoreChanged:
    a, b = first.batch, then.batch
    return ev.StoreChanged(WatchBatch(b.revision, (*a.events, *b.events), a.snapshot, a.kvs), first.fleet, first.part)
