"""What `doctor` says of given facts: what stops a run, what is only told, and that nothing unknown is called good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from elastic_health.preflight import doctor_os
from elastic_health.preflight.doctor import TOOLS, ready, report, stages
from elastic_health.preflight.doctor_etcd import _ahead
from elastic_health.preflight.doctor_facts import (
    ConfigFacts,
    EtcdFacts,
    Facts,
    HostFacts,
    MemberFacts,
    PlugFacts,
    StageCheck,
    Trouble,
)
from elastic_health.preflight.doctor_lines import Line, Mark, Topic
from elastic_health.preflight.doctor_os import look_at_host, look_at_plugin, own_gpus, own_nics, torchrun_python

pytestmark = pytest.mark.spec("U3")
GIB = 1 << 30
PLUG = PlugFacts("0.1.0", (("elastic_health.rendezvous.plug:creator", "0.1.0"),), "", True, "2.13.0+cu126", "", "12.6", "", "/p", "/p")
MEMBER = MemberFacts("e1:2379", "3.5.21", 1, 2, 10 * GIB // 100, GIB // 100, 8 * GIB)
THREE = (MEMBER, replace(MEMBER, endpoint="e2:2379", id=2), replace(MEMBER, endpoint="e3:2379", id=3))
ETCD = EtcdFacts(THREE, ((1, "m1"), (2, "m2"), (3, "m3")), (0.001, 0.002, 0.5), 50_000, 49_000, "eh", True, None, None, 0.4)
HOST = HostFacts(tuple((name, f"/usr/bin/{name}") for name in TOOLS), (65536, 1 << 20), 32 * GIB, 64 * GIB, "550.54.15", 8)
GOOD = Facts(PLUG, ConfigFacts("health.yaml", (), "n1"), ETCD, HOST)


def lines(**changed: Any) -> dict[Topic, Line]:
    found = report(replace(GOOD, **changed))
    assert len({line.topic for line in found}) == len(found)
    return {line.topic: line for line in found}


def test_a_machine_with_all_in_order_says_only_ok() -> None:
    found = report(GOOD)
    assert ready(found) and {line.mark for line in found} == {Mark.OK}
    assert {line.topic for line in found} == set(Topic) - {Topic.QUARANTINE, Topic.HOST, Topic.STAGE}
    assert len(found) <= 24, "one screen"


PLUGINS = [
    ({"installed": ()}, Topic.PLUGIN, Mark.FAIL, "no entry point"),
    ({"load_error": "ModuleNotFoundError: grpc"}, Topic.PLUGIN, Mark.FAIL, "does not load: ModuleNotFoundError"),
    ({"registered": False}, Topic.PLUGIN, Mark.FAIL, "did not register"),
    ({"registered": None}, Topic.PLUGIN, Mark.UNKNOWN, "was not seen"),
    ({"installed": PLUG.installed * 2}, Topic.PLUGIN, Mark.WARN, "several"),
    ({"package": "0.2.0"}, Topic.PLUGIN, Mark.WARN, "0.2.0 is imported, while version 0.1.0"),
    ({"torch": "", "torch_error": "ImportError: libcudart"}, Topic.TORCH, Mark.FAIL, "libcudart"),
    ({"torch": "2.6.0"}, Topic.TORCH, Mark.FAIL, "older than 2.13"),
    ({"torch": "2.14.0a0+git1"}, Topic.TORCH, Mark.WARN, "not tested"),
    ({"torch": "3.0.1"}, Topic.TORCH, Mark.WARN, "not tested"),
    ({"torch": "a.fork"}, Topic.TORCH, Mark.FAIL, "a.fork"),
    ({"seam_error": "expected a torch whose launcher"}, Topic.TORCH, Mark.FAIL, "launcher"),
    ({"torchrun": ""}, Topic.TORCHRUN, Mark.NOTE, "no torchrun"),
    ({"torchrun": "/other/python"}, Topic.TORCHRUN, Mark.WARN, "/other/python"),
]


@pytest.mark.parametrize(("change", "topic", "mark", "says"), PLUGINS, ids=[p[3] for p in PLUGINS])
def test_plugin_and_torch(change: dict[str, Any], topic: Topic, mark: Mark, says: str) -> None:
    line = lines(plug=replace(PLUG, **change))[topic]
    assert line.mark is mark and says in line.found and line.do


def members(*some: MemberFacts, **more: Any) -> EtcdFacts:
    return replace(ETCD, members=some, **more)


DEAD = MemberFacts("e2:2379", error="refused")
STORES = [
    (members(DEAD), Topic.ETCD, Mark.UNKNOWN, "tells nothing of itself"),
    (members(replace(MEMBER, version="3.3.27")), Topic.ETCD, Mark.FAIL, "older than 3.4"),
    (members(replace(MEMBER, version="")), Topic.ETCD, Mark.FAIL, "older than 3.4"),
    (members(replace(MEMBER, version="3.5.1")), Topic.ETCD, Mark.WARN, "lose data"),
    (members(replace(MEMBER, version="3.5.3")), Topic.ETCD, Mark.OK, "3.5.3"),
    (members(replace(MEMBER, leader=0)), Topic.MEMBERS, Mark.FAIL, "no leader"),
    (members(MEMBER, replace(MEMBER, endpoint="x", leader=9)), Topic.MEMBERS, Mark.FAIL, "different clusters"),
    (members(MEMBER, DEAD), Topic.MEMBERS, Mark.WARN, "1 of 2 endpoints answer (e2:2379: refused)"),
    (members(MEMBER, cluster=None), Topic.MEMBERS, Mark.UNKNOWN, "did not tell its members"),
    (members(MEMBER), Topic.MEMBERS, Mark.WARN, "leave out 2 of 3 members (m2, m3)"),
    (members(MEMBER, cluster=((1, "m1"), (255, ""))), Topic.MEMBERS, Mark.WARN, "ff, never started"),
    (members(MEMBER, cluster=((1, "m1"),)), Topic.MEMBERS, Mark.NOTE, "one member"),
    (members(*THREE[:2], cluster=((1, "a"), (2, "b"))), Topic.MEMBERS, Mark.NOTE, "2 members survive no more losses than 1"),
    (replace(ETCD, reads_s=()), Topic.LATENCY, Mark.UNKNOWN, "no read"),
    (replace(ETCD, reads_s=(0.1, 0.2, 0.3)), Topic.LATENCY, Mark.WARN, "200.0 ms"),
    (replace(ETCD, reads_s=(1.5,)), Topic.LATENCY, Mark.WARN, "for dead"),
    (replace(ETCD, logged_in=False, user=""), Topic.LOGIN, Mark.NOTE, "no user"),
    (replace(ETCD, logged_in=False), Topic.LOGIN, Mark.WARN, "authentication off"),
    (replace(ETCD, rights=Trouble("permission denied", "grant it")), Topic.RIGHTS, Mark.FAIL, "permission denied"),
    (members(replace(MEMBER, alarms=("memberID:1 alarm:NOSPACE ",))), Topic.SPACE, Mark.FAIL, "is full"),
    (members(replace(MEMBER, alarms=("memberID:1 alarm:CORRUPT ",))), Topic.SPACE, Mark.FAIL, "CORRUPT"),
    (members(replace(MEMBER, size_bytes=6 * GIB)), Topic.SPACE, Mark.WARN, "of 8 GiB"),
    (members(replace(MEMBER, size_bytes=int(7.9 * GIB))), Topic.SPACE, Mark.WARN, "nearly full"),
    (members(replace(MEMBER, quota_bytes=0)), Topic.SPACE, Mark.OK, "default is 2 GiB"),
    (members(replace(MEMBER, quota_bytes=0, size_bytes=3 * GIB)), Topic.SPACE, Mark.WARN, "default is 2 GiB"),
    (members(MEMBER, replace(MEMBER, size_bytes=7 * GIB)), Topic.SPACE, Mark.WARN, "7.17e+03 MiB"),
    (members(DEAD), Topic.SPACE, Mark.UNKNOWN, "no member"),
    (replace(ETCD, oldest=None), Topic.COMPACTION, Mark.UNKNOWN, "not found out"),
    (replace(ETCD, oldest=1, revision=9_999), Topic.COMPACTION, Mark.UNKNOWN, "young"),
    (replace(ETCD, oldest=1, revision=10_000), Topic.COMPACTION, Mark.WARN, "only grows"),
    (replace(ETCD, oldest=2, revision=2_000_000), Topic.COMPACTION, Mark.WARN, "the newest 1999999 of 2000000"),
    (replace(ETCD, clock_s=None), Topic.CLOCK, Mark.UNKNOWN, "did not tell"),
    (replace(ETCD, clock_s=30.0), Topic.CLOCK, Mark.WARN, "30 s ahead of"),
    (replace(ETCD, clock_s=-7200.0), Topic.CLOCK, Mark.WARN, "7200 s behind"),
    (replace(ETCD, quarantine=(("node n1", ""),)), Topic.QUARANTINE, Mark.FAIL, "node n1 is in quarantine: no reason given"),
    (replace(ETCD, quarantine=(("gpu G", "hot"), ("nic n1/e", "x"))), Topic.QUARANTINE, Mark.FAIL, "gpu G is in quarantine: hot; nic n1/e"),
    (Trouble("127.0.0.1:1 refuses connections", "start it"), Topic.ETCD, Mark.FAIL, "refuses"),
    (Trouble("not looked at", "correct the YAML", looked=False), Topic.ETCD, Mark.UNKNOWN, "not looked at"),
]


@pytest.mark.parametrize(("etcd", "topic", "mark", "says"), STORES, ids=[f"{s[1].value}-{s[3]}" for s in STORES])
def test_etcd(etcd: EtcdFacts | Trouble, topic: Topic, mark: Mark, says: str) -> None:
    found = lines(etcd=etcd)
    line = found[topic]
    assert line.mark is mark and says in line.found and (line.do or mark is Mark.OK)
    assert ready(found.values()) == (mark is not Mark.FAIL)


HOSTS = [
    ({"driver": "", "gpus": 0}, Topic.GPU, Mark.NOTE, "no NVIDIA driver"),
    ({"gpus": 0}, Topic.GPU, Mark.WARN, "lists no GPU"),
    ({"open_files": (512, 512)}, Topic.OPEN_FILES, Mark.FAIL, "hard limit 512"),
    ({"open_files": (1024, 4096)}, Topic.OPEN_FILES, Mark.WARN, "soft limit 1024, hard limit 4096"),
    ({"open_files": (-1, -1)}, Topic.OPEN_FILES, Mark.OK, "none"),
    ({"shm_free_bytes": None}, Topic.SHARED_MEMORY, Mark.FAIL, "no /dev/shm"),
    ({"shm_free_bytes": 1 << 20}, Topic.SHARED_MEMORY, Mark.FAIL, "0.000977 GiB free"),
    ({"shm_free_bytes": 64 << 20, "shm_bytes": 64 << 20}, Topic.SHARED_MEMORY, Mark.WARN, "0.0625 GiB free"),
]


@pytest.mark.parametrize(("change", "topic", "mark", "says"), HOSTS, ids=[f"{h[1].value}-{h[3]}" for h in HOSTS])
def test_host(change: dict[str, Any], topic: Topic, mark: Mark, says: str) -> None:
    line = lines(host=replace(HOST, **change))[topic]
    assert line.mark is mark and says in line.found


def test_a_missing_tool_weighs_by_what_it_is_for() -> None:
    none = tuple((name, "") for name in TOOLS)
    one = lines(host=replace(HOST, tools=tuple((name, "" if name == "py-spy" else "/x") for name in TOOLS)))[Topic.TOOLS]
    assert one.mark is Mark.NOTE and one.do == "py-spy: stacks of stuck workers; pip install py-spy"
    with_gpu, without = lines(host=replace(HOST, tools=none))[Topic.TOOLS], lines(host=HostFacts(none, shm_free_bytes=GIB))[Topic.TOOLS]
    assert with_gpu.mark is Mark.WARN and "datacenter-gpu-manager" in with_gpu.do
    assert without.mark is Mark.NOTE and "dcgmi" in without.found and "dcgmi" not in without.do and "py-spy" in without.do


def test_what_could_not_be_looked_at_is_not_good() -> None:
    trouble = Trouble("hangs", "look")
    found = report(Facts(trouble, trouble, trouble, trouble))
    assert {line.topic: line.mark for line in found} == {
        Topic.PLUGIN: Mark.FAIL,
        Topic.CONFIG: Mark.FAIL,
        Topic.ETCD: Mark.FAIL,
        Topic.HOST: Mark.UNKNOWN,
    }


def test_every_mistake_of_the_yaml_has_its_line() -> None:
    found = report(replace(GOOD, config=ConfigFacts("h.yaml", ("h.yaml:1: a", "h.yaml:7: b"), "n1")))
    assert [line.found for line in found if line.mark is Mark.FAIL] == ["h.yaml:1: a", "h.yaml:7: b"]


def test_without_an_endpoint() -> None:
    there, none = lines(etcd=None, private="/usr/bin/etcd, 3.5.21"), lines(etcd=None, private=Trouble("neither", "install etcd"))
    assert there[Topic.ETCD].mark is Mark.NOTE and "3.5.21" in there[Topic.ETCD].found
    assert none[Topic.ETCD].mark is Mark.FAIL and "install etcd" in none[Topic.ETCD].do


def test_what_each_stage_would_run_here() -> None:
    specs = [
        StageCheck("join", "dcgm", ("dcgmi",), True, limit_s=300.0),
        StageCheck("join", "host", limit_s=10.0),
        StageCheck("restart", "canary", needs_gpu=True, required=True),
        StageCheck("after_repair", "bandwidth", ("all_reduce_perf",), True),
    ]
    here = {"dcgmi": "/usr/bin/dcgmi", "all_reduce_perf": ""}
    with_gpus, without = stages(specs, here, 8), stages(specs, here, 0)
    assert [line.found for line in with_gpus] == [
        "join: runs dcgm (up to 300 s), host (up to 10 s)",
        "restart: runs canary",
        "after_repair: runs nothing; skips bandwidth (no all_reduce_perf)",
    ]
    assert [line.mark for line in with_gpus] == [Mark.OK, Mark.OK, Mark.NOTE]
    assert [line.mark for line in without] == [Mark.OK, Mark.FAIL, Mark.NOTE]
    assert "skips dcgm (no GPU)" in without[0].found and "canary" in without[1].do and stages((), here, 8) == ()


# ---- finding facts


def test_a_machine_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "gpus" / "0000:3b:00.0").mkdir(parents=True)
    (tmp_path / "gpus" / "0000:86:00.0").mkdir()
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    here = look_at_host(("sh", "no-such-tool"), tmp_path)
    assert (here.driver, here.gpus) == ("550.54.15", 2)
    assert dict(here.tools)["sh"].endswith("/sh") and dict(here.tools)["no-such-tool"] == ""
    (tmp_path / "gpus" / "0000:3b:00.0" / "information").write_text("Model: \t\t H100\nGPU UUID: \t GPU-5f2e\nBus Type: PCIe\n")
    (tmp_path / "gpus" / "0000:86:00.0" / "information").write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\n")
    for nic in ("net/eth0", "net/lo", "infiniband/mlx5_0"):
        (tmp_path / nic).mkdir(parents=True)
    assert own_gpus(tmp_path) == ("GPU-5f2e",) and own_nics(tmp_path) == ("eth0", "mlx5_0")
    assert own_gpus(tmp_path / "none") == own_nics(tmp_path / "none") == ()
    none = look_at_host((), tmp_path / "none", str(tmp_path / "none"))
    assert (none.driver, none.gpus, none.shm_free_bytes) == ("", 0, None)


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("#!/opt/env/bin/python3.11\nimport x\n", "/opt/env/bin/python"),
        ("#!/bin/sh\n'''exec' /opt/a long/bin/python3 \"$0\" \"$@\"\n' '''\n", "/opt/a long/bin/python"),
        ("#!/bin/sh\n'''exec' \"/opt/a long/bin/python3\" \"$0\" \"$@\"\n' '''\n", "/opt/a long/bin/python"),
        ("\x7fELF\n", ""),
        ("", ""),
        ("#!\n", ""),
    ],
)
def test_whose_python_torchrun_runs(text: str, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "torchrun"
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert torchrun_python() == python


def test_the_real_plugin_in_the_real_torch() -> None:
    found = look_at_plugin(100.0)
    assert isinstance(found, PlugFacts)
    assert found.registered and found.torch and not found.load_error and not found.seam_error
    assert found.installed[0][0] == "elastic_health.rendezvous.plug:creator"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import time; time.sleep(60)", "took more than 0.2 s"),
        ("import os; os.abort()", "was killed by signal 6"),
        ("import sys; print('{}'); sys.exit(3)", "ended with status 3"),
        ("print('[1]')", "ended with status 0"),
        ("raise ImportError('libcudart')", "ImportError: libcudart"),
    ],
)
def test_a_broken_python_is_told_and_leaves_nothing(program: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the interpreter."""
    real = doctor_os.sys.executable
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!{real} -I\n{program}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(doctor_os.sys, "executable", str(stand_in))
    found = look_at_plugin(0.2 if "sleep" in program else 50.0)
    assert isinstance(found, Trouble) and says in found.found and found.do


@given(st.floats(-3600, 3600), st.floats(0, 2), st.floats(1.6e9, 1.9e9))
def test_clocks_are_compared_to_a_second(ahead: float, took: float, theirs: float) -> None:
    """`theirs` is etcd's clock at the half of the exchange."""
    from email.utils import formatdate

    mine = theirs + ahead
    found = _ahead(formatdate(int(theirs), usegmt=True), mine - took / 2, mine + took / 2)
    assert (found is not None and abs(found - ahead) <= 1.001 + took / 2) or (found == 0.0 and abs(ahead) <= 1.001 + took / 2)
    assert found is not None and abs(found) <= abs(ahead) + took / 2 + 0.001, "never more than it is"
    assert found * ahead >= 0.0, "never the other way round"


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Foo 2026 00:00:00 GMT"])
def test_no_date_is_no_clock(date: str | None) -> None:
    assert _ahead(date, 1.0, 2.0) is None
