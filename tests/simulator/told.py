"""What a transaction wrote, in a line for people."""

from __future__ import annotations

from elastic_health.codec import load
from elastic_health.generations import CandidateState, CheckpointRecord, CheckpointState, Generation, GenerationKind
from elastic_health.rendezvous.store import Put, Txn
from elastic_health.verdicts import Verdict
from elastic_health.windows import Window


def told(txn: Txn) -> str:
    """Generations, verdicts and checkpoints; "" for what a reader can do without."""
    parts = [_put(op) for op in txn.then if isinstance(op, Put)]
    return "; ".join(p for p in parts if p)


def _put(op: Put) -> str:
    room = op.key.split("/")[-2]
    if room == "generations":
        return _generation(load(Generation, op.value, op.key))
    if room == "verdicts":
        v = load(Verdict, op.value, op.key)
        target = f", back to {short(v.target)}" if v.kind.value == "rollback" else ""
        return f"verdict on generation {v.generation}: {v.kind.value} ({v.cause.value}){target}{_windows(v.windows)}"
    if room == "checkpoints":
        c = load(CheckpointRecord, op.value, op.key)
        after = f" after {short(c.parent)}" if c.state is CheckpointState.COMMITTED else ""
        return f"checkpoint {short(c.name)} {c.state.value}{after}"
    if room == "candidates" and f'"state":"{CandidateState.MEMBER.value}"'.encode() in op.value:
        return "member"
    return ""


def _generation(g: Generation) -> str:
    how = "in place" if g.kind is GenerationKind.IN_PLACE else "formed"
    members = ", ".join(f"{m.node}" for m in g.members)
    return f"generation {g.number} ({how}) of {members}, from {short(g.plan.checkpoint)}{_windows(g.plan.windows)}"


def _windows(windows: tuple[Window, ...]) -> str:
    return f", skipping {', '.join(f'{w.start}..{w.end}' for w in windows)}" if windows else ""


def short(name: str | None) -> str:
    """`12.g1` for `000000000012.000001`."""
    if name is None:
        return "the beginning"
    step, _, generation = name.partition(".")
    return f"{int(step)}.g{int(generation)}"
