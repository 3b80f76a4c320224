"""Outputs of `dcgmi diag`, written here from a plain table of tests and statuses, in the forms of DCGM 2.x to 4.x."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """One test: its name in 4.x, and the status of each GPU; `text`: a message on those that don't pass."""

    test: str
    statuses: tuple[str, ...]
    text: str = ""
    numbers: tuple[int, int, int] | None = None  # error_id, severity, category


Spec = Sequence[Said]

NAMES_3: Mapping[str, str] = {
    "memory": "GPU Memory",
    "pcie": "PCIe",
    "diagnostic": "Diagnostic",
    "targeted_stress": "Targeted Stress",
    "targeted_power": "Targeted Power",
    "memory_bandwidth": "Memory Bandwidth",
    "eud": "EUD Test",
    "pulse_test": "Pulse Test",
    "memtest": "Memtest",
}
CATEGORY: Mapping[str, str] = {
    "software": "Deployment",
    "memory": "Hardware",
    "diagnostic": "Hardware",
    "pulse_test": "Hardware",
    "eud": "Hardware",
    "pcie": "Integration",
}
DEPLOYMENT_3 = ("Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode", "Inforom")
RULE = "+---------------------------+------------------------------------------------+"
HEAD = (RULE, "| Diagnostic                | Result                                         |", RULE.replace("-", "="))


def category_of(test: str) -> str:
    return CATEGORY.get(test, "Stress")


def _worst(statuses: Sequence[str]) -> str:
    return max(statuses, key=("Pass", "Not Run", "Skip", "Warn", "Fail").index)


def _by_category(spec: Spec) -> dict[str, list[Said]]:
    found: dict[str, list[Said]] = {}
    for said in spec:
        found.setdefault(category_of(said.test), []).append(said)
    return found


def _warning(said: Said, gpu: int) -> dict[str, Any]:
    made: dict[str, Any] = {"warning": said.text.format(gpu=gpu)}
    if said.numbers:
        made.update(zip(("error_id", "error_severity", "error_category"), said.numbers, strict=True))
    return made


def object_4(spec: Spec) -> dict[str, Any]:
    """As DCGM 4 has it: entities, a summary of each test, metadata beside the root."""
    categories = []
    for category, tests in _by_category(spec).items():
        made = []
        for said in tests:
            results: list[dict[str, Any]] = []
            for gpu, status in enumerate(said.statuses):
                result: dict[str, Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status}
                if said.text and status != "Pass":
                    result["warnings"] = [_warning(said, gpu)]
                results.append(result)
            summary: dict[str, Any] = {"status": _worst(said.statuses)}
            made.append({"name": said.test, "results": results, "test_summary": summary})
        categories.append({"category": category, "tests": made})
    count = max((len(s.statuses) for s in spec), default=0)
    entities = [{"device_id": "2330", "entity_id": i, "serial_num": f"16500{i}"} for i in range(count)]
    return {
        "DCGM Diagnostic": {"test_categories": categories},
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": "570.00", "version": "4.2.3"},
    }


def object_3(spec: Spec) -> dict[str, Any]:
    """As 3.x has it: `gpu_id` as text, one text of information, deployment tests without GPUs."""
    categories: list[dict[str, Any]] = []
    for category, tests in _by_category(spec).items():
        made = []
        for said in tests:
            name = NAMES_3.get(said.test, said.test)
            results = [
                {"gpu_id": str(g), "status": s, **({"warnings": [_warning(said, g)]} if said.text and s != "Pass" else {})}
                for g, s in enumerate(said.statuses)
            ]
            made.append({"name": name, "results": results})
        categories.append({"category": category, "tests": made})
    return {"DCGM GPU Diagnostic": {"test_categories": categories}, "version": "3.3.9", "Driver Version Detected": "550.00"}


def styled(value: object) -> str:
    """The indentation of jsoncpp, with tabs and a blank before each colon."""
    return json.dumps(value, indent="\t", separators=(",", " : ")) + "\n"


def row(name: str, value: str, width: int = 45) -> list[str]:
    """One row, or several for a long message."""
    parts = [value[i : i + width] for i in range(0, len(value), width)] or [""]
    return [f"| {name if i == 0 else '':<25} | {part:<{width + 1}} |" for i, part in enumerate(parts)]


def section(name: str, left: str = "+") -> str:
    return f"{left}{'-----  ' + name + '  ':-<27}+{'-' * 48}{left}"


def _metadata(version: str, devices: str) -> list[str]:
    return [
        section("Metadata", "|"),
        *row("DCGM Version", version),
        *row("Driver Version Detected", "550.54.15"),
        *row("GPU Device IDs Detected", devices),
    ]


def table_3(spec: Spec) -> str:
    """As 3.x prints it: the deployment tests first, then `Pass - GPUs: 0, 1`."""
    lines = ["Successfully ran diagnostic for group.", *HEAD, *_metadata("3.3.5", "2330,2330"), section("Deployment", "|")]
    for name in DEPLOYMENT_3:
        lines += row(name, "Pass")
    for category in ("Integration", "Hardware", "Stress"):
        lines.append(section(category))
        for said in _by_category([s for s in spec if s.test != "software"]).get(category, []):
            lines += _row_3(said)
    return "\n".join([*lines, RULE, ""])


def _row_3(said: Said) -> list[str]:
    name = NAMES_3.get(said.test, said.test)
    kinds = [s for s in ("Pass", "Fail", "Warn", "Skip") if s in said.statuses]
    lines: list[str] = []
    if len(kinds) == 1:
        lines = row(name, f"{kinds[0]} - All")
    else:
        for kind in kinds:
            gpus = [str(g) for g, s in enumerate(said.statuses) if s == kind]
            lines += row("" if lines else name, f"{kind} - GPU{'s' if len(gpus) > 1 else ''}: {', '.join(gpus)}")
    for gpu, status in enumerate(said.statuses):
        if said.text and status != "Pass":
            lines += row("Warning", f"GPU {gpu} {said.text.format(gpu=gpu)}")
    return lines


def table_4(spec: Spec) -> str:
    """As 4.x prints it: a row for the test, then one for each GPU."""
    lines = ["Successfully ran diagnostic for group.", *HEAD, *_metadata("4.2.3", "2330, 2330")]
    for category in ("Deployment", "Hardware", "Integration", "Stress"):
        tests = _by_category(spec).get(category, [])
        if tests:
            lines.append(section(category, "|" if category == "Deployment" else "+"))
        for said in tests:
            lines += row(said.test, _worst(said.statuses))
            for gpu, status in enumerate(said.statuses):
                lines += row("", f"GPU{gpu}: {status}")
                if said.text and status != "Pass":
                    lines += row(f"Warning: GPU{gpu}", said.text.format(gpu=gpu))
    return "\n".join([*lines, RULE, ""])


PASSING: Spec = (
    Said("software", ("Pass",) * 2),
    Said("memory", ("Pass",) * 2),
    Said("pcie", ("Pass",) * 2),
    Said("targeted_stress", ("Pass",) * 2),
)
FAILING: Spec = (
    Said("software", ("Pass",) * 2),
    Said("memory", ("Pass", "Fail"), "A memory mismatch was detected on GPU {gpu}, but no error was reported by CUDA.", (58, 2, 10)),
    Said("pcie", ("Pass",) * 2),
    Said("targeted_stress", ("Pass",) * 2),
)
FORMS = {
    "json 4": lambda spec: styled(object_4(spec)),
    "json 4 compact": lambda spec: json.dumps(object_4(spec)) + "\n",
    "json 3": lambda spec: styled(object_3(spec)),
    "json 3 compact": lambda spec: json.dumps(object_3(spec)),
    "table 3": table_3,
    "table 4": table_4,
}
