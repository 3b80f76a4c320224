"""Our keys are read by others: `etcdctl`, and PyPI's `etcd3`, an independent client that can't share our protobuf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, Txn
from tests.etcd_fixture import EtcdCluster, etcd_cluster, wait_until
from tests.store.shapes import Heard

INSTALL_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[EtcdCluster, dict[str, bytes]]]:
    """One key of each kind in the layout, written by our session."""
    run = RunKeys("job-1")
    keys = [FleetKeys().quarantined_node("node-7"), run.candidate("node-1", "abc"), run.current, run.generation(12), run.store(12)]
    keys += [run.verdict(12), run.checkpoint("1000.12"), run.skip("3"), run.budget, run.record("01J"), run.incident("01K")]
    keys += [run.progress, run.summary]
    values = {key: json.dumps({"v": 1, "at": "2026-01-01T00:00:00Z", "by": "node-é", "key": key}).encode() for key in keys}
    with etcd_cluster(1) as cluster:
        session = EtcdSession.connect(cluster.endpoints)
        session.txn(Txn((), tuple(Put(k, v) for k, v in values.items())))
        session.close()
        yield cluster, values


def test_etcdctl_reads_every_key(filled: tuple[EtcdCluster, dict[str, bytes]]) -> None:
    cluster, values = filled
    lines = cluster.ctl("get", "--prefix", "/elastic-health/").splitlines()
    assert {k: v.encode() for k, v in zip(lines[::2], lines[1::2], strict=True)} == values


def test_etcdctl_writes_what_we_hear_and_read(filled: tuple[EtcdCluster, dict[str, bytes]]) -> None:
    """A person may put or delete plain keys; no command of ours is needed."""
    cluster, _ = filled
    key = FleetKeys().quarantined_node("node-9")
    session, heard = EtcdSession.connect(cluster.endpoints), Heard()
    session.watch(key, session.range(key).revision + 1, heard.batch)
    cluster.ctl("put", key, '{"v":1,"reason":"by hand"}')
    kv = session.get(key)
    assert kv is not None and json.loads(kv.value)["reason"] == "by hand"
    cluster.ctl("del", key)
    assert session.get(key) is None
    wait_until(lambda: len(heard.events) == 2, "both are heard")
    assert [e.deleted for e in heard.events] == [False, True]
    session.close()


def etcd3_python() -> str:
    """The interpreter of a venv with etcd3, kept between runs; skips when it can't be made."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastic-health-tests"
    place = cache / f"etcd3-{sys.version_info.major}.{sys.version_info.minor}"
    python = place / "bin" / "python"
    if (place / "complete").exists():
        return str(python)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True, capture_output=True, timeout=120)
        wanted = ["etcd3==0.12.0", "protobuf==3.20.3", "setuptools<81"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or b""
        pytest.skip(f"etcd3 0.12.0 can't be installed here: {error} {said[-200:]!r}")
    (place / "complete").touch()
    return str(python)


_READER = """
import etcd3, json, sys
client = etcd3.client(host="127.0.0.1", port=int(sys.argv[1]))
found = {meta.key.decode(): value.decode() for value, meta in client.get_prefix("/elastic-health/")}
ok, _ = client.transaction(compare=[client.transactions.version("/elastic-health/by-etcd3") == 0],
                           success=[client.transactions.put("/elastic-health/by-etcd3", "mine")], failure=[])
print(json.dumps({"found": found, "created": ok}))
"""


@pytest.mark.slow
def test_etcd3_reads_every_key_and_shares_create_only(filled: tuple[EtcdCluster, dict[str, bytes]]) -> None:
    python = etcd3_python()
    cluster, values = filled
    port = cluster.endpoints[0].rsplit(":", 1)[1]
    done = subprocess.run([python, "-c", _READER, port], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {k: v.encode() for k, v in said["found"].items()} == values
    assert said["created"] is True
    session = EtcdSession.connect(cluster.endpoints)
    kv = session.get("/elastic-health/by-etcd3")
    session.close()
    assert kv is not None and kv.value == b"mine" and kv.version == 1
