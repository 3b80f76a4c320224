"""Real outputs of dcgmi, with the right verdict for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_health.findings import FindingKind, Level
from elastic_health.preflight.dcgm import parse_dcgm
from elastic_health.preflight.nvlink import parse_nvlink
from elastic_health.preflight.results import Outcome

pytestmark = pytest.mark.spec("P1")

CASES = {
    "dcgm2x_gcm_diag_fail_output.json": (0, Outcome.FAIL, {FindingKind.MISCONFIGURED}),
    "dcgm2x_gcm_non_fatal_error_code_output.json": (205, Outcome.PASS, set()),
    "dcgm310_nvvs_real_output.txt": (None, Outcome.PASS, set()),
    "dcgm423_gb10-level1.json": (226, Outcome.WARN, {FindingKind.MISCONFIGURED}),
    "dcgm423_gb10-level2-plugins-gated.json": (None, Outcome.NOT_MEASURED, {FindingKind.MISCONFIGURED, FindingKind.NOT_MEASURED}),
    "dcgm4_mndiag_schema.json": (None, Outcome.NOT_MEASURED, {FindingKind.NOT_MEASURED}),
    "dcgm4_schema.json": (None, Outcome.NOT_MEASURED, {FindingKind.NOT_MEASURED}),
    "frag_info_truncated_v4.txt": (None, Outcome.NOT_MEASURED, {FindingKind.NOT_MEASURED}),
    "msg_unsupported_gpu.txt": (None, Outcome.NOT_MEASURED, {FindingKind.NOT_MEASURED}),
    "table_331_gpu_busy_part1.txt": (None, Outcome.NOT_MEASURED, {FindingKind.NOT_MEASURED}),
    "table_335_autopilot_cut.txt": (None, Outcome.NOT_MEASURED, {FindingKind.NOT_MEASURED}),
    "table_423_entity_rows.txt": (None, Outcome.NOT_MEASURED, {FindingKind.NOT_MEASURED}),
}
DETAILS: dict[str, dict[str, Any]] = {
    "dcgm310_nvvs_real_output.txt": {"version": "3.1.0", "gpus": [str(i) for i in range(8)], "complete": True},
    "dcgm423_gb10-level1.json": {"version": "4.2.3", "driver": "580.82.09", "tests": {"software": "fail"}},
    "dcgm423_gb10-level2-plugins-gated.json": {"tests": {"software": "fail", "memory": "skip", "pcie": "skip"}},
    "table_423_entity_rows.txt": {"version": "4.2.3", "gpus": ["0", "1", "2", "3"], "complete": False},
    "table_335_autopilot_cut.txt": {"version": "3.3.5", "driver": "550.54.15"},
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_case(name: str, cases: Path) -> None:
    status, outcome, kinds = CASES[name]
    result = parse_dcgm((cases / "dcgm" / name).read_text(), status)
    assert result.outcome is outcome, result.summary
    assert {f.kind for f in result.findings if f.level is not Level.NOTE} == kinds
    assert all(f.advice for f in result.findings if f.level is not Level.NOTE)
    assert {k: result.details[k] for k in DETAILS.get(name, {})} == DETAILS.get(name, {})


def test_every_output_in_the_folder_is_in_the_table(cases: Path) -> None:
    others = {"dcgm_error_ids.csv", "exit_codes.txt", "dcgmi_nvlink_error_fail_output.json"}
    assert {p.name for p in (cases / "dcgm").iterdir()} >= set(CASES) | others


def test_the_nvlink_case(cases: Path) -> None:
    result = parse_nvlink((cases / "dcgm" / "dcgmi_nvlink_error_fail_output.json").read_text())
    (finding,) = result.findings
    assert result.outcome is Outcome.FAIL and finding.kind is FindingKind.LINK_ERROR
    assert (finding.gpus, finding.evidence["links"], finding.measured) == (("0",), [0], 12.0) and "crc_data" in finding.reason
