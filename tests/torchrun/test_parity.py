"""Every flag of torchrun behaves under this backend as under its own c10d: the same run under both, compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.etcd_fixture import EtcdCluster
from tests.torchrun.runs import Run, a_run, program

pytestmark = [pytest.mark.spec("U1"), pytest.mark.timeout(180)]
ONCE = "restarts: {total: 0}\n"
"""Stock torchrun restarts nothing by default; so that failures compare."""
_OWN = ("ELASTIC_HEALTH_", "TORCH_FR_", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING")
"""Ours beside what stock sets: the flight recorder is on in every worker, unless the user has set it."""
_DIFFER = ("MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_ERROR_FILE", "RUN_DIR", "XDG_STATE_HOME")


@dataclass
class Seen:
    """What one launcher made of a case."""

    code: int
    text: str
    files: dict[str, str]
    events: list[dict[str, object]] = field(default_factory=list)

    def said(self, *patterns: str) -> list[str]:
        """Lines of the workers, as they reached the terminal, in any order."""
        wanted = re.compile("|".join(patterns or (r"(out|err|loss) of rank",)))
        return sorted(line for line in self.text.splitlines() if wanted.search(line))


def launch(
    run: Run, backend: str, *words: str, flags: Sequence[str] = (), script: str = "", env: dict[str, str] | None = None, **how: str
) -> Seen:
    config = ONCE if backend == "healthy-etcd" else ""
    agent = run.start("n", *words, script=script or program("tell"), flags=flags, backend=backend, config=config, env=env, **how)  # type: ignore[arg-type]
    code = agent.wait(90)
    logs = run.folder / "logs"
    return Seen(code, agent.text(), _files(logs), [dict(e) for e in sorted(run.events("boot"), key=lambda e: e["rank"])])


def _files(logs: Path) -> dict[str, str]:
    """Log files below any run's folder: `attempt_0/0/stdout.log` and so on."""
    found = (p for p in logs.rglob("*") if p.is_file() and "attempt" in str(p))
    return {"/".join(p.relative_to(logs).parts[1:]): p.read_text() for p in found}


def both(etcd: EtcdCluster, tmp_path: Path, *words: str, flags: Sequence[str] = (), **more: object) -> tuple[Seen, Seen]:
    """The case under this backend and under stock c10d."""
    seen = []
    for backend in ("healthy-etcd", "c10d"):
        with a_run(tmp_path / backend, etcd.endpoints[0]) as run:
            mine = [f.replace("LOGS", str(run.folder / "logs")) for f in flags]
            seen.append(launch(run, backend, *words, flags=mine, **more))  # type: ignore[arg-type]
    return seen[0], seen[1]


def same_workers(ours: Seen, stock: Seen) -> None:
    assert ours.code == stock.code, ours.text
    assert len(ours.events) == len(stock.events)
    for a, b in zip(ours.events, stock.events, strict=True):
        assert environment(a) == environment(b)
        assert str(a["path"]).replace("healthy-etcd", "c10d") == b["path"]
        for what in ("argv", "name", "signals"):
            assert a[what] == b[what], what


def environment(event: dict[str, object]) -> dict[str, str]:
    env = event["env"]
    assert isinstance(env, dict)
    kept = {k: v for k, v in env.items() if not k.startswith(_OWN)}
    return {k: ("" if k in _DIFFER else v) for k, v in kept.items()}


def test_a_worker_sees_what_it_sees_under_stock_torchrun(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    ours, stock = both(one_etcd, tmp_path, "--lr", "3", flags=["--role=trainer"], nproc="2")
    same_workers(ours, stock)
    assert ours.said() == stock.said() and ours.said()
    env = ours.events[1]["env"]
    assert isinstance(env, dict) and env["ROLE_NAME"] == "trainer" and env["TORCHELASTIC_RUN_ID"] == "job"


FLAGS = {
    "tee": ["--tee=3", "--log-dir=LOGS"],
    "tee of one": ["--tee=1:3", "--log-dir=LOGS"],
    "redirects": ["--redirects=3", "--log-dir=LOGS"],
    "redirects of one": ["--redirects=0:1", "--log-dir=LOGS"],
    "local-ranks-filter": ["--local-ranks-filter=1", "--tee=3", "--log-dir=LOGS"],
    "local-ranks-filter without logs": ["--local-ranks-filter=0"],
    "virtual-local-rank": ["--virtual-local-rank"],
    "signals-to-handle": ["--signals-to-handle=SIGTERM,SIGUSR1"],
    "no change": [
        "--start-method=fork",
        "--monitor-interval=1",
        "--shutdown-timeout=3",
        "--event-log-handler=console",
        "--local-addr=127.0.0.1",
    ],
    "numa-binding": ["--numa-binding=node"],
    "duplicate filters": ["--tee=3", "--log-dir=LOGS", "--duplicate-stdout-filters=loss", "--duplicate-stderr-filters=nothing"],
    "logs-specs": ["--logs-specs=default", "--tee=3", "--log-dir=LOGS"],
    "run-path": ["--run-path"],
    "master": ["--master-addr=127.0.0.1", "--master-port=29123"],
}


def contents(run: Seen) -> dict[str, list[str]]:
    """Lines of each log file; which rank comes first in a file of all ranks is chance."""
    files = {name: text.splitlines() for name, text in run.files.items() if "error" not in name}
    return {name: sorted(lines) if "filtered" in name else lines for name, lines in files.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_does_the_same(one_etcd: EtcdCluster, tmp_path: Path, name: str) -> None:
    ours, stock = both(one_etcd, tmp_path, flags=FLAGS[name], nproc="2")
    same_workers(ours, stock)
    assert ours.said() == stock.said()
    assert contents(ours) == contents(stock)


@pytest.mark.slow
@pytest.mark.parametrize("nproc", ["auto", "cpu", "gpu"])
def test_nproc_words(one_etcd: EtcdCluster, tmp_path: Path, nproc: str) -> None:
    ours, stock = both(one_etcd, tmp_path, nproc=nproc)
    assert (ours.code, len(ours.events)) == (stock.code, len(stock.events))


@pytest.mark.slow
def test_a_module(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "tell.py").write_text(Path(program("tell")).read_text())
    ours, stock = both(one_etcd, tmp_path, flags=["-m"], script="pkg.tell", env={"PYTHONPATH": str(tmp_path)})
    same_workers(ours, stock)


@pytest.mark.slow
def test_variables_instead_of_flags(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    words = {"PET_ROLE": "variable", "PET_TEE": "3", "PET_LOG_DIR": str(tmp_path / "logs")}
    ours, stock = both(one_etcd, tmp_path, env=words, nproc="2")
    same_workers(ours, stock)
    assert ours.said() == stock.said() and all(line.startswith("[variable") for line in ours.said())


@pytest.mark.slow
@pytest.mark.parametrize("words", [("exit", "5"), ("raise",), ("kill",)])
def test_a_failure_looks_the_same(one_etcd: EtcdCluster, tmp_path: Path, words: tuple[str, ...]) -> None:
    """torch's own table with root cause, exit code and, under @record, the traceback."""
    ours, stock = both(one_etcd, tmp_path, *words)
    assert ours.code == stock.code == 1
    assert table(ours.text) == table(stock.text) and table(ours.text)
    if words == ("raise",):
        assert "LookupError: batch 17 of rank 0" in "".join(table(ours.text))


@pytest.mark.slow
def test_of_two_workers_the_one_that_failed_is_in_the_table(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    ours, stock = both(one_etcd, tmp_path, "exit1", "5", nproc="2")
    assert ours.code == stock.code == 1
    assert table(ours.text) == table(stock.text) and "exitcode  : 5" in "".join(table(ours.text))


def table(text: str) -> list[str]:
    """The lines of the failure table that don't differ from run to run."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if "FAILED" in line]
    kept = lines[starts[0] :] if starts else []
    kept = [line for line in kept if not line.startswith("healthy-etcd")]
    return [re.sub(r"(pid: ?\d+|PID \d+|time +:.*|host +:.*|error_file *:.*)", "", line) for line in kept]
