"""Single forms of `dcgmi diag` that public sources and reports show, each read per test and per GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.dcgm import parse_dcgm, read_diag
from elastic_health.preflight.dcgm_runs import DiagRun, Status, gpu_ids, status_of
from elastic_health.preflight.results import CheckResult, Outcome
from tests.preflight.dcgm_outputs import HEAD, RULE, row, section

pytestmark = pytest.mark.spec("P1")


def doc(results: list[Any], test: str = "pcie", category: str = "Integration", root: str = "DCGM GPU Diagnostic", **more: Any) -> str:
    tests = [{"name": test, "results": results}]
    return json.dumps({root: {"test_categories": [{"category": category, "tests": tests}]}, **more}, indent=1)


def per_gpu(run: DiagRun, test: str = "pcie") -> dict[str, str]:
    return {g: r.status.value for r in run.results if r.test == test for g in r.gpus}


def failed(result: CheckResult) -> list[Finding]:
    return [f for f in result.findings if f.level is Level.FAIL]


# ---- words


@pytest.mark.parametrize(
    ("word", "status", "rest"),
    [
        ("Pass", Status.PASS, ""),
        ("PASS", Status.PASS, ""),
        ("fail - GPUs: 0, 1   ", Status.FAIL, "GPUs: 0, 1"),
        ("Fail - All", Status.FAIL, "All"),
        ("Skip - All", Status.SKIP, "All"),
        ("Warn", Status.WARN, ""),
        ("Not Run", Status.NOT_RUN, ""),
        ("not_run", Status.NOT_RUN, ""),
        ("FAIL - GPU 3: HBM test failed", Status.FAIL, "GPU 3: HBM test failed"),
        ("Passing by", Status.UNKNOWN, ""),
        ("", Status.UNKNOWN, ""),
        (None, Status.UNKNOWN, ""),
    ],
)
def test_words_of_status(word: object, status: Status, rest: str) -> None:
    assert status_of(word) == (status, rest)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("0,1,2", ("0", "1", "2")),
        ("GPUs: 0, 10", ("0", "10")),
        (3, ("3",)),
        ("7", ("7",)),
        ([0, "1"], ("0", "1")),
        ("All", ()),
        (-1, ()),
        ("-1", ()),
        (4294967295, ()),
        (None, ()),
        (True, ()),
        ({"a": 1}, ()),
    ],
)
def test_gpu_ids(value: object, ids: tuple[str, ...]) -> None:
    assert gpu_ids(value) == ids


# ---- JSON


@pytest.mark.parametrize("key", ["gpu_ids", "gpu_id", "entity_id"])
@pytest.mark.parametrize("number", [1, "1", [1]])
def test_gpus_under_any_key(key: str, number: object) -> None:
    assert per_gpu(read_diag(doc([{key: 0, "status": "Pass"}, {key: number, "status": "Fail"}]))) == {"0": "pass", "1": "fail"}


def test_results_without_gpus_fail_the_node() -> None:
    result = parse_dcgm(doc([{"status": "Pass"}, {"status": "Fail"}]))
    assert result.outcome is Outcome.FAIL and failed(result)[0].gpus == ()


def test_other_entities_are_no_gpus() -> None:
    run = read_diag(doc([{"entity_group": "CPU", "entity_id": 0, "status": "Fail"}, {"cpu_id": "1", "status": "Skip - All"}], "cpu_eud"))
    assert [(r.gpus, r.entities, r.status) for r in run.results] == [((), ("cpu0",), Status.FAIL), ((), ("cpu1",), Status.SKIP)]
    assert "on cpu0" in failed(parse_dcgm(doc([{"entity_group": "CPU", "entity_id": 0, "status": "Fail"}], "cpu_eud")))[0].reason


@pytest.mark.parametrize(
    "warnings",
    [
        "Found 3 faulty memory elements on GPU 2",
        ["Found 3 faulty memory elements on GPU 2"],
        {"warning": "Found 3 faulty memory elements on GPU 2"},
        [{"warning": "Found 3 faulty memory elements on GPU 2", "error_id": 52, "error_severity": 2, "error_category": 10}],
        [{"warnings": "Found 3 faulty memory elements on GPU 2", "error_id": "52"}],  # the key that 3.x writes for deployment tests
        [None, {"warning": "Found 3 faulty memory elements on GPU 2", "error_id": None}],
    ],
)
def test_warnings_in_any_shape(warnings: object) -> None:
    (finding,) = failed(parse_dcgm(doc([{"gpu_id": "2", "status": "Fail", "warnings": warnings}], "GPU Memory", "Hardware")))
    assert finding.gpus == ("2",) and "faulty memory" in finding.reason and finding.evidence["error_id"] == 52
    assert finding.kind is FindingKind.DEVICE_ERROR and finding.evidence["origin"] == "hardware" and finding.advice


def test_a_failure_explained_only_in_info() -> None:
    said = ["Allocated 90 %", "A memory mismatch was detected on GPU 0, but no error was reported by CUDA or NVML."]
    for info in (said, "\t".join(said)):
        result = parse_dcgm(doc([{"gpu_ids": "0", "status": "FAIL", "info": info}], "memory", "Hardware"))
        assert 58 in [f.evidence.get("error_id") for f in failed(result)]


def test_other_tools_objects_with_keys_of_the_same_name_change_nothing() -> None:
    good = doc([{"gpu_id": "0", "status": "Pass"}])
    for other in ({"results": []}, {"results": [{"value": 1}], "name": "query"}, {"tests": 3}, {"iterations": 5}):
        assert parse_dcgm(json.dumps(other) + "\n" + good).outcome is Outcome.PASS
        assert parse_dcgm(json.dumps(other)).outcome is Outcome.NOT_MEASURED


@pytest.mark.parametrize("key", ["status", "results", "test_summary", "name"])
def test_a_key_that_stands_where_it_should_not_hides_nothing(key: str) -> None:
    said = json.loads(doc([{"gpu_id": "0", "status": "Fail"}]))
    for place in (said, said["DCGM GPU Diagnostic"], said["DCGM GPU Diagnostic"]["test_categories"][0]):
        place[key] = "Pass"
        assert parse_dcgm(json.dumps(said)).outcome is Outcome.FAIL
        del place[key]
    said["DCGM GPU Diagnostic"]["test_categories"][0]["tests"].append({"nam": [{"status": "Pass"}]})
    said["DCGM GPU Diagnostic"]["test_categories"][0]["tests"][0]["results"][0]["status"] = "Pass"
    assert parse_dcgm(json.dumps(said)).outcome is Outcome.NOT_MEASURED


def test_null_elements_and_categories_are_passed_over() -> None:
    tests = [{"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}, None]}, None]
    text = json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}, None], "version": "3.1.0"}})
    result = parse_dcgm(text)
    assert result.outcome is Outcome.PASS and result.details["version"] == "3.1.0" and result.details["gpus"] == ["0", "1"]


@pytest.mark.parametrize("root", ["DCGM GPU Diagnostic", "DCGM Diagnostic"])
def test_a_runtime_error_is_not_measured(root: str) -> None:
    message = "Error: Unable to complete diagnostic for group 2147483647. Return: (-30) : There was an internal error during the test"
    result = parse_dcgm(json.dumps({root: {"runtime_error": message, "version": "4.2.3"}}, indent=2), 226)
    assert result.outcome is Outcome.NOT_MEASURED and "Unable to complete diagnostic" in result.summary


def test_a_runtime_error_after_good_results_is_no_pass() -> None:
    good, bad = doc([{"gpu_id": "0", "status": "Pass"}]), json.dumps({"DCGM Diagnostic": {"runtime_error": "Error: the host engine died"}})
    assert parse_dcgm(good).outcome is Outcome.PASS and parse_dcgm(good + bad).outcome is Outcome.NOT_MEASURED


def iteration(status: str) -> Any:
    return json.loads(doc([{"gpu_id": "0", "status": status}]))


@pytest.mark.parametrize(
    ("statuses", "overall", "outcome"),
    [(("Pass", "Pass"), "Pass", Outcome.PASS), (("Pass", "Fail"), "Fail", Outcome.FAIL), (("Pass",), "Fail", Outcome.FAIL)],
)
def test_iterations(statuses: tuple[str, ...], overall: str, outcome: Outcome) -> None:
    said = {"iterations": [iteration(s) for s in statuses], "Overall Result": overall}
    assert parse_dcgm(json.dumps(said, indent=3)).outcome is outcome


def multi_node(status: str, **more: Any) -> str:
    """As `dcgmi mndiag -j` has it: the root's name is a value."""
    hosts = [{"host_id": i, "hostname": f"node-{i}", "dcgm_version": "4.3.0", "driver_version": "570", "entities": []} for i in range(2)]
    results = [
        {"host_id": i, "entity_group_id": 1, "entity_group": "GPU", "entity_id": g, "status": status if (i, g) == (1, 1) else "Pass"}
        for i in range(2)
        for g in range(2)
    ]
    test = {"name": "mnubergemm", "status": status, "test_summary": {"status": status}, "results": results, **more}
    made = {"DCGM Diagnostic": "DCGM Multi-Node Diagnostic", "metadata": {"num_hosts": 2, "num_entities": 4}, "hosts": hosts}
    return json.dumps({**made, "test_categories": [{"category": "Multi-Node Tests", "tests": [test]}]}, indent="\t")


def test_multi_node_runs_name_the_host() -> None:
    assert parse_dcgm(multi_node("Pass")).outcome is Outcome.PASS
    result = parse_dcgm(multi_node("Fail"))
    (finding,) = failed(result)
    assert (finding.nodes, finding.gpus) == (("node-1",), ("1",)) and result.details["hosts"] == ["node-0", "node-1"]


def test_an_mpi_error_of_a_multi_node_run() -> None:
    result = parse_dcgm(multi_node("Fail", mpi_error={"warning": "Error: ORTE lost a daemon", "error_category": "MPI"}))
    assert any("ORTE" in f.reason for f in failed(result))


def test_summary_and_results_are_one_finding_and_the_summary_alone_counts() -> None:
    warning = {"warning": "Detected XID 79 for GPU 0", "error_id": 101, "error_severity": 4, "error_category": 5}
    both = {
        "name": "memory",
        "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": [warning]}],
        "test_summary": {"status": "Fail", "warnings": [warning]},
    }
    alone = {"name": "memory", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}], "test_summary": {"status": "Fail"}}
    for test, gpus in ((both, ("0",)), (alone, ())):
        said = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [test]}]}}
        (finding,) = failed(parse_dcgm(json.dumps(said)))
        assert finding.gpus == gpus


def test_a_string_that_a_terminal_broke_over_lines() -> None:
    text = doc([{"gpu_id": "0", "status": "Pass", "info": "GPU 0 GPU to Host bandwidth: 24.02 GB/s, GPU 0 Host to GPU latency: 2.1 us"}])
    assert parse_dcgm(text.replace("Host to GPU", "Host to G\nPU")).outcome is Outcome.PASS
    assert parse_dcgm(text.replace("Pass", "Pa\nss")).outcome in (Outcome.PASS, Outcome.NOT_MEASURED)
    assert parse_dcgm(text.replace('"status"', '"sta\ntus"')).outcome is Outcome.NOT_MEASURED


def test_unknown_and_missing_statuses_are_no_pass() -> None:
    for result in ({"gpu_id": "1", "status": "Dunno"}, {"gpu_id": "1"}, {"gpu_id": "1", "status": None}):
        assert parse_dcgm(doc([{"gpu_id": "0", "status": "Pass"}, result])).outcome is Outcome.NOT_MEASURED


def test_unmeasured_shapes() -> None:
    nothing = ('{"DCGM Diagnostic": {}}', '{"DCGM Diagnostic": {"test_categories": []}}')
    for text in ("", "{}", *nothing, "null", "[]", "\x00\x01\xff", doc([])):
        assert parse_dcgm(text).outcome is Outcome.NOT_MEASURED


# ---- tables


def table(*lines: str) -> str:
    return "\n".join(["Successfully ran diagnostic for group.", *HEAD, *lines, RULE]) + "\n"


def test_a_3x_row_for_each_status() -> None:
    long = "Thermal violations totaling 13.3 seconds started at 9.7 seconds into the test for GPU 0 Verify that the cooling is functional."
    text = table(
        section("Hardware"),
        *row("GPU Memory", "Pass - GPUs: 1, 2, 3"),
        *row("", "Fail - GPU: 0"),
        *row("", "Skip - GPU: 4"),
        *row("Warning", f"GPU 0 {long}"),
        *row("Info", "GPU 1 Allocated 1643523 bytes (97.1%)"),
        *row("Diagnostic", "Pass - All"),
    )
    run = read_diag(text)
    assert per_gpu(run, "memory") == {"1": "pass", "2": "pass", "3": "pass", "0": "fail", "4": "skip"}
    (finding,) = failed(parse_dcgm(text))
    assert long in finding.reason and (finding.measured, finding.required, finding.unit) == (13.3, 0.0, "s")
    assert finding.kind is FindingKind.THROTTLED and finding.gpus == ("0",)


def test_a_message_whose_words_break_at_blanks_is_put_together_again() -> None:
    words = " ".join(str(i) for i in range(200))
    (finding,) = failed(parse_dcgm(table(section("Integration"), *row("PCIe", "Fail - All"), *row("Warning", words))))
    assert words[:390] in finding.reason


def test_a_4x_table_names_each_gpu_and_its_error() -> None:
    text = table(
        section("Deployment", "|"),
        *row("software", "Fail"),
        *row("", "GPU0: Pass"),
        *row("", "GPU1: Fail"),
        *row("Warning: GPU1", "Persistence Mode: Persistence mode for GPU 1 is disabled. Enable persistence mode as root."),
        *row("", "CPU0: Pass"),
        section("Hardware"),
        *row("memory", "Pass"),
        *row("", "GPU0: Pass"),
        *row("", "GPU1: Pass"),
    )
    result = parse_dcgm(text)
    (finding,) = [f for f in result.findings if f.level is Level.WARN]
    assert result.outcome is Outcome.WARN and finding.gpus == ("1",) and finding.evidence["error_id"] == 29


def test_a_blank_status_of_4x_is_not_measured() -> None:
    text = table(section("Hardware"), *row("memory", "Pass"), *row("", "GPU0: Pass"), *row("", "GPU1:"))
    assert parse_dcgm(text).outcome is Outcome.NOT_MEASURED


@pytest.mark.parametrize("value", ["Fail - GPU 2", "FAIL - GPU 2: HBM memory test failed", "Fail - GPUs: 2", "fail - gpu: 2"])
def test_rows_as_people_write_them(value: str) -> None:
    (finding,) = failed(parse_dcgm(table(section("Hardware"), *row("GPU Memory", value), *row("Diagnostic", "Pass - All"))))
    assert finding.gpus == ("2",)


@pytest.mark.parametrize("width", [20, 45, 90])
def test_a_table_of_another_width(width: int) -> None:
    def wide(name: str, value: str) -> str:
        return f"| {name:<30} | {value:<{width}} |"

    rule = f"+{'-' * 32}+{'-' * (width + 2)}+"
    lines = [rule, wide("Diagnostic", "Result"), rule.replace("-", "="), wide("Denylist", "Pass"), wide("PCIe", "Pass - All"), rule]
    assert parse_dcgm("\n".join(lines)).outcome is Outcome.PASS
    assert parse_dcgm("\n".join(lines[:-1])).outcome is Outcome.NOT_MEASURED


def test_the_excerpt_of_a_failing_table_still_fails() -> None:
    """stas00/ml-engineering: an error under the section's name, and rows from the middle of a table."""
    head = [*HEAD, section("Deployment", "|"), *row("Error", "GPU 3 has uncorrectable memory errors and row remappings are pending")]
    assert parse_dcgm("\n".join(head)).outcome is Outcome.FAIL
    middle = [*row("GPU Memory", "Pass - GPUs: 1, 2, 3"), *row("", "Fail - GPU: 0"), *row("Warning", "GPU 0 Thermal violations")]
    assert parse_dcgm("\n".join(middle)).outcome is Outcome.FAIL
    assert parse_dcgm("\n".join(middle[:1])).outcome is Outcome.NOT_MEASURED


@pytest.mark.parametrize(
    "damaged",
    [
        [*row("GPU Memory", "Fail3: Fail"), *row("", "GPU0: Pass")],  # two rows ran together
        [f"{section('Hardware')[:40]}          | Fail - All                                     |"],
        [*row("GPU Memory", "Pass - GPU: 0"), f"{row('', 'Fail - GPU: 1')[0][:70]}{section('Stress')}"],
        [f"{row('GPU Memory', 'Fail - All')[0]}      | GPU 1 Allocated 12 bytes                       |"],
        [section("Metadata", "|"), *row("GPU Memory", "Pass - GPU: 0"), *row("", "Fail - GPU: 1")],
        [section("Metadata", "|"), *row("", "GPU1: Fail")],
        [*row("GPU Memory", "Pass - GPU: 0"), *row("", "Fail1 of them")],
    ],
)
def test_rows_that_ran_into_each_other_are_no_pass(damaged: list[str]) -> None:
    assert parse_dcgm(table(section("Integration"), *row("PCIe", "Pass - All"), *damaged)).outcome not in (Outcome.PASS, Outcome.WARN)


def test_a_multi_node_table() -> None:
    def made(status: str) -> str:
        lines = [section("Metadata", "|"), *row("MNUBERGEMM Test", status), *row("DCGM Version", "4.3.0"), *row("Hosts Found", "2")]
        lines += [*row("Host List", "0: node-a"), *row("", "1: node-b"), *row("Total GPUs", "4"), section("Host Details", "|")]
        lines += [*row("Host 0", "Pass"), *row("  GPUs: 0, 1", "Pass"), *row("Host 1", status)]
        lines += [*row("  GPU 0", "Pass"), *row("  GPU 1", status)]
        if status == "Fail":
            lines += row("", "Error: There was an internal error during the test: 'GEMM result differs'")
        return table(*lines)

    assert parse_dcgm(made("Pass")).outcome is Outcome.PASS
    result = parse_dcgm(made("Fail"))
    assert result.outcome is Outcome.FAIL and result.details["version"] == "4.3.0"
    assert (("node-b",), ("1",)) in [(f.nodes, f.gpus) for f in failed(result)]


def test_iterations_as_text() -> None:
    one = table(section("Deployment", "|"), *row("Denylist", "Pass"), section("Integration"), *row("PCIe", "Pass - All"))
    both = f"\nRunning iteration 1 of 2...\n{one}\nRunning iteration 2 of 2...\n{one}"
    assert parse_dcgm(f"{both}Passed all 2 runs of the diagnostic\n").outcome is Outcome.PASS
    assert parse_dcgm(f"{both}Aborting the iterative runs of the diagnostic due to failure: NVVS error\n").outcome is Outcome.FAIL
    assert parse_dcgm(f"{both}\nRunning iteration 3 of 3...\n{one[:400]}").outcome is Outcome.NOT_MEASURED
