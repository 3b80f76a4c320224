"""Functions as workers (`elastic_launch(config, function)`): watched like scripts, and their errors told as text."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import record

from elastic_health import variables
from elastic_health.agents.workers_proc import ERROR_CHARS, StartSpec, error_text
from elastic_health.liveness.exits import classify
from elastic_health.liveness.facts import Phase
from elastic_health.liveness.page import Order
from elastic_health.liveness.page_os import Page
from elastic_health.worker.current import here
from tests.agents.groups import group_of, logs_in, spec_of, until


def sleep_long() -> None:
    time.sleep(60)


def own_variables() -> list[str]:
    suite = ("ELASTIC_HEALTH_TEST_SESSION", "ELASTIC_HEALTH_CASES", "ELASTIC_HEALTH_REQUIRE_ETCD")
    return sorted(name for name in os.environ if name.startswith("ELASTIC_HEALTH_") and name not in suite)


@record
def raise_key_error() -> None:
    raise KeyError("no such thing")


def told(spec: StartSpec, page: Page, folder: Path) -> StartSpec:
    """What the agent tells a worker."""
    spec.envs[0].update(
        {
            variables.PAGE: page.path,
            variables.LINK: str(folder / "link"),
            variables.SERVER: f"/tmp/srv-{os.getpid()}-{time.monotonic_ns()}.s",
            variables.GENERATION: "3",
            variables.RUN: "run",
            variables.LOCAL: "0",
        }
    )
    return spec


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page.create(str(tmp_path / "page"))


@pytest.fixture
def _no_fork_server() -> Iterator[None]:
    """Python leaves its fork server running until this process ends."""
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.spec("L1")
@pytest.mark.usefixtures("_no_fork_server")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_function_has_a_page_and_a_server_and_ends_at_its_agents_deadline(
    tmp_path: Path, page: Page, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = told(spec_of(None, logs_in(tmp_path), 1, (), sleep_long, start_method=method), page, tmp_path)
    server = spec.envs[0][variables.SERVER]
    with group_of(spec) as group:
        until(lambda: page.look().beat.pid == group.pids()[0], 60, "the first beat")
        assert page.look().mark.phase is Phase.SCRIPT
        until(lambda: os.path.exists(server), what="torch's worker server")
        first = page.look().beat.beat_at
        until(lambda: page.look().beat.beat_at > first, what="the next beat")
        page.order(Order(deadline=1))
        assert group.wait_exited(20)
        (facts,) = group.exits()
        assert facts.code == -signal.SIGKILL
        assert "has not been heard of past its deadline" in facts.tail
    os.unlink(server)
    capfd.readouterr()


def test_what_only_the_worker_may_use_leaves_its_environment(tmp_path: Path, page: Page) -> None:
    spec = told(spec_of(None, logs_in(tmp_path), 1, (), own_variables, start_method="spawn"), page, tmp_path)
    with group_of(spec) as group:
        assert group.wait_exited(60)
        result = group.result()
        assert result is not None
        assert result.return_values[0] == sorted([variables.WORKER_TOKEN, variables.GENERATION, variables.RUN])


def who_am_i() -> tuple[int, str]:
    home = here()
    assert home is not None
    return home.local_rank, os.environ["LOCAL_RANK"]


@pytest.mark.spec("U1")
def test_a_worker_speaks_for_its_own_local_rank_under_virtual_local_rank(tmp_path: Path, page: Page) -> None:
    spec = told(spec_of(None, logs_in(tmp_path), 1, (), who_am_i, start_method="fork"), page, tmp_path)
    spec.envs[0].update({"LOCAL_RANK": "0", variables.LOCAL: "5"})
    with group_of(spec) as group:
        assert group.wait_exited(60)
        result = group.result()
        assert result is not None and result.return_values[0] == (5, "0")


def test_a_raising_function_is_classified_by_its_error_file(tmp_path: Path) -> None:
    with group_of(spec_of(None, logs_in(tmp_path), 1, (), raise_key_error, start_method="fork")) as group:
        assert group.wait_exited(60)
        (facts,) = group.exits()
        assert "no such thing" in json.loads(facts.error_file)["message"]["message"]
        assert classify(facts).signature.startswith("worker_exit:KeyError")


def test_the_text_of_an_error_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    assert error_text(str(path)) == ""
    path.write_text(json.dumps({"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "x" * 10}}}))
    assert error_text(str(path)) == path.read_text()
    path.write_text(json.dumps({"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "x" * ERROR_CHARS}}}))
    assert json.loads(error_text(str(path))) == {"message": {"message": "RuntimeError: boom"}}
    path.write_text("[" * (ERROR_CHARS + 1))
    assert error_text(str(path)) == ""
    path.unlink()
    os.mkfifo(path)  # nobody writes: reading it must not wait
    assert error_text(str(path)) == ""
