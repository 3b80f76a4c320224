"""User and password, tokens that run out, TLS and client certificates, and a full store: on real etcd."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.endpoints import TlsFiles
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import NotEtcd, StoreError, StoreFull, StoreRefused
from tests.etcd_fixture import Etcd, EtcdCluster, etcd_cluster, wait_until
from tests.store.conftest import QUICK
from tests.store.shapes import Heard, create, put

TOKEN_TTL_S = 1


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    """Users are on; tokens end after a second without use; `eh` may write under /elastic-health/ only."""
    with etcd_cluster(1, (f"--auth-token-ttl={TOKEN_TTL_S}",)) as cluster:
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


def test_watches_over_an_expired_token(guarded: EtcdCluster) -> None:
    """A stream opened with a dead token stays open and says nothing; a running one outlives its token."""
    session, writer, old, young = login(guarded), login(guarded, "root", "secret"), Heard(), Heard()
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
    """A CA, a server's certificate for 127.0.0.1, a client's, and a CA that signed nothing."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=30)

    for ca in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")  # fmt: skip
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1,DNS:etcd.test\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("server", "client"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-out", f"{name}.pem", "-extfile", "extensions")  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tls_etcd(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member that asks for a client certificate."""
    c = certificates
    flags = (f"--cert-file={c}/server.pem", f"--key-file={c}/server.key", f"--trusted-ca-file={c}/ca.pem", "--client-cert-auth")
    member = Etcd(tmp_path_factory.mktemp("etcd"), extra=flags, scheme="https")
    member.start()
    try:
        member.wait_healthy()
        yield member
    finally:
        member.stop()


def files(c: Path, ca: str = "ca", client: bool = True, name: str | None = None) -> TlsFiles:
    return TlsFiles(f"{c}/{ca}.pem", f"{c}/client.pem" if client else None, f"{c}/client.key" if client else None, name)


@pytest.mark.spec("U5")
@pytest.mark.parametrize("form", ["{}", "https://{}"])
def test_tls_with_a_client_certificate(tls_etcd: Etcd, certificates: Path, form: str) -> None:
    session, heard = EtcdSession.connect(form.format(tls_etcd.endpoint), tls=files(certificates), timeout_s=8), Heard()
    start = put(session, "/k", b"1")
    session.watch("/k", start, heard.batch)
    wait_until(lambda: heard.values == [b"1"], "the watch runs over TLS")
    session.close()


def test_another_server_name(tls_etcd: Etcd, certificates: Path) -> None:
    EtcdSession.connect(tls_etcd.endpoint, tls=files(certificates, name="etcd.test"), timeout_s=8).close()
    with pytest.raises(StoreRefused, match=r"certificate|[Hh]ostname"):
        EtcdSession.connect(tls_etcd.endpoint, tls=files(certificates, name="wrong.test"), timeout_s=3)


def test_tls_mistakes_are_told_apart(tls_etcd: Etcd, certificates: Path, one_etcd: EtcdCluster) -> None:
    def fails(endpoint: str, tls: TlsFiles | None, error: type[Exception]) -> str:
        with pytest.raises(error) as caught:
            EtcdSession.connect(endpoint, tls=tls, timeout_s=3)
        return str(caught.value)

    assert "does not hold" in fails(tls_etcd.endpoint, files(certificates, ca="other"), StoreRefused)
    assert "client certificate" in fails(tls_etcd.endpoint, files(certificates, client=False), StoreRefused)
    assert "wants TLS" in fails(tls_etcd.endpoint, None, NotEtcd)
    assert "speaks no TLS" in fails(one_etcd.endpoints[0], files(certificates), NotEtcd)
    assert "http://" in fails("http://" + tls_etcd.endpoint, files(certificates), ConfigError)
    assert "no-such" in fails(tls_etcd.endpoint, TlsFiles(ca="/no-such.pem"), ConfigError)
    with pytest.raises(ConfigError, match="neither"):
        TlsFiles(certificate="only.pem")


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
