"""Kernel logs cut, mixed, re-cased and hostile: what they must never become; and real ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from elastic_health.findings import FindingKind
from elastic_health.preflight.results import Outcome
from elastic_health.preflight.xid import analyze_xid, parse_xid
from elastic_health.preflight.xid_events import EventKind, XidEvent
from tests.preflight.kernel_text import FORMS, LOST, QUIET, log, xid


def only(text: str) -> XidEvent:
    (event,) = parse_xid(text)
    return event


@pytest.mark.parametrize("form", FORMS)
def test_every_cut_of_a_log_gives_only_what_is_certain(form: str) -> None:
    whole = log(form, QUIET[0], xid(119, "pid=77, name=gpud, Timeout after 6s"), *LOST)
    for end in range(len(whole) + 1):
        for event in parse_xid(whole[:end]):
            assert event.xid in (None, 119, 79) and (event.pci in ("", "0000:b3:00.0")), whole[:end]
            assert event.xid is not None or event.kind in (EventKind.CUT, EventKind.INIT_FAILED)
        if len(log(form, QUIET[0])) + 60 < end:
            assert analyze_xid(whole[:end]).outcome is not Outcome.PASS or "Xid" not in whole[:end]


@pytest.mark.parametrize("form", FORMS)
def test_a_device_of_which_the_end_is_missing_is_not_measured(form: str) -> None:
    """NVIDIA/NVSentinel#155, cut after its first or second line."""
    for said in (LOST[:1], LOST[:2]):
        for after in ((), QUIET * 3):
            assert analyze_xid(log(form, *said, *after)).outcome is Outcome.NOT_MEASURED


def test_a_number_that_is_cut_is_no_number() -> None:
    for text in (
        "NVRM: Xid (PCI:0000:05:00): 7",
        "NVRM: Xid (PCI:0000:05:00): ",
        "NVRM: Xid (PCI:0000:0",
        "NVRM: X",
        "NVRM: Xid (PCI:0000:05:00): abc, x\n",
        "NVRM: Xid (PCI:0000:05:00): 123456, x\n",
        "NVRM: Xid (here): 79, x\n",
    ):
        result = analyze_xid(f"[ 1.000000] {text}")
        assert result.outcome is Outcome.NOT_MEASURED, text
    wrapped = only("[ 1.000000] NVRM: Xid (PCI:0000:05:00): 7\n9, pid=1, name=a, GPU has fallen off the bus.\n")
    assert (wrapped.kind, wrapped.xid) == (EventKind.CUT, None)
    assert only("[ 1.000000] NVRM: Xid (PCI:0000:05:00): 7\n").xid == 7
    assert analyze_xid(f"[ 1.000000] {QUIET[2]}").outcome is Outcome.PASS


def _mutated(text: str, rng: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(rng.randrange(4)):
        kind = rng.randrange(5)
        if kind == 0:
            for _ in range(rng.randrange(1, 8)):
                lines.insert(rng.randrange(len(lines) + 1), FORMS[rng.choice(("dmesg", "journal short"))](1, rng.choice(QUIET)))
        elif kind == 1:
            prefix = rng.choice(("node-3: ", "[1,0]<stdout>:", "> ", "2026-03-02T10:11:12Z stdout F "))
            lines = [prefix + line for line in lines]
        elif kind == 2:
            lines = [rng.choice((line.upper(), line.lower(), line)) for line in lines]
        elif kind == 3:
            lines = [f"\x1b[32m{line}\x1b[0m" for line in lines]
        else:
            at = rng.randrange(len(lines))
            lines.insert(at, lines[at])
    return rng.choice(("\n", "\r\n")).join(lines) + "\n"


@settings(max_examples=100)
@given(
    st.integers(0, 2**32),
    st.sampled_from([form for form in FORMS if form != "journal json"]),
    st.sampled_from([(xid(79),), (xid(13), xid(95)), LOST, ()]),
)
def test_noise_neither_hides_nor_makes_a_failure(seed: int, form: str, messages: tuple[str, ...]) -> None:
    outcome = analyze_xid(_mutated(log(form, *QUIET, *messages), random.Random(seed))).outcome
    assert (outcome is Outcome.FAIL) == bool(messages)


@settings(max_examples=100)
@given(st.text(max_size=400))
@example("NVRM: Xid (PCI:0:0:0): 1")
@example('{"MESSAGE": 3}')
@example('{"MESSAGE":' + "[" * 5000)
@example("NVRM: Xid (PCI:0000:01:00): ٣, x")
def test_any_text_is_read(text: str) -> None:
    analyze_xid(text)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "unit",
    [
        "NVRM: Xid (PCI:0000:",
        "NVRM: ",
        "Xid (",
        "a",
        "0000:01:00 ",
        "[ 1.0] NVRM: Xid (PCI:0000:01:00): 13, pid=",
        "recovery action changed",
        "1,2,3,",
        " Fatal XC0",
        "\r",
        "{",
    ],
)
def test_hostile_lines_of_a_megabyte_are_read(unit: str) -> None:
    line = unit * ((1 << 20) // len(unit))
    analyze_xid(line)
    assert analyze_xid(log("dmesg", xid(79)) + line).outcome is Outcome.FAIL
    analyze_xid((unit * 200 + "\n") * 200)


@pytest.mark.timeout(30)
def test_a_long_log_is_judged_in_linear_time() -> None:
    text = "".join(f"[{i:6d}.000000] {xid(i % 10000, pci=f'PCI:{i % 999:04x}:01:00')}\n" for i in range(20_000))
    assert analyze_xid(text).outcome is Outcome.FAIL


# ---- real logs: outcome, events, and what the first finding says

REAL: dict[str, tuple[Outcome, int, FindingKind, tuple[str, ...], object]] = {
    "dmesg_iso_oom_and_xid.log": (Outcome.WARN, 17, FindingKind.APPLICATION_ERROR, ("0000:38:00.0",), 13),
    "doc_example_old_format.txt": (Outcome.WARN, 1, FindingKind.NOTE, ("0000:03:00.0",), 14),
    "fallen_off_bus_no_xid.txt": (Outcome.FAIL, 2, FindingKind.DEVICE_ERROR, ("0000:b3:00.0",), 79),
    "rm_init_failed.txt": (Outcome.FAIL, 3, FindingKind.DEVICE_ERROR, ("0000:01:00.0",), None),
    "xid13_109_ctime.txt": (Outcome.FAIL, 3, FindingKind.DEVICE_ERROR, ("0000:cb:00.0",), 109),
    "xid63_row_remap.txt": (Outcome.PASS, 1, FindingKind.NOTE, ("0000:10:1c.0",), 63),
    "xid_lines_gpud.txt": (Outcome.FAIL, 100, FindingKind.LINK_ERROR, ("0000:00:00.0",), 149),
}


@pytest.mark.spec("P5", "U3")
def test_real_logs(cases: Path) -> None:
    """leptonai/gpud (#46, #1174, #1209), NVIDIA/NVSentinel#155, Cyridd/cmpunlocker#4, stas00/ml-engineering; files that this
    table doesn't know are only read."""
    for path in sorted((cases / "xid").iterdir()):
        result = analyze_xid(path.read_text())
        first = result.findings[0] if result.findings else None
        got = first and (result.outcome, result.details["events"], first.kind, first.gpus, first.evidence.get("xid"))
        assert got == REAL.get(path.name, got), path.name
        for seed in range(6):
            outcome = analyze_xid(_mutated(path.read_text(), random.Random(seed))).outcome
            assert outcome is Outcome.FAIL or result.outcome is not Outcome.FAIL, (path.name, seed)
    assert REAL.keys() <= {path.name for path in (cases / "xid").iterdir()}


def test_all_hundred_lines_parse_each_alone(cases: Path) -> None:
    """leptonai/gpud: string literals of its tests."""
    for line in (cases / "xid" / "xid_lines_gpud.txt").read_text().splitlines():
        event = only(line + "\n")
        assert event.kind is EventKind.XID and f"): {event.xid}, " in line and event.pci
        assert bool(event.severity) == (144 <= (event.xid or 0) <= 150)
