"""May this agent take part in this run at all?  Pure; the answer is an exit status and one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_health.codec import shown
from elastic_health.exits import ExitStatus
from elastic_health.generations import RunSpec
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.state import State
from elastic_health.rendezvous.view import View
from elastic_health.verdicts import Verdict, VerdictKind

RESUMABLE = frozenset({ExitStatus.WORKERS_FAILED, ExitStatus.BAD_CONFIG, ExitStatus.STOPPED})


@dataclass(frozen=True)
class Refusal:
    status: ExitStatus
    text: str


def ended(view: View) -> Refusal | None:
    """The run's own end, for one who was part of it or waited for it."""
    return end_of(view.verdict)


def end_of(v: Verdict | None) -> Refusal | None:
    """What a final verdict means for everyone; None for any other."""
    if v is not None and v.kind is VerdictKind.FINISH:
        return Refusal(ExitStatus.OK, v.reason or "training finished on all nodes")
    if v is not None and v.kind is VerdictKind.ABORT:
        return Refusal(ExitStatus(v.exit_status or ExitStatus.CAPPED), f"the run was stopped: {v.reason}")
    return None


def stopped(s: State) -> Refusal | None:
    """The group was stopped while this agent was there, or waited: it leaves, and the run goes on when it is started again."""
    for v in (s.ended, s.view.verdict):
        if v is not None and v.kind is VerdictKind.STOP and v.generation > s.found_ended:
            return Refusal(ExitStatus(v.exit_status or ExitStatus.STOPPED), f"the run was stopped: {v.reason}")
    return None


def calls_a_person(v: Verdict | None) -> bool:
    """An end that nobody asked for."""
    return v is not None and v.kind is VerdictKind.ABORT and v.exit_status != ExitStatus.STOPPED


def resumable(view: View) -> bool:
    """Did the run end in a way after which the same command simply goes on with it, its budget as it was?

    A finished run is over; where a person must look (a cap, no usable checkpoint), that person reopens it.
    """
    v = view.verdict
    return v is not None and v.kind is VerdictKind.ABORT and v.exit_status in RESUMABLE


def refuse(view: View, node: str, spec: RunSpec, wall: float) -> Refusal | None:
    """For one who wants to join: expected, found, what to do."""
    barred = view.barred(node, wall)
    if barred is not None:
        return Refusal(
            ExitStatus.QUARANTINED,
            f"expected a node that is not in quarantine; found {node} in quarantine ({barred.reason or 'no reason given'}); "
            f"release it with `elastic-health quarantine release {node}` or by deleting its key",
        )
    over = ended(view)
    if over is not None and not resumable(view):
        how = "finished" if over.status is ExitStatus.OK else "ended"
        return Refusal(
            ExitStatus.RUN_REFUSED,
            f"expected a run id that is new or still going; found one that has {how}: {over.text}; "
            "choose another --rdzv-id, or reopen this one with `elastic-health runs reopen`",
        )
    return _other_run(view, spec)


def _other_run(view: View, spec: RunSpec) -> Refusal | None:
    generation = view.generation
    known = (
        [generation.spec] if generation else [e.candidate.spec for e in sorted(view.candidates.values(), key=lambda e: e.create_revision)]
    )
    if not known:
        return None
    first = known[0]
    if (first.min_nodes, first.max_nodes) != (spec.min_nodes, spec.max_nodes):
        return Refusal(
            ExitStatus.RUN_REFUSED,
            f"expected --nnodes={first.min_nodes}:{first.max_nodes} as this run id was started with; "
            f"found --nnodes={spec.min_nodes}:{spec.max_nodes}; use the same, or another --rdzv-id",
        )
    if first.script and spec.script and first.script != spec.script:
        return Refusal(
            ExitStatus.RUN_REFUSED,
            f"expected the script `{first.script_name}` as this run id was started with; found `{spec.script_name}`; "
            "start the same script with the same arguments, or use another --rdzv-id",
        )
    return None


def unusable(view: View, keys: RunKeys, *, forming: bool = False) -> Refusal | None:
    """What etcd holds of this run can't be gone on with: somebody else wrote there, or it is being deleted.

    Args:
        forming: also look at what the next generation would be made from.
    """
    if view.deleting:
        text = f"expected a run id that is free; found run {keys.run} being deleted ({keys.deleting}); "
        return Refusal(ExitStatus.RUN_REFUSED, f"{text}start again once it is gone, or `elastic-health runs delete {keys.run}` once more")
    needed = {keys.current, keys.generation(view.current), keys.verdict(view.current)} | ({keys.budget} if forming else set())
    bad = sorted(k for k in view.unreadable if k in needed or (forming and k.startswith(keys.checkpoints)))
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return Refusal(ExitStatus.RUN_REFUSED, f"{view.unreadable[bad[0]]}{more}")
    newest = max(view.generations, default=0)
    if view.current != newest:
        return Refusal(
            ExitStatus.RUN_REFUSED,
            f"expected {keys.current} to name the newest of the run's generations, {newest}; found {shown(str(view.current or 'none'))}; "
            "put back what is missing there, or delete the run with `elastic-health runs delete`",
        )
    return None


def torn_fence(view: View, keys: RunKeys, generation: int, token: int) -> str:
    """Why generation `generation`, which no readable verdict and no newer generation has ended, is over all the same.

    Agents write `current` only together with a newer generation, and a verdict only once.  Returns "" if it isn't over.
    """
    if keys.verdict(generation) in view.unreadable:
        return view.unreadable[keys.verdict(generation)]
    if view.current_mod != token:
        why = view.unreadable.get(keys.current) or f"expected {keys.current} as generation {generation} began with; found it rewritten"
        return f"{why}; nothing of generation {generation} can be committed any more"
    return ""
