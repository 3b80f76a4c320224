"""`quarantine …` and plain `etcdctl` on a real etcd: equal, both ways; and automatic entries of several agents at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from elastic_health.cli import quarantine as command
from elastic_health.cli.codes import Code
from elastic_health.cli.main import main
from elastic_health.cli.quarantine import end_of
from elastic_health.rendezvous import quarantine as q
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.quarantine_etcd import quarantine
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, Txn, WatchBatch
from elastic_health.rendezvous.view import View, apply
from tests.etcd_fixture import EtcdCluster, etcd_cluster, wait_until
from tests.rendezvous.hostile import BAD

pytestmark = pytest.mark.spec("R7", "U3")
KEYS = FleetKeys()
N1 = KEYS.quarantined_node("n1")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def store(etcd: EtcdCluster) -> Iterator[EtcdSession]:
    session = EtcdSession.connect(etcd.endpoints)
    yield session
    etcd.ctl("del", "--prefix", "/")
    session.close()


class Shell:
    """The command line, as a person meets it."""

    def __init__(self, etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.etcd, self.capsys = etcd, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(["quarantine", *words, "--endpoint", self.etcd.endpoints[0]])
        return (code, *self.capsys.readouterr())

    def json(self, *words: str) -> Any:
        code, out, err = self(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def shell(etcd: EtcdCluster, store: EtcdSession, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(etcd, capsys)


def barred(store: EtcdSession, node: str) -> bool:
    """By what every agent decides by."""
    found = store.range(KEYS.quarantine)
    view = apply(View(), WatchBatch(found.revision, (), True, found.kvs), RunKeys("job"), fleet=True)
    return view.barred(node, time.time()) is not None


def test_add_list_show_release(shell: Shell, etcd: EtcdCluster, store: EtcdSession) -> None:
    code, out, _ = shell("add", "n1", "--reason", "ECC errors", "--incident", "01A", "--incident", "01B", "--for", "2h")
    assert code == 0 and out.startswith("node n1 is in quarantine until 2") and N1 in out and barred(store, "n1")
    stored = json.loads(etcd.ctl("get", "--print-value-only", N1))
    assert (stored["reason"], stored["incidents"], stored["automatic"], stored["v"]) == ("ECC errors", ["01A", "01B"], False, 1)
    assert stored["until"] - stored["since"] == 7200 and "@" in stored["by"] and stored["at"].endswith("Z")
    code, out, _ = shell("list")
    assert code == 0 and "ECC errors (incidents 01A,01B)" in out and stored["by"] in out
    assert "  incidents: 01A, 01B" in shell("show", "n1")[1].splitlines()
    code, out, _ = shell("add", "n1", "--reason", "its fan", "--signature", "fan")
    assert "until it is released" in out and "replaced: ECC errors (incidents 01A,01B); by " in out
    assert json.loads(etcd.ctl("get", "--print-value-only", N1))["until"] == 0
    code, out, _ = shell("release", "n1")
    assert code == 0 and "node n1 is released" in out and "was: its fan [fan]; by " in out
    assert etcd.ctl("get", N1) == "" and not barred(store, "n1")


@pytest.mark.parametrize(
    ("words", "tail"),
    [
        (("n1",), "nodes/n1"),
        (("--gpu", "GPU-5f2"), "gpus/GPU-5f2"),
        (("--nic", "n1/mlx5_0"), "nics/n1/mlx5_0"),
        (("--route", "n2+n1"), "routes/n1+n2"),
    ],
)
@pytest.mark.parametrize("value", ["", "{}", "its fan is broken", '{"reason":"hot"}'])
def test_what_etcdctl_put_the_command_releases_and_the_other_way_round(
    words: tuple[str, ...], tail: str, value: str, shell: Shell, etcd: EtcdCluster
) -> None:
    etcd.ctl("put", "--", KEYS.quarantine + tail, value)
    (listed,) = shell.json("list")["quarantine"]
    assert listed["key"] == KEYS.quarantine + tail and listed["holds"] and listed["reason"] in value
    assert shell("release", *words)[0] == 0 and etcd.ctl("get", "--prefix", KEYS.quarantine) == ""
    assert shell("add", *words, "--reason", "x")[0] == 0
    etcd.ctl("del", KEYS.quarantine + tail)
    assert shell.json("list") == {"quarantine": [], "expired": [], "strays": []}


def test_the_shape_of_json(shell: Shell) -> None:
    fields = {"kind", "name", "key", "holds", "reason", "signature", "incidents", "since", "until", "automatic", "by", "at", "note"}
    added = shell.json("add", "n1", "--reason", "x")
    assert set(added) == {"kind", "name", "key", "until", "replaced"} and added["replaced"] == []
    (again,) = shell.json("add", "n1", "--reason", "y", "--until", "2999-01-01")["replaced"]
    (listed,) = shell.json("list")["quarantine"]
    (shown,) = shell.json("show", "n1")["entries"]
    told = shell.json("release", "n1")
    assert set(told) == {"kind", "name", "released"}
    for one in (again, listed, shown, *told["released"]):
        assert set(one) == fields
    assert (again["reason"], shown["reason"], shown["until"]) == ("x", "y", 32472144000.0)


@pytest.mark.parametrize("words", [("show", "n1"), ("release", "n1"), ("release", "--gpu", "GPU-1"), ("show", "--route", "a+b")])
def test_what_is_not_there(words: tuple[str, ...], shell: Shell, etcd: EtcdCluster) -> None:
    etcd.ctl("put", KEYS.quarantined_node("n10"), "")
    code, out, err = shell(*words)
    assert (code, out) == (Code.NOT_FOUND, "") and err.count("\n") == 1 and "quarantine list" in err
    assert etcd.ctl("get", "--keys-only", KEYS.quarantined_node("n10")).strip()


def test_expired_ones_stand_apart(shell: Shell, etcd: EtcdCluster, store: EtcdSession) -> None:
    etcd.ctl("put", N1, '{"until": 1000000000, "reason": "of old"}')
    etcd.ctl("put", KEYS.quarantine + "nodes", "")
    assert not barred(store, "n1")
    told = shell.json("list")
    assert [e["reason"] for e in told["expired"]] == ["of old"] and not told["quarantine"] and told["strays"] == [KEYS.quarantine + "nodes"]
    out = shell("list")[1]
    assert out.index("nothing is in quarantine") < out.index("expired, and without effect") < out.index("of old")
    assert "(expired, and without effect)" in shell("show", "n1")[1]
    assert "expired at 2001-09-09 01:46:40Z" in shell("add", "n1", "--reason", "again")[1] and barred(store, "n1")


def test_what_others_wrote_is_shown_and_harms_nobody(shell: Shell, etcd: EtcdCluster) -> None:
    etcd.ctl("put", N1, '{"reason": "\\u001b[2Jgone", "until": 1e999, "incidents": ["' + "i" * 9000 + '"]}')
    code, out, _ = shell("list")
    assert code == 0 and "\x1b" not in out and max(map(len, out.splitlines())) < 700
    told = shell.json("list")["quarantine"]
    assert told[0]["until"] is None and told[0]["holds"]


@pytest.mark.parametrize("kind", BAD)
def test_hostile_values_bar_and_break_nothing(kind: str, shell: Shell, store: EtcdSession) -> None:
    keys = [N1, KEYS.quarantined_gpu("GPU-1"), KEYS.quarantined_nic("n1", "ib0"), KEYS.quarantined_route("n1", "n2")]
    for key in keys:
        store.txn(Txn((), (Put(key, BAD[kind]),)))
    told = shell.json("list")
    assert sorted(e["key"] for e in told["quarantine"]) == sorted(keys) and barred(store, "n1")
    for words in (("list",), ("show", "n1"), ("release", "n1")):
        code, out, err = shell(*words)
        assert code == 0 and err == "" and len(out) < 8000
    assert not barred(store, "n1")


def test_an_end_that_can_t_be_read_is_told(shell: Shell, etcd: EtcdCluster, store: EtcdSession) -> None:
    etcd.ctl("put", N1, '{"reason": "hot", "until": "2001-01-01T00:00:00Z"}')
    assert barred(store, "n1")
    code, out, _ = shell("list")
    assert code == 0 and "released" in out and "unreadable in part" in out
    assert f"{N1}.until" in shell("show", "n1")[1]


def test_release_deletes_only_what_it_has_read(
    shell: Shell, etcd: EtcdCluster, store: EtcdSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("add", "n1", "--reason", "first")
    shipped = q.release

    def late(found: Any) -> Txn:
        etcd.ctl("put", N1, "somebody else's")
        return shipped(found)

    monkeypatch.setattr(command.q, "release", late)
    code, out, err = shell("release", "n1")
    assert (code, out) == (Code.STORE_FAILED, "") and "changed meanwhile" in err and barred(store, "n1")


@pytest.mark.parametrize("before", [False, True])
def test_add_tells_of_what_came_in_between(before: bool, shell: Shell, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    if before:
        etcd.ctl("put", N1, "of old")
    shipped, came = q.put, iter((True,))

    def late(found: Any, key: str, value: bytes) -> Txn:
        if next(came, False):
            etcd.ctl("put", N1, "by another")
        return shipped(found, key, value)

    monkeypatch.setattr(command.q, "put", late)
    assert [e["reason"] for e in shell.json("add", "n1", "--reason", "mine")["replaced"]] == ["by another"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("release",), "one of NODE"),
        (("release", "n1", "--gpu", "GPU-1"), "node and gpu"),
        (("show", "a/b"), "node name"),
        (("show", "--gpu", ""), "GPU uuid"),
        (("show", "--nic", "n1"), "put / between"),
        (("show", "--nic", "n1/a/b"), "NIC name"),
        (("show", "--route", "n1+n1"), "twice"),
        (("add", "n1", "--reason", "x", "--for", "soon"), "--for 'soon'"),
        (("add", "n1", "--reason", "x", "--for", "0h"), "above 0"),
        (("add", "n1", "--reason", "x", "--for", "999999999w"), "calendar"),
        (("add", "n1", "--reason", "x", "--until", "2001-01-01"), "a time to come"),
        (("add", "n1", "--reason", "x", "--until", "noon"), "--until 'noon'"),
    ],
)
def test_bad_words(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Found before any etcd is asked: nothing listens there."""
    assert main(["quarantine", *words, "--endpoint", "127.0.0.1:1"]) == Code.BAD_CONFIG
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_ends() -> None:
    assert end_of("", "", 5.0) == 0.0 and end_of("90s", "", 5.0) == 95.0
    assert (
        end_of("", "1970-01-02", 5.0) == end_of("", "1970-01-02T00:00:00Z", 5.0) == end_of("", "1970-01-02T02:00:00+02:00", 5.0) == 86400.0
    )


# ---- no old event is replayed


@pytest.mark.parametrize("compacted", [False, True])
def test_a_released_node_is_free_whatever_history_is_read(compacted: bool, etcd: EtcdCluster, store: EtcdSession, shell: Shell) -> None:
    """NVIDIA/NVSentinel#1347, #1415: after a restart, old events put healthy nodes into quarantine again."""
    start = store.range(KEYS.quarantine).revision
    etcd.ctl("put", N1, "")
    shell("release", "n1")
    shell("add", "n2", "--reason", "stays")
    if compacted:
        etcd.ctl("compact", str(store.range(KEYS.quarantine).revision))
    seen, changed = [View()], list[str]()

    def on_batch(batch: WatchBatch) -> None:
        changed.extend(e.kv.key for e in batch.events)
        seen.append(apply(seen[-1], batch, RunKeys("job"), fleet=True))

    watch = store.watch(KEYS.quarantine, start + 1, on_batch)
    wait_until(lambda: "n2" in seen[-1].quarantined, "the history is read")
    watch.close()
    assert not barred(store, "n1") and seen[-1].barred("n1", time.time()) is None
    assert changed == ([] if compacted else [N1, N1, KEYS.quarantined_node("n2")])


def test_agents_that_write_at_once_stay_within_the_breaker(etcd: EtcdCluster, store: EtcdSession) -> None:
    """flux-framework/flux-core#7663"""
    others = [EtcdSession.connect(etcd.endpoints) for _ in range(6)]

    def fails(i: int) -> bool:
        said = q.Quarantine("the pcie test fails", "dcgm:pcie")
        return quarantine(others[i], KEYS, q.node(f"n{i}"), said, f"n{i}", fleet=100, limits=q.Limits()).written

    with ThreadPoolExecutor(6) as pool:
        written = list(pool.map(fails, range(6)))
    entries, strays = q.read(store.range(KEYS.quarantine).kvs, KEYS)
    assert sum(written) == len(entries) == 2 and all(e.said.automatic and e.said.since for e in entries) and not strays
    mine = entries[0].resource
    again = quarantine(store, KEYS, mine, q.Quarantine("again", "other"), "me", fleet=100, limits=q.Limits())
    assert again.there and not again.written
    for session in others:
        session.close()
