"""What the exit status of `dcgmi` adds to its output.  A shell shows its negative codes as 256 - n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from elastic_health.findings import Finding, FindingKind, Level
from elastic_health.preflight.dcgm_ids import RETURNS
from elastic_health.preflight.dcgm_runs import DiagRun

_SIGNALS: Mapping[int, str] = MappingProxyType({1: "HUP", 2: "INT", 3: "QUIT", 6: "ABRT", 7: "BUS", 9: "KILL", 11: "SEGV", 15: "TERM"})
_LAST_SIGNAL = 64
_TIMEOUT_TOOL = 124
"""Of timeout(1)."""
_FIRST_CODE = 193
_TIMED_OUT, _KILLED, _ISOLATE, _LOST = 11, 53, 51, 18
_CAPITALS = frozenset(("NVVS", "GPU", "NVML", "JSON", "API"))
_ADVICE: Mapping[int, str] = MappingProxyType(
    {
        11: "give the diagnostic more time, and see what holds it in nvvs.log",
        18: "reboot the node; if the GPU is lost again, replace it",
        19: "reset the GPU or reboot the node, then run the check again",
        21: "start the host engine (nvidia-dcgm.service, nv-hostengine)",
        29: "run dcgmi as root",
        30: "read nv-hostengine.log and nvvs.log: nvvs, which runs the tests, failed itself",
        34: "something else uses the GPUs or the host engine: wait, or stop it",
        39: "wait for the other diagnostic, or stop it",
        44: "install a driver that this DCGM supports",
        52: "install the DCGM package that has nvvs, or set NVVS_BIN_PATH",
        54: "resume DCGM (`dcgmi modules`): it is paused",
    }
)


def words_of(exit_status: int) -> str:
    """The status in words: "NVVS error (-30)", "killed by SIGKILL", "status 1"."""
    signal = _signal(exit_status)
    if signal:
        return f"killed by SIG{_SIGNALS[signal]}" if signal in _SIGNALS else f"killed by signal {signal}"
    if exit_status == _TIMEOUT_TOOL:
        return "ended by its time limit (status 124)"
    name = RETURNS.get(256 - exit_status) if exit_status >= _FIRST_CODE else None
    if name is None:
        return f"status {exit_status}"
    said = " ".join(word if word in _CAPITALS else word.lower() for word in name.split("_"))
    return f"{said} (-{256 - exit_status})"


def _signal(exit_status: int) -> int:
    if exit_status < 0:
        return -exit_status
    return exit_status - 128 if 128 < exit_status <= 128 + _LAST_SIGNAL else 0


def exit_findings(run: DiagRun, exit_status: int | None, found: Sequence[Finding]) -> list[Finding]:
    """What the status says that the findings so far don't."""
    if exit_status is None:
        return []
    code = 256 - exit_status if exit_status >= _FIRST_CODE else 0
    measured = any(r.status.measured for r in run.results)
    bad = any(f.level is Level.FAIL for f in found)
    warned = any(f.level is Level.WARN for f in found)
    if exit_status == 0:
        return [_note("dcgmi ended with status 0 although a test failed")] if bad else []
    if _signal(exit_status) or exit_status == _TIMEOUT_TOOL or code in (_KILLED, _TIMED_OUT):
        return [_unmeasured(f"not measured: dcgmi was {words_of(exit_status)}", exit_status, code)]
    if code == _LOST and not measured:
        reason = f"dcgmi says that a GPU is lost: {words_of(exit_status)}"
        evidence = {"exit_status": exit_status}
        return [Finding(FindingKind.DEVICE_MISSING, reason, advice=_ADVICE[_LOST], signature="dcgm:lost", evidence=evidence)]
    if not measured:
        return [_unmeasured(f"not measured: {_why(exit_status)}", exit_status, code)]
    if bad or warned:
        return []
    if code == _ISOLATE:
        return [_note(f"all tests passed, though dcgmi ended with status 205: {words_of(exit_status)}")]
    reason = f"all tests passed, yet dcgmi ended with status {exit_status}: {words_of(exit_status)}"
    return [Finding(FindingKind.NOTE, reason, level=Level.WARN, advice=_ADVICE.get(code, "read nv-hostengine.log and nvvs.log"))]


def _why(exit_status: int) -> str:
    if exit_status in (126, 127):
        return f"dcgmi could not be started (status {exit_status})"
    return words_of(exit_status)


def _note(reason: str) -> Finding:
    return Finding(FindingKind.NOTE, reason, level=Level.NOTE)


def _unmeasured(reason: str, exit_status: int, code: int) -> Finding:
    advice = _ADVICE.get(code, "")
    if exit_status in (126, 127):
        advice = "install DCGM (datacenter-gpu-manager), or set the path of dcgmi"
    elif _signal(exit_status) or exit_status == _TIMEOUT_TOOL:
        advice = "give the diagnostic more time, and see what holds it in nvvs.log"
    return Finding(
        FindingKind.NOT_MEASURED,
        reason,
        level=Level.WARN,
        advice=advice or "read nv-hostengine.log and nvvs.log",
        evidence={"exit_status": exit_status},
        signature=f"dcgm:not_measured:exit-{exit_status}",
    )
