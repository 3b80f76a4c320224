"""`python -m elastic_health.preflight.entry_proc NAME`: calls one entry point of the group `elastic_health.checks`.

The entry point is a function of one argument, an `EntryContext`, that returns True (fit), False, or a `CheckResult`.  What
it prints goes to stderr; the last line of stdout is ours, one JSON object (see `own.judge_entry`).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

from elastic_health import variables
from elastic_health.codec import build, plain
from elastic_health.errors import BadValue
from elastic_health.preflight.checks import Stage
from elastic_health.preflight.own import RESULT, SKIPPED, UNMEASURED
from elastic_health.preflight.results import CheckResult

GROUP = "elastic_health.checks"


@dataclass(frozen=True)
class EntryContext:
    """What an entry point is called with.

    Attributes:
        check: its name in the YAML.
        node, run: names; `run` is "" where a person runs the checks by hand.
        workers: how many workers the node will run.
        parameters: from the YAML.
    """

    check: str
    stage: Stage
    node: str
    run: str = ""
    node_type: str = ""
    workers: int = 0
    parameters: Mapping[str, object] = field(default_factory=dict)


def call(name: str, told: str) -> dict[str, object]:
    """Call the entry point `name`; what came of it, never an exception.

    Args:
        told: the value of `variables.CHECK`.
    """
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        return {SKIPPED: f"no entry point {name} in the group {GROUP}: install the package that has it"}
    try:
        context = build(EntryContext, json.loads(told or "{}"), variables.CHECK)
    except (ValueError, BadValue) as error:
        return {UNMEASURED: f"{variables.CHECK} can't be read: {error}"}
    try:
        result = found[0].load()(context)
    except SystemExit as error:
        return {UNMEASURED: f"it ended its process with {error.code!r}"}
    except Exception as error:  # the check is the user's code and may raise anything; its message is the result
        traceback.print_exc()
        return {UNMEASURED: f"it raised {type(error).__name__}: {error}"}
    return _result(result)


def _result(result: object) -> dict[str, object]:
    if not isinstance(result, bool | CheckResult):
        return {UNMEASURED: f"it returned {type(result).__name__}, neither a bool nor a CheckResult"}
    said: dict[str, object] = {RESULT: plain(result)}
    try:
        json.dumps(said)
    except (TypeError, ValueError) as error:
        return {UNMEASURED: f"its result is not plain data: {error}"}
    return said


def main(name: str) -> None:
    ours = os.dup(1)
    os.dup2(2, 1)  # what the check prints, from Python or from C, must not mix with the result
    said = call(name, os.environ.get(variables.CHECK, ""))
    sys.stdout.flush()
    with os.fdopen(ours, "w", encoding="utf-8") as out:
        out.write(json.dumps(said) + "\n")
    sys.stderr.flush()
    os._exit(0)  # it has answered: threads that it left behind keep nobody waiting


if __name__ == "__main__":
    main(sys.argv[1])
