"""Certificates for tests, made with `openssl` in a folder: good ones, and each kind of bad one.

All servers' certificates are for 127.0.0.1 and `etcd.test`.  Files `NAME.pem` and `NAME.key`:

ca, other: authorities; etcd's is `ca`.  expired_ca: `ca`'s key and name in a certificate that has run out.
server, client: signed by `ca`.  expired_server, expired_client: signed by `ca`, run out.  stranger: a client's, by `other`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from elastic_health.rendezvous.endpoints import TlsFiles

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_certificates(folder: Path) -> Path:
    """Write them all; returns `folder`."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=30)

    def request(name: str) -> None:
        openssl("req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")

    def sign(name: str, ca: str, days: int, request_of: str) -> None:
        openssl("x509", "-req", "-in", f"{request_of}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial",
                "-days", str(days), "-out", f"{name}.pem", "-extfile", "leaf")  # fmt: skip

    (folder / "leaf").write_text("subjectAltName=IP:127.0.0.1,DNS:etcd.test\nextendedKeyUsage=serverAuth,clientAuth\n")
    (folder / "authority").write_text("basicConstraints=critical,CA:TRUE\n")
    for ca in ("ca", "other"):
        openssl("req", "-x509", *_KEY, "-days", "2", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
    openssl("req", "-new", "-key", "ca.key", "-out", "ca.csr", "-subj", "/CN=ca")
    openssl("x509", "-req", "-in", "ca.csr", "-signkey", "ca.key", "-days", "-1", "-out", "expired_ca.pem", "-extfile", "authority")
    for name in ("server", "client"):
        request(name)
        sign(name, "ca", 2, name)
        sign(f"expired_{name}", "ca", -1, name)
    sign("stranger", "other", 2, "client")
    return folder


def tls_files(folder: Path, ca: str = "ca", client: str | None = "client", name: str | None = None) -> TlsFiles:
    """What a session takes; all clients' certificates share one key."""
    if client is None:
        return TlsFiles(f"{folder}/{ca}.pem", None, None, name)
    return TlsFiles(f"{folder}/{ca}.pem", f"{folder}/{client}.pem", f"{folder}/client.key", name)


def server_flags(folder: Path, certificate: str = "server", clients: str = "ca") -> tuple[str, ...]:
    """etcd's flags: TLS with this certificate, and a client certificate by the authority `clients` is required."""
    files = (f"--cert-file={folder}/{certificate}.pem", f"--key-file={folder}/server.key", f"--trusted-ca-file={folder}/{clients}.pem")
    return (*files, "--client-cert-auth")
