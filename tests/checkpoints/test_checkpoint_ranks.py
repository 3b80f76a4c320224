"""Real gloo ranks: other world sizes, one bad rank, folders that are not shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_health.checkpoints.agent_os import complete_folders
from elastic_health.checkpoints.layout import folder_name
from tests.checkpoints.parts import JOIN, FileHome, run_ranks

pytestmark = pytest.mark.spec("R3")

RESHARD = (
    JOIN
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (world,))
whole = torch.arange(35.0 * 8).reshape(35, 8)

class Sharded:
    def __init__(self):
        self.weight = distribute_tensor(torch.zeros(35, 8), mesh, [Shard(0)])
        self.step, self.rng = 0, f"rank {rank} of {world}"
        self.loaded = None
    def state_dict(self):
        return {"weight": self.weight, "step": self.step}
    def to_save(self):
        return {**self.state_dict(), "rng": {f"rank-{rank}": self.rng}}
    def to_load(self, wrote):
        return self.to_save() if wrote == world else self.state_dict()
    def load_state_dict(self, state):
        self.step, self.loaded = state["step"], state.get("rng")

folder, start, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
state = Sharded()
c = Checkpoints(folder, state, every=10, mode=mode)
restored = c.restore()
assert (restored.step, restored.position) == (start, start * 64), restored
if start:
    assert torch.equal(state.weight.full_tensor(), whole + start), state.weight
    assert state.step == start
state.weight = distribute_tensor(whole + start + 10, mesh, [Shard(0)])
state.step = start + 10
c.save(start + 10, (start + 10) * 64)
state.weight.to_local().zero_()
assert c.finish().committed
# The same world again finds what belongs to each rank.
again = Sharded()
assert Checkpoints(folder, again).restore().step == start + 10
assert again.loaded == {f"rank-{rank}": f"rank {rank} of {world}"}, again.loaded
dist.barrier()
dist.destroy_process_group()
"""
)


def test_worlds_of_two_three_and_one_restore_each_other(tmp_path: Path) -> None:
    for world, start, mode in ((2, 0, "sync"), (3, 10, "async"), (1, 20, "sync")):
        for ended in run_ranks(RESHARD, world, tmp_path, str(tmp_path / "c"), str(start), mode):
            assert ended.code == 0, ended.out
    assert len(complete_folders(tmp_path / "c")) == 3


TWO = (
    JOIN
    + """
import errno
from elastic_health.checkpoints import checkpoints_torch, write_torch
from elastic_health.checkpoints.layout import folder_name
from elastic_health.errors import CheckpointUnusable
from elastic_health.generations import RestorePlan
checkpoints_torch.SHARED_WAIT_S = 0.3
checkpoints_torch.END_WAIT_S = 0.0
root = Path(sys.argv[1])

def say(*words):
    print(f"[{rank}]", *words, flush=True)

# 1. Node-local folders.
try:
    Checkpoints(root / f"local-of-{rank}", TinyState()).restore()
except CheckpointError as e:
    say("not shared:", e)

# 2. A disk that fills up on one rank: no rank commits, all go on, the next save is committed.
home = FileHome(root / "records")
state = TinyState(1.0)
c = Checkpoints(root / "c", state, every=1, home=home)
c.restore(RestorePlan())
if rank == 1:
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")
    # Replicated tensors may all be written by rank 0: this rank fails while it measures its files, too.
    write_torch.measure = lambda folder, path: full(0)
    state.state_dict = lambda: {**TinyState(1.0).state_dict(), "mine": torch.ones(3)}
say("full:", c.save(1, 64), c.last.reason)
if rank == 1:
    from elastic_health.checkpoints.files_os import measure
    write_torch.measure = measure
dist.barrier()
say("partial left:", (root / "c" / folder_name(1, 1)).exists())
for step in (2, 3):
    say("next:", c.save(step, step * 64))

# 3. One rank finds its share torn: all leave it, rank 0 has told.
if rank == 1:
    path = root / "c" / folder_name(3, 1) / "__1_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])
dist.barrier()
record = home.records()["000000000003.000001"]
fresh = TinyState()
fresh.state_dict = state.state_dict
try:
    Checkpoints(root / "c", fresh, home=home).restore(RestorePlan(record.name, record.path, 3, 192, (), record.manifest))
except CheckpointUnusable as e:
    say("unusable:", len(home.told), fresh.value(), e)

# 4. The same without an agent: both take the one before.
alone = Checkpoints(root / "c", fresh)
say("restored:", alone.restore().step, fresh.value())
dist.barrier()
dist.destroy_process_group()
"""
)


def test_what_one_rank_meets_all_ranks_do(tmp_path: Path) -> None:
    """pytorch/pytorch#67615 and verl-project/verl#500: shards on node-local disks are found out before training."""
    ranks = run_ranks(TWO, 2, tmp_path, str(tmp_path))
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, ended.out
        told = {line.split(":")[0].split("] ")[1]: line for line in ended.out.splitlines() if line.startswith(f"[{rank}]")}
        assert "a checkpoint folder that all nodes share" in told["not shared"] and "ranks 1 see" in told["not shared"]
        assert "False" in told["full"] and "No space left on device" in told["full"] and "rank 1" in told["full"]
        assert "False" in told["partial left"] and "True" in told["next"]
        assert f"unusable: {1 if rank == 0 else 0} 0.0" in told["unusable"] and "rank 1" in told["unusable"]
        assert "restored: 2 1.0" in told["restored"]
    warnings = [line for ended in ranks for line in ended.out.splitlines() if line.startswith("WARNING checkpoint of step 1")]
    assert len(warnings) == 1 and "training goes on" in warnings[0]


DYING = (
    JOIN
    + """
import signal
from torch.distributed.checkpoint import filesystem
root, home = Path(sys.argv[1]), FileHome(Path(sys.argv[1]) / "records")
state = TinyState(1.0)
if rank == 1:
    state.state_dict = lambda: {**TinyState(1.0).state_dict(), "mine": torch.ones(3)}
c = Checkpoints(root / "c", state, every=1, home=home)
c.restore(None)
assert c.save(1, 64)
if rank == 1:
    def die(fd):
        os.ftruncate(fd, 10)
        os.kill(os.getpid(), signal.SIGKILL)
    filesystem.os = type("os", (), {**vars(os), "fsync": staticmethod(die)})
c.save(2, 128)
"""
)


def test_a_rank_that_dies_while_writing_ends_the_save_for_all_and_commits_nothing(tmp_path: Path) -> None:
    first, second = run_ranks(DYING, 2, tmp_path, str(tmp_path), timeout_s=100)
    assert second.code == -9
    assert first.code not in (0, -9), "rank 0 neither hangs nor believes in a commit"
    assert list(FileHome(tmp_path / "records").records()) == ["000000000001.000001"]
    assert complete_folders(tmp_path / "c") == (folder_name(1, 1),)
