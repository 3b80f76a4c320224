"""The public API in real processes without our agent: by itself, and under stock torchrun with two and three gloo ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from elastic_health.data.stream import SampleStream
from tests.api.train import main

pytestmark = [pytest.mark.spec("R4", "R3", "U1"), pytest.mark.timeout(240)]
SCRIPT = Path(__file__).with_name("train.py")
REPO = SCRIPT.parents[2]
STREAM = SampleStream(50, global_batch=8, seed=7, epochs=3)
STEPS = 19  # 150 positions: 18 steps of 8 and one of 6


def start(tmp_path: Path, name: str, world: int = 0, die_at: int = 0, dropout: float = 0.0) -> subprocess.CompletedProcess[str]:
    """`world` 0: plain python; else stock torchrun with that many ranks."""
    mine = [str(tmp_path / f"{name}.ckpt"), str(tmp_path / name), str(die_at), str(dropout)]
    torchrun = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--nproc-per-node={world}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}
    command = [sys.executable, *(torchrun if world else []), str(SCRIPT), *mine]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def here(tmp_path: Path, name: str, dropout: float = 0.0) -> None:
    """The same script in this process, which is quicker."""
    main(str(tmp_path / f"{name}.ckpt"), str(tmp_path / name), 0, dropout)


def committed(tmp_path: Path, name: str) -> dict[int, list[int]]:
    """Samples of each step, over all ranks; of a step that was done twice the newer one, which overwrote the other."""
    steps: dict[int, dict[int, list[int]]] = {}
    for path in tmp_path.glob(f"{name}.[0-9]"):
        for line in path.read_text().splitlines():
            step, *indices = map(int, line.split())
            steps.setdefault(step, {})[int(path.suffix[1:])] = indices
    return {step: sorted(i for rank in ranks.values() for i in rank) for step, ranks in steps.items()}


def wanted() -> dict[int, list[int]]:
    return {k + 1: sorted(STREAM.spec.sample(p)[1] for p in range(8 * k, min(8 * k + 8, 150))) for k in range(STEPS)}


def weights(tmp_path: Path, name: str) -> torch.Tensor:
    loaded: torch.Tensor = torch.load(tmp_path / f"{name}.weights")
    return loaded


def test_alone_a_killed_run_ends_bit_by_bit_as_one_that_was_not_killed(tmp_path: Path) -> None:
    here(tmp_path, "whole", dropout=0.3)
    assert start(tmp_path, "cut", dropout=0.3, die_at=13).returncode == 9
    here(tmp_path, "cut", dropout=0.3)
    assert torch.equal(weights(tmp_path, "whole"), weights(tmp_path, "cut"))
    assert committed(tmp_path, "whole") == committed(tmp_path, "cut") == wanted()


def test_under_stock_torchrun_two_ranks_die_and_three_go_on(tmp_path: Path) -> None:
    """meta-pytorch/torchft#58: what the number of ranks was shows neither in the samples used nor in the weights."""
    assert start(tmp_path, "run", world=2, die_at=8).returncode != 0
    for old in tmp_path.glob("run.[0-9]"):
        # Steps 6 and 7 were done and not saved: they are done again, on other ranks.
        old.write_text("\n".join(line for line in old.read_text().splitlines() if int(line.split()[0]) <= 5) + "\n")
    again = start(tmp_path, "run", world=3)
    assert again.returncode == 0, again.stderr
    assert committed(tmp_path, "run") == wanted()
    used = Counter(i for samples in committed(tmp_path, "run").values() for i in samples)
    assert set(used.values()) == {3} and len(used) == 50
    here(tmp_path, "alone")
    torch.testing.assert_close(weights(tmp_path, "run"), weights(tmp_path, "alone"), rtol=1e-4, atol=1e-5)


def test_ranks_with_different_plans_all_stop(tmp_path: Path) -> None:
    script = tmp_path / "plans.py"
    script.write_text(
        "import os, torch.distributed as dist, elastic_health as eh\n"
        "from elastic_health.generations import RestorePlan\n"
        "from tests.api.parts import PlansHome\n"
        "dist.init_process_group('gloo')\n"
        "run = eh.init(PlansHome([RestorePlan(position=8 * (dist.get_rank()))]))\n"
        "loader = eh.Loader(list(range(50)), eh.SampleStream(50, global_batch=8))\n"
        "try:\n"
        "    next(run.steps(loader))\n"
        "except Exception as e:\n"
        "    open(f'{__file__}.{dist.get_rank()}', 'w').write(f'{type(e).__name__} {e}')\n"
    )
    torchrun = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}
    command = [sys.executable, *torchrun, str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    for rank in range(2):
        said = Path(f"{script}.{rank}").read_text()
        assert said.startswith("PlansDiffer expected one plan on all ranks; found ranks [1] have another one than rank 0"), done
