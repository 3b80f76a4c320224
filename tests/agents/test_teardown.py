"""Teardown of real process trees: whatever they do to escape, nothing is left, and those that obey are not killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic_health.agents import tree_os
from elastic_health.agents.teardown import TeardownPlan, TeardownReport, Why
from elastic_health.agents.teardown_proc import teardown
from elastic_health.agents.workers_proc import WorkerGroupProcesses
from tests.agents.groups import group_of, logs_in, script, spec_of, until

SLEEP = """
    import os, sys, time
    open(sys.argv[1] + os.environ["LOCAL_RANK"], "w").close()
    time.sleep(600)
"""
ESCAPES = """
    import os, signal, subprocess, sys, time
    out = sys.argv[1]
    def record(name):
        with open(out + name + ".tmp", "w") as f:
            f.write(str(os.getpid()))
        os.rename(out + name + ".tmp", out + name)
    nap = "import sys, os, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    if os.fork() == 0:                      # a daemon: double fork, session of its own
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            record("daemon")
            time.sleep(600)
        os._exit(0)
    if os.fork() == 0:                      # a data loader's worker: plain fork, deaf to SIGTERM
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        record("loader")
        time.sleep(600)
    subprocess.Popen([sys.executable, "-c", nap, out + "setsid"], start_new_session=True)
    subprocess.Popen([sys.executable, "-c", nap, out + "bare"], env={})          # no token
    subprocess.Popen([sys.executable, "-c", nap, out + "bare_setsid"], env={}, start_new_session=True)
    record("worker")
    time.sleep(600)
"""
ESCAPED = ("worker", "daemon", "loader", "setsid", "bare", "bare_setsid")


def pids_in(folder: Path, names: tuple[str, ...] = ESCAPED) -> dict[str, int]:
    """Waits until each has written its pid."""
    return {name: until(lambda n=name: (folder / n).exists() and int((folder / n).read_text() or 0)) for name in names}


def living(pids: dict[str, int]) -> list[str]:
    return [name for name, pid in pids.items() if (proc := tree_os.read_proc(pid)) and proc.alive]


def end(group: WorkerGroupProcesses, **plan: float) -> TeardownReport:
    return teardown(group, TeardownPlan(**plan))  # type: ignore[arg-type]


@pytest.mark.spec("R12")
def test_workers_that_end_on_the_signal_end_so(tmp_path: Path) -> None:
    spec = spec_of(script(tmp_path, SLEEP), logs_in(tmp_path), nproc=3, args=(f"{tmp_path}/up",))
    with group_of(spec) as group:
        for rank in range(3):
            until((tmp_path / f"up{rank}").exists)
        report = end(group, grace_s=30.0)
        assert report.clean and not report.killed and not report.leftovers
        assert [f.code for f in report.ended] == [-signal.SIGTERM] * 3
        assert report.took_s < 15.0, "it waited for something that had already happened"


def test_the_users_handler_runs_within_the_grace(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import signal, sys, time
        def handler(*_):
            open(sys.argv[1] + "/saved", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, handler)
        open(sys.argv[1] + "/up", "w").close()
        time.sleep(600)
        """,
    )
    with group_of(spec_of(path, logs_in(tmp_path), args=(str(tmp_path),))) as group:
        until((tmp_path / "up").exists)
        report = end(group, grace_s=30.0)
        assert (tmp_path / "saved").exists()
        assert [f.code for f in report.ended] == [0] and not report.killed


def test_one_that_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    path = script(tmp_path, "import signal, sys, time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w'); time.sleep(600)")
    with group_of(spec_of(path, logs_in(tmp_path), args=(f"{tmp_path}/up",))) as group:
        until((tmp_path / "up").exists)
        report = end(group, grace_s=0.2)
        assert report.clean and report.killed == (group.pids()[0],)
        assert report.took_s >= 0.2
        assert [f.code for f in report.ended] == [-signal.SIGKILL]


def test_a_stopped_worker_does_not_cost_the_grace(tmp_path: Path) -> None:
    spec = spec_of(script(tmp_path, SLEEP), logs_in(tmp_path), args=(f"{tmp_path}/up",))
    with group_of(spec) as group:
        until((tmp_path / "up0").exists)
        pid = group.pids()[0]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: (p := tree_os.read_proc(pid)) and p.state == "T")
        report = end(group, grace_s=60.0)
        assert report.clean and report.took_s < 30.0
        assert [f.code for f in report.ended] == [-signal.SIGKILL]


@pytest.mark.spec("R12")
@pytest.mark.parametrize("grace_s", [0.0, 0.3])
def test_nothing_escapes(tmp_path: Path, grace_s: float) -> None:
    """GaTech-RL2/EgoVerse#682: data-loader workers outlived their job, re-parented to init, holding the devices."""
    spec = spec_of(script(tmp_path, ESCAPES), logs_in(tmp_path), args=(f"{tmp_path}/",))
    with group_of(spec) as group:
        pids = pids_in(tmp_path)
        assert len(living(pids)) == len(pids)
        report = end(group, grace_s=grace_s)
        assert report.clean, report
        assert not living(pids)
        assert {pids["daemon"], pids["loader"], pids["bare_setsid"]} <= set(report.killed)


def test_nothing_escapes_although_the_worker_has_died_before(tmp_path: Path) -> None:
    """Dead parents hide descent; token and session still tell.  (Session of its own, no token, dead parent: beyond us.)"""
    spec = spec_of(script(tmp_path, ESCAPES), logs_in(tmp_path), args=(f"{tmp_path}/",))
    with group_of(spec) as group:
        pids = pids_in(tmp_path)
        os.kill(pids["worker"], signal.SIGKILL)
        assert group.wait_exited(20)
        report = end(group)
        left = living(pids)
        os.kill(pids["bare_setsid"], signal.SIGKILL)
        assert report.clean and left == ["bare_setsid"]


def test_a_clean_finish_may_leave_its_uploader_some_time(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import subprocess, sys
        code = "import sys, time; open(sys.argv[1] + '/up', 'w').close(); time.sleep(0.5); open(sys.argv[1] + '/uploaded', 'w').close()"
        subprocess.Popen(["sh", "-c", 'trap "" TERM; exec "$@"', "sh", sys.executable, "-c", code, sys.argv[1]])
        """,
    )
    with group_of(spec_of(path, logs_in(tmp_path), args=(str(tmp_path),))) as group:
        assert group.wait_exited(20)
        until((tmp_path / "up").exists)
        report = end(group, orphan_grace_s=30.0)
        assert (tmp_path / "uploaded").exists() and not report.killed


def test_a_commit_in_progress_is_waited_for(tmp_path: Path) -> None:
    spec = spec_of(script(tmp_path, SLEEP), logs_in(tmp_path), args=(f"{tmp_path}/up",))
    with group_of(spec) as group:
        until((tmp_path / "up0").exists)
        asked: list[bool] = []
        turns: list[float] = []

        def holding() -> str:
            asked.append(bool(group.alive()))
            return "rename of step 100" if len(asked) < 5 else ""

        report = teardown(group, TeardownPlan(hold_s=30.0), holding, lambda: turns.append(time.monotonic()))
        assert asked[:5] == [True] * 5
        assert report.held == "rename of step 100" and 0 < report.held_s < 30
        assert turns


def test_a_group_that_forks_while_it_is_killed(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, sys, time
        open(sys.argv[1], "w").close()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.002)
        """,
    )
    with group_of(spec_of(path, logs_in(tmp_path), args=(f"{tmp_path}/up",))) as group:
        until((tmp_path / "up").exists)
        assert end(group, grace_s=0.1).clean


def test_what_can_not_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep ignores SIGKILL; simulated by signals that don't arrive."""
    spec = spec_of(script(tmp_path, SLEEP), logs_in(tmp_path), args=(f"{tmp_path}/up",))
    with group_of(spec) as group:
        until((tmp_path / "up0").exists)
        with monkeypatch.context() as patch:
            patch.setattr(tree_os, "send", lambda proc, number: True)
            report = end(group, grace_s=0.0, kill_s=0.2)
        assert report.why is Why.KILL_SPENT and not report.clean
        assert [(left.pid, left.state) for left in report.leftovers] == [(group.pids()[0], "S")]
        assert report.leftovers[0].wchan
        assert end(group, grace_s=0.0).clean


def test_torchs_close_ends_a_group_with_torchs_signal(tmp_path: Path) -> None:
    spec = spec_of(script(tmp_path, SLEEP), logs_in(tmp_path), nproc=2, args=(f"{tmp_path}/up",))
    with group_of(spec) as group:
        until((tmp_path / "up1").exists)
        group.context.close(signal.SIGINT, 10)
        assert {f.code for f in group.exits()} <= {-signal.SIGINT, 1, 130}
        assert len(group.exits()) == 2


# ---- who is hit


def test_a_stranger_is_never_hit(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        spec = spec_of(script(tmp_path, SLEEP), logs_in(tmp_path), args=(f"{tmp_path}/up",))
        with group_of(spec) as group:
            until((tmp_path / "up0").exists)
            end(group, grace_s=0.0)
        assert stranger.poll() is None
        recycled = tree_os.Root(stranger.pid, tree_os.root(stranger.pid).started + 1)
        assert tree_os.members({"no-such-token"}, (recycled,)) == {}
        proc = tree_os.read_proc(stranger.pid)
        assert proc is not None and not tree_os.send(proc._replace(started=proc.started + 1), signal.SIGKILL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_part_of_a_token_is_no_token() -> None:
    child = subprocess.Popen(["sleep", "60"], env={tree_os.TOKEN_VARIABLE: "abcdef"})
    try:
        until(lambda: tree_os.members({"abcdef"}, ()))
        assert set(tree_os.members({"abcdef"}, ())) == {child.pid}
        assert tree_os.members({"abc"}, ()) == {}
        assert tree_os.members((), ()) == {}
        assert tree_os.members({"abcdef"}, (), spare={child.pid}) == {}
    finally:
        child.kill()
        child.wait()


def test_names_with_parentheses_and_zombies_with_living_threads() -> None:
    line = "7 (a) (b c) Z 1 7 7 0 -1 4 1 0 0 0 0 0 0 0 20 0 {threads} 0 99 0 0"
    proc = tree_os.parse_stat(line.format(threads=1))
    assert (proc.pid, proc.name, proc.ppid, proc.session, proc.started, proc.alive) == (7, "a) (b c", 1, 7, 99, False)
    assert tree_os.parse_stat(line.format(threads=2)).alive
