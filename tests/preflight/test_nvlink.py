"""NVLinks, from what dcgmi and nvidia-smi print."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.nvlink import NvlinkLimits, counter_name, parse_nvlink
from elastic_health.preflight.results import CheckResult, Outcome

pytestmark = pytest.mark.spec("P5")

COUNTERS = ("CRC FLIT Error", "CRC Data Error", "Replay Error", "Recovery Error")
WIDE = f"+{'-' * 29}+{'-' * 48}+"


def dcgmi_json(gpu: int, links: int = 2, **errors: int) -> str:
    """`errors`: by link and counter, e.g. l1_crc_data=3."""
    body = {}
    for link in range(links):
        counts = {c: {"value": str(errors.get(f"l{link}_{counter_name(c)}", 0))} for c in COUNTERS}
        body[f"Link {link}"] = {"children": counts}
    return json.dumps({"body": body, "header": ["NVLINK Error Counts", f"GPU {gpu}"]}, indent=3) + "\n"


def dcgmi_tree(gpu: int, links: int = 2, **errors: int) -> str:
    lines = [WIDE, f"| {'NVLINK Error Counts':<76} |", f"| {f'GPU {gpu}':<76} |", WIDE.replace("-", "=")]
    for link in range(links):
        lines.append(f"| {f'Link {link}':<27} | {'':<46} |")
        lines += [f"| {f'-> {c}':<27} | {errors.get(f'l{link}_{counter_name(c)}', 0):<46} |" for c in COUNTERS]
    return "\n".join([*lines, WIDE, ""])


def dcgmi_status(*gpus: str, switches: str = "") -> str:
    lines = ["+----------------------+", "|  NvLink Link Status  |", "+----------------------+", "GPUs:"]
    for number, letters in enumerate(gpus):
        lines += [f"    gpuId {number}:", f"        {' '.join(letters)}"]
    lines += ["NvSwitches:", *([f"    physicalId 9:\n        {' '.join(switches)}"] if switches else ["    No NvSwitches found."])]
    return "\n".join([*lines, "", "Key: Up=U, Down=D, Disabled=X, Not Supported=_", ""])


def smi_status(gpus: int = 2, links: int = 4, inactive: tuple[tuple[int, int], ...] = (), speed: str = "26.562 GB/s") -> str:
    lines = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        lines += [f"\t Link {link}: {'<inactive>' if (gpu, link) in inactive else speed}" for link in range(links)]
    return "\n".join([*lines, ""])


def smi_errors(gpus: int = 2, links: int = 2, names: tuple[str, ...] = ("Replay", "Recovery", "CRC"), **errors: str) -> str:
    lines = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        for link in range(links):
            lines += [f"         Link {link}: {n} Errors: {errors.get(f'g{gpu}_l{link}_{n.lower()}', '0')}" for n in names]
            lines.append("")
    return "\n".join(lines)


def blamed(result: CheckResult) -> list[Finding]:
    return [f for f in result.findings if f.level is not Level.NOTE]


FORMS = {
    "json": dcgmi_json(0) + dcgmi_json(1),
    "tree": dcgmi_tree(0) + dcgmi_tree(1),
    "letters": dcgmi_status("UUUU__", "UUUU__"),
    "smi -s": smi_status(),
    "smi -e": smi_errors(),
}
BAD = {
    "json": dcgmi_json(0) + dcgmi_json(1, l1_crc_data=12),
    "tree": dcgmi_tree(0) + dcgmi_tree(1, l1_crc_data=12),
    "letters": dcgmi_status("UUUU__", "UDUU__"),
    "smi -s": smi_status(inactive=((1, 1),)),
    "smi -e": smi_errors(g1_l1_crc="12"),
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form(form: str) -> None:
    good, bad = parse_nvlink(FORMS[form]), parse_nvlink(BAD[form])
    assert good.outcome is Outcome.PASS and good.details["gpus"] == ["0", "1"]
    (finding,) = blamed(bad)
    assert bad.outcome is Outcome.FAIL and finding.kind is FindingKind.LINK_ERROR and finding.advice
    assert (finding.gpus, finding.evidence["links"]) == (("1",), [1])
    assert finding.measured in (12.0, None) and "link 1" in finding.reason


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "2026-11-03T04:05:06Z node-a ", "\t", "[pod/a/b] ", "x-1  | "])
def test_a_prefix_changes_no_verdict(form: str, prefix: str) -> None:
    for text, outcome in ((FORMS[form], Outcome.PASS), (BAD[form], Outcome.FAIL)):
        made = "".join(prefix + line for line in text.splitlines(keepends=True))
        assert parse_nvlink(made).outcome is outcome
        assert parse_nvlink(made.replace("\n", "\r\n")).outcome is outcome


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_cut_is_no_pass_as_far_as_it_can_be_seen(form: str) -> None:
    text = FORMS[form].rstrip()
    second = text.rindex("GPU 1" if form != "letters" else "gpuId 1") if form != "json" else text.rindex('"body"')
    for end in range(second + 60 if "smi" in form else second, len(text)):
        if form == "smi -e" and text[:end].endswith("Errors:"):
            continue
        assert parse_nvlink(text[:end]).outcome is Outcome.NOT_MEASURED, text[:end][-80:]


def test_expected_numbers_show_the_rest() -> None:
    assert parse_nvlink(smi_status(1, 3), expected_gpus=1, expected_links=3).outcome is Outcome.PASS
    missing = parse_nvlink(smi_status(1, 3), expected_gpus=2, expected_links=4)
    assert [f.kind for f in blamed(missing)] == [FindingKind.DEVICE_MISSING, FindingKind.LINK_ERROR]
    assert [(f.measured, f.required) for f in blamed(missing)] == [(1, 2), (3, 4)]


def test_all_links_down() -> None:
    """NVIDIA/DCGM#198, and NVIDIA/open-gpu-kernel-modules#1150."""
    result = parse_nvlink(dcgmi_status("D" * 18, "D" * 18))
    assert result.outcome is Outcome.FAIL and [f.gpus for f in blamed(result)] == [("0",), ("1",)]
    assert blamed(result)[0].evidence["links"] == list(range(18))
    said = "GPU 0: NVIDIA H100 (UUID: GPU-0)\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
    assert parse_nvlink(said).outcome is Outcome.FAIL


def test_disabled_links_and_switch_ports_are_notes() -> None:
    result = parse_nvlink(dcgmi_status("UUXX__", switches="UUDD__"))
    assert result.outcome is Outcome.PASS
    assert [f.reason for f in result.findings] == ["GPU 0: links 2,3: disabled", "NVSwitch 9: ports 2,3 are down"]


def test_no_links_are_not_measured() -> None:
    texts = ("", "junk", dcgmi_status("______"), "GPU 0: Tesla T4 (UUID: GPU-1)\n", '{"header": ["NVLINK Error Counts", "GPU 0"]}')
    for text in (*texts, "Error: Unable to retrieve NvLink link status from DCGM. Return: Host engine connection invalid."):
        assert parse_nvlink(text).outcome is Outcome.NOT_MEASURED
    said = "Error: Unable to get chip architecture. Return : Host engine connection invalid"
    assert "Host engine connection" in parse_nvlink(said).summary


def test_limits() -> None:
    text = dcgmi_json(0, l0_replay=5, l1_crc_data=2)
    assert parse_nvlink(text, limits=NvlinkLimits(counts=5)).outcome is Outcome.PASS
    (finding,) = blamed(parse_nvlink(text, limits=NvlinkLimits(by_counter={"replay": 10})))
    assert (finding.measured, finding.required, finding.unit, finding.evidence["links"]) == (2.0, 0, "errors", [1])


@pytest.mark.parametrize(
    ("name", "value", "outcome"),
    [
        ("Malformed packet Errors", "1", Outcome.FAIL),
        ("Link recovery failed events", "1", Outcome.FAIL),
        ("Symbol Errors", "7", Outcome.WARN),
        ("Tx discards", "7", Outcome.WARN),
        ("Link recovery successful events", "7", Outcome.WARN),
        ("Effective BER", "1e-9", Outcome.FAIL),
        ("Effective BER", "15e-255", Outcome.PASS),
        ("Symbol BER", "1e-9", Outcome.WARN),
        ("FEC Errors - 0", "36140749276", Outcome.PASS),  # corrected codewords: billions on a good link
        ("Tx packets", "123456", Outcome.PASS),
        ("Rx bytes", "123456", Outcome.PASS),
        ("Something New", "3", Outcome.FAIL),
        ("CRC Errors", "9223372036854775794", Outcome.NOT_MEASURED),  # DCGM's "not supported"
    ],
)
def test_counters_of_newer_gpus(name: str, value: str, outcome: Outcome) -> None:
    assert parse_nvlink(f"GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-0)\n\t Link 0: {name}: {value}\n").outcome is outcome


def test_counters_of_a_whole_gpu() -> None:
    counts = {"Rx Error": {"value": "0"}, "Effective BER": {"value": "1.5e-254"}, "Link Integrity Error": {"value": "4"}}
    text = json.dumps({"body": {"Error Detail": {"children": counts}}, "header": ["NVLINK Error Counts", "GPU 5"]})
    (finding,) = blamed(parse_nvlink(text))
    assert finding.gpus == ("5",) and finding.reason == "GPU 5: all links: integrity 4"


def test_a_slow_link_warns() -> None:
    text = smi_status(1, 3) + smi_status(1, 3, speed="25.000 GB/s").replace("GPU 0", "GPU 1")
    (finding,) = blamed(parse_nvlink(text))
    assert (finding.level, finding.gpus, finding.measured, finding.required) == (Level.WARN, ("1",), 25.0, 26.562)


@settings(max_examples=150)
@given(st.sampled_from(sorted(BAD)), st.text(alphabet='{}[]",:|+-= UDX_GPUink0\n', max_size=30), st.floats(0, 1))
def test_junk_raises_nothing_and_cuts_hide_nothing(form: str, junk: str, where: float) -> None:
    text = BAD[form]
    at = int(where * len(text))
    parse_nvlink(text[:at] + junk + text[at:])
    if form != "json":
        assert parse_nvlink(text + junk.replace("[", "").replace("{", "")).outcome is not Outcome.PASS
