"""What a person may get wrong: one clear message before any traceback, a documented status, no hang, nothing lost."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elastic_health.cli.main import main
from elastic_health.exits import ExitStatus
from tests.etcd_fixture import EtcdCluster, free_port
from tests.torchrun.runs import Agent, Run, program

pytestmark = [pytest.mark.spec("U1", "U2", "R6"), pytest.mark.timeout(120)]
FAST = "store: {timeout_s: 2, connect_s: 2}\n"


def refused(agent: Agent, status: ExitStatus, *said: str, within_s: float = 30) -> str:
    """It ended with this status and said so in one message of expected, found, do; no worker ran, no traceback."""
    assert agent.wait(within_s) == status, agent.text()
    text = agent.text()
    assert "Traceback" not in text, text
    assert text.count("healthy-etcd: ") == 1, text
    message = text.partition("healthy-etcd: ")[2]
    for words in ("expected", "found", *said):
        assert words in message, f"{words!r} is not in: {message}"
    return message


@contextmanager
def server(reply: bytes) -> Iterator[str]:
    """Something on a port that is not etcd: answers `reply` to whatever comes, b"" says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                kept.append(connection)
                if reply:
                    connection.recv(1)
                    connection.sendall(reply)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    for connection in kept:
        connection.close()


def test_an_endpoint_where_nothing_listens(run: Run) -> None:
    run.endpoint = f"127.0.0.1:{free_port()}"
    refused(run.start("a", config=FAST), ExitStatus.STORE_UNREACHABLE, run.endpoint)
    assert not run.events()


@pytest.mark.slow
@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b""])
def test_a_port_that_is_not_etcd(run: Run, reply: bytes) -> None:
    with server(reply) as run.endpoint:
        refused(run.start("a", config=FAST), ExitStatus.STORE_UNREACHABLE, run.endpoint)


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["127.0.0.1:99999", "ftp://127.0.0.1:2379", "no-such-host.invalid:2379", "127.0.0.1:2379,,x"])
def test_an_endpoint_that_is_none(run: Run, endpoint: str) -> None:
    run.endpoint = endpoint
    agent = run.start("a", config=FAST + "membership: {join_timeout_s: 2}\n")  # a name is asked for again until then
    assert agent.wait(30) in (ExitStatus.BAD_CONFIG, ExitStatus.STORE_UNREACHABLE)
    assert "Traceback" not in agent.text() and "healthy-etcd: expected" in agent.text(), agent.text()


@pytest.mark.slow
def test_a_wrong_password_and_no_password(run: Run, one_etcd: EtcdCluster) -> None:
    for command in ("user add root:right", "user grant-role root root", "auth enable"):
        one_etcd.ctl(*command.split())
    yaml = "store: {user: root, password_env: ETCD_PASSWORD, timeout_s: 4}\n"
    wrong = run.start("a", config=yaml, env={"ETCD_PASSWORD": "wrong"})
    assert "wrong" not in refused(wrong, ExitStatus.STORE_REFUSED, "user").split("found")[1].replace("wrong user", "").replace(
        "wrong password", ""
    )
    refused(run.start("b", config=FAST), ExitStatus.STORE_REFUSED)
    refused(run.start("c", config=yaml), ExitStatus.BAD_CONFIG, "ETCD_PASSWORD")
    run.finish(run.start("d", config=yaml, env={"ETCD_PASSWORD": "right"}))


def test_a_mistake_in_the_yaml_has_its_line_and_field(run: Run) -> None:
    message = refused(run.start("a", config="restarts:\n  per_hour: often\n"), ExitStatus.BAD_CONFIG, "per_hour")
    assert re.search(r"a\.yaml[:,]? ?(line )?2", message), message


@pytest.mark.slow
def test_a_yaml_that_is_not_there_and_an_unknown_setting(run: Run) -> None:
    refused(run.start("a", flags=["--rdzv-conf=config=/no/such.yaml"]), ExitStatus.BAD_CONFIG, "/no/such.yaml")
    refused(run.start("b", flags=["--rdzv-conf=last_call_timeout=1"]), ExitStatus.BAD_CONFIG, "last_call_timeout", "membership.last_call_s")


def test_no_run_id_on_a_shared_etcd(run: Run) -> None:
    run.run_id = ""
    refused(run.start("a"), ExitStatus.BAD_CONFIG, "--rdzv-id", "none")


@pytest.mark.slow
def test_a_run_id_with_a_slash(run: Run) -> None:
    run.run_id = "team/job"
    refused(run.start("a"), ExitStatus.BAD_CONFIG, "--rdzv-id", "team/job")


@pytest.mark.slow
def test_another_size_and_another_script_under_the_same_run_id(run: Run) -> None:
    a = run.start("a", nnodes="1:2")
    (_first,) = run.wait_group(1)
    refused(run.start("b", nnodes="1:3"), ExitStatus.RUN_REFUSED, "--nnodes=1:2", "--nnodes=1:3")
    refused(run.start("c", nnodes="1:2", script=program("gloo")), ExitStatus.RUN_REFUSED, "loop.py", "gloo.py")
    refused(run.start("d", "--lr=2", nnodes="1:2"), ExitStatus.RUN_REFUSED, "--lr=2")
    assert len(run.events("boot")) == 1, "nobody disturbed it"
    run.finish(a)


@pytest.mark.slow
def test_a_finished_and_a_capped_run_id(run: Run) -> None:
    capped = run.start("a", config="restarts: {total: 1}\n", script=program("crash"))
    assert capped.wait(60) == ExitStatus.CAPPED
    again = run.start("a", script=program("crash"))
    assert "runs reopen" in refused(again, ExitStatus.RUN_REFUSED, "restarts.total=1", "--rdzv-id")
    assert main(["runs", "reopen", run.run_id, "--endpoint", run.endpoint, "--reason", "the cause is gone"]) == 0
    run.order("cured")
    assert run.start("a", script=program("crash")).wait(60) == 0, run.story()
    finished = run.start("a", script=program("crash"))
    refused(finished, ExitStatus.RUN_REFUSED, "finished", "--rdzv-id")


def test_a_script_that_is_not_there(run: Run) -> None:
    missing = str(run.folder / "no_such_train.py")
    refused(run.start("a", script=missing), ExitStatus.BAD_CONFIG, missing)


@pytest.mark.slow
def test_other_things_to_run_that_are_not_there(run: Run) -> None:
    refused(run.start("a", script="no_such_package.train", flags=["-m"]), ExitStatus.BAD_CONFIG, "no_such_package.train")
    refused(run.start("b", script="no-such-program", flags=["--no-python"]), ExitStatus.BAD_CONFIG, "no-such-program")
    refused(run.start("c", script=str(run.folder)), ExitStatus.BAD_CONFIG, str(run.folder))


@pytest.mark.slow
def test_a_worker_that_ends_in_its_first_second_every_time(run: Run) -> None:
    """Two tries more, and then the run stops with torch's own table of what went wrong."""
    agent = run.start("a", script=program("crash"))
    assert agent.wait(90) == ExitStatus.CAPPED
    text = agent.text()
    assert "restarts.early_exits=3" in text and "a restart will not help" in text
    assert "crash.py FAILED" in text and "exitcode  : 3" in text
    assert len(run.events("boot")) == 3


@pytest.mark.spec("R3")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_folder_that_is_not_shared_between_the_nodes(run: Run) -> None:
    """Each node has a folder of this name of its own: found before any work is at stake, and no restart is spent on it."""
    places = {n: run.folder / n for n in ("a", "b")}
    for place in places.values():
        place.mkdir()
    agents = [run.start(n, "ckpt", nnodes="2", script=program("saves"), cwd=place) for n, place in places.items()]
    for a in agents:
        assert a.wait(90) == ExitStatus.BAD_CONFIG, run.story()
    text = agents[0].text() + agents[1].text()
    assert text.index("expected a checkpoint folder that all nodes share") < text.index("Traceback")
    assert all("healthy-etcd: the run was stopped" in a.text() and "mounted at the same path" in a.text() for a in agents)
    assert {e["generation"] for e in run.events("boot")} == {1}, "one try"
    shared = [run.start(n, "ckpt", nnodes="2", script=program("saves"), cwd=run.folder) for n in places]
    for a in shared:
        assert a.wait(90) == 0, run.story()
    assert run.events("saved"), "corrected, the same command goes on with the same run"


@pytest.mark.spec("R3")
@pytest.mark.slow
@pytest.mark.parametrize("why", ["permission", "file"])
def test_a_checkpoint_folder_that_cannot_be_written(run: Run, why: str) -> None:
    folder = run.folder / "closed" / "ckpt"
    folder.parent.mkdir(mode=0o755)
    if why == "file":
        folder.write_text("no folder")
    agent = run.start("a", str(folder), *(["nobody"] if why == "permission" else []), script=program("saves"))
    assert agent.wait(90) == ExitStatus.BAD_CONFIG, run.story()
    text = agent.text()
    said = "that this user can write" if why == "permission" else "a file has this name"
    assert said in text.partition("healthy-etcd: ")[2] and str(folder) in text
    assert text.index("expected a checkpoint folder") < text.index("Traceback")
    assert len(run.events("boot")) == 1


@pytest.mark.slow
def test_no_etcd_for_a_private_one(run: Run) -> None:
    run.endpoint, run.run_id = "", ""
    refused(run.start("a", env={"PATH": "/nonexistent"}), ExitStatus.BAD_CONFIG, "etcd on $PATH", "--rdzv-endpoint")


@pytest.mark.slow
def test_no_other_nodes_within_the_join_timeout(run: Run) -> None:
    agent = run.start("a", nnodes="2", flags=["--rdzv-conf=timeout=2"])
    assert agent.wait(30) == ExitStatus.NOT_FORMED
    assert "fewer than MIN" in agent.text() and "Traceback" not in agent.text()


@pytest.mark.slow
def test_restarts_forbidden_end_as_stock_torchrun_ends(run: Run) -> None:
    agent = run.start("a", script=program("crash"), config="restarts: {total: 0}\n")
    assert agent.wait(60) == 1
    assert "crash.py FAILED" in agent.text() and len(run.events("boot")) == 1
