"""The agent's private folders: nothing stays of an agent that was killed together with its guardian."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_health.agents import room_os
from elastic_health.agents.room_os import Room, prune_evidence, sweep


def test_folders_are_private_and_go_with_their_owner() -> None:
    room = Room()
    assert all(os.stat(f).st_mode & 0o777 == 0o700 for f in (room.path, room.shared))
    assert len(room.link) < 107
    room.close()
    assert not os.path.exists(room.path) and not os.path.exists(room.shared)


def test_what_a_killed_owner_left_is_swept_and_what_is_in_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_os, "NEW_S", -1.0)
    own = f"from elastic_health.agents.room_os import _own; print(_own({str(tmp_path)!r})[0], flush=True)"
    code = f"import os; {own}; os.kill(os.getpid(), 9)"
    left = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False).stdout.strip()
    kept, lock = room_os._own(str(tmp_path))
    (tmp_path / "eh-room-somebody-elses").mkdir()  # without a lock file: not ours to judge
    assert os.path.isdir(left)
    assert sweep(str(tmp_path)) == 1
    assert not os.path.exists(left) and os.path.isdir(kept)
    os.close(lock)
    assert sweep(str(tmp_path)) == 1 and not os.path.exists(kept)


def test_one_that_is_just_being_made_is_left_alone(tmp_path: Path) -> None:
    _, lock = room_os._own(str(tmp_path))
    os.close(lock)
    assert sweep(str(tmp_path)) == 0


def test_only_the_newest_evidence_is_kept(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"i{i}").mkdir()
        os.utime(tmp_path / f"i{i}", (i, i))
    assert prune_evidence(str(tmp_path), keep=2) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["i3", "i4"]
    assert prune_evidence(str(tmp_path / "none")) == 0
