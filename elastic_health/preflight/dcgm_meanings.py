"""What one error of DCGM's means for a node: whose problem it is, whether the node may train with it, what to do.

Law: harmless is only what DCGM itself names by a known id (or by that id's own words), with nothing said against it; a failed
test that gives no reason is a failed test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from elastic_health.findings import FindingKind
from elastic_health.preflight.dcgm_ids import (
    CATEGORIES,
    ERRORS,
    HARMLESS,
    KINDS,
    PENDING,
    SETTINGS,
    SEVERITIES,
    ErrorId,
    Origin,
    canonical_test,
    known_by_text,
)
from elastic_health.preflight.dcgm_runs import DiagError


@dataclass(frozen=True)
class Meaning:
    """`name`, `severity`, `category`: as DCGM's table has them, "" where nothing is known."""

    kind: FindingKind
    origin: Origin
    harmless: bool
    isolate: bool
    advice: str
    error_id: int | None = None
    name: str = ""
    severity: str = ""
    category: str = ""


_BY_ID: Mapping[int, str] = MappingProxyType(
    {
        6: "reset the GPU or reboot the node, so that the pages are retired; then run the check again",
        83: "reset the GPU or reboot the node, so that the pages are retired; if it comes back, replace the GPU",
        85: "reset the GPU or reboot the node, so that the rows are remapped; if it comes back, replace the GPU",
        18: "give the user that runs dcgmi access to the device files, or run it as root",
        20: "compare `nvidia-smi -L` with /dev/nvidia* and the expected number: a GPU is missing or hidden",
        22: "install the library, or set LD_LIBRARY_PATH, and restart the host engine",
        23: "install another driver: this one is on DCGM's denylist",
        25: "stop the graphics processes on the GPUs, then run the check again",
        26: "start the host engine (nv-hostengine, nvidia-dcgm.service)",
        28: "unset the environment variable that the message names: it costs speed",
        29: "run `nvidia-smi -pm 1` as root, or enable nvidia-persistenced; the node may train meanwhile",
        30: "compare the PCIe link's width and generation with a good node of this type; reseat or replace if they differ",
        45: "reseat the GPU or check the slot and its BIOS setting: the PCIe link is slower than it should be",
        46: "reseat the GPU or check the slot and its BIOS setting: the PCIe link is narrower than it should be",
        47: "run the diagnostic again and let it finish: this test was stopped and measured nothing",
        56: "free the GPU's memory (see `nvidia-smi`) and run the check again",
        72: "raise the enforced power limit (`nvidia-smi -pl`), or set the test's target for this limit",
        99: "start Fabric Manager and read its log; then look at `nvidia-smi nvlink -s`",
        112: "restart Fabric Manager and read its log: the NVLink fabric didn't train",
        120: "reboot the node; if the GPU falls off the bus again, replace it",
    }
)
_BY_ORIGIN: Mapping[Origin, str] = MappingProxyType(
    {
        Origin.HARDWARE: "take the node out of service, run `dcgmi diag -r 3` on this GPU alone, and replace it if it fails again",
        Origin.RESET: "reset the GPU or reboot the node and run the check again; replace the GPU if it fails again",
        Origin.CONFIGURATION: "mend the setting on the host; the hardware isn't accused",
        Origin.SOFTWARE: "check driver, CUDA and DCGM packages against a node that passes; the hardware isn't accused by this alone",
        Origin.DIAGNOSTIC: "read nv-hostengine.log and nvvs.log; run the check again",
        Origin.UNKNOWN: "read the message, and run the test again with `dcgmi diag -v`; nothing is known of this error here",
    }
)
_BY_TEST: Mapping[str, str] = MappingProxyType(
    {
        "persistence_mode": "run `nvidia-smi -pm 1` as root, or enable nvidia-persistenced",
        "environment_variables": "unset the CUDA variables that change how GPUs are seen or used",
        "permissions_and_os_blocks": _BY_ID[18],
        "denylist": "check the driver, and for the nouveau driver: another one may hold the GPUs",
        "graphics_processes": _BY_ID[25],
        "page_retirement_row_remap": "look at `nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT`: reset the GPU if something is pending, "
        "replace it if a limit is reached",
        "inforom": "flash the InfoROM, or replace the GPU",
    }
)
_BY_CATEGORY: Mapping[str, FindingKind] = MappingProxyType(
    {
        "HARDWARE_NVLINK": FindingKind.LINK_ERROR,
        "HARDWARE_NVSWITCH": FindingKind.LINK_ERROR,
        "HARDWARE_THERMAL": FindingKind.THROTTLED,
        "HARDWARE_POWER": FindingKind.THROTTLED,
        "SOFTWARE_XID": FindingKind.DEVICE_ERROR,
    }
)
_SUBTEST = re.compile(r"\s*([A-Z][\w/ -]{3,40}?): ")


def meaning_of(error: DiagError | None, test: str) -> Meaning:
    """Of one error of a test; of None: of a test that failed without a word."""
    if error is None:
        return _of_test(test)
    inner = _SUBTEST.match(error.text) if test == "software" else None
    number = error.error_id if error.error_id not in (None, 0, 1, 2) else known_by_text(error.text)
    row = ERRORS.get(number) if number is not None else None
    told = _as_told(error)
    if row is None:
        return _unknown(number, told) if number is not None or told is not None else _of_test(canonical_test(inner[1]) if inner else test)
    against = told is not None and (told.category.startswith("HARDWARE") or told.severity in ("ISOLATE", "RESET"))
    return _of_row(row, believed=not against)


def _as_told(error: DiagError) -> ErrorId | None:
    """Severity and category of the output's own, where it has both and they are of this numbering."""
    if error.severity is None or error.category is None:
        return None
    if not (0 <= error.severity < len(SEVERITIES) and 0 <= error.category < len(CATEGORIES)):
        return None
    return ErrorId(error.error_id or 0, "", SEVERITIES[error.severity], CATEGORIES[error.category])


def _of_row(row: ErrorId, *, believed: bool = True) -> Meaning:
    number, origin = row.error_id, _origin(row)
    harmless = number in HARMLESS and believed
    if number in HARMLESS and not believed:
        origin = Origin.UNKNOWN
    advice = _BY_ID.get(number, _BY_ORIGIN[origin]) if believed else _BY_ORIGIN[origin]
    return Meaning(_kind(row, origin), origin, harmless, row.severity == "ISOLATE", advice, number, row.name, row.severity, row.category)


def _origin(row: ErrorId) -> Origin:
    if row.severity == "CONFIG" and row.error_id not in (20, 46):
        return Origin.CONFIGURATION
    if row.severity == "RESET":
        return Origin.CONFIGURATION if row.category.startswith("SOFTWARE") else Origin.RESET
    if row.category.startswith(("HARDWARE", "PERF")) or row.error_id in (20, 81, 95, 101, 109):
        return Origin.HARDWARE
    if row.category == "INTERNAL_OTHER":
        return Origin.DIAGNOSTIC
    return Origin.SOFTWARE if row.category.startswith("SOFTWARE") else Origin.UNKNOWN


def _kind(row: ErrorId, origin: Origin) -> FindingKind:
    if row.error_id in KINDS:
        return KINDS[row.error_id]
    if row.error_id in PENDING or origin in (Origin.CONFIGURATION, Origin.SOFTWARE, Origin.DIAGNOSTIC):
        return FindingKind.MISCONFIGURED
    return _BY_CATEGORY.get(row.category, FindingKind.DEVICE_ERROR)


def _unknown(number: int | None, told: ErrorId | None) -> Meaning:
    """An id of a later DCGM, or none: what the output says of it counts, and it is never harmless."""
    if told is None:
        return Meaning(FindingKind.DEVICE_ERROR, Origin.UNKNOWN, False, False, _BY_ORIGIN[Origin.UNKNOWN], number)
    origin = _origin(told)
    advice = _BY_ORIGIN[origin]
    return Meaning(_kind(told, origin), origin, False, told.severity == "ISOLATE", advice, number, "", told.severity, told.category)


def _of_test(test: str) -> Meaning:
    if test in SETTINGS:
        advice = _BY_TEST.get(test, _BY_ORIGIN[Origin.CONFIGURATION])
        return Meaning(FindingKind.MISCONFIGURED, Origin.CONFIGURATION, False, False, advice)
    if test == "page_retirement_row_remap":
        return Meaning(FindingKind.DEVICE_ERROR, Origin.RESET, False, False, _BY_TEST[test])
    if test in ("software", "iterations"):
        return Meaning(FindingKind.MISCONFIGURED, Origin.UNKNOWN, False, False, _BY_ORIGIN[Origin.UNKNOWN])
    return Meaning(FindingKind.DEVICE_ERROR, Origin.HARDWARE, False, False, _BY_TEST.get(test, _BY_ORIGIN[Origin.HARDWARE]))
