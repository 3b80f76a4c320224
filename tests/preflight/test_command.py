"""External commands, with real processes and signals: whatever they do, they end in time and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from elastic_health.preflight.command_proc import Order, run_command
from elastic_health.preflight.commands import Command, Ended, Ran

pytestmark = pytest.mark.spec("P6", "P7")

GENEROUS_S = 30.0
ESCAPES = """
    import os, signal, subprocess, sys, time
    folder = sys.argv[1]
    def record(name):
        with open(f"{folder}/{name}.new", "w") as f:
            f.write(str(os.getpid()))
        os.rename(f"{folder}/{name}.new", f"{folder}/{name}")
    def deaf(name):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        record(name)
        time.sleep(600)
    if os.fork() == 0:                      # a daemon: double fork, session of its own, deaf
        os.setsid()
        if os.fork() == 0:
            deaf("daemon")
        os._exit(0)
    if os.fork() == 0:                      # deaf, in the tool's own group
        deaf("group")
    nap = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", nap, f"{folder}/bare"], env={}, start_new_session=True)
    for name in ("daemon", "group", "bare"):
        while not (os.path.exists(f"{folder}/{name}") and open(f"{folder}/{name}").read()):
            time.sleep(0.01)
    record("tool")
"""
NAMES = ("daemon", "group", "bare", "tool")


def run(*argv: str, limit_s: float = GENEROUS_S, cancel: Order | None = None, grace_s: float = 0.3, **more: object) -> Ran:
    return run_command(Command(argv, dict(os.environ), limit_s, grace_s, **more), cancel)  # type: ignore[arg-type]


def python(body: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(body), *arguments)


def living(folder: Path) -> list[str]:
    """Which of the escapes live; each has told its pid."""
    pids = {name: int((folder / name).read_text()) for name in NAMES}
    return [name for name, pid in pids.items() if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def until(there: Path) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while not there.exists():
        assert time.monotonic() < deadline, f"{there} never came"
        time.sleep(0.01)


# ---- how it ends


@pytest.mark.parametrize(
    ("script", "status", "number"), [("exit 0", 0, 0), ("exit 3", 3, 0), ("kill -9 $$", None, 9), ("kill -11 $$", None, 11)]
)
def test_exit_status_and_signal_are_told_apart(script: str, status: int | None, number: int) -> None:
    ran = run("sh", "-c", script)
    assert (ran.ended, ran.exit_status, ran.signal, ran.stuck) == (Ended.BY_ITSELF, status, number, ())
    assert ran.status == (-number if number else status)


def test_output_is_kept_apart_and_whole() -> None:
    ran = run("sh", "-c", "echo out; echo err >&2; printf 'no end \\377'")
    assert (ran.stdout, ran.stderr, ran.whole) == ("out\nno end \ufffd", "err\n", True)


def test_a_program_is_found_on_the_path_that_it_will_have(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "tool").chmod(0o755)
    command = Command(("tool",), {"PATH": f"{tmp_path}:/usr/bin:/bin"}, GENEROUS_S)
    assert run_command(command).stdout == "found\n"
    assert run_command(Command(("tool",), {"PATH": "/usr/bin"}, GENEROUS_S)).ended is Ended.MISSING


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo no\n")
    (tmp_path / "binary").write_bytes(b"\x00\x01not a program")
    (tmp_path / "binary").chmod(0o755)
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    found = {
        name: run(str(tmp_path / name)).ended
        for name in ("nothing", "plain", "binary", "lost", ".")
    }  # fmt: skip
    assert found == {
        "nothing": Ended.MISSING,
        "plain": Ended.NOT_EXECUTABLE,
        "binary": Ended.NOT_EXECUTABLE,
        "lost": Ended.NOT_STARTED,
        ".": Ended.NOT_EXECUTABLE,
    }
    assert "folder" in run(str(tmp_path)).detail and "executable" in run(str(tmp_path / "plain")).detail
    assert run("no-such-tool-anywhere").detail == "no no-such-tool-anywhere on PATH"
    assert run().ended is Ended.NOT_STARTED and run("echo", "a\0b").ended is Ended.NOT_STARTED
    assert run("echo", folder=str(tmp_path / "nowhere")).ended is Ended.NOT_STARTED


def test_stdin_is_empty() -> None:
    """A tool that asks a question gets the end of its input, not a hang."""
    assert run("sh", "-c", "read answer || echo end").stdout == "end\n"


def test_it_sees_only_the_environment_that_it_was_given() -> None:
    assert run_command(Command(("/usr/bin/env",), {"ONLY": "this"}, GENEROUS_S)).stdout == "ONLY=this\n"


def test_a_broken_pipe_ends_it_as_it_would_in_a_shell() -> None:
    """Python ignores SIGPIPE; what it starts must not."""
    assert run("sh", "-c", "trap '' PIPE 2>/dev/null; kill -s PIPE $$; echo alive").stdout == "alive\n"
    assert run("sh", "-c", "kill -s PIPE $$; echo alive").signal == signal.SIGPIPE


# ---- limits


def test_at_its_time_limit_it_gets_sigterm_and_can_clean_up() -> None:
    body = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *a: sys.exit(print("cleaned") or 7))
        print("on", flush=True)
        time.sleep(600)
    """
    ran = run(*python(body), limit_s=1.0, grace_s=10.0)
    assert (ran.ended, ran.exit_status, ran.stdout, ran.status) == (Ended.TIME_LIMIT, 7, "on\ncleaned\n", None)
    assert 1.0 <= ran.seconds < 8.0


def test_one_that_is_deaf_to_sigterm_is_killed_after_the_grace() -> None:
    started = time.monotonic()
    ran = run("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done", limit_s=0.5, grace_s=0.5)
    assert (ran.ended, ran.signal, ran.stdout) == (Ended.TIME_LIMIT, 9, "deaf\n")
    assert 1.0 <= time.monotonic() - started < 8.0


def test_a_stopped_one_goes_on_to_clean_up() -> None:
    ran = run("sh", "-c", "trap 'echo cleaned; exit 7' TERM; kill -s STOP $$; echo on; sleep 600 & wait", limit_s=0.5, grace_s=10.0)
    assert (ran.ended, ran.exit_status, ran.stuck) == (Ended.TIME_LIMIT, 7, ()) and "cleaned" in ran.stdout


def test_endless_output_is_cut_and_its_writer_ended() -> None:
    ran = run("sh", "-c", "echo first; yes", keep_bytes=64 * 1024, output_bytes=8 * 1024 * 1024)
    assert ran.ended is Ended.OUTPUT_LIMIT and not ran.whole
    assert ran.stdout.startswith("first\ny\n") and ran.stdout.endswith("y\n") and len(ran.stdout) < 70_000
    assert f"left out {ran.omitted} bytes" in ran.stdout and ran.omitted > 7_000_000


def test_much_output_that_ends_keeps_both_ends() -> None:
    ran = run(*python("for i in range(100_000): print(i)"), keep_bytes=10_000)
    assert ran.ended is Ended.BY_ITSELF and ran.exit_status == 0 and not ran.whole
    assert ran.stdout.startswith("0\n1\n") and ran.stdout.endswith("99998\n99999\n")


def test_closing_its_output_is_not_its_end() -> None:
    ran = run("sh", "-c", "exec >&- 2>&-; sleep 0.4; exit 5")
    assert (ran.ended, ran.exit_status) == (Ended.BY_ITSELF, 5) and ran.seconds >= 0.4


# ---- what it leaves behind


def test_what_it_leaves_behind_is_ended_whatever_it_did_to_escape(tmp_path: Path) -> None:
    ran = run(*python(ESCAPES, str(tmp_path)))
    assert (ran.ended, ran.exit_status, ran.stuck) == (Ended.BY_ITSELF, 0, ())
    assert ran.strays >= 3 and living(tmp_path) == []


@pytest.mark.slow
def test_grandchildren_end_with_it_at_its_limit(tmp_path: Path) -> None:
    ran = run(*python(ESCAPES + "\n    time.sleep(600)\n", str(tmp_path)), limit_s=5.0)
    assert ran.ended is Ended.TIME_LIMIT and ran.stuck == ()
    assert (tmp_path / "tool").exists() and living(tmp_path) == []


def test_a_daemon_that_holds_its_output_delays_nobody(tmp_path: Path) -> None:
    started = time.monotonic()
    ran = run("sh", "-c", "(setsid sleep 600 &) ; echo done")
    assert ran.stdout == "done\n" and ran.strays == 1 and time.monotonic() - started < 10.0


def test_what_forks_without_end_is_ended() -> None:
    """Each child starts the next one and ends: no reading of /proc catches them, only the kernel's word that none is left."""
    chain = "import os, time\nfor _ in range(100_000):\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n    time.sleep(0.002)\n"
    ran = run(*python(chain), grace_s=0.2)
    assert ran.ended is Ended.BY_ITSELF and ran.stuck == ()


def test_what_cannot_be_ended_is_named_and_not_waited_for() -> None:
    """A driver holds a process so that SIGKILL does nothing; here SIGKILL is given no time instead."""
    started = time.monotonic()
    ran = run("sh", "-c", "trap '' TERM; echo deaf; while :; do :; done", limit_s=0.5, grace_s=0.1, kill_s=0.0)
    assert time.monotonic() - started < 10.0 and ran.ended is Ended.TIME_LIMIT and ran.stdout == "deaf\n"
    assert [p.name for p in ran.stuck] == ["sh"] and ran.exit_status is None
    psutil.wait_procs([psutil.Process(p.pid) for p in ran.stuck if psutil.pid_exists(p.pid)], timeout=10)


# ---- orders


def test_cancel_ends_it_at_once(tmp_path: Path) -> None:
    order = Order()
    done: list[Ran] = []
    thread = threading.Thread(target=lambda: done.append(run(*python(ESCAPES + "\n    time.sleep(600)\n", str(tmp_path)), cancel=order)))
    thread.start()
    until(tmp_path / "tool")
    order.give()
    thread.join(GENEROUS_S)
    order.close()
    assert done[0].ended is Ended.CANCELLED and living(tmp_path) == []


def test_an_order_given_before_the_start_counts() -> None:
    order = Order()
    order.give()
    ran = run("sleep", "600", cancel=order)
    order.close()
    assert ran.ended is Ended.CANCELLED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_the_process_that_runs_it(tmp_path: Path, number: int) -> None:
    """NVIDIA's diagnostics would hold the GPUs for minutes after an agent was killed."""
    body = f"""
        import os
        from elastic_health.preflight.command_proc import run_command
        from elastic_health.preflight.commands import Command
        run_command(Command({python(ESCAPES + chr(10) + "    time.sleep(600)" + chr(10), str(tmp_path))!r}, dict(os.environ), 600.0, 0.3))
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(body)]) as agent:
        until(tmp_path / "tool")
        agent.send_signal(number)
    deadline = time.monotonic() + GENEROUS_S
    while living(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert living(tmp_path) == []


def test_a_reaper_that_is_killed_takes_the_tool_along_and_is_missed(tmp_path: Path) -> None:
    done: list[Ran] = []
    thread = threading.Thread(
        target=lambda: done.append(
            run(*python("import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)", str(tmp_path / "pid")))
        )
    )
    thread.start()
    until(tmp_path / "pid")
    deadline = time.monotonic() + GENEROUS_S
    while not (tmp_path / "pid").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    tool = psutil.Process(int((tmp_path / "pid").read_text()))
    reaper = tool.parent()
    assert reaper is not None and "reaper_main_os" in " ".join(reaper.cmdline())
    reaper.kill()
    thread.join(GENEROUS_S)
    assert done[0].ended is Ended.LOST and done[0].status is None and "without a report" in done[0].detail
    psutil.wait_procs([tool], timeout=10)
    assert not tool.is_running() or tool.status() == psutil.STATUS_ZOMBIE


def test_running_many_leaves_no_descriptor_behind() -> None:
    run("true")
    before = psutil.Process().num_fds()
    for _ in range(5):
        run("true")
        run("no-such-tool-anywhere")
    assert psutil.Process().num_fds() == before


def test_a_command_costs_little() -> None:
    """Its supervisor is a bare interpreter; the bound is far above what is seen on a busy machine."""
    took = []
    for _ in range(5):
        started = time.monotonic()
        run("true")
        took.append(time.monotonic() - started)
    assert min(took) < 0.5
