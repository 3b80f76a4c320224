"""How a worker ended, in one finding: its kind, its cause, a signature that equal faults share, and whether a peer died first.

Law: a consequence is never an origin.  A worker that ends because a connection to a peer broke, or because it waited for one in
vain, is `secondary` and names no rank and no node; the agent waits a moment for the first cause (`first_cause` picks it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from elastic_health.evidence.watchdog_log import parse
from elastic_health.evidence.watchdog_verdict import judge_log
from elastic_health.findings import Finding, FindingKind
from elastic_health.liveness.facts import ExitFacts
from elastic_health.verdicts import Cause

SIGNAL_NAMES: Mapping[int, str] = MappingProxyType(
    dict(
        enumerate(
            "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM SIGTERM "
            "SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO "
            "SIGPWR SIGSYS".split(),
            start=1,
        )
    )
)
"""Linux numbers (signal(7)); the `signal` module is left out of pure code."""
SIGABRT, SIGKILL = 6, 9
SETUP_ERRORS = frozenset({"CheckpointFolderError"})
"""Our own exceptions (`elastic_health.errors`) that say what is wrong with the set-up, in a sentence of expected, found, do."""
LONGEST_TEXT = 120
TAIL_CHARS = 1 << 16

_PREFIX = r"(?:\[[^\]\r\n]{1,30}\](?:<\w{1,8}>)?:? ?){0,3}"  # what a launcher puts before each line
_EXCEPTION = re.compile(r"^" + _PREFIX + r"((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80})(?:: ([^\r\n]*))?$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_ENDINGS = ("Error", "Exception", "Interrupt", "Exit", "Warning", "Timeout")
_MEMORY = re.compile(
    r"CUDA (?:error: )?out of memory|OutOfMemoryError|\bMemoryError\b|DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory",
    re.I,
)
# CUDA errors that speak of the device; most others (asserts, illegal accesses, no kernel image) are the program's.
_HARDWARE = re.compile(r"\bECC\b|nvlink|hardware|\blost\b|device unavailable|devices? (?:is|are) busy", re.I)
_LOADER_KILLED = re.compile(r"DataLoader worker \(pid[^)]{0,40}\)[^\r\n]{0,60}killed by signal: Killed", re.I)
_CONSEQUENCE = re.compile(
    r"Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe|Connection refused|connection was (?:likely )?closed"
    r"|ncclRemoteError|remote process exited|Timed out waiting \d{1,12} ?ms for (?:recv|send)|monitoredBarrier|Timed out in barrier"
    r"|Socket Timeout|wait timeout after \d|failed to recv, got 0 bytes|Gloo connectFullMesh failed|Application timeout caused pair closure"
    r"|Timed out after \d{1,12} seconds waiting for clients|Stop_waiting response is expected|DistNetworkError|DistStoreError",
    re.I,
)
_NOISE = (
    (re.compile(r"0x[0-9a-f]+", re.I), "<address>"),
    (re.compile(r"(?:/[\w.@%+-]+){2,}"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b", re.I), "<id>"),
    (re.compile(r"\d+"), "N"),
    (re.compile(r"\s+"), " "),
)


def classify(exit: ExitFacts) -> Finding:
    """One ended worker.

    Args:
        exit: `code` as in `subprocess`; `error_file` the *text* of torch's error file (JSON), "" if there is none.

    Returns:
        A finding with `cause`, `signature` and `secondary` set; `at` is the exit's; evidence has code, signal, exception.
    """
    text = exit.tail[-TAIL_CHARS:]
    exception, message = last_exception(text, exit.error_file)
    if exit.code == 0:
        return _finding(exit, FindingKind.WORKER_EXIT, Cause.FINISHED, "finished", "ended with status 0")
    if exit.code == -SIGKILL and exit.oom_kills > 0:
        return _finding(exit, FindingKind.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY, "out_of_memory:host", "killed by the kernel: out of memory")
    logged = judge_log(parse(text))
    if exit.code == -SIGABRT and logged:
        return _from_log(exit, logged[0])
    if exit.code < 0:
        name = signal_name(-exit.code)
        return _finding(exit, FindingKind.WORKER_KILLED, Cause.WORKER_KILLED, f"worker_killed:{name}", f"killed by {name}")
    return _from_exception(exit, exception, message, logged)


def signal_name(number: int) -> str:
    return SIGNAL_NAMES.get(number, f"signal {number}")


def first_cause(findings: Iterable[Finding]) -> Finding | None:
    """The origin among several ends: what is no consequence first, then what came first; None if there is nothing."""
    return min((f for f in findings if f.signature != "finished"), key=lambda f: (f.secondary, f.at), default=None)


def _from_log(exit: ExitFacts, logged: Finding) -> Finding:
    """An abort with the watchdog's lines: what they prove, plus who ended."""
    own = logged.kind is FindingKind.DEVICE_ERROR and logged.ranks in ((), (exit.rank,))
    hardware = own and _HARDWARE.search(logged.reason) is not None
    return Finding(
        logged.kind,
        f"rank {exit.rank} aborted: {logged.reason}",
        (exit.rank,) if own else logged.ranks,
        (exit.node,) if hardware else (),
        measured=logged.measured,
        required=logged.required,
        unit=logged.unit,
        at=exit.at,
        evidence={**logged.evidence, **_evidence(exit)},
        cause=logged.cause,
        signature=logged.signature,
        secondary=logged.secondary,
    )


def _from_exception(exit: ExitFacts, exception: str, message: str, logged: tuple[Finding, ...]) -> Finding:
    said = f"{exception}: {message}" if message else exception
    whole = f"{said}\n{exit.tail[-4000:]}" if not exception else said
    if _MEMORY.search(whole) or _LOADER_KILLED.search(whole):
        where = "device" if "cuda" in whole.lower() else "host"
        return _finding(exit, FindingKind.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY, f"out_of_memory:{where}", said or "out of memory", exception)
    if logged and logged[0].kind is FindingKind.DEVICE_ERROR:
        return _from_log(exit, logged[0])
    if _CONSEQUENCE.search(whole):
        signature = f"peer_consequence:{exception or 'exit'}"
        return _finding(exit, FindingKind.PEER_CONSEQUENCE, Cause.WORKER_EXIT, signature, said[:LONGEST_TEXT], exception, secondary=True)
    if exception in SETUP_ERRORS:
        return _finding(exit, FindingKind.WORKER_EXIT, Cause.BAD_SETUP, f"bad_setup:{exception}", message, exception)
    if exception:
        signature = f"worker_exit:{stable(said)}"
        return _finding(exit, FindingKind.WORKER_EXIT, Cause.WORKER_EXIT, signature, said[: 2 * LONGEST_TEXT], exception)
    inner = f" ({signal_name(exit.code - 128)})" if exit.code - 128 in SIGNAL_NAMES else ""
    return _finding(exit, FindingKind.WORKER_EXIT, Cause.WORKER_EXIT, f"worker_exit:{exit.code}", f"ended with status {exit.code}{inner}")


def _finding(
    exit: ExitFacts, kind: FindingKind, cause: Cause, signature: str, words: str, exception: str = "", secondary: bool = False
) -> Finding:
    named = not secondary and cause is not Cause.FINISHED
    return Finding(
        kind,
        f"rank {exit.rank} {words}" if exit.code <= 0 or not exception else f"rank {exit.rank} raised {words}",
        (exit.rank,) if named else (),
        (exit.node,) if named else (),
        at=exit.at,
        evidence={**_evidence(exit), "exception": exception},
        cause=cause,
        signature=signature,
        secondary=secondary,
    )


def _evidence(exit: ExitFacts) -> dict[str, object]:
    signal = signal_name(-exit.code) if exit.code < 0 else ""
    return {"rank": exit.rank, "node": exit.node, "code": exit.code, "signal": signal, "ran_s": round(exit.ran_s, 3)}


def stable(text: str) -> str:
    """One line that equal faults share: without addresses, paths, ids, numbers; at most 120 characters."""
    out = text.splitlines()[0] if text else ""
    for pattern, instead in _NOISE:
        out = pattern.sub(instead, out)
    return out.strip()[:LONGEST_TEXT]


def last_exception(tail: str, error_file: str = "") -> tuple[str, str]:
    """Type (without its module) and message of the exception that ended the process; ("", "") if none is seen."""
    from_file = _error_file_message(error_file)
    if from_file:
        match = _EXCEPTION.match(from_file.strip().splitlines()[0]) if from_file.strip() else None
        if match and _is_exception(match[1]):
            return _type_and_message(match)
    start = tail.rfind(_TRACEBACK)
    matches = list(_EXCEPTION.finditer(tail, start + len(_TRACEBACK) if start >= 0 else 0))
    named = [match for match in matches if _is_exception(match[1])]
    if start < 0:  # the header may have scrolled out of the tail; then the last exception line tells
        return _type_and_message(named[-1]) if named else ("", "")
    return _type_and_message((named or matches)[0]) if matches else ("", "")


def _type_and_message(match: re.Match[str]) -> tuple[str, str]:
    return match[1].rpartition(".")[2], (match[2] or "").strip()


def _is_exception(name: str) -> bool:
    return name.rpartition(".")[2].endswith(_ENDINGS)


def _error_file_message(text: str) -> str:
    """torch's error file: `{"message": {"message": "RuntimeError: …", …}}` or `{"message": "…"}`."""
    try:
        body: Any = json.loads(text) if text else None
    except ValueError:
        return ""
    for _ in range(3):
        if not isinstance(body, dict):
            break
        body = body.get("message")
    return body if isinstance(body, str) else ""
