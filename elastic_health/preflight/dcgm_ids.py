"""DCGM's own numbers and names: error ids and what each means for a node, return codes, test names across generations.

Sources: NVIDIA/DCGM dcgmlib/dcgm_errors.h, dcgmlib/src/dcgm_errors.c and dcgmlib/dcgm_structs.h (4.x); nvvs/include/PluginStrings.h.

Law: an id that isn't known, or whose own severity or category contradict the table, is never harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from elastic_health.findings import FindingKind


class Origin(Enum):
    """Whose problem a failed test is.  Quarantine is for `hardware`; the others are for whoever runs the host."""

    HARDWARE = "hardware"
    RESET = "reset"
    """Memory that waits for a reset of the GPU or a reboot; broken only if it stays."""
    CONFIGURATION = "configuration"
    SOFTWARE = "software"
    DIAGNOSTIC = "diagnostic"
    """DCGM itself failed."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ErrorId:
    """One row of DCGM's table, e.g. 29, PERSISTENCE_MODE, CONFIG, SOFTWARE_OTHER."""

    error_id: int
    name: str
    severity: str
    category: str


_TABLE = """
ISOLATE HARDWARE_MEMORY: 4 VOLATILE_DBE_DETECTED, 7 RETIRED_PAGES_LIMIT, 8 RETIRED_PAGES_DBE_LIMIT, 52 FAULTY_MEMORY, 57 CUDA_DBE,
  58 MEMORY_MISMATCH, 79 L1TAG_MISCOMPARE, 102 SBE_VIOLATION, 103 DBE_VIOLATION, 105 SBE_THRESHOLD_VIOLATION,
  106 DBE_THRESHOLD_VIOLATION, 111 NAN_VALUE, 118 SRAM_THRESHOLD
ISOLATE HARDWARE_NVLINK: 13 NVLINK_ERROR_THRESHOLD, 70 NVLINK_CRC_ERROR_THRESHOLD, 71 NVLINK_ERROR_CRITICAL, 88 NVSWITCH_NVLINK_DOWN,
  115 BROKEN_P2P_NVLINK_MEMORY_DEVICE, 116 BROKEN_P2P_NVLINK_WRITER_DEVICE, 119 NVLINK_EFFECTIVE_BER_THRESHOLD,
  121 NVLINK_SYMBOL_BER_THRESHOLD
ISOLATE HARDWARE_NVSWITCH: 15 NVSWITCH_FATAL_ERROR
ISOLATE HARDWARE_OTHER: 33 FIELD_VIOLATION, 86 BROKEN_P2P_MEMORY_DEVICE, 87 BROKEN_P2P_WRITER_DEVICE, 120 FALLEN_OFF_BUS,
  126 GPU_RECOVERY_REBOOT
ISOLATE HARDWARE_PCIE: 3 PCI_REPLAY_RATE, 98 PCIE_H_REPLAY_VIOLATION, 104 PCIE_REPLAY_VIOLATION, 107 PCIE_REPLAY_THRESHOLD_VIOLATION,
  113 BROKEN_P2P_PCIE_MEMORY_DEVICE, 114 BROKEN_P2P_PCIE_WRITER_DEVICE
ISOLATE PERF_THRESHOLD: 38 FIELD_THRESHOLD_TS, 39 FIELD_THRESHOLD_TS_DBL
ISOLATE PERF_VIOLATION: 35 FIELD_VIOLATION_DBL, 36 FIELD_THRESHOLD_DBL
ISOLATE SOFTWARE_EUD: 95 EUD_TEST_FAILED
ISOLATE SOFTWARE_LIBRARY: 24 NVML_LIB_BAD
ISOLATE SOFTWARE_OTHER: 122 IMEX_UNHEALTHY
ISOLATE SOFTWARE_XID: 81 UNCONTAINED_ERROR, 109 SXID_ERROR
RESET HARDWARE_MEMORY: 6 PENDING_PAGE_RETIREMENTS, 80 ROW_REMAP_FAILURE, 83 DBE_PENDING_PAGE_RETIREMENTS, 84 UNCORRECTABLE_ROW_REMAP,
  85 PENDING_ROW_REMAP
RESET HARDWARE_OTHER: 125 GPU_RECOVERY_RESET, 127 GPU_RECOVERY_DRAIN_P2P, 128 GPU_RECOVERY_DRAIN_RESET, 129 NCCL_ERROR
RESET SOFTWARE_OTHER: 25 GRAPHICS_PROCESSES
TRIAGE HARDWARE_MEMORY: 132 UNCORRECTABLE_ROW_REMAP_LIMIT
TRIAGE HARDWARE_NVLINK: 14 NVLINK_DOWN, 99 GPU_EXPECTED_NVLINKS_UP, 100 NVSWITCH_EXPECTED_NVLINKS_UP
TRIAGE HARDWARE_OTHER: 9 CORRUPT_INFOROM
TRIAGE HARDWARE_PCIE: 30 LOW_BANDWIDTH, 31 HIGH_LATENCY, 45 PCIE_GENERATION
TRIAGE HARDWARE_POWER: 63 TARGET_POWER
TRIAGE INTERNAL_OTHER: 37 UNSUPPORTED_FIELD_TYPE, 44 INTERNAL, 49 CANNOT_GET_STAT, 67 DCGM_API, 97 PAUSE_RESUME_FAILED
TRIAGE PERF_THRESHOLD: 50 STRESS_LEVEL, 62 MEMORY_BANDWIDTH
TRIAGE PERF_VIOLATION: 110 GFLOPS_THRESHOLD_VIOLATION
TRIAGE SOFTWARE_CUDA: 54 CUDA_UNBOUND, 59 CUDA_DEVICE, 66 CUDA_CONTEXT
TRIAGE SOFTWARE_EUD: 89 EUD_BINARY_PERMISSIONS, 90 EUD_NON_ROOT_USER, 91 EUD_SPAWN_FAILURE, 92 EUD_TIMEOUT, 93 EUD_ZOMBIE,
  94 EUD_NON_ZERO_EXIT_CODE
TRIAGE SOFTWARE_LIBRARY: 22 CANNOT_OPEN_LIB
TRIAGE SOFTWARE_OTHER: 56 MEMORY_ALLOC, 64 API_FAIL, 65 API_FAIL_GPU, 73 MEMORY_ALLOC_HOST, 77 HAD_TO_RESTORE_STATE,
  124 BINARY_PERMISSIONS, 130 RETEST_REQUESTED
TRIAGE SOFTWARE_XID: 101 XID_ERROR
CONFIG HARDWARE_PCIE: 46 PCIE_WIDTH
CONFIG HARDWARE_POWER: 72 ENFORCED_POWER_LIMIT
CONFIG SOFTWARE_CONFIG: 23 DENYLISTED_DRIVER, 48 TEST_DISABLED, 68 CONCURRENT_GPUS, 82 EMPTY_GPU_LIST, 96 FILE_CREATE_PERMISSIONS,
  117 TEST_SKIPPED
CONFIG SOFTWARE_CUDA: 28 BAD_CUDA_ENV, 112 FABRIC_MANAGER_TRAINING_ERROR
CONFIG SOFTWARE_OTHER: 18 NO_ACCESS_TO_FILE, 20 DEVICE_COUNT_MISMATCH, 29 PERSISTENCE_MODE, 47 ABORTED, 78 L1TAG_UNSUPPORTED
MONITOR HARDWARE_MEMORY: 5 VOLATILE_SBE_DETECTED, 75 NO_MEMORY_CLOCKS
MONITOR HARDWARE_NVLINK: 123 FABRIC_PROBE_STATE
MONITOR HARDWARE_NVSWITCH: 16 NVSWITCH_NON_FATAL_ERROR, 17 NVSWITCH_DOWN
MONITOR HARDWARE_OTHER: 43 CLOCKS_EVENT_VIOLATION, 76 NO_GRAPHICS_CLOCKS
MONITOR HARDWARE_POWER: 11 POWER_UNREADABLE, 12 CLOCKS_EVENT_POWER
MONITOR HARDWARE_THERMAL: 10 CLOCKS_EVENT_THERMAL, 40 THERMAL_VIOLATIONS, 41 THERMAL_VIOLATIONS_TS, 42 TEMP_VIOLATION
MONITOR INTERNAL_OTHER: 26 HOSTENGINE_CONN, 27 FIELD_QUERY, 32 CANNOT_GET_FIELD_TAG, 53 CANNOT_SET_WATCHES
MONITOR PERF_VIOLATION: 34 FIELD_THRESHOLD
MONITOR SOFTWARE_CONFIG: 74 GPU_OP_MODE
MONITOR SOFTWARE_CUDA: 51 CUDA_API, 108 CUDA_FM_NOT_INITIALIZED
MONITOR SOFTWARE_LIBRARY: 19 NVML_API
MONITOR SOFTWARE_OTHER: 69 TOO_MANY_ERRORS
MONITOR SOFTWARE_XID: 131 CONTAINED_ERROR
UNKNOWN INTERNAL_OTHER: 21 BAD_PARAMETER
UNKNOWN NONE: 0 OK, 1 UNKNOWN, 2 UNRECOGNIZED
"""


def _rows() -> dict[int, ErrorId]:
    found = {}
    for severity, category, ids in re.findall(r"^([A-Z]+) ([A-Z_]+): ([^:]+)(?=\n[A-Z]|\Z)", _TABLE.strip(), re.MULTILINE):
        for number, name in re.findall(r"(\d+) (\w+)", ids):
            found[int(number)] = ErrorId(int(number), name, severity, category)
    return found


ERRORS: Mapping[int, ErrorId] = MappingProxyType(_rows())
SEVERITIES = ("NONE", "MONITOR", "ISOLATE", "UNKNOWN", "TRIAGE", "CONFIG", "RESET")
"""By number, since DCGM 3.3; older ones number them otherwise, and have no categories: only the two together are believed."""
CATEGORIES = (
    "NONE",
    "PERF_THRESHOLD",
    "PERF_VIOLATION",
    "SOFTWARE_CONFIG",
    "SOFTWARE_LIBRARY",
    "SOFTWARE_XID",
    "SOFTWARE_CUDA",
    "SOFTWARE_EUD",
    "SOFTWARE_OTHER",
    "HARDWARE_THERMAL",
    "HARDWARE_MEMORY",
    "HARDWARE_NVLINK",
    "HARDWARE_NVSWITCH",
    "HARDWARE_PCIE",
    "HARDWARE_POWER",
    "HARDWARE_OTHER",
    "INTERNAL_OTHER",
)

HARMLESS = frozenset((28, 29))
"""Settings that cost speed at most: the node may train, somebody should mend them.  No other id of severity CONFIG is such: 47
(aborted) has the severity and category of 29, and measured nothing."""
PENDING = frozenset((6, 83, 85))
KINDS: Mapping[int, FindingKind] = MappingProxyType(
    {
        20: FindingKind.DEVICE_MISSING,
        120: FindingKind.DEVICE_MISSING,
        30: FindingKind.LOW_BANDWIDTH,
        62: FindingKind.LOW_BANDWIDTH,
        46: FindingKind.DEVICE_ERROR,
        95: FindingKind.DEVICE_ERROR,
        112: FindingKind.LINK_ERROR,
        50: FindingKind.THROTTLED,
        110: FindingKind.THROTTLED,
        43: FindingKind.THROTTLED,
    }
)

# Words of DCGM's messages, for outputs without ids (text tables, 2.x).  The first that matches counts.
_PHRASES: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(words, re.IGNORECASE | re.DOTALL), number)
    for words, number in (
        (r"persistence mode for gpu", 29),
        (r"performance-limiting environment variable", 28),
        (r"driver on the deny ?list", 23),
        (r"could not be accessed directly", 18),
        (r"number of devices nvml returns", 20),
        (r"cannot open library", 22),
        (r"graphics contexts open", 25),
        (r"could not connect to the host ?engine", 26),
        (r"page retirements together with a dbe", 83),
        (r"pending page retirements", 6),
        (r"row remappings are pending", 85),
        (r"row remapping failed", 80),
        (r"rows were remapped", 84),
        (r"fallen off the bus", 120),
        (r"did not exceed minimum required bandwidth", 30),
        (r"exceeded maximum allowed latency", 31),
        (r"pci link generation \d", 45),
        (r"pci link width \d", 46),
        (r"thermal violations totaling", 40),
        (r"exceeded user-specified maximum allowed temperature", 42),
        (r"clocks are being (?:throttled|changed|optimized)", 43),
        (r"did not reach desired stress level", 50),
        (r"did not reach desired power minimum", 63),
        (r"only achieved a memory bandwidth", 62),
        (r"faulty memory elements", 52),
        (r"memory mismatch was detected", 58),
        (r"double-bit ecc error", 57),
        (r"couldn't allocate at least", 56),
        (r"nvlink errors found occuring per second", 70),
        (r"nvlink errors on gpu .{0,40}should be 0", 71),
        (r"nvswitch .{0,20}nvlink .{0,20}is down", 88),
        (r"nvlink .{0,40}(?:is|are) (?:currently )?down", 14),
        (r"aborted early", 47),
        (r"detected xid", 101),
        (r"uncontained error", 81),
        (r"corrupt\w{0,4} inforom|inforom .{0,20}corrupt", 9),
        (r"miscompare failure", 79),
        (r"failed to create a cuda context", 66),
        (r"error using cuda api", 51),
        (r"internal error during the test", 44),
    )
)


def known_by_text(text: str) -> int | None:
    """The error id whose message this is, as far as its words tell."""
    return next((number for words, number in _PHRASES if words.search(text)), None)


# ---- return codes of dcgmi, as a shell sees them: 256 - n

_RETURNS = (
    "1 BADPARAM, 3 GENERIC_ERROR, 4 MEMORY, 5 NOT_CONFIGURED, 6 NOT_SUPPORTED, 7 INIT_ERROR, 8 NVML_ERROR, 9 PENDING, 10 UNINITIALIZED, "
    "11 TIMEOUT, 12 VER_MISMATCH, 13 UNKNOWN_FIELD, 14 NO_DATA, 15 STALE_DATA, 16 NOT_WATCHED, 17 NO_PERMISSION, 18 GPU_IS_LOST, "
    "19 RESET_REQUIRED, 20 FUNCTION_NOT_FOUND, 21 CONNECTION_NOT_VALID, 22 GPU_NOT_SUPPORTED, 23 GROUP_INCOMPATIBLE, 24 MAX_LIMIT, "
    "25 LIBRARY_NOT_FOUND, 26 DUPLICATE_KEY, 27 GPU_IN_SYNC_BOOST_GROUP, 28 GPU_NOT_IN_SYNC_BOOST_GROUP, 29 REQUIRES_ROOT, "
    "30 NVVS_ERROR, 31 INSUFFICIENT_SIZE, 32 FIELD_UNSUPPORTED_BY_API, 33 MODULE_NOT_LOADED, 34 IN_USE, 35 GROUP_IS_EMPTY, "
    "36 PROFILING_NOT_SUPPORTED, 37 PROFILING_LIBRARY_ERROR, 38 PROFILING_MULTI_PASS, 39 DIAG_ALREADY_RUNNING, 40 DIAG_BAD_JSON, "
    "41 DIAG_BAD_LAUNCH, 43 DIAG_THRESHOLD_EXCEEDED, 44 INSUFFICIENT_DRIVER_VERSION, 45 INSTANCE_NOT_FOUND, "
    "46 COMPUTE_INSTANCE_NOT_FOUND, 47 CHILD_NOT_KILLED, 48 3RD_PARTY_LIBRARY_ERROR, 49 INSUFFICIENT_RESOURCES, 50 PLUGIN_EXCEPTION, "
    "51 NVVS_ISOLATE_ERROR, 52 NVVS_BINARY_NOT_FOUND, 53 NVVS_KILLED, 54 PAUSED, 55 ALREADY_INITIALIZED, 56 NVML_NOT_LOADED, "
    "57 NVML_DRIVER_TIMEOUT, 58 NVVS_NO_AVAILABLE_TEST"
)
RETURNS: Mapping[int, str] = MappingProxyType({int(n): name for n, name in re.findall(r"(\d+) (\w+)(?:,|$)", _RETURNS)})
"""Name by the negated code: 30 for DCGM_ST_NVVS_ERROR = -30, which a shell shows as 226."""

# ---- names of tests

DEPLOYMENT = frozenset(
    "software denylist nvml_library cuda_main_library cuda_toolkit_library permissions_and_os_blocks persistence_mode "
    "environment_variables page_retirement_row_remap graphics_processes inforom".split()
)
"""Checks of the installation; since 4.0 one test, `software`, with their names before its messages."""
SETTINGS = DEPLOYMENT - {"software", "page_retirement_row_remap", "inforom"}
OPTIONAL = frozenset(("eud", "cpu_eud"))
"""Tests that need a package of their own, which most fleets don't install: skipped is the rule."""
_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "blacklist": "denylist",
        "cuda_runtime_library": "cuda_toolkit_library",
        "permissions_and_os_related_blocks": "permissions_and_os_blocks",
        "environmental_variables": "environment_variables",
        "page_retirement": "page_retirement_row_remap",
        "gpu_memory": "memory",
        "pci": "pcie",
        "busgrind": "pcie",
        "pcie_nvlink": "pcie",
        "targeted_performance": "targeted_stress",
        "targeted_perf": "targeted_stress",
        "pulse": "pulse_test",
        "eud_test": "eud",
        "cpu_eud_test": "cpu_eud",
        "ctxcreate": "context_create",
        "mnubergemm_test": "mnubergemm",
    }
)


def canonical_test(name: str) -> str:
    """One name for a test in all generations: that of DCGM 4 (`GPU Memory`, `memory` -> `memory`; `Blacklist` -> `denylist`)."""
    plain = re.sub(r"[\W_]+", "_", name.strip().lower()).strip("_")[:80]
    return _ALIASES.get(plain, plain)


def run_names(name: str, version: str = "") -> tuple[str, ...]:
    """What to give to `dcgmi diag -r` for a test, likeliest first (NVIDIA/DCGM#296).

    Args:
        version: of the installed DCGM, e.g. "4.4.2"; "" for an unknown one.
    """
    wanted = canonical_test(name)
    if wanted in DEPLOYMENT:
        return ("1",) if not version.startswith(("1.", "2.", "3.")) else ("software", "1")
    spaced = wanted.replace("_", " ")
    names = (spaced, wanted) if version.startswith(("1.", "2.")) else (wanted, spaced)
    return tuple(dict.fromkeys(names))


_NOT_FOUND = re.compile(
    r"requested tests?\b(?P<names>.{0,400}?)\b(?:was|were) not found|no (?:such|available) tests?\b|NVVS_NO_AVAILABLE_TEST",
    re.IGNORECASE | re.DOTALL,
)


def unknown_tests(text: str) -> tuple[str, ...] | None:
    """The tests that dcgmi says it doesn't have; empty if it names none, None if it doesn't say so."""
    match = _NOT_FOUND.search(text)
    if match is None:
        return None
    return tuple(re.findall(r"[\"']([\w ,/-]{1,80})[\"']", match["names"] or ""))
