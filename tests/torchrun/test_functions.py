"""`elastic_launch(config, function)`, the signals that a run gets, and users of the handler without our agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import REPO

pytestmark = [pytest.mark.spec("U1"), pytest.mark.timeout(180)]

PROGRAM = """
    import json, os, sys
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    def work(base):
        rank = int(os.environ["RANK"])
        if base < 0 and rank == 1:
            raise LookupError("no batch 17")
        return base + rank

    if __name__ == "__main__":
        backend, endpoint, run_id, base = sys.argv[1:5]
        config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, run_id=run_id, rdzv_backend=backend, rdzv_endpoint=endpoint,
                              rdzv_configs={"config": sys.argv[5]} if backend == "healthy-etcd" else {}, max_restarts=0)
        try:
            print("RESULT", json.dumps(elastic_launch(config, work)(int(base))))
        except ChildFailedError as e:
            rank, failure = e.get_first_failure()
            print("FAILED", json.dumps([rank, failure.exitcode, str(failure.message)[:200]]))
"""


def launched(tmp_path: Path, backend: str, endpoint: str, base: int) -> tuple[str, object, str]:
    script, yaml = tmp_path / "functions.py", tmp_path / "once.yaml"
    script.write_text(textwrap.dedent(PROGRAM))
    yaml.write_text("restarts: {total: 0}\n")
    command = [sys.executable, str(script), backend, endpoint, f"f{base}", str(base), str(yaml)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith(("RESULT", "FAILED"))]
    assert len(said) == 1, done.stdout + done.stderr
    word, _, value = said[0].partition(" ")
    return word, json.loads(value), done.stderr


@pytest.mark.slow
def test_a_functions_return_values_come_back_by_global_rank(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    word, values, _ = launched(tmp_path, "healthy-etcd", one_etcd.endpoints[0], 40)
    assert (word, values) == ("RESULT", {"0": 40, "1": 41})


@pytest.mark.slow
def test_a_functions_failure_is_torchs_own_error(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    ours = launched(tmp_path, "healthy-etcd", one_etcd.endpoints[0], -1)
    stock = launched(tmp_path, "c10d", "localhost:0", -1)
    assert ours[:2] == stock[:2] and ours[0] == "FAILED", ours[2]
    assert "LookupError: no batch 17" in str(ours[1])


BARE = """
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    endpoint, n = sys.argv[1], int(sys.argv[2])
    made = lambda i: get_rendezvous_handler(RendezvousParameters("healthy-etcd", endpoint, "bare", n, n, local_addr="127.0.0.1"))
    handlers = [made(i) for i in range(n)]
    with ThreadPoolExecutor(n) as pool:
        for turn in range(3):
            infos = list(pool.map(lambda h: h.next_rendezvous(), handlers))
            assert sorted(i.rank for i in infos) == list(range(n)), infos
            assert {i.world_size for i in infos} == {n}
            infos[0].store.set("turn", str(turn))
            assert all(i.store.get("turn") == str(turn).encode() for i in infos)
            assert not infos[0].store.check(["stale"])
            infos[0].store.set("stale", "x")
        assert [h.shutdown() for h in handlers] == [True] * n
    print("BARE DONE")
"""


def test_a_bare_user_of_the_handler_meets_again_and_again_with_a_new_store(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text(textwrap.dedent(BARE))
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, str(script), one_etcd.endpoints[0], "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.returncode == 0 and "BARE DONE" in done.stdout, done.stdout + done.stderr
