"""Whole runs against an etcd with TLS, client certificates and users: they work, mistakes are told, secrets stay secret."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic_health.exits import ExitStatus
from tests.certificates import make_certificates, server_flags
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
    )
    for line in (
        f"etcdctl role add {name}",
        f"etcdctl role grant-permission {name} --prefix=true {right} {prefix}",
        f"etcdctl user add {name} --interactive=false < password.txt",
        f"etcdctl user grant-role {name} {name}",
    )
)
"""Users whose rights don't do."""


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
    assert len(lines) == 5 and sum("grant-permission" in line for line in lines) == 2
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

    secret = re.findall(r'"secret": "([0-9a-f]{64})"', secured.etcdctl(f"etcdctl get /elastic-health/runs/{run.run_id}/secret"))[0]
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

    assert files_with(run.folder, (PASSWORD, secret)) == [], "logs, incidents, rooms"
    assert [f for f in files_with(run.folder, (WRONG,)) if not f.endswith(".yaml")] == []
    values = secured.etcdctl("etcdctl get --prefix / -w fields")
    assert f"runs/{run.run_id}/incidents/" in values and f"runs/{run.run_id}/verdicts/" in values
    assert PASSWORD not in values and WRONG not in values
    assert values.count(secret) == 1, "only its own key holds the run's secret"


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
