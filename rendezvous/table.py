"""The drawing of an agent's phases, made from the table that the machine is checked against.

`make docs` writes it: the whole page is docs/STATES.md, the figure alone stands in docs/ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic_health.rendezvous.state import RESENT, WAYS, Phase, Purpose

_HEAD = """# The phases of an agent

Drawn by `make docs`; a test keeps it so. The table is `WAYS` in
`rendezvous/state.py`, and every step of every simulated run is checked against it.
"""

_MEANING: Mapping[Phase, str] = {
    Phase.JOINING: "asks for a lease and writes its candidate, `checking`",
    Phase.CHECKING: "runs preflight; after a restart only the checks of seconds",
    Phase.READY: "may be taken into the next generation, and may form it; waits as a spare beside a full group",
    Phase.STARTING: "is written as `member`; the store of the generation is opened and workers are spawned",
    Phase.RUNNING: "workers train, also while this node is drained (until a checkpoint is committed, its workers have ended, or the "
    "deadline); rank 0 also commits, retains, finishes and grows the group",
    Phase.HOLDING: "workers hold after the step of a halt, until the in-place generation is there",
    Phase.STOPPING: "evidence, then teardown of everything of the generation",
    Phase.LEFT: "the agent exits with a documented status",
}


BEGIN, END = "<!-- phases: drawn by `make docs` -->", "<!-- phases: end -->"
"""Between these lines of docs/ARCHITECTURE.md stands `figure`."""


def figure() -> str:
    """A state diagram (mermaid): every phase and every way out of it."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.JOINING.value}"]
    lines += [f"    {a.value} --> {b.value}" for a, ways in WAYS.items() for b in ways]
    return "\n".join([*lines, f"    {Phase.LEFT.value} --> [*]", "```"])


def ways() -> str:
    """The same as a table, with what leads along each way."""
    rows = [f"| {a.value} | {b.value} | {why} |" for a, ways in WAYS.items() for b, why in ways.items()]
    return "\n".join(["| from | to | when |", "| --- | --- | --- |", *rows])


def drawing() -> str:
    """The whole page: the diagram, the phases, the ways, and the transactions that are sent again."""
    lines = [_HEAD, figure(), "", "| phase | the agent |", "| --- | --- |"]
    lines += [f"| {p.value} | {_MEANING[p]} |" for p in Phase]
    lines += ["", ways()]
    again, once = (", ".join(f"`{p.value}`" for p in Purpose if (p in RESENT) is kept) for kept in (True, False))
    lines += ["", f"Transactions sent again, unchanged, until they are answered: {again}. Sent once: {once}.", ""]
    return "\n".join(lines)


def redrawn(page: str) -> str:
    """`page` with what stands between BEGIN and END drawn anew.

    Raises:
        ValueError: the page has no such lines.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the lines {BEGIN} and {END}, found them not; put them back where the drawing belongs")
    return f"{before}{BEGIN}\n{figure()}\n\n{ways()}\n{END}{after}"
