"""Baselines in the store and in files: written whole or not at all, replaced only on purpose, read with one clear message."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_health.errors import BaselineError, ConfigError
from elastic_health.preflight.baselines import Baseline, Figure, Provenance
from elastic_health.preflight.baselines_etcd import key_of, read, read_all, write
from elastic_health.preflight.baselines_os import node_facts, read_file, versions, write_file
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.memory_session import Fault, FaultKind, MemorySession
from elastic_health.rendezvous.store import Put, Txn

pytestmark = pytest.mark.spec("P2")
KEYS = FleetKeys()
AT = "2026-01-01T00:00:00Z"
FIRST = Baseline(
    "all_reduce", "8x-H100", "GB/s", 3, (Figure(1024, 10.0, 0.1, 9.8, 10.1, 3),), Provenance("node-1", AT, "all_reduce_perf -b 1K")
)
SECOND = replace(FIRST, provenance=Provenance("node-2", "2026-02-02T00:00:00Z"))
BROKEN = [b"", b"{", b"[1]", b'{"check": "a"}', b'{"v": 7}', b'{"figures": [{"size": "x"}]}', b"\xff", b"[" * 100000]


def new() -> MemorySession:
    return MemorySession(MemoryStore())


def put(store: MemorySession, key: str, raw: bytes) -> None:
    store.txn(Txn((), (Put(key, raw),)))


def test_what_is_written_is_read() -> None:
    store = new()
    assert read(store, KEYS, "8x-H100", "all_reduce") is None
    write(store, KEYS, FIRST, at=AT, by="me@host")
    assert read(store, KEYS, "8x-H100", "all_reduce") == FIRST
    kv = store.get("/elastic-health/baselines/8x-H100/all_reduce")
    assert kv is not None
    told = json.loads(kv.value)
    assert (told["v"], told["by"], told["figures"][0]["median"], told["provenance"]["node"]) == (1, "me@host", 10.0, "node-1")


def test_one_that_is_there_is_replaced_only_on_purpose_and_remembered() -> None:
    store = new()
    write(store, KEYS, FIRST, at=AT, by="a")
    with pytest.raises(BaselineError, match=r"from node-1.*--force"):
        write(store, KEYS, SECOND, at=AT, by="b")
    assert read(store, KEYS, "8x-H100", "all_reduce") == FIRST
    assert write(store, KEYS, SECOND, at=AT, by="b", force=True).previous == (FIRST.provenance,)
    write(store, KEYS, FIRST, at=AT, by="c", force=True)
    found = read(store, KEYS, "8x-H100", "all_reduce")
    assert found is not None and [p.node for p in (found.provenance, *found.previous)] == ["node-1", "node-2", "node-1"]


def test_fields_of_a_newer_version_are_carried_through() -> None:
    store, key = new(), key_of(KEYS, "8x-H100", "all_reduce")
    write(store, KEYS, FIRST, at=AT, by="a")
    kv = store.get(key)
    assert kv is not None
    put(store, key, json.dumps({**json.loads(kv.value), "island": "7"}).encode())
    write(store, KEYS, SECOND, at=AT, by="b", force=True)
    kv = store.get(key)
    assert kv is not None and json.loads(kv.value)["island"] == "7"


@pytest.mark.parametrize("kind", [FaultKind.REPLY_LOST, FaultKind.LOST])
def test_a_lost_answer_is_asked_again(kind: FaultKind) -> None:
    store = new()
    store.faults.append(Fault(kind))
    assert write(store, KEYS, FIRST, at=AT, by="a") == FIRST == read(store, KEYS, "8x-H100", "all_reduce")


@pytest.mark.parametrize("raw", BROKEN)
def test_a_broken_key_is_one_clear_message(raw: bytes) -> None:
    store, key = new(), key_of(KEYS, "8x-H100", "all_reduce")
    put(store, key, raw)
    put(store, key_of(KEYS, "cpu", "pair"), b"")
    with pytest.raises(BaselineError) as caught:
        read(store, KEYS, "8x-H100", "all_reduce")
    assert key in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert all(s.baseline is None and s.key in s.why for s in read_all(store, KEYS)) and len(read_all(store, KEYS)) == 2
    with pytest.raises(BaselineError, match="can't be read"):
        write(store, KEYS, FIRST, at=AT, by="a")
    assert write(store, KEYS, FIRST, at=AT, by="a", force=True) == FIRST


def test_keys_of_another_depth_are_no_baselines() -> None:
    store = new()
    for key in ("stray", "a/b/c", "a/"):
        put(store, KEYS.baselines + key, b"{}")
    assert read_all(store, KEYS) == ()


@pytest.mark.parametrize(("kind", "check"), [("a/b", "c"), ("", "c"), ("a", "../c"), ("a", "x" * 254)])
def test_names_that_are_no_key_are_refused(kind: str, check: str) -> None:
    with pytest.raises(ConfigError, match="expected a"):
        read(new(), KEYS, kind, check)


# ---- files


def test_a_file_is_written_whole_and_replaced_on_purpose(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    assert read_file(path) is None
    write_file(path, FIRST, at=AT, by="a")
    assert read_file(path) == FIRST and stat.S_IMODE(path.stat().st_mode) == 0o644
    with pytest.raises(BaselineError, match="--force"):
        write_file(path, SECOND, at=AT, by="b")
    assert write_file(path, SECOND, at=AT, by="b", force=True).previous == (FIRST.provenance,)
    assert os.listdir(tmp_path) == ["base.json"]


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "base.json"
    write_file(path, FIRST, at=AT, by="a")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BaselineError, match="No space left"):
        write_file(path, SECOND, at=AT, by="b", force=True)
    assert read_file(path) == FIRST and os.listdir(tmp_path) == ["base.json"]


@pytest.mark.parametrize("raw", BROKEN)
def test_a_broken_file_is_one_clear_message(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_bytes(raw)
    with pytest.raises(BaselineError) as caught:
        read_file(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and "etcdctl" not in str(caught.value)


def test_no_folder_and_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="No such file"):
        write_file(tmp_path / "none" / "base.json", FIRST, at=AT, by="a")
    with pytest.raises(BaselineError, match="directory"):
        read_file(tmp_path)


# ---- the machine


def test_facts_of_a_machine(tmp_path: Path) -> None:
    for i in range(2):
        gpu = tmp_path / f"proc/driver/nvidia/gpus/0000:0{i}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 99\n")
    driver = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder)  Fri\nGCC version: 13.2.0\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(driver)
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n")
    nic = tmp_path / "sys/class/net/eth0/device"
    nic.mkdir(parents=True)
    (nic / "vendor").write_text("0x15b3\n")
    (nic / "device").write_text("0x1021\n")
    (tmp_path / "sys/class/net/lo").mkdir()
    facts = node_facts(tmp_path)
    assert facts.gpus == ("NVIDIA H100 80GB HBM3",) * 2 and (facts.cpu, facts.cpus, facts.nics) == ("AMD EPYC 9654", 2, ("15b3-1021",))
    assert versions(tmp_path)["driver"] == "560.35.03"
    bare = tmp_path / "bare"
    assert node_facts(bare).gpus == () and "driver" not in versions(bare)
