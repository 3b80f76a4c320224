"""The example that people copy: the same script by itself and under stock torchrun, on real text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spec("U1", "R4"), pytest.mark.timeout(180)]
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_bytes.py"
STOCK = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2"]
DOCUMENTS, BATCH = 60, 7  # nine steps, the last one smaller


def run(root: Path, launcher: list[str], *more: str, documents: int = DOCUMENTS) -> subprocess.CompletedProcess[str]:
    (root / "samples").mkdir(exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SAMPLE_LOG_DIR": str(root / "samples"), "PYTHONPATH": str(SCRIPT.parents[1])}
    line = [f"--documents={documents}", f"--batch={BATCH}", f"--ckpt-dir={root / 'ckpt'}", "--every=4", f"--log-dir={root}", *more]
    return subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), *line], env=env, capture_output=True, text=True, timeout=150, check=False
    )


def steps(root: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (root / "metrics.jsonl").read_text().splitlines()]


def fetched(root: Path) -> Counter[int]:
    return Counter(int(line) for path in (root / "samples").iterdir() for line in path.read_text().splitlines())


def test_under_stock_torchrun_one_epoch_uses_each_document_once(tmp_path: Path) -> None:
    done = run(tmp_path, STOCK)
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path) == list(range(1, 10))
    assert fetched(tmp_path) == Counter(range(DOCUMENTS))
    assert len(list((tmp_path / "samples").iterdir())) == 2


def test_alone_stopped_and_started_again_it_goes_on_and_reads_ahead_in_other_processes(tmp_path: Path) -> None:
    first = run(tmp_path, [], "--steps=5", "--loader-workers=1")
    second = run(tmp_path, [], "--loader-workers=1")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert steps(tmp_path) == list(range(1, 10))
    assert set(fetched(tmp_path)) == set(range(DOCUMENTS))


def test_more_documents_than_there_is_text(tmp_path: Path) -> None:
    done = run(tmp_path, [], documents=10**8)
    assert done.returncode == 1
    assert "expected 100000000 documents of 64 bytes; the standard library has" in done.stderr
    assert "Traceback" not in done.stderr


def test_documents_are_the_text_of_the_standard_library() -> None:
    from train_bytes import LENGTH, Documents

    raw = (Path(sysconfig.get_path("stdlib")) / "__future__.py").read_bytes()
    documents = Documents(2, None)
    assert len(documents) == 2
    assert bytes(documents[1].tolist()) == raw[LENGTH : 2 * LENGTH + 1]
