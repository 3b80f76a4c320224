"""Names, manifest and marker as pure data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from elastic_health.checkpoints.layout import (
    FileEntry,
    Manifest,
    aside_name,
    decode_manifest,
    encode,
    folder_name,
    inside,
    new_nonce,
    newest_first,
    parse_folder,
    run_of_nonce,
    shares,
)
from elastic_health.errors import CheckpointError

pytestmark = pytest.mark.spec("R3")
GOOD = Manifest(1, "dcp", "run", 7, 1000, 64000, 2, None, "n", (FileEntry("a/b.bin", 3, "0" * 64),))


@given(st.integers(0, 10**14), st.integers(0, 10**9))
def test_a_name_is_read_back(step: int, generation: int) -> None:
    assert parse_folder(folder_name(step, generation)) == (step, generation)


def test_names_as_documented_and_what_is_no_checkpoint() -> None:
    name = folder_name(1000, 7)
    assert name == "step-000001000.gen-0007"
    aside = aside_name(name, "torn", [f"{name}.torn-1", f"{name}.torn-3"])
    assert aside == f"{name}.torn-2"
    names = [aside, f"{name}.deleting", "logs", name, folder_name(20, 9), folder_name(1000, 12)]
    assert newest_first(names) == (folder_name(1000, 12), name, folder_name(20, 9))


def test_a_manifest_is_read_back() -> None:
    assert decode_manifest(encode(GOOD), "m") == GOOD


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("files", [{"path": "../x", "size": 1, "sha256": "0" * 64}]),
        ("files", [{"path": "/x", "size": 1, "sha256": "0" * 64}]),
        ("files", [{"path": "COMMITTED.json", "size": 1, "sha256": "0" * 64}]),
        ("files", [{"path": "x", "size": -1, "sha256": "0" * 64}]),
        ("files", [{"path": "x", "size": 1, "sha256": "0"}]),
        ("step", "7"),
        ("format", 2),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    body = {**json.loads(encode(GOOD)), field: value}
    with pytest.raises(CheckpointError) as told:
        decode_manifest(json.dumps(body).encode(), "m")
    assert "m" in str(told.value)


def test_a_cut_manifest_is_refused_at_every_byte() -> None:
    raw = encode(GOOD)
    for n in range(len(raw) - 2):
        with pytest.raises(CheckpointError):
            decode_manifest(raw[:n], "m")


@pytest.mark.parametrize("path", ["", ".", "a/../b", "a\0b", "NONCE"])
def test_paths_that_are_not_inside(path: str) -> None:
    assert not inside(path)


@given(st.lists(st.integers(0, 10**9), max_size=30), st.integers(1, 8))
def test_shares_cover_each_file_once_and_evenly(sizes: list[int], world: int) -> None:
    files = [FileEntry(f"f{i}", n, "0" * 64) for i, n in enumerate(sizes)]
    parts = shares(files, world)
    assert sorted(f.path for part in parts for f in part) == sorted(f.path for f in files)
    cost = [sum(f.size + 256 * 1024 for f in part) for part in parts]
    # Greedy: the fullest exceeds the emptiest by one file at most.
    assert max(cost) - min(cost) <= max((f.size + 256 * 1024 for f in files), default=0)


def test_a_nonce_names_its_run() -> None:
    assert run_of_nonce(new_nonce("my.run", "ab12")) == "my.run"
    assert run_of_nonce(new_nonce("", "ab12")) == ""
