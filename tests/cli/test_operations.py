"""docs/OPERATIONS.md: every command in it is run as it stands there, on a real etcd that is full."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, StoreFull, Txn
from tests.cli.test_delete import finished
from tests.etcd_fixture import EtcdCluster, etcd_cluster, etcdctl_path

pytestmark = pytest.mark.spec("U3", "U5")
ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs/OPERATIONS.md").read_text(), re.M | re.S)


def run(block: str, etcd: EtcdCluster, folder: Path) -> str:
    """One block, as a person would paste it; stops at the first command that fails."""
    here = folder / "bin"
    here.mkdir(exist_ok=True)
    command = here / "elastic-health"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m elastic_health.cli.main "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join((str(here), str(Path(etcdctl_path()).parent), os.environ["PATH"]))
    env = {**os.environ, "PATH": path, "ETCDCTL_API": "3", "ETCD": etcd.endpoints[0], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-eux", "-c", block], env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_on_a_full_etcd(tmp_path: Path) -> None:
    assert len(BLOCKS) == 3
    with etcd_cluster(1, ("--quota-backend-bytes=2097152",)) as etcd:
        store = EtcdSession.connect(etcd.endpoints)
        store.txn(Txn((), (*finished("old", "2024-01-01T00:00:00Z"), *finished("new", "2999-01-01T00:00:00Z"))))
        keys = RunKeys("old")
        with pytest.raises(StoreFull, match="disarm its alarm"):
            for i in range(100):
                store.txn(Txn((), tuple(Put(keys.record(f"{i}.{j}"), b"x" * 60_000) for j in range(10))))
        assert "NOSPACE" in run(BLOCKS[0] + "etcdctl --endpoints $ETCD alarm list\n", etcd, tmp_path)
        said = run(BLOCKS[1], etcd, tmp_path)
        assert "run old deleted" in said and "run new stays" in said
        store.txn(Txn((), (Put(RunKeys("new").progress, b"{}"),)))
        assert "new" in run(BLOCKS[2], etcd, tmp_path)
        store.close()
