"""The guard of conftest.py itself: it sees an orphan, spares what it is told to, and ends only our own."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.conftest import left_over, started_here

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_an_orphan_is_seen_and_ended() -> None:
    quiet = "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    script = f"import subprocess; print(subprocess.Popen({SLEEP!r}, {quiet}).pid)"
    pid = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20).stdout)
    assert pid in started_here()
    assert [said.split(":")[0] for said in left_over(set(), grace_s=0.0)] == [str(pid)]
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_an_announced_process_is_spared() -> None:
    child = subprocess.Popen(SLEEP)
    try:
        assert left_over({child.pid}, grace_s=0.0) == []
        assert child.poll() is None
    finally:
        child.kill()
        child.wait(5)
