"""The numerical canary (P4): which digest of a fixed matmul is the right one, and who differs from it.

The same matmul with the same inputs, on units of one model under one set of library versions, gives the same bytes.
Nobody knows the right bytes beforehand, so the fleet learns them by votes.

Laws:
 - a node has one vote, however many devices it has, and a device has one, on whatever nodes it was seen;
 - fewer than `LEAST_NODES` nodes, or no strict majority of them, is `not_measured` and never enforced;
 - a digest is learned from the votes of *other* nodes only: the check of a node never writes what it is judged by, and
   one bad unit is never two of them;
 - another fingerprint (after an upgrade) begins with no votes and nothing learned, so it fails nobody;
 - a learned digest is enforced until the fleet contradicts it: when most nodes agree on another one, something that
   the fingerprint doesn't name has changed (or the key was edited).  Then nobody fails for either of the two, who has
   a third one still does, and a person decides: deleting the key `learned` starts the learning anew.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.results import CheckResult, Outcome, not_measured, outcome_of

CHECK = "canary"
LEAST_NODES = 3
CPU = "cpu"
"""Id of a node's processor as a device; unlike a GPU's UUID it says something only beside the node's name."""
_CONTESTED_ADVICE = "see what changed on these nodes; then delete the key `learned` of this fingerprint, and the fleet learns anew"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 12
_FLAKY_ADVICE = "take this device out of use and run the vendor's diagnostics (dcgmi diag -r 3); it computes different bytes each time"
_SUSPECT_ADVICE = (
    "take it out of use and run the vendor's diagnostics (dcgmi diag -r 3): wrong bytes without any error are silent corruption"
)
_SET_UP_ADVICE = "the same other bytes on several nodes are rather another set-up than broken devices: compare what is installed on them"


@dataclass(frozen=True)
class Vote:
    """What one device computed.  `device`: its UUID, or `CPU`.  `at`: UTC, ISO 8601, by its own node's clock."""

    node: str
    device: str
    digest: str
    at: str = ""


@dataclass(frozen=True)
class Learned:
    """What `…/learned` holds.  `nodes`: how many agreed, of `voters`; `names`: the first of them."""

    digest: str
    nodes: int = 0
    voters: int = 0
    names: tuple[str, ...] = ()


def is_digest(text: str) -> bool:
    """Is it 64 hexadecimal digits, as SHA-256 is written?"""
    return _DIGEST.fullmatch(text) is not None


# ---- on one node


def steady(digests: Mapping[str, Sequence[str]], repeats: int) -> dict[str, str]:
    """The digest of each device that gave the same one each of `repeats` times; the others have no vote."""
    return {device: seen[0] for device, seen in digests.items() if len(seen) >= max(1, repeats) and len(set(seen)) == 1}


def judge_local(digests: Mapping[str, Sequence[str]], repeats: int, *, node: str = "") -> CheckResult:
    """Do the devices of one model agree with themselves and with each other?

    Args:
        digests: by device, one digest a repetition, all of one fingerprint.
        repeats: how many were asked for; a device with fewer is not measured.
    """
    findings = [_flaky(node, device, seen) for device, seen in sorted(digests.items()) if len(set(seen)) > 1]
    short = sorted(device for device, seen in digests.items() if len(seen) < max(1, repeats) and len(set(seen)) <= 1)
    if short:
        reason = f"{', '.join(short)}: fewer than the {repeats} repetitions that were asked for came to their end"
        findings.append(Finding(FindingKind.NOT_MEASURED, reason, gpus=_gpus(short), nodes=_nodes(node), level=Level.WARN))
    findings += _disagreement(node, steady(digests, repeats))
    details = {"devices": {d: list(seen) for d, seen in sorted(digests.items())}}
    if not digests:
        return not_measured(CHECK, "no device was measured")
    outcome = outcome_of(findings, measured=True)
    summary = findings[0].reason if findings else f"{len(digests)} device(s) agree, {repeats} times each"
    return CheckResult(CHECK, outcome, tuple(findings), summary, details=details)


def _flaky(node: str, device: str, seen: Sequence[str]) -> Finding:
    reason = f"{device} differs from itself: {len(set(seen))} different digests in {len(seen)} repetitions of one matmul"
    evidence = {"digests": list(seen)}
    return Finding(FindingKind.CANARY_MISMATCH, reason, nodes=_nodes(node), gpus=_gpus([device]), evidence=evidence, advice=_FLAKY_ADVICE)


def _disagreement(node: str, digests: Mapping[str, str]) -> list[Finding]:
    if len(set(digests.values())) < 2:
        return []
    right = majority(digests)
    odd = sorted(device for device, digest in digests.items() if digest != right)
    if right is None:
        reason = f"{', '.join(odd)}: devices of one model differ, and no majority says which are right"
    else:
        reason = f"{', '.join(odd)}: differs from the other {len(digests) - len(odd)} devices of its model on this node"
    evidence = {"digests": {d: digests[d] for d in odd}, "majority": right or ""}
    return [Finding(FindingKind.CANARY_MISMATCH, reason, nodes=_nodes(node), gpus=_gpus(odd), evidence=evidence, advice=_SUSPECT_ADVICE)]


# ---- over the fleet


def majority(digests: Mapping[str, str]) -> str | None:
    """The digest that more than half of the voters have; None without one."""
    for digest, count in Counter(digests.values()).most_common(1):
        return digest if 2 * count > len(digests) else None
    return None


def by_node(votes: Iterable[Vote], excluded: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """Each node's vote: what most of its devices say.  A node whose devices are divided has none.

    Args:
        excluded: names of nodes and UUIDs of devices that don't count (quarantine).
    """
    devices: dict[str, dict[str, str]] = {}
    for vote in _each_once(votes):
        if vote.node not in excluded and vote.device not in excluded:
            devices.setdefault(vote.node, {})[vote.device] = vote.digest
    found = {node: majority(digests) for node, digests in sorted(devices.items())}
    return {node: digest for node, digest in found.items() if digest is not None}


def _each_once(votes: Iterable[Vote]) -> list[Vote]:
    """Of a device that was seen on several nodes (a board that was moved) only the newest vote: one unit, one voice."""
    newest: dict[tuple[str, str], Vote] = {}
    for vote in sorted(votes, key=lambda v: (v.at, v.node, v.digest)):
        newest[("" if vote.device != CPU else vote.node, vote.device)] = vote
    return list(newest.values())


def teach(votes: Iterable[Vote], me: str, *, excluded: AbstractSet[str] = frozenset(), least: int = LEAST_NODES) -> Learned | None:
    """What node `me` may write as learned; None: nothing yet.

    More than half of the *other* nodes must agree on it, at least two of them, and more than half of all together.
    """
    everyone = by_node(votes, excluded)
    others = {node: digest for node, digest in everyone.items() if node != me}
    right = majority(others)
    agree = sorted(node for node, digest in others.items() if digest == right)
    if right is None or len(everyone) < least or len(agree) < 2 or majority(everyone) != right:
        return None
    return Learned(right, len(agree), len(others), tuple(agree[:16]))


def judge(
    votes: Iterable[Vote],
    own: Sequence[Vote],
    learned: Learned | None,
    *,
    excluded: AbstractSet[str] = frozenset(),
    least: int = LEAST_NODES,
) -> CheckResult:
    """Is what this node computed what the fleet computes?

    Args:
        votes: of all nodes; this node's older ones among them are replaced by `own`.
        own: of this node's steady devices, just measured.
        learned: what is stored for this fingerprint.
        excluded: as in `by_node`.
    """
    if not own:
        return not_measured(CHECK, "no device of this node has a digest to compare")
    me = own[0].node
    cast = [*(v for v in votes if v.node != me), *own]
    everyone = by_node(cast, excluded)
    fleet = majority(everyone) if len(everyone) >= least else None
    right = {d for d in (learned.digest if learned else None, fleet) if d is not None}
    details: dict[str, Any] = {"nodes": len(everyone), "learned": learned.digest if learned else "", "majority": fleet or ""}
    odd = [v for v in own if right and v.digest not in right]
    notes = _others(cast, me, right, excluded)
    if odd:
        findings = (_suspect(me, odd, right, everyone, least, learned), *notes)
        return CheckResult(CHECK, Outcome.FAIL, findings, findings[0].reason, details=details)
    if not right:
        return not_measured(CHECK, _not_yet(everyone, least), details=details)
    if learned and fleet and len(right) > 1:
        found = Finding(FindingKind.NOTE, _contested(everyone, fleet, learned.digest), level=Level.NOTE, advice=_CONTESTED_ADVICE)
        if any(v.digest != learned.digest for v in own):
            return not_measured(CHECK, found.reason, advice=found.advice, details=details)
        notes = [*notes, found]
    against = "the learned digest" if learned else f"the majority of {len(everyone)} nodes"
    return CheckResult(CHECK, outcome_of(notes, measured=True), tuple(notes), f"{len(own)} device(s) agree with {against}", details=details)


def _contested(everyone: Mapping[str, str], fleet: str, learned: str) -> str:
    return (
        f"{sum(d == fleet for d in everyone.values())} of {len(everyone)} nodes agree on another digest than the learned one "
        f"({_short(fleet)}, not {_short(learned)}): nobody fails for either"
    )


def _not_yet(everyone: Mapping[str, str], least: int) -> str:
    if len(everyone) < least:
        return f"{len(everyone)} of at least {least} nodes have voted on this fingerprint; nothing is enforced yet"
    return f"{len(everyone)} nodes have voted on this fingerprint and no digest has a majority"


def _suspect(
    me: str, odd: Sequence[Vote], right: AbstractSet[str], everyone: Mapping[str, str], least: int, learned: Learned | None
) -> Finding:
    alike = sorted(node for node, digest in everyone.items() if node != me and digest in {v.digest for v in odd})
    against = "the learned digest" if learned else f"the majority of {len(everyone)} nodes"
    devices = sorted(v.device for v in odd)
    reason = f"{', '.join(devices)}: differs from {against}, a suspect for silent corruption"
    if alike:
        reason += f"; {', '.join(alike[:4])} computed the same bytes"
    return Finding(
        FindingKind.CANARY_MISMATCH,
        reason,
        nodes=_nodes(me),
        gpus=_gpus(devices),
        evidence={"digests": {v.device: v.digest for v in odd}, "expected": sorted(right), "least": least, "alike": alike[:16]},
        advice=_SET_UP_ADVICE if alike else _SUSPECT_ADVICE,
    )


def _others(cast: Iterable[Vote], me: str, right: AbstractSet[str], excluded: AbstractSet[str]) -> list[Finding]:
    """Other nodes' devices in the minority: named, though it is not this node that they speak against."""
    odd: dict[str, list[str]] = {}
    for vote in _each_once(cast):
        if right and vote.node != me and vote.digest not in right and vote.node not in excluded and vote.device not in excluded:
            odd.setdefault(vote.node, []).append(vote.device)
    return [
        Finding(
            FindingKind.CANARY_MISMATCH,
            f"{node}: {', '.join(sorted(devices))} differs from the rest of the fleet, a suspect for silent corruption",
            nodes=(node,),
            gpus=_gpus(sorted(devices)),
            level=Level.NOTE,
            advice=_SUSPECT_ADVICE,
        )
        for node, devices in sorted(odd.items())
    ]


def merged(results: Iterable[CheckResult], *, seconds: float = 0.0) -> CheckResult:
    """One result of several (local and fleet, by fingerprint): the first word is the worst one's."""
    parts = tuple(results)
    order = (Outcome.FAIL, Outcome.NOT_MEASURED, Outcome.WARN, Outcome.PASS)
    outcome = next((o for o in order if any(p.outcome is o for p in parts)), Outcome.NOT_MEASURED)
    told = dict.fromkeys(p.summary for p in parts if p.outcome is outcome)
    findings = tuple({(f.kind, f.reason, f.nodes): f for p in parts for f in p.findings}.values())
    details = [part for p in parts for part in _parts(p.details)]
    return CheckResult(CHECK, outcome, findings, "; ".join(told) or "nothing was measured", seconds, {"parts": details})


def _parts(details: Mapping[str, object]) -> list[object]:
    inner = details.get("parts")
    return list(inner) if isinstance(inner, list) else [dict(details)] if details else []


def _short(digest: str) -> str:
    return f"{digest[:_SHOWN]}…"


def _nodes(node: str) -> tuple[str, ...]:
    return (node,) if node else ()


def _gpus(devices: Iterable[str]) -> tuple[str, ...]:
    return tuple(d for d in devices if d != CPU)
