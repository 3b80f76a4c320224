"""The worker link with both real ends: who is heard, what is answered, and what a broken peer can't do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from elastic_health import messages as m
from elastic_health.agents.workerlink_net import WorkerLinkServer
from elastic_health.errors import BadValue, LinkError
from elastic_health.generations import RestorePlan
from elastic_health.worker.link_net import WorkerLink
from elastic_health.worker.wire import decode_reply, decode_request, encode

PLAN = m.PlanReply("r", 3, RestorePlan(), 1, 2)


def hello(rank: int = 0) -> m.Hello:
    return m.Hello(rank, os.getpid(), 3)


class Desk:
    """Answers plans at once, keeps commits for later, and remembers who asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[m.Hello, object]] = []
        self.kept: list[Callable[[m.AgentReply], None]] = []

    def handle(self, who: m.Hello, message: object, reply: Callable[[m.AgentReply], None]) -> None:
        self.asked.append((who, message))
        if isinstance(message, m.AskCommit):
            self.kept.append(reply)
        elif isinstance(message, m.AskVerify):
            reply(m.VerifyReply(tuple(path for path, _, _ in message.files)))
        else:
            reply(PLAN if isinstance(message, m.AskPlan) else m.Told())


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # a short relative path: tmp_path may be longer than a socket's name
    return "link"


@pytest.fixture
def server(path: str, desk: Desk) -> Iterator[WorkerLinkServer]:
    s = WorkerLinkServer(path, desk.handle, lambda pid, rank: pid == os.getpid() and rank < 2)
    yield s
    s.close()
    assert not os.path.exists(path)


def until(holds: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def test_asks_and_answers(server: WorkerLinkServer, desk: Desk, path: str) -> None:
    link = WorkerLink(path, hello(1))
    assert link.call(m.AskPlan()) == PLAN
    files = tuple((f"f{i}", i, "a" * 64) for i in range(10_000))
    assert link.call(m.AskVerify("d", "n", files)) == m.VerifyReply(tuple(f for f, _, _ in files))
    assert link.call(m.TellHalt(5, 4, 1, 2, "spike")) == m.Told()
    assert {who.local_rank for who, _ in desk.asked} == {1}
    assert os.stat(path).st_mode & 0o777 == 0o600
    link.close()


def test_threads_share_a_link_and_late_answers_find_their_question(server: WorkerLinkServer, desk: Desk, path: str) -> None:
    link, got = WorkerLink(path, hello()), []
    threads = [threading.Thread(target=lambda: got.append(link.call(m.AskPlan(), 20))) for _ in range(8)]
    waits = threading.Thread(target=lambda: got.append(link.call(m.AskCommit("d", 1, 2, 3, "m"), 20)))
    waits.start()
    until(lambda: bool(desk.kept))
    for t in threads:
        t.start()
    desk.kept[0](m.CommitReply(True))
    desk.kept[0](m.CommitReply(False, "a second answer changes nothing"))
    for t in (waits, *threads):
        t.join(20)
    assert sorted(map(repr, got)) == sorted(map(repr, [m.CommitReply(True)] + [PLAN] * 8))


def test_an_answer_that_never_comes_is_an_error_in_time_and_leaves_the_link_usable(server: WorkerLinkServer, path: str) -> None:
    link = WorkerLink(path, hello())
    began = time.monotonic()
    with pytest.raises(LinkError, match="agent"):
        link.call(m.AskCommit("d", 1, 2, 3, "m"), 0.2)
    assert time.monotonic() - began < 5
    assert link.call(m.AskPlan()) == PLAN


def test_a_restarted_server_is_found_again(desk: Desk, path: str) -> None:
    first = WorkerLinkServer(path, desk.handle, lambda pid, rank: True)
    link = WorkerLink(path, hello())
    assert link.call(m.AskPlan()) == PLAN
    first.close()
    with pytest.raises(LinkError):
        link.call(m.AskPlan(), 1)
    second = WorkerLinkServer(path, desk.handle, lambda pid, rank: True)
    assert link.call(m.AskPlan()) == PLAN
    second.close()


def test_a_worker_that_is_noted_late_is_heard_all_the_same(desk: Desk, path: str) -> None:
    known: set[int] = set()
    server = WorkerLinkServer(path, desk.handle, lambda pid, rank: pid in known)
    threading.Timer(0.4, lambda: known.add(os.getpid())).start()
    assert WorkerLink(path, hello()).call(m.AskPlan(), 10) == PLAN
    server.close()


def test_a_stranger_of_the_same_user_is_refused(server: WorkerLinkServer, desk: Desk, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_health.agents.workerlink_net.KNOWN_WITHIN_S", 0.2)
    code = "\n".join(
        (
            "import os, sys",
            "from elastic_health import messages as m",
            "from elastic_health.errors import LinkError",
            "from elastic_health.worker.link_net import WorkerLink",
            "try: WorkerLink(sys.argv[1], m.Hello(0, int(sys.argv[2]), 3)).call(m.AskPlan(), 20)",
            "except LinkError as e: print(e)",
        )
    )
    # It claims our pid, but the kernel tells its own.
    root = Path(__file__).parents[2]
    words = [sys.executable, "-c", code, path, str(os.getpid())]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60, check=True)
    assert "this agent's workers" in done.stdout
    assert desk.asked == []
    with pytest.raises(LinkError, match="local rank 2"):
        WorkerLink(path, hello(2)).call(m.AskPlan())


def test_a_child_of_the_worker_may_not_use_its_link(server: WorkerLinkServer, path: str) -> None:
    link = WorkerLink(path, hello())
    assert link.call(m.AskPlan()) == PLAN
    pid = os.fork()
    if not pid:
        try:
            link.call(m.AskPlan(), 1)
        except LinkError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert link.call(m.AskPlan()) == PLAN


@pytest.mark.parametrize(
    "sent",
    [
        b"not json\n",
        b'{"op": "AskPlan"}\n',
        b'{"op": "AskPlan", "id": 1}\n',
        b'{"op": "Nothing", "id": 1}\n',
        b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
    ],
    ids=["no json", "no id", "no hello", "unknown op", "deep", "no text"],
)
def test_a_broken_caller_gets_one_refusal_and_hurts_nobody(server: WorkerLinkServer, path: str, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(path)
        s.sendall(sent)
        said = s.makefile("rb").read()
    assert json.loads(said)["op"] == "Refused"
    assert WorkerLink(path, hello()).call(m.AskPlan()) == PLAN


def test_one_that_does_not_read_delays_nobody(server: WorkerLinkServer, desk: Desk, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        files = tuple(("x" * 100, i, "") for i in range(20_000))
        s.sendall(encode(hello(), 0) + b"".join(encode(m.AskVerify("d", "n", files), n) for n in range(1, 4)))
        until(lambda: len(desk.asked) == 3)
        assert WorkerLink(path, hello()).call(m.AskPlan(), 10) == PLAN


def test_a_taken_or_impossible_path_is_said(server: WorkerLinkServer, desk: Desk, path: str) -> None:
    for bad in (path, "x" * 200, "no/such/folder"):
        with pytest.raises(LinkError, match="107 bytes"):
            WorkerLinkServer(bad, desk.handle, lambda pid, rank: True)


def test_no_agent_is_one_clear_error(path: str) -> None:
    with pytest.raises(LinkError, match="expected an answer from this node's agent"):
        WorkerLink(path, hello()).call(m.AskPlan(), 5)


def test_every_message_survives_the_wire() -> None:
    asks = (hello(), m.AskPlan(), m.AskVerify("d", "n", (("a", 1, "h"),)), m.AskCommit("d", 1, 2, 3, "m"), m.TellUnusable("c", "r"))
    for n, ask in enumerate((*asks, m.TellHalt(1, 2, 3, 4, "r"))):
        assert decode_request(encode(ask, n)) == (n, ask)
    for n, reply in enumerate((PLAN, m.VerifyReply(("a",)), m.CommitReply(False, "no"), m.Told(), m.Refused("a", "b", "c"))):
        assert decode_reply(encode(reply, n)) == (n, reply)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_a_message_or_one_error(raw: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            n, _ = decode(raw)
        except BadValue:
            continue
        assert isinstance(n, int)


def test_a_message_too_long_is_refused_before_it_is_sent() -> None:
    with pytest.raises(BadValue, match="at most"):
        encode(m.TellUnusable("c", "x" * m.MAX_LINE_BYTES), 1)
