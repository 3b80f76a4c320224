"""Small builders for tables: views, candidates, generations, without a store."""

from __future__ import annotations

from collections.abc import Iterable

from elastic_health.generations import (
    Candidate,
    CandidateState,
    Generation,
    GenerationKind,
    RestorePlan,
    RunSpec,
)
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.order import ranked
from elastic_health.rendezvous.view import Entry, Quarantined, View
from elastic_health.verdicts import Cause, Verdict, VerdictKind

KEYS = RunKeys("job")
SPEC = RunSpec(1, 4, "digest", "train.py")


def entry(node: str, created: int = 1, state: CandidateState = CandidateState.READY, topology: str = "", workers: int = 2) -> Entry:
    """`node` in its first incarnation, as the store holds it; `n/1` is the second incarnation of n."""
    name, _, n = node.partition("/")
    return Entry(Candidate(name, f"x-{n or 0}", state, f"{name}:1", workers, SPEC, topology=topology), created, created)


def generation(number: int, *nodes: str, spec: RunSpec = SPEC) -> Generation:
    members = ranked(entry(n, i) for i, n in enumerate(nodes))
    return Generation(number, GenerationKind.FORMED, number - 1, number, members, RestorePlan(), spec)


def verdict(number: int, kind: VerdictKind = VerdictKind.RESTART, backoff_s: float = 0.0, **about: object) -> Verdict:
    return Verdict(kind, Cause.WORKER_EXIT, number, reason="seen", backoff_s=backoff_s, **about)  # type: ignore[arg-type]


def view(entries: Iterable[Entry], last: Generation | None = None, ended: Verdict | None = None, quarantined: Iterable[str] = ()) -> View:
    return View(
        revision=100,
        candidates={e.who: e for e in entries},
        current=last.number if last else 0,
        current_mod=50 if last else 0,
        generations={last.number: last} if last else {},
        verdicts={ended.generation: ended} if ended else {},
        quarantined={n: Quarantined("bad memory") for n in quarantined},
    )
