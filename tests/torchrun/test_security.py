"""Whole runs against an etcd with TLS, client certificates and users: they work, mistakes are told, secrets stay secret."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic_health.agents.link_types import LinkHello
from elastic_health.agents.links import Link, Side
from elastic_health.codec import plain
from elastic_health.exits import ExitStatus
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, StoreRefused, Txn
from tests.certificates import make_certificates, server_flags, tls_files
from tests.etcd_fixture import Etcd, TcpProxy, etcdctl_path
from tests.torchrun.runs import REPO, Agent, Run, a_run, program

pytestmark = [pytest.mark.spec("U5", "U2"), pytest.mark.timeout(300)]
TOKEN_TTL_S = 1
PASSWORD = "pw-3f9c1e77-never-shown"
WRONG = "wrong-8d21aa05-never-shown"
OTHERS = tuple(
    line
    for name, right, prefix in (
        ("reader", "read", "/elastic-health/"),
        ("elsewhere", "readwrite", "/other/"),
        ("no-list", "readwrite", "/elastic-health/runs/"),
        ("needed", "readwrite", "/elastic-health/runs/"),
    )
    for line in (
        f"etcdctl role add {name}",
        f"etcdctl role grant-permission {name} --prefix=true {right} {prefix}",
        f"etcdctl user add {name} --interactive=false < password.txt",
        f"etcdctl user grant-role {name} {name}",
    )
)
"""Users whose rights don't do, for the last of them only until one more is granted."""


@dataclass
class Secured:
    """An etcd that is set up by nothing but the lines of docs/SECURITY.md."""

    etcd: Etcd
    folder: Path

    def etcdctl(self, line: str) -> str:
        """One line for a shell, as etcd's root."""
        at = {"ENDPOINTS": self.etcd.endpoint, "CACERT": "ca.pem", "CERT": "client.pem", "KEY": "client.key", "USER": "root:root-secret"}
        at["COMMAND_TIMEOUT"] = "30s"
        path = f"{Path(etcdctl_path()).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "ETCDCTL_API": "3", **{f"ETCDCTL_{name}": value for name, value in at.items()}}
        done = subprocess.run(line, shell=True, cwd=self.folder, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def config(self, more: str = "", *, ca: str = "ca", client: str | None = "client", user: str | None = "elastic-health") -> str:
        """A YAML; `more` are further lines of `store:`."""
        files = f"cert: {self.folder}/{client}.pem, key: {self.folder}/client.key" if client else ""
        lines = ["store:", "  timeout_s: 8.0", f"  tls: {{ca: {self.folder}/{ca}.pem, {files}}}"]
        return "\n".join([*lines, *([f"  user: {user}"] if user else []), *([f"  {more}"] if more else []), ""])


def documented() -> list[str]:
    """The `etcdctl` lines of docs/SECURITY.md."""
    lines = re.findall(r"^etcdctl .*$", (REPO / "docs" / "SECURITY.md").read_text(), re.MULTILINE)
    assert len(lines) == 9 and sum("grant-permission" in line for line in lines) == 6
    return lines


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = make_certificates(tmp_path_factory.mktemp("tls"))
    (folder / "password.txt").write_text(f"{PASSWORD}\n")
    (folder / "password.txt").chmod(0o600)
    flags = (*server_flags(folder), f"--auth-token-ttl={TOKEN_TTL_S}", "--bcrypt-cost=4")
    etcd = Etcd(tmp_path_factory.mktemp("etcd"), extra=flags, scheme="https")
    etcd.start()
    try:
        etcd.wait_healthy()
        made = Secured(etcd, folder)
        for line in (*documented(), *OTHERS, "etcdctl user add root:root-secret", "etcdctl user grant-role root root", "etcdctl auth enable"):
            made.etcdctl(line)
        yield made
    finally:
        etcd.stop()


@pytest.fixture
def run(secured: Secured, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    with a_run(tmp_path / "run", secured.etcd.endpoint, request.node.name.partition("[")[0]) as made:
        yield made


def shown(pid: int, file: str) -> str:
    """A file of /proc; "" when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def in_command_lines(secrets: tuple[str, ...]) -> list[str]:
    return [f"{pid}: {line}" for pid in processes() if any(s in (line := shown(pid, "cmdline")) for s in secrets)]


def files_with(folder: Path, secrets: tuple[str, ...]) -> list[str]:
    """Files below `folder` that hold one of the secrets, as text or as the bytes of a hexadecimal one."""
    needles = [s.encode() for s in secrets]
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and any(n in path.read_bytes() for n in needles):
            found.append(str(path))
    return found


@pytest.mark.slow
def test_a_run_as_the_documented_user_loses_a_worker_and_finishes_and_no_secret_is_shown(secured: Secured, run: Run) -> None:
    """TLS, a client certificate, a role of three lines, tokens that end every second, a cut connection, a lost worker."""
    proxies = [TcpProxy(secured.etcd.endpoint) for _ in range(2)]
    debug = {"ELASTIC_HEALTH_LOG": "DEBUG", "LOGLEVEL": "INFO", "XDG_RUNTIME_DIR": str(run.folder), "TMPDIR": str(run.folder)}
    logs = ["--log-dir", str(run.folder / "logs"), "--tee=3"]
    run.endpoint = proxies[0].endpoint
    config = secured.config(f"password_file: {secured.folder}/password.txt")
    a = run.start("a", nnodes="2", script=program("gloo"), flags=logs, config=config, env=debug)
    run.endpoint = proxies[1].endpoint
    config = secured.config("password_env: THE_ETCD_PASSWORD") + "page: {webhook_env: THE_WEBHOOK}\n"
    secret_env = {"THE_ETCD_PASSWORD": PASSWORD, "THE_WEBHOOK": f"http://127.0.0.1:1/{WRONG}"}
    b = run.start("b", nnodes="2", script=program("gloo"), flags=logs, config=config, env={**debug, **secret_env})
    first = run.wait_group(2, ev="step", within_s=90)

    secret = json.loads(secured.etcdctl(f"etcdctl get --print-value-only /elastic-health/runs/{run.run_id}/secret"))["secret"]
    assert len(secret) == 64
    secrets = (PASSWORD, WRONG, secret)
    run.wait(lambda: len(b.tree()) >= 2, "b's worker and guardian")
    time.sleep(2 * TOKEN_TTL_S + 0.5)  # etcd's own clock: every token that is not in use has ended
    for proxy in proxies:
        proxy.cut()
    os.kill(first[1]["pid"], signal.SIGKILL)
    again = run.wait_group(2, after=first[0]["generation"], ev="step", within_s=60)
    assert [e["restarts"] for e in again] == [1, 1]

    assert in_command_lines(secrets) == []
    for child in (*a.tree(), *b.tree()):
        assert not any(s in shown(child.pid, "environ") for s in secrets), f"{child} inherits a secret"
    run.finish(a, b)
    for proxy in proxies:
        proxy.close()
    told = command(secured, "why", run.run_id, "--config", str(run.folder / "a.yaml"))
    assert told.returncode == 0 and "SIGKILL" in told.stdout, told.stderr

    assert files_with(run.folder, (PASSWORD, secret)) == [], "logs, incidents, rooms"
    assert [f for f in files_with(run.folder, (WRONG,)) if not f.endswith(".yaml")] == []
    values = secured.etcdctl("etcdctl get --prefix / -w fields")
    assert f"runs/{run.run_id}/incidents/" in values and f"runs/{run.run_id}/verdicts/" in values
    assert PASSWORD not in values and WRONG not in values
    assert values.count(secret) == 1, "only its own key holds the run's secret"


@pytest.mark.slow
@pytest.mark.spec("P7")
def test_a_user_without_the_preflights_rights_is_let_in_unmeasured(secured: Secured, run: Run) -> None:
    """The two rights that a run needs, and none of those below canary/, preflights/ and baselines/."""
    secured.etcdctl("etcdctl role grant-permission needed --prefix=true read /elastic-health/quarantine/")
    node = run.start("a", config=secured.config(f"password_file: {secured.folder}/password.txt", user="needed"))
    run.wait_group(1, within_s=90)
    run.finish(node)
    text = node.text()
    assert "admitted" in text and "canary not_measured" in text and "grant-permission" in text and "Traceback" not in text, text
    assert "is not remembered" in text


def command(secured: Secured, *words: str) -> subprocess.CompletedProcess[str]:
    """`elastic-health` as another user of the same etcd would run it."""
    line = [sys.executable, "-m", "elastic_health.cli.main", *words, "--endpoint", secured.etcd.endpoint]
    return subprocess.run(line, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)


def refused(agent: Agent, status: ExitStatus, *said: str) -> None:
    """One message with expected, found, do; its status; no secret in it."""
    assert agent.wait(90) == status, agent.text()
    text = agent.text()
    assert "Traceback" not in text and text.count("healthy-etcd: ") == 1, text
    message = text.partition("healthy-etcd: ")[2]
    for words in ("expected", "found", *said):
        assert words in message, f"{words!r} is not in: {message}"
    assert PASSWORD not in text and WRONG not in text


@pytest.mark.slow
def test_each_mistake_has_its_message_and_status(secured: Secured, run: Run) -> None:
    """All at once, since each is a whole torchrun."""
    right = f"password_file: {secured.folder}/password.txt"
    wrong = secured.folder / "wrong.txt"
    wrong.write_text(WRONG)
    wrong.chmod(0o600)
    c, refuse, far = secured.config, ExitStatus.STORE_REFUSED, ExitStatus.STORE_UNREACHABLE
    rights = ("permission denied", "readwrite below /elastic-health/runs/", "etcdctl role grant-permission")
    cases: list[tuple[str, str, ExitStatus, tuple[str, ...]]] = [
        ("otherca", c(right, ca="other"), refuse, ("does not hold", "store.tls.ca")),
        ("oldca", c(right, ca="expired_ca"), refuse, ("has expired", "clock")),
        ("nocert", c(right, client=None), refuse, ("client certificate", "store.tls.cert")),
        ("plain", f"store: {{user: elastic-health, {right}}}\n", far, ("wants TLS",)),
        ("password", c(f"password_file: {wrong}"), refuse, ("authentication failed", "store.password_file")),
        ("nouser", c(user=None, client="stranger"), refuse, ("client certificate",)),
        ("reader", c(right, user="reader"), refuse, rights),
        ("elsewhere", c(right, user="elsewhere"), refuse, rights),
        ("nolist", c(right, user="no-list"), refuse, (*rights, "read below /elastic-health/quarantine/")),
    ]
    started = [(run.start(node, config=config), status, said) for node, config, status, said in cases]
    run.endpoint = run.endpoint.replace("127.0.0.1", "localhost")  # the certificate holds the address only
    started.append((run.start("name", config=c(right)), refuse, ("ostname mismatch", "store.tls.server_name")))
    for agent, status, said in started:
        refused(agent, status, *said)
    assert not run.events(), "no worker ran"
    for name, status in (("oldca", 77), ("password", 77), ("elsewhere", 77), ("plain", 69)):
        told = command(secured, "status", run.run_id, "--config", str(run.folder / f"{name}.yaml"))
        assert told.returncode == status and "expected" in told.stderr and "Traceback" not in told.stderr, told.stderr
        assert WRONG not in told.stderr + told.stdout


@pytest.mark.slow
def test_another_prefix_with_a_user_of_its_own(secured: Secured, run: Run) -> None:
    config = secured.config(f"password_file: {secured.folder}/password.txt", user="elsewhere") + "  prefix: /other/\n"
    agent = run.start("a", config=config)
    run.wait_group(1)
    run.finish(agent)
    keys = secured.etcdctl("etcdctl get --prefix --keys-only /").split()
    assert all(k.startswith(f"/other/runs/{run.run_id}/") for k in keys if run.run_id in k) and f"/other/runs/{run.run_id}/secret" in keys


@pytest.mark.slow
def test_a_client_certificate_whose_common_name_is_a_user_needs_no_password(secured: Secured) -> None:
    tls = tls_files(secured.folder)

    def connect() -> EtcdSession:
        return EtcdSession.connect(secured.etcd.endpoint, tls=tls, timeout_s=8)

    keys = RunKeys("cn")
    session = connect()
    with pytest.raises(StoreRefused):
        session.get(keys.current)
    session.close()
    for line in ("etcdctl user add client --no-password", "etcdctl user grant-role client elastic-health"):
        secured.etcdctl(line)
    session = connect()
    assert session.txn(Txn((), (Put(keys.current, b"1"),))).succeeded and session.get(keys.current)
    with pytest.raises(StoreRefused, match="permission denied"):
        session.get("/elsewhere")
    session.close()
    secured.etcdctl("etcdctl user delete client")


def converse(address: str, said: bytes) -> bytes:
    """What a stranger hears until the other side closes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        heard = b""
        try:
            sock.sendall(said)
            while data := sock.recv(4096):
                heard += data
        except ConnectionError:
            pass  # it was closed with our bytes unread
    return heard


@pytest.mark.slow
def test_a_stranger_at_the_link_ports_learns_and_changes_nothing(secured: Secured, run: Run) -> None:
    """One who knows run, nodes, incarnations and the protocol, everything but the secret."""
    config = secured.config(f"password_file: {secured.folder}/password.txt")
    agents = [run.start(n, nnodes="2", config=config) for n in ("a", "b")]
    first = run.wait_group(2, within_s=90)
    value = secured.etcdctl(f"etcdctl get /elastic-health/runs/{run.run_id}/generations/0000000001 --print-value-only")
    members = json.loads(value)["members"]
    for m, other in zip(members, reversed(members), strict=True):
        hello = LinkHello(run.run_id, other["node"], other["incarnation"], 1)
        crowd = [socket.create_connection((m["address"].rpartition(":")[0], int(m["address"].rpartition(":")[2]))) for _ in range(600)]
        dialer = Link(Side.DIALER, bytes(32), hello, bytes(32))
        stated = json.dumps(plain(hello)).encode()
        for said in (
            dialer.start() + stated + b" " + b"0" * 64 + b"\n" + b'0 00 {"op":"Reaped","generation":1}\n',
            b'{"eh":1,"nonce":"' + b"0" * 64 + b'",' + stated[1:] + b" -\n",
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(5000) + b"\n",
        ):
            heard = converse(m["address"], said)
            assert len(heard) < 300
            for name in (run.run_id, f'"{m["node"]}"', m["incarnation"], other["incarnation"]):
                assert name.encode() not in heard, heard
        for sock in crowd:
            sock.close()
    assert len(run.events("boot")) == 2 and all(a.process.poll() is None for a in agents), "nobody was disturbed"
    assert all(a.text().count("agent links:") <= 6 for a in agents), "one warning a minute of each kind"
    os.kill(first[1]["pid"], signal.SIGKILL)
    run.wait_group(2, after=first[0]["generation"])
    run.finish(*agents)


@pytest.mark.slow
def test_tls_to_a_plain_etcd(secured: Secured, tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    etcd.start()
    try:
        etcd.wait_healthy()
        with a_run(tmp_path / "run", etcd.endpoint) as run:
            refused(run.start("a", config=secured.config(user=None)), ExitStatus.STORE_UNREACHABLE, "speaks no TLS")
    finally:
        etcd.stop()
