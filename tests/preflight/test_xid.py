"""Kernel logs of every form: events, verdicts, and what broken text must never become."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.kernel_time import Clocks, stamp_of
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.preflight.xid import action_of, analyze_xid, judge_xid, parse_xid
from elastic_health.preflight.xid_catalog import CATALOG, LEVELS, Action
from elastic_health.preflight.xid_events import EventKind, XidEvent
from tests.preflight.kernel_text import BOOT, FORMS, LOST, MOMENT, QUIET, log, xid

CLOCKS = Clocks(boot=BOOT, utc_offset_s=0.0, year=2026)


def only(text: str, clocks: Clocks = Clocks()) -> XidEvent:
    (event,) = parse_xid(text, clocks)
    return event


def found(result: CheckResult) -> list[tuple[FindingKind, Level]]:
    return [(finding.kind, finding.level) for finding in result.findings]


@pytest.mark.spec("P5")
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_log_gives_the_same_event(form: str) -> None:
    event = only(log(form, *QUIET, xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")), CLOCKS)
    assert (event.kind, event.xid, event.pci, event.pid, event.process) == (EventKind.XID, 79, "0000:b3:00.0", None, "")
    assert event.detail == "GPU has fallen off the bus."
    if form != "journal cat":
        assert event.epoch == pytest.approx(MOMENT + 6, abs=0.3)
    assert analyze_xid(log(form, *QUIET, xid(79))).outcome is Outcome.FAIL
    assert analyze_xid(log(form, *QUIET)).outcome is Outcome.PASS


@pytest.mark.parametrize("form", FORMS)
def test_a_lost_gpu_without_the_word_xid_is_xid_79(form: str) -> None:
    """NVIDIA/NVSentinel#155, leptonai/gpud#1209."""
    end = r"\x0a" if form == "kmsg" else "\n               "
    for text in (log(form, *LOST), log(form, end.join(LOST))):
        event = only(text)
        assert (event.kind, event.xid, event.pci) == (EventKind.LOST, 79, "0000:b3:00.0")
        assert event.time or form == "journal cat"
        result = analyze_xid(text + log(form, "NVRM: The NVIDIA probe routine failed for 1 device(s)."))
        assert result.outcome is Outcome.FAIL and [f.gpus for f in result.findings] == [("0000:b3:00.0",)]
        assert result.findings[0].evidence["xid"] == 79


@pytest.mark.parametrize(
    ("line", "pci"),
    [
        ("NVRM: GPU 0000:09:00.1: GPU has fallen off the bus.", "0000:09:00.1"),
        ("NVRM: GPU at PCI:0000:3b:00 has fallen off the bus.", "0000:3b:00.0"),
        ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", "0000:18:00.0"),
        ("NVRM: GPU is lost, skipping nvidia_ioctl", ""),
        ("NVRM: GPU0 GPU lost from the bus [NV_ERR_GPU_IS_LOST]", ""),
        ("nvrm: gpu HAS FALLEN OFF THE BUS", ""),
    ],
)
def test_other_words_for_a_lost_gpu(line: str, pci: str) -> None:
    event = only(log("dmesg", line))
    assert (event.kind, event.xid, event.pci) == (EventKind.LOST, 79, pci)
    assert analyze_xid(log("dmesg", line)).outcome is Outcome.FAIL


def test_a_gpu_that_fails_to_initialise() -> None:
    """Cyridd/cmpunlocker#4, NVIDIA/gpu-operator#1146."""
    lines = (
        "NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)",
        "NVRM: GPU 0000:0a:00.0: rm_init_adapter failed, device minor number 5",
    )
    result = analyze_xid(log("syslog", *lines, *lines))
    assert result.outcome is Outcome.FAIL and result.findings[0].gpus == ("0000:0a:00.0",) and result.findings[0].evidence["count"] == 4
    assert only(log("dmesg", "NVRM: rm_init_adapter(0) failed")).kind is EventKind.INIT_FAILED
    refused = (
        "NVRM: The NVIDIA GPU 0000:0a:00.0 (PCI ID: 10de:1234)",
        "NVRM: installed in this system is not supported by the",
        "NVRM: 570 driver",
    )
    event = only(log("dmesg", *refused))
    assert (event.kind, event.pci) == (EventKind.INIT_FAILED, "0000:0a:00.0")


@pytest.mark.parametrize(
    ("place", "pci", "instance"),
    [
        ("PCI:0000:10:1c", "0000:10:1c.0", ""),
        ("0000:03:00", "0000:03:00.0", ""),
        ("PCI:0000:00:1e.0", "0000:00:1e.0", ""),
        ("PCI:00000000:02:00", "0000:02:00.0", ""),
        ("PCI:0008:01:00", "0008:01:00.0", ""),
        ("PCI:0001:CB:00.1", "0001:cb:00.1", ""),
        ("PCI:0000:01:00 GPU-I:05", "0000:01:00.0", "GPU-I:05"),
        ("PCI:0000:3b:00 GPU-I:01 GPU-CI:02", "0000:3b:00.0", "GPU-I:01 GPU-CI:02"),
    ],
)
def test_places(place: str, pci: str, instance: str) -> None:
    event = only(log("dmesg", xid(31, pci=place)))
    assert (event.pci, event.instance, event.xid) == (pci, instance, 31)


@pytest.mark.parametrize(
    ("rest", "pid", "process", "detail"),
    [
        ("pid='<unknown>', name=<unknown>, Ch 00000008", None, "", "Ch 00000008"),
        ("pid=123", 123, "", ""),
        ("pid=876767, name=ray::WorkerDict, RLW", 876767, "ray::WorkerDict", "RLW"),
        ("pid=1, name=pt main thread, Ch 1, intr 2", 1, "pt main thread", "Ch 1, intr 2"),
        ("pid=1, name='my \"job\"', x", 1, 'my "job', "x"),
        ("pid='', name=, Graphi>", None, "", "Graphi>"),
        ("name=WowB.exe, errorString CTX SWITCH TIMEOUT", None, "WowB.exe", "errorString CTX SWITCH TIMEOUT"),
        ("Channel 00000001", None, "", "Channel 00000001"),
    ],
)
def test_processes(rest: str, pid: int | None, process: str, detail: str) -> None:
    event = only(log("dmesg", xid(13, rest)))
    assert (event.pid, event.process, event.detail) == (pid, process, detail)


def test_nvlink_sub_codes() -> None:
    """leptonai/gpud#1174: Xid 144-150 say themselves whether they are fatal."""
    event = only(log("dmesg", xid(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x025001c6 0x00000001 0x00000000)")))
    assert (event.unit, event.severity, event.link, event.subcode) == ("NETIR_LINK_EVT", "fatal", 14, 37)
    assert event.registers == (0x025001C6, 1, 0)
    assert only(log("dmesg", xid(149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406"))).link == -1
    fatal, mild = (
        xid(145, "RLW_REMAP Fatal XC0 i0 Link 00 (0x4 0x40)"),
        xid(145, "pid=1, name=a, RLW_REMAP Nonfatal XC0 i0 Link 03 (0x4 0x1)"),
    )
    assert found(analyze_xid(log("dmesg", fatal))) == [(FindingKind.LINK_ERROR, Level.FAIL)]
    assert found(analyze_xid(log("dmesg", mild))) == [(FindingKind.LINK_ERROR, Level.WARN)]
    assert found(analyze_xid(log("dmesg", mild, fatal, mild))) == [
        (FindingKind.LINK_ERROR, Level.FAIL),
        (FindingKind.LINK_ERROR, Level.WARN),
    ]


def test_an_nvlink_error_with_only_harmless_bits_is_a_note() -> None:
    some = "NVLink: fatal error detected on link 6({}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    assert analyze_xid(log("dmesg", xid(74, some.format("0x40800001")))).outcome is Outcome.PASS
    assert analyze_xid(log("dmesg", xid(74, some.format("0x10000")))).outcome is Outcome.FAIL
    assert analyze_xid(log("dmesg", xid(74))).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("words", "action", "outcome"),
    [
        ("0x0 (None) to 0x1 (GPU Reset Required)", Action.RESET_GPU, Outcome.FAIL),
        ("0x0 (None) to 0x1 (PF FLR)", Action.RESET_GPU, Outcome.FAIL),
        ("0x0 (None) to 0x2 (Node Reboot Required)", Action.REBOOT, Outcome.FAIL),
        ("0x0 (None) to 0x2 (OS Reboot)", Action.REBOOT, Outcome.FAIL),
        ("0x0 (None) to 0x4 (Drain and Reset)", Action.RESET_GPU, Outcome.FAIL),
        ("0x0 (None) to 0x3 (Drain P2P)", Action.WATCH, Outcome.WARN),
        ("0x1 (GPU Reset Required) to 0x0 (None)", Action.NOTE, Outcome.PASS),
        ("0x0 (None)\n      to 0x2 (Node Reboot Required)", Action.REBOOT, Outcome.FAIL),
        ("0x0 (None) to 0x2", Action.REBOOT, Outcome.FAIL),
        ("0x0 (None", Action.WATCH, Outcome.WARN),
    ],
)
def test_the_recovery_that_the_driver_asks_for(words: str, action: Action, outcome: Outcome) -> None:
    text = log("dmesg", xid(154, f"GPU recovery action changed from {words}"))
    assert action_of(only(text)) is action and analyze_xid(text).outcome is outcome


def test_the_newest_recovery_counts() -> None:
    to = "GPU recovery action changed from {} to {}".format
    asked, done = to("0x0 (None)", "0x1 (GPU Reset Required)"), to("0x1 (GPU Reset Required)", "0x0 (None)")
    assert analyze_xid(log("dmesg", xid(154, asked), xid(154, done))).outcome is Outcome.PASS
    assert analyze_xid(log("dmesg", xid(154, done), xid(154, asked))).outcome is Outcome.FAIL


@pytest.mark.spec("P5")
@pytest.mark.parametrize(
    ("numbers", "outcome", "kinds"),
    [
        ((13, 13, 43), Outcome.WARN, [FindingKind.APPLICATION_ERROR]),
        ((31, 45, 45), Outcome.WARN, [FindingKind.APPLICATION_ERROR]),
        ((13, 109), Outcome.FAIL, [FindingKind.DEVICE_ERROR, FindingKind.APPLICATION_ERROR]),
        ((63,), Outcome.PASS, [FindingKind.NOTE]),
        ((64,), Outcome.FAIL, [FindingKind.DEVICE_ERROR]),
        ((48, 63, 94), Outcome.FAIL, [FindingKind.DEVICE_ERROR, FindingKind.DEVICE_ERROR, FindingKind.NOTE]),
        ((63, 94), Outcome.WARN, [FindingKind.DEVICE_ERROR, FindingKind.NOTE]),
        ((95,), Outcome.FAIL, [FindingKind.DEVICE_ERROR]),
        ((119, 119, 119), Outcome.FAIL, [FindingKind.DEVICE_ERROR]),
        ((79, 45), Outcome.FAIL, [FindingKind.DEVICE_ERROR, FindingKind.NOTE]),
        ((45,), Outcome.WARN, [FindingKind.NOTE]),
        ((9999,), Outcome.WARN, [FindingKind.NOTE]),
    ],
)
def test_what_numbers_together_mean(numbers: tuple[int, ...], outcome: Outcome, kinds: list[FindingKind]) -> None:
    result = analyze_xid(log("dmesg", *map(xid, numbers)))
    assert result.outcome is outcome
    assert sorted(f.kind.value for f in result.findings) == sorted(kind.value for kind in kinds)
    assert all(f.advice and f.gpus == ("0000:b3:00.0",) for f in result.findings)
    json.dumps([dict(f.evidence) for f in result.findings] + [dict(result.details)])


def test_a_burst_is_one_finding_and_several_faults_say_so() -> None:
    burst = analyze_xid(log("dmesg iso", *[xid(13)] * 50)).findings
    assert [(f.evidence["count"], f.evidence["faults"], f.at) for f in burst] == [(50, 1, MOMENT + 0.283302)]
    hours = "".join(f"2026-03-02T1{h}:11:00+00:00 {xid(31)}\n" for h in range(4))
    (many,) = analyze_xid(hours).findings
    assert many.evidence["faults"] == 4 and "4 separate faults" in many.advice and many.level is Level.WARN


def test_each_gpu_has_its_own_findings_and_the_worst_comes_first() -> None:
    result = analyze_xid(log("dmesg", xid(13, pci="PCI:0000:01:00"), xid(79, pci="PCI:0000:02:00"), xid(13, pci="PCI:0000:03:00")))
    assert [f.gpus for f in result.findings] == [("0000:02:00.0",), ("0000:01:00.0",), ("0000:03:00.0",)]
    assert result.details["xids"] == {"13": 2, "79": 1} and "Xid 79" in result.summary


def test_the_uuid_is_told_where_the_log_tells_it() -> None:
    text = log("dmesg", "NVRM: GPU at PCI:0000:b3:00: GPU-926ecdb0-adb1-6ee9-2fad-52e7214c5011", xid(79))
    assert only(text).uuid == "GPU-926ecdb0-adb1-6ee9-2fad-52e7214c5011" == analyze_xid(text).findings[0].evidence["uuid"]


def test_nodes_in_one_log_are_kept_apart() -> None:
    hosts = ("node-a", "node-b", "node-a", "node-c")
    text = "".join(f"Mar 02 10:11:12 {host} kernel: {xid(13 if host != 'node-c' else 79)}\n" for host in hosts)
    found_at = [(f.nodes, f.gpus, f.evidence["count"]) for f in analyze_xid(text).findings]
    gpu = ("0000:b3:00.0",)
    assert found_at == [(("node-c",), gpu, 1), (("node-a",), gpu, 2), (("node-b",), gpu, 1)]
    assert only(log("journal json", xid(79)).replace('"_TRANSPORT"', '"_HOSTNAME": "node-c", "_TRANSPORT"')).host == "node-c"
    for form in ("dmesg -T", "journal full", "kmsg"):
        assert only(log(form, xid(79)).replace("gpu-node-1 ", "")).host == ""


def test_a_pending_remapping_asks_for_a_reset_at_the_next_chance() -> None:
    (note,) = analyze_xid(log("dmesg", xid(63, "pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."))).findings
    assert note.level is Level.NOTE and "next chance" in note.advice


def test_an_nvswitch_error_has_numbers_of_its_own() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 79, {}, Link 46 something (First)"
    assert found(analyze_xid(log("dmesg", line.format("Non-fatal")))) == [(FindingKind.LINK_ERROR, Level.WARN)]
    result = analyze_xid(log("dmesg", line.format("Fatal")))
    assert found(result) == [(FindingKind.LINK_ERROR, Level.FAIL)] and result.details["xids"] == {}


def test_messages_on_one_line_are_all_read() -> None:
    text = f"[ 1.000000] {xid(13)} {xid(43)} {xid(79, 'GPU has fallen off the bus.')}\n"
    assert [(e.xid, e.detail) for e in parse_xid(text)] == [(13, "Ch 00000008"), (43, "Ch 00000008"), (79, "GPU has fallen off the bus.")]


def test_a_message_that_goes_on_in_the_next_line() -> None:
    text = "[ 1.000000] NVRM: Xid (PCI:0000:01:00): 79, pid=811977, name=nvidia-smi,\n      GPU has fallen off the bus.\n[ 1.1] other\n"
    event = only(text)
    assert (event.xid, event.pid, event.process, event.detail) == (79, 811977, "nvidia-smi", "GPU has fallen off the bus.")


# ---- when, and whether it was read


def test_a_time_without_zone_year_or_boot_is_no_instant() -> None:
    for form in ("dmesg", "dmesg -T", "journal short", "kmsg", "syslog"):
        event = only(log(form, xid(79)))
        assert event.epoch is None and event.time, form
    assert stamp_of("2026-02-31T10:11:12+00:00 ").epoch is None
    assert stamp_of("2026-02-28T10:11:12+99:00 ").epoch is None


@pytest.mark.parametrize("form", [form for form in FORMS if form != "journal cat"])
def test_only_what_is_known_to_be_older_is_left_out(form: str) -> None:
    events = parse_xid(log(form, xid(79), *QUIET, xid(13)), CLOCKS)
    assert judge_xid(events, since=MOMENT - 1).outcome is Outcome.FAIL
    later = judge_xid(events, since=MOMENT + 5)
    assert later.outcome is Outcome.WARN and later.details["older"] == 1
    assert judge_xid(events, since=MOMENT + 60).outcome is Outcome.PASS
    assert judge_xid(parse_xid(log("journal cat", xid(79))), since=MOMENT + 60).outcome is Outcome.FAIL


def test_only_this_boot() -> None:
    text = log("syslog", "Linux version 6.8.0", xid(79), "Linux version 6.8.0", *QUIET)
    assert analyze_xid(text).outcome is Outcome.FAIL and analyze_xid(text, this_boot=True).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "hello\nworld\n",
        "xid,mnemonic\n79,GPU has fallen off the bus\n",
        "step 12 loss 2.3\n",
        "# Avg bus bandwidth : 3\n",
        "[    21.091] (II) NVIDIA(0): the log of an X server has a clock too\n",
    ],
)
def test_what_is_no_kernel_log_is_not_measured(text: str) -> None:
    assert analyze_xid(text).outcome is Outcome.NOT_MEASURED


def test_an_empty_log_passes_only_when_it_was_read() -> None:
    assert judge_xid(()).outcome is Outcome.NOT_MEASURED
    assert judge_xid((), readable=True).outcome is Outcome.PASS and analyze_xid("", readable=True).outcome is Outcome.PASS


# ---- the catalogue


def test_the_catalogue_agrees_with_the_official_one(cases: Path) -> None:
    """Each number's class follows its immediate action there; those that a workflow decides are named."""
    allowed = {
        "RESTART_APP": {Action.RESTART_APP, Action.APPLICATION},
        "RESET_GPU": {Action.RESET_GPU},
        "RESTART_BM": {Action.REBOOT},
        "RESTART_VM": {Action.REBOOT},
        "IGNORE": {Action.NOTE, Action.WATCH, Action.APPLICATION},
        "CHECK_MECHANICALS": {Action.SUPPORT},
        "UPDATE_SWFW": {Action.WATCH},
        "CHECK_UVM": {Action.WATCH},
        "WORKFLOW_NVLINK_ERR": {Action.RESET_GPU},
        "WORKFLOW_NVLINK5_ERR": {Action.RESET_GPU},
        "WORKFLOW_XID_45": {Action.WATCH},
        "WORKFLOW_XID_48": {Action.RESET_GPU},
        "XID_154": {Action.WATCH},
    }
    with (cases / "xid" / "xid_catalog.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["xid"]) for row in rows} == set(CATALOG)
    for row in rows:
        entry = CATALOG[int(row["xid"])]
        assert entry.used == (row["description"] != "Unused") or row["xid"] == "108", row
        if row["immediate_action"] == "CONTACT_SUPPORT":
            assert entry.action is (Action.SUPPORT if entry.used else Action.WATCH), row
        elif row["immediate_action"]:
            assert entry.action in allowed[row["immediate_action"]], row


def test_every_class_has_a_weight_and_an_advice() -> None:
    assert set(LEVELS) == set(Action)
    assert [x for x, e in CATALOG.items() if LEVELS[e.action] is Level.FAIL and x in (13, 31, 43, 45, 63, 94)] == []
