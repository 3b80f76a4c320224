"""What every test shares: markers that mean something, no process left behind, time limits, real tool outputs.

Law: when a test module ends, no process that it started is alive.  Processes are known by a random token in their
environment, so orphans that were re-parented count too, and nobody else's process is ever touched.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

CASES = "ELASTIC_HEALTH_CASES"
REQUIRE_ETCD = "ELASTIC_HEALTH_REQUIRE_ETCD"
TOKEN = "ELASTIC_HEALTH_TEST_SESSION"
SLOW_TIMEOUT_S = 900.0
LEAVE_GRACE_S = 5.0

_SPEC_ID = re.compile(r"[A-Z]\d+")


# A machine that is busy makes any example late: what a test shows doesn't depend on that.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[TOKEN] = secrets.token_hex(8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("spec"):
            wrong = [i for i in mark.args if not (isinstance(i, str) and _SPEC_ID.fullmatch(i))]
            if wrong or not mark.args:
                raise pytest.UsageError(f'{item.nodeid}: expected spec("R1", …); found {mark.args!r}; cite ids of docs/REQUIREMENTS.md')
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


# ---- etcd that can be crashed


def why_unsound() -> str | None:
    """Why the etcd on $PATH must not be used for crash tests, or None if it may."""
    binary = shutil.which("etcd")
    if binary is None:
        return "no etcd on $PATH"
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    found = re.search(r"etcd Version:\s*(\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        return f"{binary} does not tell its version"
    version = tuple(int(x) for x in found.groups())
    return "etcd 3.5.0 to 3.5.2 may lose data in a crash" if (3, 5, 0) <= version <= (3, 5, 2) else None


@pytest.fixture(scope="session")
def _unsound() -> str | None:
    return why_unsound()


@pytest.fixture(autouse=True)
def _needs_sound_etcd(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("sound_etcd") is None:
        return
    reason = request.getfixturevalue("_unsound")
    if reason and os.environ.get(REQUIRE_ETCD) == "1":
        pytest.fail(f"{REQUIRE_ETCD}=1, but: {reason}")
    if reason:
        pytest.skip(reason)


# ---- real tool outputs


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of real tool outputs; skips where there is none."""
    named = os.environ.get(CASES)
    if not named:
        pytest.skip(f"{CASES} is unset")
    return Path(named)


# ---- no process left behind


@pytest.fixture(scope="session")
def long_lived() -> set[int]:
    """Pids that may outlive a test module (a server of a session fixture); they must be gone at the end of the session."""
    return set()


def started_here() -> dict[int, psutil.Process]:
    """Living processes that carry this session's token, or are children of this process."""
    mark, me = os.environ[TOKEN], os.getpid()
    mine = {p.pid: p for p in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        try:
            if process.pid not in mine and process.environ().get(TOKEN) == mark:
                mine[process.pid] = process
        except psutil.Error:  # gone meanwhile, or another user's
            continue
    mine.pop(me, None)
    return {pid: p for pid, p in mine.items() if _counts(p)}


def _counts(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # Python's own helper of multiprocessing; it ends with this process.
        return not any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def left_over(allowed: set[int], grace_s: float = LEAVE_GRACE_S) -> list[str]:
    """Waits for our processes to end; kills those that stay, and names them."""
    deadline = time.monotonic() + grace_s
    while True:
        alive = {pid: p for pid, p in started_here().items() if pid not in allowed}
        if not alive:
            return []
        if time.monotonic() >= deadline:
            break
        psutil.wait_procs(list(alive.values()), timeout=0.2)
    return [_end(p) for p in alive.values()]


def _end(process: psutil.Process) -> str:
    try:
        said = f"{process.pid}: {' '.join(process.cmdline())[:200]}"
        process.kill()
        process.wait(5)
        return said
    except psutil.Error as error:
        return f"{process.pid}: {error}"


@pytest.fixture(scope="module", autouse=True)
def _no_process_left(request: pytest.FixtureRequest, long_lived: set[int]) -> Iterator[None]:
    yield
    left = left_over(long_lived)
    if left:
        pytest.fail(f"{request.node.nodeid} left processes running:\n" + "\n".join(left))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return
    left = left_over(set(), grace_s=2.0)
    if left:
        print("\nprocesses left at the end of the session:\n" + "\n".join(left))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
