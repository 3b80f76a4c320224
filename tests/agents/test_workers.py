"""Real workers through torch's log machinery: what the user sees stays, what the agent learns is complete."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from elastic_health import variables
from elastic_health.agents import tree_os
from elastic_health.agents.commands import bootstrapped
from elastic_health.agents.oom_os import oom_kills
from elastic_health.agents.workers_proc import command_of, failure, start_workers
from elastic_health.liveness.facts import ExitFacts
from tests.agents.groups import group_of, logs_in, script, spec_of, until

ENDS = """
    import os, sys
    rank = int(os.environ["LOCAL_RANK"])
    print(f"out {rank}", flush=True)
    print(f"err {rank}", file=sys.stderr)
    sys.exit(int(sys.argv[1 + rank]))
"""


@pytest.mark.spec("L7")
def test_every_end_is_told_once_with_its_code_and_its_last_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[ExitFacts] = []
    spec = spec_of(script(tmp_path, ENDS), logs_in(tmp_path), nproc=2, args=("0", "7"))
    with group_of(spec, on_exit=told.append) as group:
        assert group.wait_exited(20)
        until(lambda: len(told) == 2)
        by_rank = {f.local_rank: f for f in told}
        assert {r: (f.code, f.rank, f.node, f.tail) for r, f in by_rank.items()} == {
            0: (0, 10, "here", "err 0\n"),
            1: (7, 11, "here", "err 1\n"),
        }
        result = group.result()
        assert result is not None and list(result.failures) == [1]
        assert result.failures[1].exitcode == 7
        assert group.exits() == tuple(told)
    said = capfd.readouterr()
    # Two streams meet on one stderr: nothing is lost, but a line end may come apart from its line.
    assert sorted(said.err.replace("\n", " ").replace("err", " err").split()) == ["0", "1", "err", "err"]
    assert sorted(said.out.split("\n")) == ["", "out 0", "out 1"]


def test_all_well_gives_a_result_for_every_rank(tmp_path: Path) -> None:
    with group_of(spec_of(script(tmp_path, "import sys"), logs_in(tmp_path), nproc=2)) as group:
        assert group.wait_exited(20)
        result = group.result()
        assert result is not None and not result.is_failed()
        assert result.return_values == {0: None, 1: None}


def test_none_while_they_run(tmp_path: Path) -> None:
    with group_of(spec_of(script(tmp_path, "import time; time.sleep(60)"), logs_in(tmp_path))) as group:
        assert group.result() is None
        assert group.alive() == {0}
        assert set(group.pidfds()) == {0}


def test_failures_come_in_the_order_in_which_they_happened(tmp_path: Path) -> None:
    """torchrun names the first as the root cause, and its time stamps are whole seconds."""
    path = script(
        tmp_path,
        """
        import os, sys, time
        first = os.path.join(sys.argv[1], "first")
        if os.environ["LOCAL_RANK"] == "1":
            open(first, "w").close()
            os._exit(3)
        while not os.path.exists(first + ".seen"):
            time.sleep(0.01)
        os._exit(4)
        """,
    )
    with group_of(spec_of(path, logs_in(tmp_path), nproc=2, args=(str(tmp_path),))) as group:
        until(lambda: len(group.exits()) == 1)
        (tmp_path / "first.seen").touch()
        assert group.wait_exited(20)
        result = group.result()
        assert result is not None and list(result.failures) == [1, 0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_a_signal_is_a_negative_code(tmp_path: Path, number: signal.Signals) -> None:
    path = script(tmp_path, f"import os, sys; sys.stderr.write('last words'); sys.stderr.flush(); os.kill(os.getpid(), {int(number)})")
    with group_of(spec_of(path, logs_in(tmp_path))) as group:
        assert group.wait_exited(20)
        (facts,) = group.exits()
        assert (facts.code, facts.tail) == (-number, "last words")
        result = group.result()
        assert result is not None and number.name in result.failures[0].message


def test_redirected_and_teed_streams_stay_torchs_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects={0: Std.ALL}, tee={1: Std.ALL})
    with group_of(spec_of(script(tmp_path, ENDS), logs, nproc=2, args=("1", "1"))) as group:
        assert group.wait_exited(20)
        files = {rank: Path(path).read_text() for rank, path in group.context.stderrs.items()}
        assert files == {0: "err 0\n", 1: "err 1\n"}
        assert {f.local_rank: f.tail for f in group.exits()} == files
        group.close()
    said = capfd.readouterr()
    assert "[trainer1]:err 1\n" in said.err and "err 0" not in said.err
    assert "[trainer1]:out 1\n" in said.out and "out 0" not in said.out


def test_a_rank_that_the_user_filtered_out_is_silent_but_its_tail_is_known(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = logs_in(tmp_path, local_ranks_filter={0})
    with group_of(spec_of(script(tmp_path, ENDS), logs, nproc=2, args=("1", "1"))) as group:
        assert group.wait_exited(20)
        assert group.stderr_tail(1) == "err 1\n"
    said = capfd.readouterr()
    assert (said.out, said.err) == ("out 0\n", "err 0\n")


def test_duplicate_filters_and_prefixes_are_torchs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = logs_in(tmp_path, tee=Std.ALL)
    spec = spec_of(script(tmp_path, ENDS), logs, 1, ("0",), log_line_prefixes={0: "<r0> "}, duplicate_stderr_filters=["err"])
    with group_of(spec) as group:
        assert group.wait_exited(20)
        group.close()
    assert "<r0> err 0\n" in capfd.readouterr().err
    (filtered,) = (tmp_path / "logs").rglob("filtered_stderr.log")
    assert filtered.read_text() == "<r0> err 0\n"


def test_an_error_file_reaches_torchruns_table_and_a_torn_one_does_no_harm(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import json, os, sys
        told = json.dumps({"message": {"message": "boom", "extraInfo": {"py_callstack": "here", "timestamp": "12"}}})
        torn = os.environ["LOCAL_RANK"] == "1"
        open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(told[:20] if torn else told)
        sys.exit(1)
        """,
    )
    with group_of(spec_of(path, logs_in(tmp_path), nproc=2)) as group:
        assert group.wait_exited(20)
        result = group.result()
        assert result is not None
        assert result.failures[0].message["message"] == "boom"  # type: ignore[index,call-overload]
        assert result.failures[0].timestamp == 12
        assert result.failures[1].error_file == "<N/A>"
        assert all(f.error_file for f in group.exits())


def test_a_missing_error_file_is_as_in_torch() -> None:
    assert "Signal 9" in failure(0, 1, -9, "/nonexistent").message


def test_each_worker_is_a_session_of_its_own_and_carries_the_token(tmp_path: Path) -> None:
    with group_of(spec_of(script(tmp_path, "import time; time.sleep(60)"), logs_in(tmp_path), nproc=2)) as group:
        for pid in group.pids().values():
            proc = tree_os.read_proc(pid)
            assert proc is not None and proc.session == pid
        # A worker carries the token from its exec on, a moment after it is there.
        until(lambda: set(tree_os.members(group.tokens(), ())) == set(group.pids().values()))


def test_a_program_that_can_not_start_leaves_no_other_behind(tmp_path: Path) -> None:
    path = script(tmp_path, "import time; time.sleep(60)")
    spec = spec_of(path, DefaultLogsSpecs(str(tmp_path / "logs")), nproc=2)
    spec.envs[1]["BAD"] = "null\0byte"
    with pytest.raises(ValueError, match="null byte"):
        start_workers(spec)
    assert not tree_os.members({spec.envs[0][variables.WORKER_TOKEN]}, ())


def test_an_arbitrary_program_runs_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(None, logs_in(tmp_path), args=("-c", "echo said >&2; exit 3"), entrypoint="/bin/sh")
    with group_of(spec) as group:
        assert group.wait_exited(20)
        assert [(f.code, f.tail) for f in group.exits()] == [(3, "said\n")]
    assert capfd.readouterr().err == "said\n"


# ---- functions


def triple(x: int) -> int:
    os.write(2, f"called with {x}\n".encode())  # sys.stderr of a forked test process is pytest's
    return 3 * x


def fail_by_rank(x: int) -> None:
    if os.environ["LOCAL_RANK"] == "1":
        raise KeyError("no such thing")
    import time

    time.sleep(60)


def session_of_mine() -> tuple[int, int]:
    return os.getpid(), os.getsid(0)


@pytest.fixture
def _no_fork_server() -> Iterator[None]:
    """Python leaves its fork server running until this process ends."""
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_no_fork_server")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_functions_return_their_values(tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(None, logs_in(tmp_path), 2, (14,), triple, start_method=method)
    with group_of(spec) as group:
        assert group.wait_exited(60)
        result = group.result()
        assert result is not None and result.return_values == {0: 42, 1: 42}, result
        assert "called with 14" in group.stderr_tail(0)
    assert capfd.readouterr().err.count("called with 14") == 2


def test_a_function_that_raises_is_the_failure_and_others_go_on(tmp_path: Path) -> None:
    spec = spec_of(None, logs_in(tmp_path), 2, (0,), fail_by_rank, start_method="fork")
    with group_of(spec) as group:
        until(group.exits)
        (facts,) = group.exits()
        assert (facts.local_rank, facts.code) == (1, 1)
        result = group.result()
        assert result is not None and "no such thing" in str(result.failures[1].message)
        assert group.alive() == {0}


def test_a_function_is_a_session_of_its_own_too(tmp_path: Path) -> None:
    with group_of(spec_of(None, logs_in(tmp_path), 1, (), session_of_mine, start_method="fork")) as group:
        assert group.wait_exited(60)
        result = group.result()
        assert result is not None
        pid, session = result.return_values[0]
        assert pid == session == group.pids()[0]


def get_death_signal() -> int:
    import ctypes

    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(value))
    return value.value


def test_a_function_dies_with_the_agent_even_in_native_code(tmp_path: Path) -> None:
    with group_of(spec_of(None, logs_in(tmp_path), 1, (), get_death_signal, start_method="fork")) as group:
        assert group.wait_exited(60)
        result = group.result()
        assert result is not None and result.return_values == {0: signal.SIGKILL}


# ---- the command


@pytest.mark.parametrize(
    ("args", "script_words"),
    [
        (("-u", "train.py", "--lr", 1), ("train.py", "--lr", "1")),
        (("-u", "-m", "pkg.train", "-x"), ("-m", "pkg.train", "-x")),
        (("-u", "-m"), None),
        (("-u", "-c", "pass"), None),
        (("train.py",), None),
        ((), None),
    ],
)
def test_only_torchruns_own_form_gets_the_bootstrap(args: tuple[object, ...], script_words: tuple[str, ...] | None) -> None:
    command = bootstrapped("/py", args, ("/py",))
    assert command.script == script_words
    if script_words is not None:
        assert command.args == ("-u", "-m", "elastic_health.worker", *script_words)
    assert bootstrapped("/other", args, ("/py",)).script is None


def test_python_exec_of_a_foreign_environment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter without this package can't run the bootstrap; its workers start as under stock torchrun."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(python))
    spec = spec_of(None, logs_in(tmp_path), args=("-u", "train.py"), entrypoint=str(python))
    assert command_of(spec)[0].script is None
    ours = spec_of(None, logs_in(tmp_path), args=("-u", "train.py"), entrypoint=sys.executable)
    assert command_of(ours)[0].script == ("train.py",)


# ---- out of memory


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "oom 9\noom_kill 4\n"}, 4),
        ({"proc/self/cgroup": "0::/hosts/view\n", "sys/fs/cgroup/memory.events": "oom_kill 5\n"}, 5),
        ({"proc/self/cgroup": "4:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "proc/vmstat": "nr_x 1\noom_kill 7\n"}, 7),
        ({"proc/self/cgroup": "0::/job\n", "proc/vmstat": "oom_kill 7\n"}, 0),
        ({}, 0),
    ],
)
def test_oom_counter_of_either_cgroup_version(tmp_path: Path, files: dict[str, str], count: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == count


def test_this_hosts_counter_can_be_read() -> None:
    assert oom_kills() >= 0


def test_the_trees_word_for_the_token_is_the_packages() -> None:
    assert tree_os.TOKEN_VARIABLE == variables.WORKER_TOKEN
