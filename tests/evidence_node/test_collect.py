"""Evidence from real workers: hung in a collective, holding the GIL, stopped, gone; within the time limit, disturbing none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_health.evidence import collect_proc
from elastic_health.evidence.collect_proc import Target, collect

pytestmark = pytest.mark.spec("E1")
GENEROUS_S = 20.0


@contextmanager
def two_workers(folder: Path, trouble: str) -> Iterator[tuple[list[subprocess.Popen[str]], tuple[Target, ...]]]:
    command = [sys.executable, str(Path(__file__).parent / "worker.py")]
    workers = []
    try:
        for rank in range(2):
            args = [str(folder / f"server{rank}"), str(rank), str(folder / "rendezvous"), trouble]
            workers.append(subprocess.Popen([*command, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        yield workers, tuple(Target(r, r, w.pid, str(folder / f"server{r}"), {"steps": r}, f"tail of {r}") for r, w in enumerate(workers))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()


def gather(targets: tuple[Target, ...], folder: Path, **more: Any) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The summary, and the file of each rank."""
    more.setdefault("time_limit_s", GENEROUS_S)
    said = collect(targets, str(folder), incident="01INCIDENT", node="node-a", **more)
    json.dumps(said)
    base = folder / "01INCIDENT" / "node-node-a"
    return said, {t.rank: json.loads((base / f"rank-{t.rank}.json").read_bytes())["items"] for t in targets}


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[subprocess.Popen[str]], tuple[Target, ...]]]:
    with two_workers(tmp_path_factory.mktemp("hung"), "hang") as both:
        yield both


Pair = tuple[list[subprocess.Popen[str]], tuple[Target, ...]]


@pytest.mark.spec("L3")
def test_a_hang_shows_who_entered_and_who_did_not(hung: Pair, tmp_path: Path) -> None:
    workers, targets = hung
    deadline = time.monotonic() + GENEROUS_S
    while True:  # gloo's own thread retires an operation a moment after the call that did it has returned
        said, files = gather(targets, tmp_path)
        if said["ranks"]["1"]["groups"][0]["completed"] == 5 or time.monotonic() > deadline:
            break
    assert said["written"] and said["note"] == ""
    assert said["ranks"]["0"]["groups"] == [{"group": "0", "enqueued": 6, "completed": 5, "op": "gloo:all_reduce"}]
    assert said["ranks"]["1"]["groups"] == [{"group": "0", "enqueued": 5, "completed": 5, "op": "gloo:all_reduce"}]
    assert len(files[0]["flight_recorder"]["data"]["entries"]) == 6
    assert files[1]["page"]["data"] == {"steps": 1}
    assert files[1]["stderr"]["data"] == "tail of 1"
    assert files[0]["kernel"]["data"]["state"] == "S" and files[0]["kernel"]["data"]["tasks"]
    assert all(i["at"] > 1e9 and i["took_s"] >= 0 for items in files.values() for i in items.values())
    assert all(w.poll() is None for w in workers)


def test_stacks_name_the_line_that_hangs(hung: Pair, tmp_path: Path) -> None:
    if collect_proc._py_spy() is None:
        pytest.skip("no py-spy")
    said, _ = gather(hung[1], tmp_path)
    assert "never_enters" in said["ranks"]["1"]["main_stack"][0]
    assert "all_reduce" in said["ranks"]["0"]["main_stack"][0]


def test_without_py_spy_the_workers_server_gives_the_stacks(hung: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_proc, "_py_spy", lambda: None)
    said, files = gather(hung[1], tmp_path)
    assert any("never_enters" in line for line in said["ranks"]["1"]["main_stack"])
    assert "no py-spy" in files[1]["python_stacks"]["note"]


def test_stacks_can_be_switched_off(hung: Pair, tmp_path: Path) -> None:
    _, files = gather(hung[1], tmp_path, stacks=False)
    assert files[0]["python_stacks"]["status"] == "skipped"


def test_a_stopped_worker_holds_nothing_up_and_stays_stopped(hung: Pair, tmp_path: Path) -> None:
    workers, targets = hung
    workers[1].send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, workers[1].pid, os.WSTOPPED | os.WNOWAIT)
        began = time.monotonic()
        said, files = gather(targets, tmp_path)
        assert time.monotonic() - began < GENEROUS_S * 0.7  # it did not wait for the limit
        assert files[1]["flight_recorder"]["status"] == "skipped"
        assert files[0]["flight_recorder"]["status"] == "ok"
        assert said["ranks"]["1"]["state"] == "T"
        if collect_proc._py_spy() is not None:
            assert "never_enters" in said["ranks"]["1"]["main_stack"][0]
    finally:
        workers[1].send_signal(signal.SIGCONT)


def test_a_worker_that_holds_the_gil_still_shows_its_collectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where only that worker itself could give its stacks, they are late, and the rest is not."""
    monkeypatch.setattr(collect_proc, "_py_spy", lambda: None)
    with two_workers(tmp_path, "gil") as (_, targets):
        deadline = time.monotonic() + GENEROUS_S
        while True:  # it takes the GIL a moment after it has said that it is ready
            said, files = gather(targets, tmp_path / "out", time_limit_s=3.0)
            if files[1]["python_stacks"]["status"] != "ok" or time.monotonic() > deadline:
                break
    assert said["ranks"]["1"]["groups"][0]["enqueued"] == 5
    assert files[1]["python_stacks"]["status"] == "timed_out"
    assert files[0]["python_stacks"]["status"] == "ok"


def test_a_dead_worker_and_one_without_server(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = Target(1, 1, os.getpid(), str(tmp_path / "nothing"))
    _, files = gather((Target(0, 0, gone.pid, str(tmp_path / "nothing")), here), tmp_path)
    assert {files[0][n]["status"] for n in ("flight_recorder", "kernel", "python_stacks", "page", "stderr")} == {"missing"}
    assert files[1]["flight_recorder"]["status"] == "missing" and files[1]["kernel"]["status"] == "ok"


def test_no_workers_at_all(tmp_path: Path) -> None:
    said = collect((), str(tmp_path), incident="i", node="n", time_limit_s=GENEROUS_S)
    assert said["took_s"] < GENEROUS_S / 2
    assert said["ranks"] == {} and said["written"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    said = collect((Target(0, 0, os.getpid()),), str(tmp_path / "file"), incident="i", node="n", stacks=False)
    assert not said["written"] and "file" in said["note"]
    assert said["ranks"]["0"]["items"]["kernel"] == "ok"
    assert "was not written" in caplog.text


def test_a_disk_that_hangs_ends_with_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_proc, "_write", lambda *a: time.sleep(3))
    said = collect((Target(0, 0, os.getpid()),), str(tmp_path), incident="i", node="n", time_limit_s=0.5, stacks=False)
    assert not said["written"] and "too long" in said["note"]
    assert said["took_s"] < 2.5


def test_a_source_that_fails_is_an_item_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pid: int) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(collect_proc, "kernel_facts", broken)
    _, files = gather((Target(0, 0, os.getpid()),), tmp_path, stacks=False)
    assert files[0]["kernel"]["status"] == "failed" and "unforeseen" in files[0]["kernel"]["note"]


def test_a_py_spy_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\necho $$ > " + str(tmp_path / "pid") + "\nexec sleep 600\n")
    spy.chmod(0o755)
    monkeypatch.setattr(collect_proc, "_py_spy", lambda: str(spy))
    _, files = gather((Target(0, 0, os.getpid()),), tmp_path / "out", time_limit_s=1.0)
    assert files[0]["python_stacks"]["status"] in ("missing", "timed_out")
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
