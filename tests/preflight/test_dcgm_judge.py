"""The verdict: error ids, exit statuses, what was skipped, names of tests, and the same failure on many nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.dcgm import parse_dcgm
from elastic_health.preflight.dcgm_exits import words_of
from elastic_health.preflight.dcgm_ids import (
    CATEGORIES,
    ERRORS,
    HARMLESS,
    SEVERITIES,
    Origin,
    canonical_test,
    known_by_text,
    run_names,
    unknown_tests,
)
from elastic_health.preflight.dcgm_meanings import meaning_of
from elastic_health.preflight.dcgm_runs import DiagError
from elastic_health.preflight.fleet import fleet_wide
from elastic_health.preflight.results import CheckResult, Outcome, not_measured
from tests.preflight.dcgm_outputs import FAILING, PASSING, Said, object_3, object_4, styled, table_3, table_4

pytestmark = pytest.mark.spec("P1")

PERSISTENCE = "Persistence Mode: Persistence mode for GPU {gpu} is disabled. Enable persistence mode as root."
PASS, FAIL = styled(object_4(PASSING)), styled(object_4(FAILING))


def software(error_id: int, severity: int, category: int, text: str = "something") -> str:
    return styled(object_4((Said("software", ("Fail",), text, (error_id, severity, category)), Said("memory", ("Pass",)))))


def blamed(result: CheckResult) -> Finding:
    return next(f for f in result.findings if f.level in (Level.FAIL, Level.WARN))


# ---- error ids


def test_the_table_is_whole_and_consistent() -> None:
    assert len(ERRORS) == 130 and ERRORS[29].name == "PERSISTENCE_MODE"
    assert {e.severity for e in ERRORS.values()} <= set(SEVERITIES) and {e.category for e in ERRORS.values()} <= set(CATEGORIES)


def test_the_table_agrees_with_the_published_one(cases: Path) -> None:
    rows = [line.split(",") for line in (cases / "dcgm" / "dcgm_error_ids.csv").read_text().splitlines()[1:]]
    published = {int(r[0]): (r[1].removeprefix("DCGM_FR_"), int(r[2]), r[3], r[4]) for r in rows if r[2]}
    assert {n: (e.name, SEVERITIES.index(e.severity), e.severity, e.category) for n, e in ERRORS.items()} == published


def test_persistence_mode_warns_and_accuses_no_hardware() -> None:
    spec = (Said("software", ("Fail", "Fail"), PERSISTENCE), Said("memory", ("Pass",) * 2))
    for text in (software(29, 5, 8, PERSISTENCE), table_4(spec)):
        result = parse_dcgm(text)
        finding = blamed(result)
        assert result.outcome is Outcome.WARN and finding.kind is FindingKind.MISCONFIGURED
        assert finding.evidence["origin"] == "configuration" and "nvidia-smi -pm 1" in finding.advice


@pytest.mark.parametrize(
    ("error_id", "severity", "category"),
    [
        (47, 5, 8),  # aborted: the same severity and category as 29, and nothing was measured
        (9999, 5, 8),  # of a later DCGM
        (29, 5, 10),  # of the hardware, says the output
        (29, 2, 8),  # to be isolated, says the output
        (20, 5, 8),
        (46, 5, 13),
        (112, 5, 6),
    ],
)
def test_configuration_that_is_not_harmless_fails(error_id: int, severity: int, category: int) -> None:
    assert parse_dcgm(software(error_id, severity, category)).outcome is Outcome.FAIL


def test_only_two_ids_are_harmless() -> None:
    harmless = {n for n in range(200) if meaning_of(DiagError("x", n), "software").harmless}
    assert harmless == HARMLESS == {28, 29}


@pytest.mark.parametrize(
    ("error_id", "kind", "origin"),
    [
        (58, FindingKind.DEVICE_ERROR, Origin.HARDWARE),
        (14, FindingKind.LINK_ERROR, Origin.HARDWARE),
        (40, FindingKind.THROTTLED, Origin.HARDWARE),
        (30, FindingKind.LOW_BANDWIDTH, Origin.HARDWARE),
        (120, FindingKind.DEVICE_MISSING, Origin.HARDWARE),
        (101, FindingKind.DEVICE_ERROR, Origin.HARDWARE),
        (6, FindingKind.MISCONFIGURED, Origin.RESET),
        (85, FindingKind.MISCONFIGURED, Origin.RESET),
        (80, FindingKind.DEVICE_ERROR, Origin.RESET),
        (18, FindingKind.MISCONFIGURED, Origin.CONFIGURATION),
        (25, FindingKind.MISCONFIGURED, Origin.CONFIGURATION),
        (22, FindingKind.MISCONFIGURED, Origin.SOFTWARE),
        (44, FindingKind.MISCONFIGURED, Origin.DIAGNOSTIC),
        (9999, FindingKind.DEVICE_ERROR, Origin.UNKNOWN),
    ],
)
def test_what_an_id_means(error_id: int, kind: FindingKind, origin: Origin) -> None:
    meaning = meaning_of(DiagError("words", error_id), "memory")
    assert (meaning.kind, meaning.origin) == (kind, origin) and meaning.advice


def test_every_id_has_advice_and_is_judged_in_every_test() -> None:
    for number in [*ERRORS, 133, 10**6, -5]:
        for test in ("software", "memory", "unnamed"):
            assert meaning_of(DiagError("", number), test).advice


def test_words_stand_in_for_ids() -> None:
    assert known_by_text("GPU 3 has uncorrectable memory errors and row remappings are pending") == 85
    assert known_by_text("Bandwidth of GPU 0 in direction d2h of 2.10 did not exceed minimum required bandwidth of 8.00.") == 30
    assert known_by_text("all is well") is None


def test_figures_of_a_message() -> None:
    text = "Bandwidth of GPU {gpu} in direction d2h of 2.10 did not exceed minimum required bandwidth of 8.00."
    finding = blamed(parse_dcgm(table_3((Said("pcie", ("Fail", "Fail"), text),))))
    assert (finding.measured, finding.required, finding.unit) == (2.1, 8.0, "GB/s") and finding.gpus == ("0", "1")
    assert "every GPU fails alike" in finding.advice


def test_an_error_recorded_by_a_test_that_passed() -> None:
    """NVIDIA/DCGM#284: the memory test records that it could not allocate, and passes."""

    def recorded(number: int, severity: int) -> CheckResult:
        made = object_4(PASSING)
        result = made["DCGM Diagnostic"]["test_categories"][1]["tests"][0]["results"][0]
        result["warnings"] = [{"warning": "w", "error_id": number, "error_severity": severity, "error_category": 8}]
        return parse_dcgm(json.dumps(made))

    assert recorded(56, 4).outcome is Outcome.WARN
    assert recorded(4, 2).outcome is Outcome.FAIL  # to be isolated


def test_a_fail_in_a_late_category_is_no_pass() -> None:
    """IBM/autopilot#68: Integration -> PCIe failed, the node was reported healthy."""
    spec = (Said("memory", ("Pass",) * 4), Said("pcie", ("Pass", "Pass", "Pass", "Fail")), Said("targeted_stress", ("Pass",) * 4))
    for text in (styled(object_3(spec)), styled(object_4(spec)), table_3(spec), table_4(spec)):
        result = parse_dcgm(text, 0)
        assert result.outcome is Outcome.FAIL and blamed(result).gpus == ("3",)
        assert any("status 0 although a test failed" in f.reason for f in result.findings)


# ---- exit statuses


def test_226_without_a_word_is_not_measured() -> None:
    """NVIDIA/DCGM#158."""
    result = parse_dcgm("", 226)
    assert result.outcome is Outcome.NOT_MEASURED and result.summary == "not measured: NVVS error (-30)"


@pytest.mark.parametrize(
    ("text", "status", "outcome", "said"),
    [
        (PASS, None, Outcome.PASS, ""),
        (PASS, 0, Outcome.PASS, ""),
        (PASS, 205, Outcome.PASS, "status 205: NVVS isolate error (-51)"),
        (PASS, 226, Outcome.WARN, "NVVS error (-30)"),
        (PASS, 1, Outcome.WARN, "status 1"),
        (PASS, 203, Outcome.NOT_MEASURED, "NVVS killed (-53)"),
        (PASS, 245, Outcome.NOT_MEASURED, "timeout (-11)"),
        (PASS, -9, Outcome.NOT_MEASURED, "killed by SIGKILL"),
        (PASS, 137, Outcome.NOT_MEASURED, "killed by SIGKILL"),
        (PASS, 143, Outcome.NOT_MEASURED, "killed by SIGTERM"),
        (PASS, 124, Outcome.NOT_MEASURED, "time limit"),
        (FAIL, 0, Outcome.FAIL, "status 0"),
        (FAIL, 226, Outcome.FAIL, ""),
        (FAIL, -9, Outcome.FAIL, "killed by SIGKILL"),
        (FAIL[:1200], -15, Outcome.FAIL, "killed by SIGTERM"),
        (PASS[:1200], -15, Outcome.NOT_MEASURED, "killed by SIGTERM"),
        (software(29, 5, 8, PERSISTENCE), 226, Outcome.WARN, ""),
        ("", 0, Outcome.NOT_MEASURED, "empty"),
        ("", 127, Outcome.NOT_MEASURED, "could not be started"),
        ("", 1, Outcome.NOT_MEASURED, "status 1"),
        ("", 238, Outcome.FAIL, "a GPU is lost"),
        ("", 10**9, Outcome.NOT_MEASURED, "status"),
    ],
)
def test_status_and_verdict_are_judged_together(text: str, status: int | None, outcome: Outcome, said: str) -> None:
    result = parse_dcgm(text, status)
    assert result.outcome is outcome and any(said in f.reason for f in result.findings)
    assert said or not any("status" in f.reason for f in result.findings)


@pytest.mark.parametrize(
    ("status", "words"),
    [(226, "NVVS error (-30)"), (-11, "killed by SIGSEGV"), (-60, "killed by signal 60"), (2, "status 2")],
)
def test_words_of_a_status(status: int, words: str) -> None:
    assert words_of(status) == words


def test_stderr_tells_why_there_is_nothing() -> None:
    result = parse_dcgm("", 1, "\n  error: unable to establish a connection to the specified host\n")
    assert result.outcome is Outcome.NOT_MEASURED and "unable to establish a connection" in result.summary


# ---- skips


def test_what_was_skipped_is_said() -> None:
    result = parse_dcgm(styled(object_4((*PASSING, Said("memory_bandwidth", ("Skip", "Skip"))))))
    assert result.outcome is Outcome.WARN and "memory_bandwidth was skipped on GPU 0,1" in blamed(result).reason
    passed = dict.fromkeys(("software", "memory", "pcie", "targeted_stress"), "pass")
    assert result.details["tests"] == {**passed, "memory_bandwidth": "skip"}


def test_a_test_that_needs_its_own_package_may_be_skipped() -> None:
    result = parse_dcgm(table_3((*PASSING, Said("eud", ("Skip", "Skip")))))
    assert result.outcome is Outcome.PASS and any("eud was skipped" in f.reason for f in result.findings)


def test_a_run_that_only_checked_the_installation_is_not_measured() -> None:
    """NVIDIA/DCGM#55, #139: everything beyond level 1 is skipped on a GPU that is not in DCGM's list."""
    result = parse_dcgm(table_3((Said("memory", ("Skip",)), Said("pcie", ("Skip",)))))
    assert result.outcome is Outcome.NOT_MEASURED and "only the installation was checked: pcie, memory" in result.summary


def test_a_run_of_skips_is_not_measured() -> None:
    result = parse_dcgm(styled(object_4((Said("memory", ("Skip",)), Said("pcie", ("Not Run",))))))
    assert result.outcome is Outcome.NOT_MEASURED and "every test was skipped: memory" in result.summary


def test_a_gpu_that_no_test_measured_is_named() -> None:
    spec = (Said("memory", ("Pass", "Skip")), Said("pcie", ("Pass", "Skip")))
    result = parse_dcgm(styled(object_4(spec)))
    assert result.outcome is Outcome.NOT_MEASURED and any(f.gpus == ("1",) for f in result.findings if f.kind is FindingKind.NOT_MEASURED)


def test_a_listed_gpu_without_results_is_not_measured() -> None:
    made = object_4(PASSING)
    made["entity_groups"][0]["entities"].append({"device_id": "2330", "entity_id": 2})
    assert parse_dcgm(json.dumps(made)).outcome is Outcome.NOT_MEASURED


def test_links_are_said_not_to_be_covered() -> None:
    """NVIDIA/DCGM#198: all NVLinks down, level 2 passes."""
    result = parse_dcgm(PASS, 0)
    assert result.outcome is Outcome.PASS and result.details["not_covered"] == ["nvlink"]
    assert any("NVLinks" in f.reason and "dcgmi nvlink -s" in f.advice for f in result.findings)


# ---- names of tests


@pytest.mark.parametrize(
    ("names", "one"),
    [
        (("GPU Memory", "memory", "Memory"), "memory"),
        (("Memory Bandwidth", "memory_bandwidth", "memory bandwidth"), "memory_bandwidth"),
        (("PCIe", "pcie", "busgrind"), "pcie"),
        (("Blacklist", "Denylist", "denylist"), "denylist"),
        (("Environmental Variables", "Environment Variables"), "environment_variables"),
        (("Permissions and OS-related Blocks", "Permissions and OS Blocks"), "permissions_and_os_blocks"),
        (("Page Retirement/Row Remap", "page_retirement_row_remap"), "page_retirement_row_remap"),
        (("EUD Test", "eud"), "eud"),
        (("Pulse Test", "pulse_test"), "pulse_test"),
        (("Some New Test", "some_new_test"), "some_new_test"),
    ],
)
def test_one_name_in_all_generations(names: tuple[str, ...], one: str) -> None:
    assert {canonical_test(n) for n in names} == {one}


def test_names_to_ask_for() -> None:
    """NVIDIA/DCGM#296."""
    assert run_names("Memory Bandwidth", "4.4.2")[0] == "memory_bandwidth"
    assert run_names("pulse test", "3.3.8")[0] == "pulse_test"
    assert run_names("memory_bandwidth", "2.4.7")[0] == "memory bandwidth"
    assert run_names("software", "4.4.2") == ("1",) and run_names("software", "3.3.8")[0] == "software"


@pytest.mark.parametrize(
    "said",
    [
        'Error: requested test "memory_bandwidth" was not found among possible test choices.',
        "Error: requested tests 'software, memory_bandwidth' were not found.",
        "The requested tests were not found",
    ],
)
def test_unknown_tests_have_a_clear_message(said: str) -> None:
    """NVIDIA/DCGM#296: names that 3.3.8 knew are unknown to 4.4.2."""
    assert unknown_tests(said) is not None and unknown_tests("Pass") is None
    for output, stderr in ((said, ""), ("", said), (json.dumps({"DCGM Diagnostic": {"runtime_error": said, "version": "4.4.2"}}), "")):
        result = parse_dcgm(output, 226, stderr)
        assert result.outcome is Outcome.NOT_MEASURED and "does not know the requested tests" in result.summary
        advice = result.findings[0].advice
        assert "proprietary" in advice and ("memory_bandwidth" in said) == ("for 'memory_bandwidth' try" in advice)


# ---- many nodes


def pcie_fails(gpus: int = 4) -> CheckResult:
    text = "GPU {gpu} failed to create a CUDA context: system not yet initialized"
    return parse_dcgm(styled(object_4((Said("memory", ("Pass",) * gpus), Said("pcie", ("Fail",) * gpus, text, (66, 4, 6))))))


def test_the_same_failure_on_all_nodes_is_the_set_up() -> None:
    """NVIDIA/DCGM#254: pcie fails on every V100 node with driver 580 and CUDA 12 packages."""
    (wide,) = fleet_wide({f"node-{i}": pcie_fails() for i in range(6)})
    assert wide.signature == "dcgm:pcie:66" and len(wide.nodes) == wide.of == 6 and wide.every_gpu
    assert "6 of 6 nodes fail alike, on every GPU" in wide.reason and "suspect what they share" in wide.advice


def test_most_nodes_are_enough_and_few_are_not() -> None:
    good = parse_dcgm(PASS)
    assert not fleet_wide({"a": pcie_fails(), "b": pcie_fails()})
    assert not fleet_wide({**{f"n{i}": pcie_fails() for i in range(3)}, **{f"g{i}": good for i in range(5)}})
    (wide,) = fleet_wide({**{f"n{i}": pcie_fails() for i in range(8)}, "g0": good, "g1": parse_dcgm(FAIL)})
    assert wide.of == 10 and "g1" not in wide.nodes
    assert len(fleet_wide({**{f"n{i}": pcie_fails() for i in range(3)}, **{f"g{i}": good for i in range(5)}}, share=0.3)) == 1
    assert fleet_wide({}) == ()


def test_different_failures_are_not_alike_and_silence_is() -> None:
    specs = [Said(t, ("Fail",)) for t in ("memory", "pcie", "diagnostic")]
    assert not fleet_wide({s.test: parse_dcgm(styled(object_4((s,)))) for s in specs})
    (wide,) = fleet_wide({f"node-{i}": parse_dcgm("", 226) for i in range(3)})
    assert "NVVS error (-30)" in wide.reason
    skipped = CheckResult("dcgm", Outcome.SKIPPED, not_measured("dcgm", "no dcgmi").findings)
    assert not fleet_wide({f"node-{i}": skipped for i in range(5)})
