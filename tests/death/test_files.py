"""The limit of open files: raised at the start, refused when it is hopeless, borne when it is reached."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastic_health.agents.files_os import AGENT_NEEDS, KEPT, KeptFiles, check_open_files
from elastic_health.agents.link_types import LinkHello
from elastic_health.agents.links_net import LinkListener
from elastic_health.errors import ConfigError
from elastic_health.exits import ExitStatus
from tests.etcd_fixture import EtcdCluster, one_etcd
from tests.torchrun.runs import GLOO, PLENTY, Run, a_run

__all__ = ["one_etcd"]
pytestmark = [pytest.mark.spec("R2"), pytest.mark.timeout(300)]
NONE_FREE = "expected a free file descriptor"


@pytest.fixture
def run(one_etcd: EtcdCluster, tmp_path: Path) -> Iterator[Run]:
    with a_run(tmp_path / "run", one_etcd.endpoints[0]) as made:
        yield made


def test_a_limit_that_cannot_do_is_said_so() -> None:
    check_open_files(AGENT_NEEDS + 200, 8)
    with pytest.raises(ConfigError, match=r"at least \d+ open files .* 8 workers.*; found 100; raise the hard limit"):
        check_open_files(100, 8)


def test_what_was_kept_back_is_free_in_need_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptFiles()
    try:
        before = len(os.listdir("/proc/self/fd"))
        assert not kept.full(OSError(errno.ENOENT, "no such file"))
        with kept.bearing():
            raise OSError(errno.EMFILE, "Too many open files")
        assert len(os.listdir("/proc/self/fd")) == before - KEPT
        with kept.bearing():
            raise OSError(errno.ENFILE, "Too many open files in system")
        assert [NONE_FREE in r.getMessage() for r in caplog.records] == [True]
        kept.refill()
        assert len(os.listdir("/proc/self/fd")) == before
        with pytest.raises(OSError, match="no such"), kept.bearing():
            raise OSError(errno.ENOENT, "no such file")
    finally:
        kept.close()


def test_links_leave_descriptors_for_the_rest() -> None:
    listener = LinkListener(b"s" * 32, "127.0.0.1", lambda event: None, hello=LinkHello("job", "a", "a-0"))
    try:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert listener.limits.links <= max(soft // 2, soft - 512)
    finally:
        listener.close()


@pytest.mark.slow
def test_the_soft_limit_is_raised_and_a_hopeless_hard_one_refused(run: Run) -> None:
    agent = run.start("a", inside=("prlimit", "--nofile=256:8192"))
    run.wait_group(1)
    assert psutil.Process(agent.pid).rlimit(psutil.RLIMIT_NOFILE) == (8192, 8192)
    run.finish(agent)
    run.run_id = "other"
    tight = run.start("b", inside=("prlimit", "--nofile=100:100"))
    assert tight.wait(60) == ExitStatus.BAD_CONFIG, tight.text()
    assert "Traceback" not in tight.text() and "found 100; raise the hard limit" in tight.text(), tight.text()


@pytest.mark.slow
def test_an_agent_whose_descriptors_are_all_taken_lives_on_and_says_so(run: Run) -> None:
    """It trains on without a spin; a fault meanwhile is dealt with as soon as one is free."""
    agents = [run.start(n, nnodes="2", script=GLOO, config=PLENTY) for n in ("a", "b")]
    first = run.wait_group(2, ev="step", within_s=120)
    victim = psutil.Process(agents[1].pid)
    limits = victim.rlimit(psutil.RLIMIT_NOFILE)
    victim.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))  # not even what was kept back helps
    cpu, steps, began = sum(victim.cpu_times()[:2]), len(run.events("step")), time.time()
    until = began + 8  # longer than a lease
    run.wait(lambda: time.time() > until, "a lease's time")
    spent = (sum(victim.cpu_times()[:2]) - cpu) / (time.time() - began)
    assert spent < 0.5, f"{spent:.0%} of a core while no descriptor was free"
    assert len(run.events("step")) > steps + 20, run.story()
    assert agents[1].process.poll() is None, run.story()
    assert agents[1].text().count(NONE_FREE) == 1, run.story()
    assert len(run.events("boot")) == 2
    mine = next(e for e in first if e["node"] == "b")
    run.order(f"die.{mine['pid']}", "4")
    run.wait(lambda: run.events("dies"), "the fault")
    until = time.time() + 2  # the fault goes on
    run.wait(lambda: time.time() > until, "a moment")
    victim.rlimit(psutil.RLIMIT_NOFILE, limits)
    run.wait_group(2, after=first[0]["generation"], ev="step", within_s=120)
    run.finish(*agents)
