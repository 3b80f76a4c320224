"""The drawing of an agent's phases, made from the table that the machine is checked against.

`python -m elastic_health.rendezvous.table_os` writes it to standard output; docs/STATES.md is that output.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic_health.rendezvous.state import RESENT, WAYS, Phase, Purpose

_HEAD = """# The phases of an agent

Made by `python -m elastic_health.rendezvous.table_os > docs/STATES.md`; a test keeps it so. The table is `WAYS` in
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


def drawing() -> str:
    """The whole page: a state diagram (mermaid), the phases, the ways, and the transactions that are sent again."""
    lines = [_HEAD, "```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.JOINING.value}"]
    lines += [f"    {a.value} --> {b.value}" for a, ways in WAYS.items() for b in ways]
    lines += [f"    {Phase.LEFT.value} --> [*]", "```", "", "| phase | the agent |", "| --- | --- |"]
    lines += [f"| {p.value} | {_MEANING[p]} |" for p in Phase]
    lines += ["", "| from | to | when |", "| --- | --- | --- |"]
    lines += [f"| {a.value} | {b.value} | {why} |" for a, ways in WAYS.items() for b, why in ways.items()]
    again, once = (", ".join(f"`{p.value}`" for p in Purpose if (p in RESENT) is kept) for kept in (True, False))
    lines += ["", f"Transactions sent again, unchanged, until they are answered: {again}. Sent once: {once}.", ""]
    return "\n".join(lines)
