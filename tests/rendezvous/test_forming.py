"""Who forms, when, and why not yet: `consider` and `turn` as a table, one row or more for each reason to wait."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from elastic_health.generations import CandidateState
from elastic_health.policies import MembershipPolicy
from elastic_health.rendezvous.forming import Chosen, Knowledge, Wait, Waiting, consider, turn
from elastic_health.rendezvous.view import View
from elastic_health.verdicts import VerdictKind
from tests.rendezvous.shapes import entry, generation, verdict, view

POLICY = MembershipPolicy()
NOBODY = Knowledge(frozenset(), frozenset(), {}, None, None, None)
WALL = 1.7e9
AB = generation(1, "a", "b")
A, B = ("a", "x-0"), ("b", "x-0")
READY, CHECKING, MEMBER = CandidateState.READY, CandidateState.CHECKING, CandidateState.MEMBER
BOUND_S = POLICY.bounds.link_timeout_s + POLICY.bounds.kill_grace_s


@dataclass(frozen=True)
class Row:
    """At second 100, with MIN:MAX = `least`:`most`."""

    what: str
    view: View
    expect: Wait | str
    know: Knowledge = NOBODY
    least: int = 1
    most: int = 2
    until: float = 0.0
    who: tuple[tuple[str, str], ...] = field(default=())


SEEN = replace(NOBODY, verdict_seen=90.0)
ENDED = verdict(1)
BROKEN = replace(verdict(1), nodes=("b",), signature="device_error:ecc")
ROWS = (
    Row("the last generation runs", view([entry("c")], AB), Wait.NO_VERDICT),
    Row("the run has finished", view([entry("a")], AB, verdict(1, VerdictKind.FINISH)), Wait.ENDED, SEEN),
    Row("the run was stopped", view([entry("a")], AB, verdict(1, VerdictKind.ABORT)), Wait.ENDED, SEEN),
    Row("nobody is ready", view([]), Wait.TOO_FEW),
    Row("one of MIN=2", view([entry("a")]), Wait.TOO_FEW, least=2),
    Row("a checking one does not count", view([entry("a"), entry("b", 2, CHECKING)]), Wait.TOO_FEW, least=2),
    Row("a quarantined one does not count", view([entry("a"), entry("b", 2)], quarantined="b"), Wait.TOO_FEW, least=2),
    Row("MAX at the first formation", view([entry("a"), entry("b", 2)]), "ab"),
    Row("MIN at the first formation", view([entry("a")]), Wait.LAST_CALL, replace(NOBODY, ready_since=99.5), until=100.5),
    Row("the last call is over", view([entry("a")]), "a", replace(NOBODY, ready_since=98.0)),
    Row("more than MAX: the oldest", view([entry("a", 3), entry("b", 1), entry("c", 2)]), "bc"),
    Row("all members back", view([entry("a"), entry("b", 2)], AB, ENDED), "ab", SEEN),
    Row("members before older spares", view([entry("s", 1), entry("a", 5), entry("b", 6)], AB, ENDED), "ab", SEEN),
    Row("a member tears down", view([entry("a"), entry("b", 2, MEMBER)], AB, ENDED), Wait.MEMBER_ALIVE, SEEN, who=(B,)),
    Row("it told that its workers are reaped", view([entry("a"), entry("b", 2, MEMBER)], AB, ENDED), "a",
        replace(SEEN, proven=frozenset({B}))),
    Row("it runs its checks, and there is room", view([entry("a"), entry("b", 2, CHECKING)], AB, ENDED), Wait.MEMBER_ALIVE, SEEN, who=(B,),
        until=90 + POLICY.bounds.start_s),
    Row("it runs its checks, for too long", view([entry("a"), entry("b", 2, CHECKING)], AB, ENDED), "a", replace(SEEN, verdict_seen=30.0)),
    Row("it runs its checks, and is blamed", view([entry("a"), entry("b", 2, CHECKING)], AB, BROKEN), Wait.MEMBER_ALIVE,
        replace(SEEN, verdict_seen=99.5), who=(B,), until=99.5 + POLICY.last_call_s),
    Row("it is blamed and runs those of a new node", view([entry("a"), entry("b", 2, CHECKING)], AB, BROKEN), "a", SEEN),
    Row("it runs its checks, the group is full", view([entry("a"), entry("c", 1), entry("b", 2, CHECKING)], AB, ENDED), "ac", SEEN),
    Row("a full group waits for one that may still run workers", view([entry("a"), entry("c", 1)], AB, ENDED), Wait.MEMBER_NOT_PROVEN,
        replace(SEEN, gone_since={B: 98.0}), until=98 + BOUND_S, who=(B,)),
    Row("gone from the store for link timeout and kill grace", view([entry("a")], AB, ENDED), "a",
        replace(SEEN, gone_since={B: 100 - BOUND_S})),
    Row("gone, but it answers: counted from the verdict", view([entry("a")], AB, ENDED), Wait.MEMBER_NOT_PROVEN,
        replace(SEEN, gone_since={B: 80.0}, answering=frozenset({B}), verdict_seen=99.0), until=99 + BOUND_S, who=(B,)),
    Row("proven dead", view([entry("a")], AB, ENDED), "a", replace(SEEN, gone_since={B: 99.9}, proven=frozenset({B}))),
    Row("the verdict asks for a pause", view([entry("a"), entry("b", 2)], AB, verdict(1, backoff_s=15.0)), Wait.BACKOFF, SEEN, until=105.0),
    Row("the pause is over", view([entry("a"), entry("b", 2)], AB, verdict(1, backoff_s=15.0)), "ab", replace(SEEN, verdict_seen=85.0)),
)  # fmt: skip


@pytest.mark.spec("R1", "R2")
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.what)
def test_consider(row: Row) -> None:
    found = consider(row.view, row.know, row.least, row.most, POLICY, 100.0, WALL)
    if isinstance(row.expect, Wait):
        assert found == Waiting(row.expect, row.until, row.who)
    else:
        assert isinstance(found, Chosen)
        assert "".join(e.candidate.node for e in found.entries) == row.expect


@pytest.mark.spec("R2")
def test_every_reason_to_wait_has_a_row() -> None:
    assert {r.expect for r in ROWS if isinstance(r.expect, Wait)} == set(Wait) - {Wait.NOT_MY_TURN}


@pytest.mark.spec("R2")
@pytest.mark.parametrize(("me", "at"), [("b", 0.0), ("a", 1.0), ("c", 2.0)])
def test_the_next_one_forms_when_the_one_before_is_stuck(me: str, at: float) -> None:
    """The oldest ready candidate is first; each next one waits `former_delay_s` more."""
    v = view([entry("a", 2), entry("b", 1), entry("c", 3)])
    due = 100.0 + at * POLICY.former_delay_s
    assert turn((me, "x-0"), v, WALL, 100.0, POLICY, due) is None
    if at:
        assert turn((me, "x-0"), v, WALL, 100.0, POLICY, due - 0.01) == Waiting(Wait.NOT_MY_TURN, due)


@pytest.mark.spec("R2", "R7")
@pytest.mark.parametrize("who", ["q", "nobody"])
def test_who_is_not_ready_never_forms(who: str) -> None:
    v = view([entry("a"), entry("q", 0)], quarantined="q")
    assert turn((who, "x-0"), v, WALL, 0.0, POLICY, 1e9) == Waiting(Wait.NOT_MY_TURN)
