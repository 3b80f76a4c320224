"""User and password, tokens that run out, TLS and client certificates, and a full store: on real etcd."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.endpoints import TlsFiles
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import NotEtcd, Put, StoreError, StoreFull, StoreRefused, StoreUnavailable, Txn
from tests.certificates import make_certificates, server_flags, tls_files
from tests.etcd_fixture import Etcd, EtcdCluster, etcd_cluster, wait_until
from tests.store.conftest import QUICK
from tests.store.shapes import Heard, create, later, put

TOKEN_TTL_S = 1


@contextmanager
def with_users(*flags: str) -> Iterator[EtcdCluster]:
    """`eh` may write under /elastic-health/ only."""
    with etcd_cluster(1, ("--bcrypt-cost=4", *flags)) as cluster:
        for words in (
            ("user", "add", "root:secret"),
            ("role", "add", "health"),
            ("role", "grant-permission", "--prefix=true", "health", "readwrite", "/elastic-health/"),
            ("user", "add", "eh:pass"),
            ("user", "grant-role", "eh", "health"),
            ("user", "grant-role", "root", "root"),
            ("auth", "enable"),
        ):
            cluster.ctl(*words)
        yield cluster


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    """Tokens end after a second without use."""
    with with_users(f"--auth-token-ttl={TOKEN_TTL_S}") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Tokens are signed (JWT) and end a second after the login, in use or not."""
    folder = tmp_path_factory.mktemp("jwt")
    for line in ("openssl genrsa -out key 2048", "openssl rsa -in key -pubout -out pub"):
        subprocess.run(line.split(), cwd=folder, check=True, capture_output=True, timeout=30)
    with with_users(f"--auth-token=jwt,pub-key={folder}/pub,priv-key={folder}/key,sign-method=RS256,ttl={TOKEN_TTL_S}s") as cluster:
        yield cluster


def login(cluster: EtcdCluster, user: str | None = "eh", password: str | None = "pass") -> EtcdSession:
    return EtcdSession.connect(cluster.endpoints, user=user, password=password, timeout_s=3, pace=QUICK)


@pytest.mark.spec("U5")
def test_a_user_with_its_role(guarded: EtcdCluster) -> None:
    session = login(guarded)
    assert session.txn(create("/elastic-health/a", b"")).succeeded
    with pytest.raises(StoreRefused, match="permission denied"):
        put(session, "/elsewhere", b"")
    with pytest.raises(StoreRefused):
        session.get("/elsewhere")
    session.close()


@pytest.mark.spec("U5")
@pytest.mark.parametrize(("user", "password"), [("eh", "wrong"), ("nobody", "pass"), (None, None), ("eh", None)])
def test_a_wrong_login_is_refused_at_once_and_shows_no_password(guarded: EtcdCluster, user: str | None, password: str | None) -> None:
    begun = time.monotonic()
    with pytest.raises(StoreRefused) as caught:
        login(guarded, user, password)
    assert time.monotonic() - begun < 3
    assert "wrong" not in str(caught.value) and "check user" in str(caught.value)


def test_an_expired_token_is_renewed_and_the_write_sent_once(guarded: EtcdCluster) -> None:
    session = login(guarded)
    put(session, "/elastic-health/n", b"")
    lease = session.grant(30)
    time.sleep(TOKEN_TTL_S * 2 + 0.5)  # etcd's own clock has to pass
    put(session, "/elastic-health/n", b"")
    kv = session.get("/elastic-health/n")
    assert kv is not None and kv.version == 2
    time.sleep(TOKEN_TTL_S * 2 + 0.5)
    assert session.renew(lease.id) == lease.ttl_s
    session.close()


def test_an_async_write_over_an_expired_token_is_sent_once(guarded: EtcdCluster) -> None:
    session = login(guarded)
    put(session, "/elastic-health/m", b"")
    time.sleep(TOKEN_TTL_S * 2 + 0.5)  # etcd's own clock has to pass
    assert later(session, Txn((), (Put("/elastic-health/m", b""),))).succeeded
    kv = session.get("/elastic-health/m")
    assert kv is not None and kv.version == 2
    session.close()


def test_a_changed_password_is_taken_up(guarded: EtcdCluster, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("before")
    guarded.ctl("--user=root:secret", "user", "add", "changing:before")
    guarded.ctl("--user=root:secret", "user", "grant-role", "changing", "health")
    session = EtcdSession.connect(guarded.endpoints, user="changing", password=file.read_text, timeout_s=3)
    put(session, "/elastic-health/c", b"1")
    file.write_text("after")
    guarded.ctl("--user=root:secret", "user", "passwd", "changing", "--interactive=false", stdin="after\n")
    put(session, "/elastic-health/c", b"2")
    session.close()


@pytest.mark.parametrize("tokens", ["guarded", "signed"])
def test_watches_over_an_expired_token(request: pytest.FixtureRequest, tokens: str) -> None:
    """A stream opened with a dead token stays open and says nothing; a running one outlives its token."""
    cluster: EtcdCluster = request.getfixturevalue(tokens)
    session, writer, old, young = login(cluster), login(cluster, "root", "secret"), Heard(), Heard()
    start = put(writer, "/elastic-health/w", b"0")
    session.watch("/elastic-health/w", start, old.batch, old.trouble.append)
    wait_until(lambda: old.values == [b"0"], "the first watch runs")
    time.sleep(TOKEN_TTL_S * 2 + 0.5)
    session.watch("/elastic-health/w", start, young.batch, young.trouble.append)
    put(writer, "/elastic-health/w", b"1")
    wait_until(lambda: old.values == young.values == [b"0", b"1"], "both hear both")
    assert old.trouble == young.trouble == []  # the end of a token is nothing to worry about
    session.close()
    writer.close()


def test_a_forbidden_watch_tells_so(guarded: EtcdCluster) -> None:
    session, heard = login(guarded), Heard()
    session.watch("/elsewhere/", 1, heard.batch, heard.trouble.append)
    wait_until(lambda: heard.trouble, "the refusal is told")
    assert isinstance(heard.trouble[0], StoreRefused)
    session.close()


def test_a_login_for_a_server_without_users_is_fine(one_etcd: EtcdCluster) -> None:
    session = login(one_etcd)
    put(session, "/elastic-health/a", b"")
    for user in ("root", "eh"):
        one_etcd.ctl("user", "add", f"{user}:pass")
        one_etcd.ctl("user", "grant-role", user, "root")
    one_etcd.ctl("auth", "enable")
    put(session, "/elastic-health/a", b"")  # users came while it ran
    session.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextmanager
def member(folder: Path, certificates: Path, certificate: str = "server") -> Iterator[Etcd]:
    """One member that asks for a client certificate."""
    etcd = Etcd(folder, extra=server_flags(certificates, certificate), scheme="https")
    etcd.start()
    try:
        etcd.wait_healthy()
        yield etcd
    finally:
        etcd.stop()


@pytest.fixture(scope="module")
def tls_etcd(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with member(tmp_path_factory.mktemp("etcd"), certificates) as etcd:
        yield etcd


@pytest.mark.spec("U5")
@pytest.mark.parametrize("form", ["{}", "https://{}"])
def test_tls_with_a_client_certificate(tls_etcd: Etcd, certificates: Path, form: str) -> None:
    session, heard = EtcdSession.connect(form.format(tls_etcd.endpoint), tls=tls_files(certificates), timeout_s=8), Heard()
    start = put(session, "/k", b"1")
    session.watch("/k", start, heard.batch)
    wait_until(lambda: heard.values == [b"1"], "the watch runs over TLS")
    session.close()


def test_another_server_name(tls_etcd: Etcd, certificates: Path) -> None:
    EtcdSession.connect(tls_etcd.endpoint, tls=tls_files(certificates, name="etcd.test"), timeout_s=8).close()


def fails(endpoint: str, tls: TlsFiles | None, error: type[Exception]) -> str:
    """The message; it comes before the time limit, not at it."""
    begun = time.monotonic()
    with pytest.raises(error) as caught:
        EtcdSession.connect(endpoint, tls=tls, timeout_s=10)
    assert time.monotonic() - begun < 8
    text = str(caught.value)
    assert re.match(r"expected .*; found .*; ", text)
    return text


@pytest.mark.spec("U5")
@pytest.mark.parametrize(
    ("ca", "client", "name", "found", "do"),
    [
        ("other", "client", None, "does not hold", "signed etcd's certificate in store.tls.ca"),
        ("expired_ca", "client", None, "has expired", "renew etcd's certificate or its CA"),
        ("ca", "client", "wrong.test", "ostname mismatch", "store.tls.server_name"),
        ("ca", None, None, "client certificate", "store.tls.cert and store.tls.key"),
        ("ca", "stranger", None, "client certificate", "--trusted-ca-file"),
        ("ca", "expired_client", None, "client certificate", "has not expired"),
    ],
)
def test_certificates_that_do_not_do(
    tls_etcd: Etcd, certificates: Path, ca: str, client: str | None, name: str | None, found: str, do: str
) -> None:
    text = fails(tls_etcd.endpoint, tls_files(certificates, ca, client, name), StoreRefused)
    assert found in text and do in text


def test_a_servers_expired_certificate(certificates: Path, tmp_path: Path) -> None:
    with member(tmp_path, certificates, "expired_server") as etcd:
        assert "check this machine's clock" in fails(etcd.endpoint, tls_files(certificates), StoreRefused)


def test_tls_where_there_is_none_and_none_where_there_is(tls_etcd: Etcd, certificates: Path, one_etcd: EtcdCluster) -> None:
    assert "wants TLS" in fails(tls_etcd.endpoint, None, NotEtcd)
    assert "speaks no TLS" in fails(one_etcd.endpoints[0], tls_files(certificates), NotEtcd)
    assert "http://" in fails("http://" + tls_etcd.endpoint, tls_files(certificates), ConfigError)


def test_files_that_are_none(tls_etcd: Etcd, certificates: Path) -> None:
    assert "no-such" in fails(tls_etcd.endpoint, TlsFiles(ca="/no-such.pem"), ConfigError)
    with pytest.raises(ConfigError, match="neither"):
        TlsFiles(certificate="only.pem")
    # An encrypted key asks nobody for its passphrase.
    words = ["openssl", "ec", "-in", "client.key", "-aes128", "-passout", "pass:x", "-out", "locked.key"]
    subprocess.run(words, cwd=certificates, check=True, capture_output=True, timeout=30)
    locked = TlsFiles(f"{certificates}/ca.pem", f"{certificates}/client.pem", f"{certificates}/locked.key")
    assert "not encrypted" in fails(tls_etcd.endpoint, locked, ConfigError)


def test_a_password_in_an_endpoint_is_not_repeated() -> None:
    assert "hunter2" not in fails("user:hunter2@127.0.0.1:2379", None, ConfigError)


def test_replaced_certificates_are_read_at_the_next_connection(certificates: Path, tmp_path: Path) -> None:
    """A session outlives the certificate that it began with, as it must where they are short-lived."""
    for name in ("ca.pem", "client.pem", "client.key"):
        shutil.copy(certificates / name, tmp_path / name)
    with member(tmp_path, certificates) as etcd:
        session = EtcdSession.connect(etcd.endpoint, tls=tls_files(tmp_path), timeout_s=8)
        put(session, "/r", b"1")
        etcd.stop()
        etcd.extra = server_flags(certificates, clients="other")
        etcd.start()
        etcd.wait_healthy()
        with pytest.raises(StoreUnavailable):
            session.get("/r", timeout_s=2)
        shutil.copy(certificates / "stranger.pem", tmp_path / "client.pem")
        kv = session.get("/r")
        assert kv is not None and kv.value == b"1"
        session.close()


def test_a_full_store_reads_and_refuses_writes() -> None:
    with etcd_cluster(1, ("--quota-backend-bytes=3000000",)) as cluster:
        session = EtcdSession.connect(cluster.endpoints)
        put(session, "/k", b"kept")
        refused: list[StoreError] = []

        def write_more() -> bool:
            """etcd compares its quota with the size at its last commit, every 100 ms: a burst goes through whole."""
            try:
                put(session, "/fill", b"x" * 500_000)
            except StoreFull as full:
                refused.append(full)
            return bool(refused)

        wait_until(write_more, "etcd refuses a write")
        assert "quota" in str(refused[0])
        kv = session.get("/k")
        assert kv is not None and kv.value == b"kept"
        assert any("NOSPACE" in e for e in session.status()[0].errors)
        session.close()
