"""The account of a demo: printed, as report.json, and as one page (report.html) that needs nothing beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from demo_parts.faults import Fault
from demo_parts.picture import picture
from demo_parts.scene import Step
from elastic_health.generations import Generation
from elastic_health.verdicts import Verdict

FAULTS = 6


@dataclass
class Outcome:
    """All that is to be told.  `failed`: why the show was broken off; `left_over`: what would not end by itself."""

    began: float
    faults: list[Fault]
    total_steps: int
    ended: float = 0.0
    failed: str = ""
    steps: list[Step] = field(default_factory=list)
    generations: Mapping[int, Generation] = field(default_factory=dict)
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def problems(self) -> list[str]:
        """Everything that was not as it must be; empty: the demo holds."""
        out = [self.failed] if self.failed else []
        out += [f"{f.title}: {p}" for f in self.faults for p in f.problems]
        if len(self.faults) != FAULTS and not self.failed:
            out.append(f"{len(self.faults)} faults instead of {FAULTS}")
        if not self.proof.get("holds"):
            out.append(f"the proof does not hold: {self.proof.get('why', 'it was not reached')}")
        out += [f"had to be killed at the end: {text}" for text in self.left_over]
        return out

    @property
    def holds(self) -> bool:
        return not self.problems


def write(out: Path, outcome: Outcome) -> None:
    """report.json, loss.png and report.html below `out`."""
    told = {
        "holds": outcome.holds,
        "problems": outcome.problems,
        "seconds": round(outcome.seconds, 1),
        "faults": [asdict(f) for f in outcome.faults],
        "proof": dict(outcome.proof),
        "loss": {"first": outcome.steps[0].loss, "last": outcome.steps[-1].loss} if outcome.steps else None,
    }
    (out / "report.json").write_text(json.dumps(told, indent=1) + "\n")
    drawing = picture(outcome.steps, outcome.faults, outcome.began)
    (out / "loss.png").write_bytes(drawing.png())
    (out / "report.html").write_text(page(outcome, drawing.svg()))


# ---- rows that the terminal and the page share
HEADS = ("#", "fault", "found after", "named", "next step after", "stood still", "repeated", "ranks")


def row(number: int, f: Fault) -> tuple[str, ...]:
    ranks = f"rank {', '.join(map(str, f.named_ranks))} on " if f.named_ranks else ""
    return (
        str(number),
        f.title,
        _seconds(f.found_s),
        ranks + ", ".join(f.named_nodes) if f.named_nodes else "nobody",
        _seconds(f.next_step_s),
        _seconds(f.pause_s),
        f"{f.repeated} step{'' if f.repeated == 1 else 's'}",
        str(f.world_after) if f.world_after == f.world_before else f"{f.world_before} -> {f.world_after}",
    )


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0 else "-"


def proof_text(proof: Mapping[str, Any]) -> str:
    if not proof.get("holds"):
        return f"does not hold: {proof.get('why', 'it was not reached')}"
    p, worlds = proof, ", ".join(map(str, proof["world_sizes"]))
    return (
        f"holds: of {p['samples']:,} documents {p['used_exactly_once']:,} were used exactly once and {p['skipped_in_windows']:,} lie "
        f"in the window that was to be skipped; {p['fetched_and_not_kept']:,} fetches belong to steps that were lost. "
        f"{p['checkpoints_on_the_line']} checkpoints, {p['steps']} steps, groups of {worlds} ranks."
    )


def tell(out: Path, outcome: Outcome) -> None:
    """To the terminal; the last line carries the figures."""
    rows = [HEADS, *(row(n, f) for n, f in enumerate(outcome.faults, 1))]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEADS))]
    print()
    for cells in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip())
    for n, f in enumerate(outcome.faults, 1):
        print(f"\n{n}. {f.done}\n   why: {f.why}" + (f"\n   then: {f.note}" if f.note else ""))
    print(f"\nproof (examples/prove.py) {proof_text(outcome.proof)}")
    print(f"\npage: {out / 'report.html'}\nloss curve: {out / 'loss.png'}")
    for problem in outcome.problems:
        print(f"NOT AS IT MUST BE: {problem}")
    good = sum(not f.problems for f in outcome.faults)
    held = "demo held" if outcome.holds else "DEMO FAILED"
    repeated = sum(f.repeated for f in outcome.faults)
    once = outcome.proof.get("used_exactly_once", 0)
    figures = f"{good} of {FAULTS} faults as they must be, {repeated} steps repeated, {once} samples exactly once"
    print(f"{held}: {figures}, {outcome.seconds:.0f} s")


# ---- the page
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#282c34;background:#fff}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.verdict{display:inline-block;padding:.15rem .7rem;border-radius:1rem;color:#fff;font-weight:600}
.good{background:#2e7d4f}.bad{background:#c83c28}
table{border-collapse:collapse;width:100%}th{text-align:left;color:#6b7280;font-weight:500;font-size:.85rem}
td,th{padding:.4rem .7rem .4rem 0;border-bottom:1px solid #e2e5e9;vertical-align:top}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
small{color:#6b7280;display:block;overflow-wrap:anywhere}svg{width:100%;height:auto}
.no{display:inline-block;width:1.5rem;height:1.5rem;border-radius:50%;background:#c83c28;color:#fff;text-align:center;font-size:.85rem}
"""


def page(outcome: Outcome, svg: str) -> str:
    """One HTML page; everything in it is escaped, nothing is loaded from elsewhere."""
    kind, word = ("good", "everything held") if outcome.holds else ("bad", "not everything held")
    loss = f"loss {outcome.steps[0].loss:.2f} to {outcome.steps[-1].loss:.2f} nats a byte" if outcome.steps else "no step"
    figures = f"{outcome.total_steps} steps planned, {len(outcome.faults)} faults, {outcome.seconds:.0f} s; {loss}"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>elastic-health demo</title>",
        f"<style>{STYLE}</style></head><body>",
        f'<h1>elastic-health demo <span class="verdict {kind}">{word}</span></h1>',
        f"<p>Three nodes and a spare, {figures}.</p>",
        *(f"<p><b>Not as it must be:</b> {escape(p)}</p>" for p in outcome.problems),
        "<h2>Faults</h2>",
        table(HEADS, [_fault_cells(n, f) for n, f in enumerate(outcome.faults, 1)]),
        "<p><small>“Found after” counts from the fault to the group’s verdict in etcd, “next step after” to the next completed step; "
        "“stood still” is the time without a completed step, which for a node that joins is all that it costs.</small></p>",
        "<h2>Loss, and the way there</h2>",
        svg,
        "<h2>Each sample exactly once?</h2>",
        f"<p>{escape(proof_text(outcome.proof))}</p>",
        "<p><small>Recomputed by examples/prove.py, which imports nothing of elastic-health, from what the data set wrote down in "
        "__getitem__, the manifests on disk and etcd’s own answer.</small></p>",
        "<h2>Generations</h2>",
        table(("#", "members", "began at", "ended by", "why"), [_generation(outcome, g) for _, g in sorted(outcome.generations.items())]),
        "</body></html>",
    ]
    return "\n".join(parts)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """`rows` are HTML already."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td class=n>{c}</td>" if len(c) < 24 else f"<td>{c}</td>" for c in r) + "</tr>" for r in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _fault_cells(number: int, f: Fault) -> list[str]:
    cells = [escape(c) for c in row(number, f)]
    cells[0] = f"<span class=no>{number}</span>"
    notes = [f.done, f"Why: {f.why}", *([f"Then: {f.note}"] if f.note else []), *(f"NOT AS IT MUST BE: {p}" for p in f.problems)]
    cells[1] += "".join(f"<small>{escape(n)}</small>" for n in notes)
    return cells


def _generation(outcome: Outcome, g: Generation) -> list[str]:
    members = ", ".join(f"{m.node} (rank {m.first_rank})" for m in g.members)
    v = outcome.verdicts.get(g.number)
    return [str(g.number), escape(members), f"step {g.plan.step}", v.cause.value if v else "-", escape(v.reason) if v else "-"]
