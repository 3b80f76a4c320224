"""Disks that are full, limited or read-only: one clear message, nothing lost, and the next save tries again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.checkpoints.agent_os import complete_folders, probe_folder
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from elastic_health.checkpoints.layout import folder_name
from elastic_health.checkpoints.write_torch import Outcome
from elastic_health.errors import CheckpointError
from tests.checkpoints.parts import TinyState, run_ranks

pytestmark = [pytest.mark.spec("R3"), pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    at = tmp_path / "disk"
    at.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(at)], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this user can't mount a small file system: {made.stderr.strip()}")
    yield at
    subprocess.run(["umount", "-l", str(at)], check=True)


def ended(c: Checkpoints) -> Outcome:
    outcome = c.finish()
    assert outcome is not None
    return outcome


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_full_disk_at_commit(small_disk: Path, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """facebookresearch/metaseq#53: a failed write leaves no half checkpoint behind, and no space taken."""
    state = TinyState(1.0, rows=1024)  # 256 kB
    c = Checkpoints(small_disk / "c", state, every=1, mode=mode)
    c.save(1, 64)
    assert ended(c).committed
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (600 * 1024))
    caplog.clear()
    state.set(2.0)
    c.save(2, 128)
    full = ended(c)
    assert not full.committed and "No space left on device" in full.reason
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1 and "the next save tries again" in warned[0] and "000000000001.000000 stays the newest" in warned[0]
    assert os.listdir(small_disk / "c") == [folder_name(1, 0)]
    ballast.unlink()
    c.save(2, 128)
    assert ended(c).committed
    again = TinyState(rows=1024)
    assert Checkpoints(small_disk / "c", again).restore().step == 2 and again.value() == 2.0


def test_a_disk_that_fills_up_at_every_single_byte_of_the_small_files(small_disk: Path) -> None:
    """Wherever the space ends (nonce, metadata, manifest, marker), the checkpoint before it stays whole."""
    state = TinyState(1.0)
    c = Checkpoints(small_disk / "c", state, every=1)
    assert c.save(1, 64)
    failed = 0
    for pages in range(12):
        ballast = small_disk / "ballast"
        with open(ballast, "wb", buffering=0) as f:
            try:
                while f.write(b"x" * 4096):
                    pass
            except OSError:
                f.truncate(max(0, f.tell() - pages * 4096))
        failed += not c.save(2 + pages, 128)
        ballast.unlink()
        assert c.last is not None and (c.last.committed or "No space" in c.last.reason), c.last
        newest = complete_folders(small_disk / "c")[0]
        assert newest == folder_name(2 + pages if c.last.committed else int(c._parent.split(".")[0]), 0)  # type: ignore[union-attr]
    assert 3 <= failed < 12, "the space ended before, within and after the commit"
    assert Checkpoints(small_disk / "c", TinyState()).restore().step > 1


LIMITED = """
import logging, resource, sys
logging.basicConfig(format="%(levelname)s %(message)s")
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from tests.checkpoints.parts import TinyState
c = Checkpoints(sys.argv[1], TinyState(1.0, rows=1024), every=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
print("committed", c.save(1, 64))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("then", c.save(2, 128))
"""


def test_a_file_size_limit(tmp_path: Path) -> None:
    [alone] = run_ranks(LIMITED, 1, tmp_path, str(tmp_path / "c"))
    assert "committed False" in alone.out and "then True" in alone.out, alone.out
    assert alone.out.count("WARNING checkpoint of step 1 not committed") == 1 and "Traceback" not in alone.out
    assert complete_folders(tmp_path / "c") == (folder_name(2, 0),)


FORBIDDEN = """
import os, sys
from elastic_health.checkpoints.checkpoints_torch import Checkpoints
from elastic_health.errors import CheckpointError
from tests.checkpoints.parts import TinyState
if os.getuid() == 0: os.setuid(65534)
try:
    Checkpoints(sys.argv[1], TinyState())
except CheckpointError as e:
    print("refused:", e)
"""


def test_no_permission_to_write_is_refused_before_training(tmp_path: Path) -> None:
    for p in (tmp_path, *list(tmp_path.parents)[:2]):
        p.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    [alone] = run_ranks(FORBIDDEN, 1, tmp_path, str(locked))
    assert "refused: expected a checkpoint folder that this user can write" in alone.out, alone.out
    assert "Permission denied" in alone.out and "choose another folder" in alone.out
    assert os.listdir(locked) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="a part of this path is a file"):
        Checkpoints(tmp_path / "file" / "c", TinyState())


def test_a_probe_leaves_nothing_and_tells_the_space(tmp_path: Path) -> None:
    probe = probe_folder(tmp_path / "a" / "b")
    assert probe.path == tmp_path / "a" / "b" and probe.free_bytes > 0
    assert os.listdir(probe.path) == []
