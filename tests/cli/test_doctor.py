"""`doctor` on real etcds, good and bad: one clear line each, in bounded time, and an exit status that says so."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_health.cli import doctor
from elastic_health.cli.codes import Code
from elastic_health.cli.main import main
from elastic_health.preflight.doctor_facts import PlugFacts, Trouble
from elastic_health.preflight.doctor_lines import Mark, Topic
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, StoreFull, Txn
from tests.certificates import make_certificates, server_flags
from tests.etcd_fixture import Etcd, EtcdCluster, etcd_cluster, free_port

pytestmark = pytest.mark.spec("U3", "U5")
PLUG = PlugFacts("1", (("x:y", "1"),), "", True, "2.13.0", "", "", "", "/p", "/p")
Lines = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch anew each time takes seconds; `tests/preflight/test_doctor.py` does it once."""
    monkeypatch.setattr(doctor, "look_at_plugin", lambda within_s: PLUG)
    for name in ("ELASTIC_HEALTH_ENDPOINT", "ELASTIC_HEALTH_CONFIG", "ELASTIC_HEALTH_NODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster(1) as cluster:
        yield cluster


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Lines]:
    """Exit status and lines by topic, of which there is one each (of stages the last); the JSON has its documented shape."""
    code = main(["doctor", "--json", *words])
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert err == "" and set(said) == {"ready", "version", "lines"}
    assert all(set(line) == {"topic", "mark", "found", "do"} for line in said["lines"])
    assert {line["topic"] for line in said["lines"]} <= {t.value for t in Topic}
    assert {line["mark"] for line in said["lines"]} <= {m.value for m in Mark}
    assert said["ready"] == (code == Code.OK) == all(line["mark"] != "fail" for line in said["lines"])
    lines = {line["topic"]: line for line in said["lines"]}
    assert len(lines) == len([line for line in said["lines"] if line["topic"] != "stage"]) + ("stage" in lines)
    return code, lines


def test_a_good_etcd_in_one_screen(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--endpoint", etcd.endpoints[0], "--node", "n1"])
    out, err = capsys.readouterr()
    assert (code, err) == (Code.OK, "") and len(out.splitlines()) <= 24
    assert out.splitlines()[-1].startswith("ready:") and "this node is n1" in out and etcd.endpoints[0] in out
    _, lines = told(capsys, "--endpoint", etcd.endpoints[0])
    assert lines["members"]["mark"] == "note" and "one member" in lines["members"]["found"]
    assert lines["latency"]["mark"] == "ok" and "9 quorum reads" in lines["latency"]["found"]
    assert "of 2 GiB" in lines["space"]["found"], "the quota is read from etcd's metrics"
    assert lines["clock"]["mark"] == "ok"
    session = EtcdSession.connect(etcd.endpoints)
    assert not session.range("/elastic-health/").kvs, "it writes nothing"
    session.close()


def test_compaction_is_seen_by_what_can_still_be_read(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
    session = EtcdSession.connect(etcd.endpoints)
    for i in range(20):
        last = session.txn(Txn((), (Put("/other", str(i).encode()),))).revision
    assert told(capsys, "--endpoint", etcd.endpoints[0])[1]["compaction"]["mark"] == "unknown"
    etcd.ctl("compact", str(last - 6))
    line = told(capsys, "--endpoint", etcd.endpoints[0])[1]["compaction"]
    assert line["mark"] == "ok" and f"the newest 7 of {last}" in line["found"]
    assert session.keeps(last - 6, "/other") and not session.keeps(last - 7, "/other")
    session.close()


@pytest.mark.spec("R7")
def test_a_node_in_quarantine(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "own_gpus", lambda: ("GPU-1",))
    monkeypatch.setattr(doctor, "own_nics", lambda: ("ib0",))
    etcd.ctl("put", "/elastic-health/quarantine/nodes/n1", '{"reason":"its fan"}')
    etcd.ctl("put", "/elastic-health/quarantine/nodes/n2", '{"until":1000000000}')
    code, lines = told(capsys, "--endpoint", etcd.endpoints[0], "--node", "n1")
    assert code == Code.NOT_READY and "its fan" in lines["quarantine"]["found"]
    code, lines = told(capsys, "--endpoint", etcd.endpoints[0], "--node", "n2")
    assert code == Code.OK and "quarantine" not in lines
    for tail in ("gpus/GPU-1", "gpus/GPU-2", "nics/n2/ib0", "nics/n1/ib0", "routes/n1+n2"):
        etcd.ctl("put", f"/elastic-health/quarantine/{tail}", "")
    code, lines = told(capsys, "--endpoint", etcd.endpoints[0], "--node", "n2")
    found = "gpu GPU-1 is in quarantine: no reason given; nic n2/ib0 is in quarantine: no reason given"
    assert code == Code.NOT_READY and lines["quarantine"]["found"] == found
    etcd.ctl("del", "--prefix", "/elastic-health/")


def test_an_endpoint_that_does_not_answer_and_one_that_does(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(capsys, "--endpoint", f"127.0.0.1:{free_port()},{etcd.endpoints[0]}")
    assert code == Code.OK and lines["members"]["mark"] == "warn" and "1 of 2 endpoints answer" in lines["members"]["found"]


def test_three_members(capsys: pytest.CaptureFixture[str]) -> None:
    with etcd_cluster(3) as three:
        _, lines = told(capsys, "--endpoint", ",".join(three.endpoints))
        assert (lines["members"]["mark"], lines["members"]["found"]) == ("ok", "3 members, all answer, one leader; 1 may fail")
        _, lines = told(capsys, "--endpoint", three.endpoints[0])
        assert lines["members"]["mark"] == "warn" and "leave out 2 of 3 members (m1, m2)" in lines["members"]["found"]
        for member in three.members[1:]:
            member.kill()
        begun = time.monotonic()
        code, lines = told(capsys, "--endpoint", ",".join(three.endpoints))
        assert code == Code.NOT_READY and lines["etcd"]["mark"] == "fail" and time.monotonic() - begun < 15, "no quorum"


def test_a_full_etcd(capsys: pytest.CaptureFixture[str]) -> None:
    with etcd_cluster(1, ("--quota-backend-bytes=2097152",)) as full:
        session = EtcdSession.connect(full.endpoints)
        with pytest.raises(StoreFull):
            for i in range(100):
                session.txn(Txn((), tuple(Put(f"/fill/{i}/{j}", b"x" * 60_000) for j in range(10))))
        session.close()
        full.ctl("member", "add", "learns", "--learner", f"--peer-urls=http://127.0.0.1:{free_port()}")
        code, lines = told(capsys, "--endpoint", full.endpoints[0])
        assert "one member" in lines["members"]["found"], "a learner has no vote"
        assert code == Code.NOT_READY and "is full" in lines["space"]["found"] and "defrag" in lines["space"]["do"]


# ---- users


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    with etcd_cluster(1, ("--bcrypt-cost=4",)) as cluster:
        for words in (
            ("user", "add", "root:secret"),
            ("role", "add", "health"),
            ("role", "grant-permission", "--prefix=true", "health", "readwrite", "/elastic-health/runs/"),
            ("role", "grant-permission", "--prefix=true", "health", "read", "/elastic-health/quarantine/"),
            ("role", "add", "reader"),
            ("role", "grant-permission", "--prefix=true", "reader", "read", "/elastic-health/"),
            ("user", "add", "eh:pass"),
            ("user", "grant-role", "eh", "health"),
            ("user", "add", "looks:pass"),
            ("user", "grant-role", "looks", "reader"),
            ("user", "grant-role", "root", "root"),
            ("auth", "enable"),
        ):
            cluster.ctl(*words)
        yield cluster


def yaml(folder: Path, user: str, password: str) -> str:
    secret, path = folder / "password.txt", folder / "health.yaml"
    secret.write_text(password)
    secret.chmod(0o600)
    path.write_text(f"store: {{user: {user}, password_file: {secret}}}\n")
    return str(path)


@pytest.mark.parametrize(
    ("user", "password", "topic", "says"),
    [
        ("eh", "pass", "", ""),
        ("eh", "hunter2", "etcd", "authentication failed"),
        ("nobody", "pass", "etcd", "authentication failed"),
        ("looks", "pass", "rights", "permission denied"),
        ("", "", "etcd", "user name is empty"),
    ],
    ids=["right", "wrong password", "no such user", "too few rights", "no user"],
)
def test_logins(
    user: str, password: str, topic: str, says: str, guarded: EtcdCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", yaml(tmp_path, user, password)] if user else []
    code, lines = told(capsys, "--endpoint", guarded.endpoints[0], *words)
    if not topic:
        assert code == Code.OK and (lines["login"]["mark"], lines["login"]["found"]) == ("ok", "etcd took user eh")
        return
    assert code == Code.NOT_READY and lines[topic]["mark"] == "fail" and says in lines[topic]["found"] and lines[topic]["do"]
    assert "hunter2" not in json.dumps(lines)
    if topic == "rights":
        assert "grant-permission" in lines["rights"]["do"] and lines["latency"]["mark"] == "unknown"


def test_a_user_for_an_etcd_without_users(etcd: EtcdCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(capsys, "--endpoint", etcd.endpoints[0], "--config", yaml(tmp_path, "eh", "pass"))
    assert code == Code.OK and lines["login"]["mark"] == "warn" and "authentication off" in lines["login"]["found"]


# ---- TLS


def test_tls_and_a_client_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also etcd's HTTP side is asked over TLS: quota and clock are known."""
    make_certificates(tmp_path)
    member = Etcd(tmp_path, extra=server_flags(tmp_path), scheme="https")
    member.start()
    try:
        member.wait_healthy()
        path = tmp_path / "tls.yaml"
        path.write_text(f"store: {{tls: {{ca: {tmp_path}/ca.pem, cert: {tmp_path}/client.pem, key: {tmp_path}/client.key}}}}\n")
        code, lines = told(capsys, "--endpoint", member.endpoint, "--config", str(path))
        assert code == Code.OK and "of 2 GiB" in lines["space"]["found"] and lines["clock"]["mark"] == "ok"
        path.write_text(f"store: {{tls: {{ca: {tmp_path}/ca.pem}}}}\n")
        code, lines = told(capsys, "--endpoint", member.endpoint, "--config", str(path))
        assert code == Code.NOT_READY and "client certificate" in lines["etcd"]["found"] and "store.tls.cert" in lines["etcd"]["do"]
        code, lines = told(capsys, "--endpoint", member.endpoint)
        assert code == Code.NOT_READY and "wants TLS" in lines["etcd"]["found"]
    finally:
        member.stop()


# ---- no etcd


@contextmanager
def web_server() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@contextmanager
def says_nothing() -> Iterator[int]:
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield int(s.getsockname()[1])


@contextmanager
def nobody() -> Iterator[int]:
    yield free_port()


@pytest.mark.parametrize(
    ("place", "says"),
    [(web_server, "speaks something else"), (says_nothing, "says nothing"), (nobody, "Connection refused")],
)
def test_what_is_no_etcd(place: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = tmp_path / "q.yaml"
    quick.write_text("store: {timeout_s: 0.5}\n")
    begun = time.monotonic()
    with place() as port:
        code, lines = told(capsys, "--endpoint", f"127.0.0.1:{port}", "--config", str(quick))
    assert code == Code.NOT_READY and says in lines["etcd"]["found"] and lines["etcd"]["do"] and time.monotonic() - begun < 5
    assert "members" not in lines


def test_mistakes_of_a_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("restarts: {totl: 3}\nports: {listen: x}\n")
    assert main(["doctor", "--config", str(bad), "--endpoint", "127.0.0.1:1"]) == Code.NOT_READY
    out = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(out) == 2 and f"{bad}:1" in out[0] and f"{bad}:2" in out[1]
    code, lines = told(capsys, "--config", str(tmp_path / "none.yaml"), "--endpoint", "127.0.0.1:1")
    assert code == Code.NOT_READY and "No such file" in lines["config"]["found"] and lines["etcd"]["mark"] == "unknown"
    code, lines = told(capsys, "--node", "a/b")
    assert code == Code.NOT_READY and "node name" in lines["config"]["found"]


def test_a_look_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A resolver or a mount can hang where no time limit reaches."""
    hanging = threading.Event()
    monkeypatch.setattr(doctor, "look_at_host", lambda tools: hanging.wait(60))
    monkeypatch.setattr(doctor, "HOST_S", 0.1)
    monkeypatch.setattr(doctor, "look_at_plugin", lambda within_s: Trouble("importing took long", "try"))
    code, lines = told(capsys)
    hanging.set()
    assert code == Code.NOT_READY and lines["host"]["mark"] == "unknown" and "took more than 0.1 s" in lines["host"]["found"]


def test_the_stages_of_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What each would run here, and a required tool that isn't here."""
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "health.yaml"
    path.write_text("preflight: {dcgm: {required: true}, own: [{name: raid, command: [x]}]}\n")
    assert main(["doctor", "--config", str(path), "--node", "n1"]) == Code.NOT_READY
    stages = [line for line in capsys.readouterr().out.splitlines() if " stage " in line]
    assert [line.split()[0] for line in stages] == ["FAIL", "OK", "FAIL"]
    assert (
        "raid (up to 60 s)" in stages[0] and "skips dcgm (no dcgmi)" in stages[0] and stages[1].endswith("restart: runs host (up to 10 s)")
    )
