"""The parser is total, whatever is done to the text; on real logs it reads what they say, and the verdicts blame no reporter."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.evidence.watchdog_log import LogEvent, WatchdogEvent, parse
from elastic_health.evidence.watchdog_verdict import judge_log
from elastic_health.findings import Finding, FindingKind

TIMEOUT = (
    "[rank{r}]:[E1103 04:05:06.700800900 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
ENDED = (
    "[rank{r}]:[E1103 04:05:06.8 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Process group watchdog thread "
    "terminated with exception: [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
    "NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:38032"
LINES = (
    TIMEOUT.format(r=3, seq=9),
    ENDED.format(r=3, seq=9),
    PEER,
    "node-b:22:23 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-c<55693>",
    "NET/IB : Got completion from peer 192.0.2.1<39138> with error 12, opcode 0, len 0, vendor err 129",
    "     [1] finished collective #2, but didn't join collective #3 (count from 1)",
    "CUDA error: uncorrectable ECC error encountered",
    "INFO - Saving latest checkpoint model",
    "Traceback (most recent call last):",
)


def of(events: tuple[WatchdogEvent, ...], kind: LogEvent) -> list[WatchdogEvent]:
    return [event for event in events if event.kind is kind]


# ---- our own lines


def test_a_timeout_printed_again_inside_what_is_one_event() -> None:
    events = parse("\n".join((TIMEOUT.format(r=3, seq=9), ENDED.format(r=3, seq=9))))
    (event,) = of(events, LogEvent.TIMEOUT)
    assert (event.rank, event.seq, event.op, event.timeout_ms, event.ran_ms) == (3, 9, "ALLREDUCE", 600000, 600010)
    assert event.stamp == (11, 3, pytest.approx(4 * 3600 + 5 * 60 + 6.7008009))


@pytest.mark.parametrize("prefix", ["", "[default0]:", "[1,0]<stderr>:", "[80746] ", "2026-02-18T10:48:25.681Z ", "worker-0 | "])
def test_a_launchers_prefix_changes_nothing(prefix: str) -> None:
    (event,) = of(parse(prefix + TIMEOUT.format(r=12, seq=1)), LogEvent.TIMEOUT)
    assert (event.rank, event.seq) == (12, 1)


@pytest.mark.parametrize(
    ("line", "rank"), [("[1,7]<stderr>:CUDA error: x", 7), ("[rank12]: CUDA error: x", 12), ("CUDA error: x", -1)]
)
def test_the_rank_comes_from_the_prefix_where_the_line_has_none(line: str, rank: int) -> None:
    assert parse(line)[0].rank == rank


def test_every_cut_of_a_line_gives_only_what_is_certain() -> None:
    whole = TIMEOUT.format(r=31, seq=4096)
    for end in range(len(whole) + 1):
        for event in of(parse(whole[:end]), LogEvent.TIMEOUT):
            assert event.seq in (-1, 4096) and event.op in ("", "ALLREDUCE")
            assert event.timeout_ms in (-1, 600000) and event.ran_ms in (-1, 600010)


def test_the_turn_of_the_year_keeps_order() -> None:
    old, new = TIMEOUT.replace("E1103", "E1231").format(r=1, seq=1), TIMEOUT.replace("E1103", "E101").format(r=2, seq=1)
    assert [e.rank for e in parse(f"{new}\n{old}")] == [1, 2]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_mutated_text_neither_raises_nor_hangs(seed: int, length: int) -> None:
    rng = random.Random(seed)
    judge_log(parse(_mutated("\n".join(rng.choices(LINES, k=length)), rng)))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=2000))
def test_any_text_parses(text: str) -> None:
    judge_log(parse(text))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["[PG 1", "[PG ID 1 PG GUID ", "Connection closed by peer", "a.", "[[", "Rank 0 rank ", "saving "])
def test_long_repetitions_are_read_in_linear_time(unit: str) -> None:
    parse(unit * ((1 << 20) // len(unit)))
    parse((unit * 200 + "\n") * 500)


def _mutated(text: str, rng: random.Random) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return text[rng.randrange(len(text)) :][: rng.randrange(len(text) + 1)]
    if kind == 1:
        return rng.choice((text.upper(), text.lower(), text.swapcase()))
    if kind == 2:
        lines = text.splitlines()
        rng.shuffle(lines)
        return "\r\n".join(f"{rng.choice(('[default0]:', '[rank12]:', '[1,0]<stderr>:'))}{line}" for line in lines)
    if kind == 3:
        half = len(text) // 2
        return "".join(a + b for a, b in zip(text[:half], text[half:], strict=False))
    at = rng.randrange(len(text))
    return text[:at] + "".join(chr(rng.randrange(1, 0x300)) for _ in range(20)) + text[at:]


# ---- verdicts on our own lines


def judged(*lines: str) -> tuple[Finding, ...]:
    return judge_log(parse("\n".join(lines)))


@pytest.mark.spec("L7")
def test_reporters_are_not_culprits() -> None:
    (found,) = judged(*(TIMEOUT.format(r=r, seq=5) for r in range(4)))
    assert (found.kind, found.ranks, found.nodes) == (FindingKind.WATCHDOG_TIMEOUT, (), ())
    assert found.evidence["reporters"] == [0, 1, 2, 3]


def test_a_few_silent_ones_among_many_reporters_are_suspects() -> None:
    assert judged(*(TIMEOUT.format(r=r, seq=5) for r in (0, 1, 3, 4, 5)))[0].ranks == (2,)
    assert judged(TIMEOUT.format(r=7, seq=5))[0].ranks == ()


@pytest.mark.spec("E2")
def test_a_device_error_goes_before_the_aborts_that_follow() -> None:
    found = judged("[rank4]: CUDA error: uncorrectable ECC error encountered", *(TIMEOUT.format(r=r, seq=5) for r in (0, 1, 2)))
    assert [f.kind for f in found] == [FindingKind.DEVICE_ERROR, FindingKind.WATCHDOG_TIMEOUT]
    assert found[0].ranks == (4,)


def test_nothing_wrong_is_no_finding() -> None:
    assert judged("step 1 loss 3.2", "INFO - Saving latest checkpoint model", "done") == ()


# ---- real logs: kind, ranks, nodes, secondary, and what the evidence must say

REAL: dict[str, tuple[FindingKind, tuple[int, ...], tuple[str, ...], bool, dict[str, object]]] = {
    "ckpt_save_gap": (FindingKind.WATCHDOG_TIMEOUT, (), (), False, {"saving": "Saving latest checkpoint model", "reporters": [7]}),
    "desync_report_2rank": (FindingKind.WATCHDOG_TIMEOUT, (1,), (), False, {"named_by": "desync report", "reporters": [0]}),
    "ecc_v24": (FindingKind.DEVICE_ERROR, (12,), (), False, {"detail": "uncorrectable ECC error encountered"}),
    "gloo_closed_by_peer": (FindingKind.PEER_CONSEQUENCE, (), (), True, {"suspects": [0]}),
    "heartbeat_v24_teardown": (FindingKind.TEARDOWN_HANG, (), (), False, {"reporters": [0, 1, 2]}),
    "ibv_err12_v114": (FindingKind.NETWORK_ERROR, (), (), True, {"peers": ["192.0.2.1<39138>"]}),
    "nccl_socket_closed": (FindingKind.PEER_CONSEQUENCE, (), ("node-c",), True, {"peers": ["node-c<55693>"]}),
    "timeout_1ms": (FindingKind.MISCONFIGURED, (), (), False, {"reporters": [3]}),
    "v113_no_numel": (FindingKind.WATCHDOG_TIMEOUT, (0, 4), (), False, {"named_by": "silence", "seq": 469508}),
    "v21_broadcast": (FindingKind.WATCHDOG_TIMEOUT, (), (), False, {"reporters": [2, 3, 4, 6], "op": "BROADCAST"}),
    "v24_exception_detected": (FindingKind.WATCHDOG_TIMEOUT, (), (), False, {"reporters": [0, 3, 4], "seq": 1580}),
    "v25_pg_guid": (FindingKind.WATCHDOG_TIMEOUT, (), (), False, {"reporters": [0, 1, 2], "seq": 808}),
    "v27_local_dump_signal": (FindingKind.WATCHDOG_TIMEOUT, (), (), False, {"dump_unfinished": [3], "entered_beyond": 0}),
    "v27_remote_dump_signal": (FindingKind.WATCHDOG_TIMEOUT, (), (), False, {"first_reporter": 34, "reporters": [0, 1, 5]}),
}


@pytest.mark.spec("L7", "E2")
@pytest.mark.parametrize("name", REAL)
def test_real_log(name: str, cases: Path) -> None:
    """ai2cm/ace#851, pytorch/pytorch#113128, pytorch/pytorch#76198, NVIDIA/Fuser#3055, tatsu-lab/stanford_alpaca#207,
    NVIDIA/nccl-tests#166, instructlab/training#520, OFA-Sys/OFA#271, pytorch/pytorch#118369, hiyouga/LlamaFactory#7396,
    XPixelGroup/BasicSR#737, hiyouga/LlamaFactory#8261, OpenRLHF/OpenRLHF#1126."""
    first = judge_log(parse((cases / "watchdog" / f"{name}.log").read_text()))[0]
    kind, ranks, nodes, secondary, evidence = REAL[name]
    assert (first.kind, first.ranks, first.nodes, first.secondary) == (kind, ranks, nodes, secondary)
    assert {key: first.evidence[key] for key in evidence} == evidence


def test_every_real_log_is_judged_here(cases: Path) -> None:
    assert {path.stem for path in (cases / "watchdog").glob("*.log")} == set(REAL)


def test_lines_out_of_order_are_put_by_their_own_clock(cases: Path) -> None:
    """XPixelGroup/BasicSR#737: .90 is printed before .15 of the same second."""
    events = parse((cases / "watchdog" / "v25_pg_guid.log").read_text())
    assert [e.rank for e in of(events, LogEvent.TIMEOUT)] == [0, 2, 1]


def test_a_short_month_is_read_right(cases: Path) -> None:
    """hiyouga/LlamaFactory#7396: `E321` is the 21st of March."""
    events = parse((cases / "watchdog" / "v24_exception_detected.log").read_text())
    assert {e.stamp[:2] for e in events if e.stamp} == {(3, 21)}


def test_real_logs_mutated(cases: Path) -> None:
    for path in sorted((cases / "watchdog").glob("*.log")):
        text = path.read_text()
        for seed in range(40):
            judge_log(parse(_mutated(text, random.Random(seed))))
