"""Judging canary digests: on a node, and by votes over the fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.canary import CPU, Learned, Vote, by_node, judge, judge_local, majority, merged, steady, teach
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.rendezvous.keys import check_segment
from tests.preflight.votes import BAD, GOOD, OTHER, digest, gpu, key, vote

pytestmark = pytest.mark.spec("P4")
LEARNED = Learned(GOOD)


def suspects(result: CheckResult, level: Level = Level.FAIL) -> list[str]:
    return sorted(g for f in result.findings if f.kind is FindingKind.CANARY_MISMATCH and f.level is level for g in f.gpus)


# ---- one node


def test_devices_that_agree_pass() -> None:
    result = judge_local({gpu("a", i): [GOOD] * 3 for i in range(8)}, 3, node="a")
    assert result.outcome is Outcome.PASS and not result.findings


def test_a_device_that_differs_from_itself_is_flaky_and_has_no_vote() -> None:
    seen = {gpu("a", 0): [GOOD] * 3, gpu("a", 1): [GOOD, BAD, GOOD]}
    result = judge_local(seen, 3, node="a")
    assert result.outcome is Outcome.FAIL and suspects(result) == [gpu("a", 1)]
    assert "differs from itself" in result.summary and result.findings[0].nodes == ("a",)
    assert steady(seen, 3) == {gpu("a", 0): GOOD}


def test_one_of_eight_devices_that_differs_is_named() -> None:
    result = judge_local({gpu("a", i): [BAD if i == 5 else GOOD] * 2 for i in range(8)}, 2)
    assert result.outcome is Outcome.FAIL and suspects(result) == [gpu("a", 5)]


def test_two_devices_that_differ_are_both_suspects() -> None:
    result = judge_local({gpu("a", 0): [BAD], gpu("a", 1): [GOOD]}, 1)
    assert result.outcome is Outcome.FAIL and suspects(result) == [gpu("a", 0), gpu("a", 1)]


def test_cut_repetitions_are_not_measured() -> None:
    assert judge_local({gpu("a", 0): [GOOD]}, 3).outcome is Outcome.NOT_MEASURED
    assert judge_local({}, 3).outcome is Outcome.NOT_MEASURED
    assert judge_local({gpu("a", 0): []}, 3).outcome is Outcome.NOT_MEASURED
    assert judge_local({gpu("a", 0): [GOOD, BAD]}, 3).outcome is Outcome.FAIL, "two differ already"


# ---- the fleet


@pytest.mark.parametrize("others", [[], [vote("b")], [vote("b", i=i) for i in range(8)]])
def test_fewer_than_three_nodes_are_not_measured_whatever_they_say(others: list[Vote]) -> None:
    for mine in (GOOD, BAD):
        result = judge(others, [vote("a", mine)], None)
        assert result.outcome is Outcome.NOT_MEASURED and not suspects(result)


def test_the_minority_of_three_nodes_fails_and_the_others_name_it() -> None:
    votes = [vote("a", BAD), vote("b"), vote("c")]
    bad = judge(votes, [vote("a", BAD)], None)
    assert bad.outcome is Outcome.FAIL and suspects(bad) == [gpu("a")] and bad.findings[0].nodes == ("a",)
    good = judge(votes, [vote("b")], None)
    assert good.outcome is Outcome.PASS and suspects(good, Level.NOTE) == [gpu("a")]


def test_a_node_of_eight_does_not_outvote_two_nodes_of_one() -> None:
    many = [vote("a", BAD, i) for i in range(8)]
    votes = [*many, vote("b"), vote("c")]
    assert judge(votes, many, None).outcome is Outcome.FAIL
    assert judge(votes, [vote("c")], None).outcome is Outcome.PASS


def test_a_tie_is_not_measured() -> None:
    votes = [vote("a"), vote("b"), vote("c", BAD), vote("d", BAD)]
    for v in votes:
        assert judge(votes, [v], None).outcome is Outcome.NOT_MEASURED
        assert teach(votes, v.node) is None


def test_three_different_answers_are_not_measured() -> None:
    votes = [vote("a"), vote("b", BAD), vote("c", OTHER)]
    assert {judge(votes, [v], None).outcome for v in votes} == {Outcome.NOT_MEASURED}


def test_a_node_with_one_bad_device_votes_by_its_majority_and_fails() -> None:
    mine = [vote("a", BAD if i == 3 else GOOD, i) for i in range(8)]
    result = judge([vote("b"), vote("c")], mine, None)
    assert result.outcome is Outcome.FAIL and suspects(result) == [gpu("a", 3)]
    assert by_node(mine) == {"a": GOOD}


def test_a_divided_node_has_no_vote() -> None:
    assert by_node([vote("a", GOOD, 0), vote("a", BAD, 1)]) == {}


def test_a_learned_digest_is_enforced_on_the_first_node_too() -> None:
    assert judge([], [vote("a")], LEARNED).outcome is Outcome.PASS
    result = judge([], [vote("a", BAD)], LEARNED)
    assert result.outcome is Outcome.FAIL and "learned" in result.summary


def test_several_nodes_with_the_same_other_digest_hint_at_the_set_up() -> None:
    votes = [vote(n) for n in "cdefg"] + [vote("a", BAD), vote("b", BAD)]
    alike = judge(votes, [vote("a", BAD)], LEARNED).findings[0]
    assert "b computed the same" in alike.reason and "installed" in alike.advice
    alone = judge(votes, [vote("a", OTHER)], LEARNED).findings[0]
    assert "same" not in alone.reason and "diagnostics" in alone.advice


def test_what_the_whole_fleet_contradicts_is_enforced_on_nobody() -> None:
    """A library that was replaced under the same version, or a key that was edited by hand.  As in NVIDIA/DCGM#254: what
    all nodes fail alike speaks of the set-up."""
    edited = Learned(digest("by hand"))
    votes = [vote(n) for n in "abcd"]
    result = judge(votes, [vote("a")], edited)
    assert result.outcome is Outcome.NOT_MEASURED and "4 of 4 nodes" in result.summary and "learned" in result.findings[0].advice
    agrees = judge(votes[1:], [vote("a", digest("by hand"))], edited)
    assert agrees.outcome is Outcome.PASS and "3 of 4 nodes" in agrees.findings[0].reason
    third = judge(votes[1:], [vote("a", BAD)], edited)
    assert third.outcome is Outcome.FAIL and suspects(third) == [gpu("a")], "neither of the two"


def test_less_than_the_majority_contradicts_nothing() -> None:
    votes = [vote("a", BAD), vote("b", BAD), vote("c"), vote("d")]
    assert judge(votes, [votes[0]], LEARNED).outcome is Outcome.FAIL
    assert judge(votes[:2], [votes[0]], LEARNED).outcome is Outcome.FAIL, "two nodes are no fleet"


@pytest.mark.spec("R7")
def test_votes_out_of_quarantine_do_not_count() -> None:
    votes = [vote("a", BAD), vote("b", BAD), vote("c", BAD), vote("d"), vote("e"), vote("f")]
    assert judge(votes, [vote("d")], None).outcome is Outcome.NOT_MEASURED
    for excluded in ({"a"}, {gpu("a")}):
        assert judge(votes, [vote("d")], None, excluded=excluded).outcome is Outcome.PASS
        assert judge(votes, [vote("b", BAD)], None, excluded=excluded).outcome is Outcome.FAIL
        assert teach(votes, "d", excluded=excluded) is None, "of the others: two against two"
        learned = teach(votes, "b", excluded=excluded)
        assert learned is not None and learned.digest == GOOD


def test_a_device_in_quarantine_may_be_judged_and_does_not_teach() -> None:
    votes = [vote("b"), vote("c"), vote("d")]
    assert judge(votes, [vote("a", BAD)], None, excluded={"a"}).outcome is Outcome.FAIL
    assert judge(votes[:2], [vote("a")], None, excluded={"a"}).outcome is Outcome.NOT_MEASURED


def test_a_board_that_was_moved_is_one_voice() -> None:
    """Else one bad board that visits two of three nodes would be the majority."""
    first = Vote("a", "GPU-bad", BAD, "2026-01-01T00:00:00Z")
    moved = Vote("b", "GPU-bad", BAD, "2026-01-02T00:00:00Z")
    votes = [first, moved, vote("c")]
    assert judge(votes, [vote("c")], None).outcome is Outcome.NOT_MEASURED
    assert by_node(votes) == {"b": BAD, "c": GOOD} and teach(votes, "c") is None
    cpus = [Vote(n, CPU, GOOD, AT) for n, AT in (("a", ""), ("b", ""), ("c", ""))]
    assert len(by_node(cpus)) == 3, "processors have no id of their own"


# ---- who teaches what


def test_a_node_never_teaches_what_only_its_own_vote_carries() -> None:
    assert teach([vote("a"), vote("b")], "a") is None
    assert teach([vote("a"), vote("b"), vote("c", BAD)], "a") is None, "of the others one says this and one that"
    learned = teach([vote("a"), vote("b"), vote("c", BAD)], "c")
    assert learned is not None and (learned.digest, learned.names) == (GOOD, ("a", "b")), "the odd one is told by the two others"


def test_two_others_are_too_few_where_the_own_vote_does_not_count() -> None:
    two = [vote("b"), vote("c")]
    assert teach(two, "a") is None and teach([*two, vote("a")], "a", excluded={"a"}) is None
    assert teach([*two, vote("a", GOOD, 0), vote("a", BAD, 1)], "a") is None, "divided"
    assert teach([*two, vote("d")], "a") is not None
    assert teach([vote("a"), vote("b")], "a", least=2) is None, "one other is never enough"


def test_votes_of_devices_that_were_replaced_do_not_count() -> None:
    votes = [vote("a", BAD, 0), vote("a", BAD, 1), vote("b"), vote("c", BAD)]
    assert judge(votes, [vote("a", GOOD, 2)], None).outcome is Outcome.PASS


VALUES = st.sampled_from([GOOD, BAD, OTHER])
VOTES = st.lists(st.builds(vote, st.sampled_from("abcdefgh"), VALUES, st.integers(0, 2), st.sampled_from(["1", "2"])), max_size=14)


@given(VOTES, st.sampled_from([None, LEARNED]), st.randoms(use_true_random=False), st.sets(st.sampled_from("abcd"), max_size=2))
def test_the_order_of_votes_means_nothing(votes: list[Vote], learned: Learned | None, random: object, excluded: set[str]) -> None:
    shuffled = list(votes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    own = [vote("a")]
    assert judge(votes, own, learned, excluded=excluded) == judge(shuffled, own, learned, excluded=excluded)
    assert teach(votes, "a", excluded=excluded) == teach(shuffled, "a", excluded=excluded)


@given(VOTES)
def test_what_is_taught_does_not_depend_on_the_teachers_vote(votes: list[Vote]) -> None:
    """Whatever node a says, the digest that it may write is one that more than half of the others have."""
    others = [v for v in votes if v.node != "a"]
    right = majority(by_node(others))
    for mine in (GOOD, BAD, OTHER):
        taught = teach([*others, vote("a", mine, at="3")], "a")
        assert taught is None or (taught.digest == right and taught.nodes >= 2)


@given(st.lists(VALUES, min_size=1, max_size=9), st.sampled_from([None, LEARNED, Learned(BAD)]))
def test_at_most_the_minority_fails(values: list[str], learned: Learned | None) -> None:
    """Of one fingerprint never so many nodes fail by their votes that no majority is left, unless a digest was learned
    that the majority does not contradict."""
    votes = [vote(f"n{i}", value) for i, value in enumerate(values)]
    results = [judge(votes, [v], learned) for v in votes]
    failed = sum(r.outcome is Outcome.FAIL for r in results)
    if learned is None or (len(votes) >= 3 and majority(by_node(votes)) is not None):
        assert 2 * failed < len(votes)
    if len(votes) < 3 and learned is None:
        assert {r.outcome for r in results} == {Outcome.NOT_MEASURED}


# ---- keys and results


def test_every_field_of_a_fingerprint_makes_another_key() -> None:
    base = key()
    segments = {check_segment("fingerprint", base.segment)}
    for name in ("kind", "device", "capability", "driver", "cuda", "blas", "torch", "dtype"):
        segments.add(check_segment("fingerprint", replace(base, **{name: "x/ y\n"}).segment))
    for name in ("size", "seed", "threads", "recipe"):
        segments.add(replace(base, **{name: 99}).segment)
    assert len(segments) == 13
    assert base.segment == key().segment and "H100" in base.segment
    assert check_segment("fingerprint", replace(base, device="ü/" * 500, kind="cpu").segment)


def test_results_are_merged_by_the_worst() -> None:
    parts = [CheckResult("canary", Outcome.PASS, summary="fine"), CheckResult("canary", Outcome.FAIL, summary="bad")]
    assert merged(parts).outcome is Outcome.FAIL and merged(parts).summary == "bad"
    assert merged([]).outcome is Outcome.NOT_MEASURED
