"""Ends of workers: cause, signature, and whether a peer died first.  Some are real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.findings import FindingKind
from elastic_health.liveness.exits import SIGNAL_NAMES, classify, first_cause, last_exception, stable
from elastic_health.liveness.facts import ExitFacts
from elastic_health.verdicts import Cause

WATCHDOG = (
    "[rank3]:[E1103 04:05:06.7 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
    "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)


def ended(code: int, tail: str = "", **more: object) -> ExitFacts:
    return replace(ExitFacts(rank=3, node="n1", local_rank=1, pid=77, code=code, at=5.0, tail=tail), **more)  # type: ignore[arg-type]


def traceback(last: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n{last}\n'


TABLE = {
    "killed": (ended(-9), FindingKind.WORKER_KILLED, Cause.WORKER_KILLED, "worker_killed:SIGKILL", False),
    "segfault": (ended(-11), FindingKind.WORKER_KILLED, Cause.WORKER_KILLED, "worker_killed:SIGSEGV", False),
    "abort without a word": (ended(-6), FindingKind.WORKER_KILLED, Cause.WORKER_KILLED, "worker_killed:SIGABRT", False),
    "odd signal": (ended(-40), FindingKind.WORKER_KILLED, Cause.WORKER_KILLED, "worker_killed:signal 40", False),
    "host memory": (ended(-9, oom_kills=1), FindingKind.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY, "out_of_memory:host", False),
    "watchdog": (ended(-6, WATCHDOG), FindingKind.WATCHDOG_TIMEOUT, Cause.WATCHDOG_TIMEOUT, "watchdog_timeout:ALLREDUCE", False),
    "device": (
        ended(-6, "[rank3]: CUDA error: uncorrectable ECC error encountered\n" + WATCHDOG),
        FindingKind.DEVICE_ERROR,
        Cause.WORKER_EXIT,
        "device_error:uncorrectable ecc error encountered",
        False,
    ),
    "abort after a peer": (
        ended(-6, "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
        FindingKind.PEER_CONSEQUENCE,
        Cause.WORKER_EXIT,
        "peer_consequence:remote error",
        True,
    ),
    "exception": (
        ended(1, traceback("ValueError: bad 17")),
        FindingKind.WORKER_EXIT,
        Cause.WORKER_EXIT,
        "worker_exit:ValueError: bad N",
        False,
    ),
    "device memory": (
        ended(1, traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")),
        FindingKind.OUT_OF_MEMORY,
        Cause.OUT_OF_MEMORY,
        "out_of_memory:device",
        False,
    ),
    "loader killed": (
        ended(1, traceback("RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. ")),
        FindingKind.OUT_OF_MEMORY,
        Cause.OUT_OF_MEMORY,
        "out_of_memory:host",
        False,
    ),
    "status alone": (ended(3), FindingKind.WORKER_EXIT, Cause.WORKER_EXIT, "worker_exit:3", False),
    "status of a shell": (ended(137), FindingKind.WORKER_EXIT, Cause.WORKER_EXIT, "worker_exit:137", False),
    "well": (ended(0), FindingKind.WORKER_EXIT, Cause.FINISHED, "finished", False),
}


@pytest.mark.spec("L7")
@pytest.mark.parametrize("name", TABLE)
def test_table(name: str) -> None:
    exit, kind, cause, signature, secondary = TABLE[name]
    found = classify(exit)
    assert (found.kind, found.cause, found.signature, found.secondary, found.at) == (kind, cause, signature, secondary, 5.0)
    assert found.evidence["rank"] == 3 and found.evidence["code"] == exit.code


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:38032",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:589] Read error [192.0.2.4]:25266: Connection reset by peer",
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.",
        "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.27",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        "RuntimeError: Gloo connectFullMesh failed with [/x/pair.cc:144] no error",
    ],
)
def test_consequences_name_nobody(last: str) -> None:
    """kubeflow/trainer#1638, pytorch/pytorch#76198, marin-community/marin#7869: the peer died first."""
    for tail, error_file in ((traceback(last), ""), ("", json.dumps({"message": {"message": last}}))):
        found = classify(ended(1, tail, error_file=error_file))
        assert (found.kind, found.secondary, found.ranks, found.nodes) == (FindingKind.PEER_CONSEQUENCE, True, (), ())


def test_a_mention_of_a_peer_in_earlier_output_is_no_consequence() -> None:
    found = classify(ended(1, "WARNING: Connection reset by peer, trying again\n" + traceback("KeyError: 'loss'")))
    assert (found.kind, found.secondary, found.ranks) == (FindingKind.WORKER_EXIT, False, (3,))


@pytest.mark.spec("R7")
def test_only_the_devices_own_errors_name_a_node() -> None:
    asserted = classify(ended(-6, "[rank3]: CUDA error: device-side assert triggered"))
    broken = classify(ended(-6, "[rank3]: CUDA error: uncorrectable ECC error encountered"))
    assert (asserted.kind, asserted.nodes) == (FindingKind.DEVICE_ERROR, ())
    assert (broken.kind, broken.nodes) == (FindingKind.DEVICE_ERROR, ("n1",))


def test_a_watchdogs_reporter_is_not_named() -> None:
    """OpenRLHF/OpenRLHF#1126: who prints the timeout waited for somebody else."""
    assert (classify(ended(-6, WATCHDOG)).ranks, classify(ended(-6, WATCHDOG)).nodes) == ((), ())


@pytest.mark.spec("R5")
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("RuntimeError: at 0x7f12ab port 38032", "RuntimeError: at 0x55ee01 port 40111"),
        ("OSError: /tmp/a1/x.bin: no space", "OSError: /scratch/job7/y.bin: no space"),
        ("RuntimeError: CUDA 3 of node 0a1b2c3d4e5f", "RuntimeError: CUDA 5 of node ffeeddccbbaa"),
    ],
)
def test_signatures_are_shared_by_equal_faults(one: str, two: str) -> None:
    assert stable(one) == stable(two) and stable(one).split(":")[0] in one


def test_the_first_cause_is_chosen_before_consequences() -> None:
    victim = classify(replace(ended(1, traceback("RuntimeError: Connection closed by peer [127.0.0.1]:1")), at=4.0))
    culprit = classify(replace(ended(-9), at=5.0))
    assert first_cause([victim, culprit]) is culprit and first_cause([victim]) is victim
    assert first_cause([]) is None and first_cause([classify(ended(0))]) is None


def test_signal_names_are_those_of_this_system() -> None:
    for number, name in SIGNAL_NAMES.items():
        assert int(getattr(signal, name, number)) == number


@settings(max_examples=80, deadline=None)
@given(st.integers(-70, 260), st.text(max_size=600), st.text(max_size=200), st.integers(0, 1))
def test_any_end_is_classified(code: int, tail: str, error_file: str, oom: int) -> None:
    found = classify(ended(code, tail, error_file=error_file, oom_kills=oom))
    assert found.cause is not None and found.signature and len(found.signature) < 200


@pytest.mark.parametrize("prefix", ["", "[default0]:", "[rank3]: ", "[1,3]<stderr>:"])
def test_prefixed_tracebacks_are_read(prefix: str) -> None:
    text = "".join(prefix + line + "\n" for line in traceback("pkg.errors.OddError: 12: why").splitlines())
    assert last_exception(text) == ("OddError", "12: why")


def test_the_last_of_chained_exceptions_ended_it() -> None:
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    text = traceback("KeyError: 'a'") + between + traceback("OSError: b")
    assert last_exception(text) == ("OSError", "b")


@pytest.mark.parametrize(
    ("script", "signature"),
    [
        ("raise ValueError('no 5 at ' + hex(id(object())))", "worker_exit:ValueError: no N at <address>"),
        ("class Halt(Exception): pass\nraise Halt('stop')", "worker_exit:Halt: stop"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "worker_killed:SIGSEGV"),
        ("import sys; sys.exit(7)", "worker_exit:7"),
        ("import sys; sys.setrecursionlimit(200)\ndef f(): f()\nf()", "worker_exit:RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_real_processes(script: str, signature: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, cwd=tmp_path, check=False)
    assert classify(ended(done.returncode, done.stderr)).signature == signature
