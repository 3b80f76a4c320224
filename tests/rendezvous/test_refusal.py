"""Who may not take part, and what they are told: expected, found, what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_health.exits import ExitStatus
from elastic_health.generations import RunSpec
from elastic_health.rendezvous.refusal import calls_a_person, end_of, refuse
from elastic_health.rendezvous.view import Quarantined, View
from elastic_health.verdicts import VerdictKind
from tests.rendezvous.shapes import SPEC, entry, generation, verdict, view

WALL = 1.7e9
CAPPED = verdict(1, VerdictKind.ABORT, exit_status=int(ExitStatus.CAPPED))
STOPPED = verdict(1, VerdictKind.ABORT, exit_status=int(ExitStatus.BAD_CONFIG))
RUNS = view([], generation(1, "a"))


@pytest.mark.spec("R2", "R6", "R7")
@pytest.mark.parametrize(
    ("what", "seen", "spec", "status", "words"),
    [
        ("quarantined", view([], quarantined="n"), SPEC, ExitStatus.QUARANTINED,
         ("not in quarantine", "bad memory", "quarantine release n")),
        ("finished", view([], generation(1, "a"), verdict(1, VerdictKind.FINISH)), SPEC, ExitStatus.RUN_REFUSED,
         ("finished", "--rdzv-id", "reopen")),
        ("capped", view([], generation(1, "a"), CAPPED), SPEC, ExitStatus.RUN_REFUSED, ("has ended", "seen", "reopen")),
        ("other MIN:MAX", RUNS, RunSpec(2, 4, "digest"), ExitStatus.RUN_REFUSED, ("--nnodes=1:4", "--nnodes=2:4", "--rdzv-id")),
        ("other script", RUNS, RunSpec(1, 4, "x", "b.py"), ExitStatus.RUN_REFUSED, ("`train.py`", "`b.py`", "same script")),
        ("other MIN:MAX than one who waits", view([entry("a")]), RunSpec(1, 3, "digest"), ExitStatus.RUN_REFUSED,
         ("--nnodes=1:4", "--nnodes=1:3")),
    ],
)  # fmt: skip
def test_refused(what: str, seen: View, spec: RunSpec, status: ExitStatus, words: tuple[str, ...]) -> None:
    found = refuse(seen, "n", spec, WALL)
    assert found is not None, what
    assert found.status is status
    assert found.text.startswith("expected ")
    assert "found " in found.text
    for word in words:
        assert word in found.text


@pytest.mark.spec("R2")
@pytest.mark.parametrize(
    ("what", "seen", "spec"),
    [
        ("a new id", View(), SPEC),
        ("a run that goes on", RUNS, SPEC),
        ("a run between two generations", view([], generation(1, "a"), verdict(1)), SPEC),
        ("a run that was stopped short of a cap", view([], generation(1, "a"), STOPPED), SPEC),
        ("a script that nobody knows (a function)", RUNS, replace(SPEC, script="")),
        ("another --max-restarts: the first one binds", RUNS, replace(SPEC, max_restarts=5)),
    ],
)
def test_welcome(what: str, seen: View, spec: RunSpec) -> None:
    assert refuse(seen, "n", spec, WALL) is None, what


@pytest.mark.spec("R7")
@pytest.mark.parametrize(("until", "barred"), [(0.0, True), (WALL + 1, True), (WALL, False), (WALL - 1, False)])
def test_a_quarantine_ends_by_itself(until: float, barred: bool) -> None:
    seen = replace(View(), quarantined={"n": Quarantined("x", until)})
    assert (refuse(seen, "n", SPEC, WALL) is not None) is barred


@pytest.mark.spec("R6")
@pytest.mark.parametrize(
    ("kind", "status", "leaves_with", "page"),
    [
        (VerdictKind.FINISH, 0, ExitStatus.OK, False),
        (VerdictKind.ABORT, 0, ExitStatus.CAPPED, True),
        (VerdictKind.ABORT, int(ExitStatus.NO_CHECKPOINT), ExitStatus.NO_CHECKPOINT, True),
        (VerdictKind.ABORT, int(ExitStatus.STOPPED), ExitStatus.STOPPED, False),
    ],
)
def test_how_a_run_ends(kind: VerdictKind, status: int, leaves_with: ExitStatus, page: bool) -> None:
    v = verdict(3, kind, exit_status=status)
    over = end_of(v)
    assert over is not None
    assert (over.status, calls_a_person(v)) == (leaves_with, page)


@pytest.mark.parametrize("kind", [VerdictKind.RESTART, VerdictKind.ROLLBACK, VerdictKind.SCALE])
def test_other_verdicts_end_no_run(kind: VerdictKind) -> None:
    assert end_of(verdict(3, kind)) is None
    assert not calls_a_person(verdict(3, kind))
