"""What an agent does with folders: verification, marker, set-aside, deletion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_health.checkpoints import agent_os
from elastic_health.checkpoints.files_os import measure, write_durably
from elastic_health.checkpoints.layout import MANIFEST, MARKER, NONCE, FileEntry, Manifest, digest, encode, folder_name
from elastic_health.errors import CheckpointError
from elastic_health.generations import checkpoint_name

pytestmark = pytest.mark.spec("R3")


def written(root: Path, step: int = 10, generation: int = 1, run: str = "run", name: str = "") -> tuple[Path, str]:
    """A folder with two files and its manifest, as it is when the agent is asked to commit."""
    folder = root / (name or folder_name(step, generation))
    (folder / "sub").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"a" * 1000)
    (folder / "sub" / "b.bin").write_bytes(b"b" * 500)
    nonce = f"{run}/{step:x}"
    (folder / NONCE).write_text(nonce)
    files = tuple(measure(folder, p) for p in ("a.bin", "sub/b.bin"))
    raw = encode(Manifest(1, "files", run, generation, step, step * 64, 2, None, nonce, files))
    write_durably(folder / MANIFEST, raw)
    return folder, digest(raw)


def claims(folder: Path) -> tuple[tuple[str, int, str], ...]:
    return tuple((f.path, f.size, f.sha256) for f in (measure(folder, p) for p in ("a.bin", "sub/b.bin")))


def test_files_that_are_as_said(tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    assert agent_os.verify_files(str(folder), "run/a", claims(folder), hashes=True) == ()


def test_each_way_of_being_wrong_is_named(tmp_path: Path) -> None:
    """facebookresearch/metaseq#53: a 0-byte shard, or only its .tmp, is found before anything is committed."""
    folder, _ = written(tmp_path)
    said = claims(folder)
    (folder / "a.bin").write_bytes(b"")
    (folder / "sub" / "b.bin").rename(folder / "sub" / "b.bin.tmp")
    wrong = agent_os.verify_files(str(folder), "run/other", (*said, ("../../etc/passwd", 1, "0" * 64)))
    assert [w.split(":")[0] for w in wrong] == [NONCE, "a.bin", "sub/b.bin", "../../etc/passwd"]
    assert "0 bytes instead of 1000" in wrong[1]
    assert agent_os.verify_files(str(tmp_path / "nowhere"), "n", ()) == (f"{tmp_path / 'nowhere'}: not a folder on this node",)


def test_same_size_other_content_is_found_by_hash_only(tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    said = claims(folder)
    (folder / "a.bin").write_bytes(b"c" * 1000)
    assert agent_os.verify_files(str(folder), "run/a", said) == ()
    assert len(agent_os.verify_files(str(folder), "run/a", said, hashes=True)) == 1


def test_the_marker_comes_only_over_a_whole_folder(tmp_path: Path) -> None:
    folder, sha256 = written(tmp_path)
    (folder / "a.bin").write_bytes(b"a")
    assert agent_os.prepare_commit(str(folder), sha256) == ("a.bin: 1 bytes instead of 1000",)
    assert agent_os.prepare_commit(str(folder), "0" * 64) != ()
    assert not (folder / MARKER).exists()
    (folder / "a.bin").write_bytes(b"a" * 1000)
    assert agent_os.prepare_commit(str(folder), sha256) == ()
    assert agent_os.prepare_commit(str(folder), sha256) == ()
    manifest = agent_os.complete(folder)
    assert manifest is not None and manifest.step == 10


def test_only_whole_ones_are_complete(tmp_path: Path) -> None:
    """awslabs/awsome-distributed-ai#190: a folder without its metadata or marker is skipped, not loaded."""
    for step in (10, 20, 30):
        folder, sha256 = written(tmp_path, step)
        if step != 20:
            agent_os.rename_marker(str(folder), sha256)
    (tmp_path / folder_name(30, 1) / MANIFEST).write_text("{}")
    (tmp_path / folder_name(40, 1)).mkdir()
    assert agent_os.complete_folders(tmp_path) == (folder_name(10, 1),)
    assert agent_os.complete_folders(tmp_path / "nowhere") == ()


def test_set_aside_keeps_the_evidence_under_a_free_name(tmp_path: Path) -> None:
    for _ in range(2):
        folder, _ = written(tmp_path)
        agent_os.set_aside(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{folder_name(10, 1)}.torn-{n}" for n in (1, 2)]
    assert agent_os.set_aside(folder) is None


def test_deleting_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    folder.rename(folder.with_name(folder.name + ".deleting"))
    agent_os.delete(folder)
    agent_os.delete(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_user_chose_loses_only_what_was_committed(tmp_path: Path) -> None:
    folder, sha256 = written(tmp_path, name="my-model")
    agent_os.rename_marker(str(folder), sha256)
    (folder / "notes.txt").write_text("mine")
    agent_os.delete(folder)
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    agent_os.delete(folder)
    other, sha256 = written(tmp_path, name="other")
    agent_os.delete(other)
    assert not other.exists()


def test_a_plain_folder_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    agent_os.delete(tmp_path / "home")
    assert (tmp_path / "home" / "thesis.tex").exists()


@pytest.mark.spec("R10")
def test_orphans_are_old_unrecorded_and_of_this_run(tmp_path: Path) -> None:
    kept, _ = written(tmp_path, 10, 1)
    orphan, _ = written(tmp_path, 20, 1)
    written(tmp_path, 30, 2)
    written(tmp_path, 40, 1, run="other")
    (tmp_path / folder_name(50, 1)).mkdir()
    assert kept.is_dir()
    assert agent_os.orphans(tmp_path, "run", 2, [checkpoint_name(10, 1)]) == (orphan,)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    os.symlink("/etc/hostname", folder / "link")
    from elastic_health.checkpoints.files_os import contents

    with pytest.raises(CheckpointError, match="link or device"):
        contents(folder)


def test_many_wrong_files_make_a_short_report(tmp_path: Path) -> None:
    files = [FileEntry(f"f{i}", 1, "0" * 64) for i in range(500)]
    assert len(agent_os.wrong_files(tmp_path, files)) == agent_os.SHOWN
