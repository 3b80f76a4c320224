"""Meetings through a store, in memory and on a real etcd: one wins, the dead vanish, nothing is left; and the whole check on etcd."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_health.findings import FindingKind
from elastic_health.preflight.baselines import Baseline, Provenance, Run, combine
from elastic_health.preflight.baselines_etcd import write
from elastic_health.preflight.checks import CheckSpec, Context, Kind, Stage
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.gate_proc import run_stage
from elastic_health.preflight.pair_verdict import CHECK, judge_pairs
from elastic_health.preflight.pairs import Close, Form, Here, Meet, Open, Over, Pace, Tell, Told, Wait, step
from elastic_health.preflight.pairs_etcd import LEASE_S, Hall, pool_of
from elastic_health.preflight.pairs_proc import pair_runner
from elastic_health.preflight.results import CheckResult, Outcome
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.memory_session import Fault, FaultKind, MemorySession
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import Put, Store, Txn
from tests.etcd_fixture import EtcdCluster, one_etcd, wait_until

__all__ = ["one_etcd"]
pytestmark = pytest.mark.spec("P3")
KEYS, POOL = FleetKeys(), pool_of("r", "box")
PACE = Pace(wait_s=20, settle_s=0.3, round_s=20)
DONE = Told(((1048576, 10.0),))
STAND_IN = Path(__file__).with_name("pair_stand_in.py")


@pytest.fixture(params=["memory", "etcd"])
def stores(request: pytest.FixtureRequest) -> Iterator[Callable[[], Store]]:
    """Makes sessions with one store."""
    made: list[Store] = []
    if request.param == "memory":
        server = MemoryStore()

        def more() -> Store:
            made.append(MemorySession(server))
            return made[-1]
    else:
        cluster = request.getfixturevalue("one_etcd")

        def more() -> Store:
            made.append(EtcdSession.connect(cluster.endpoints, timeout_s=10))
            return made[-1]

    yield more
    for store in made:
        store.close()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("eh-pair")], "the check's threads have ended", 15)


Enter = Callable[..., list[Hall]]


@pytest.fixture
def halls(stores: Callable[[], Store]) -> Iterator[Enter]:
    """Lets nodes enter, in order; all have left at the end."""
    made: list[Hall] = []

    def enter(*nodes: str, incarnation: str = "1") -> list[Hall]:
        for node in nodes:
            made.append(Hall(stores(), KEYS, POOL, Here(node, f"{node}-{incarnation}", "127.0.0.1")))
            made[-1].enter()
        return made[-len(nodes) :]

    yield enter
    for hall in made:
        hall.leave()


def drive(there: list[Hall], meet: Callable[[Hall, Meet], Told | None], within_s: float = 30) -> None:
    """All take turns until each has seen the end; `meet` tells what one says of an appointment, None for one that says nothing."""
    deadline = time.monotonic() + within_s
    busy = list(there)
    while busy:
        assert time.monotonic() < deadline, [h.view for h in busy]
        for hall in tuple(busy):
            seen, act = hall.version, step(hall.view, hall.me, hall.since, PACE, time.monotonic())
            if isinstance(act, Over):
                busy.remove(hall)
            elif isinstance(act, Wait):
                hall.wait(seen, min(act.until, time.monotonic() + 0.02))
            elif isinstance(act, Meet):
                told = meet(hall, act)
                if told is None:
                    busy.remove(hall)
                else:
                    hall.tell(act.number, told)
            else:
                assert isinstance(act, Form | Open | Close | Tell), act
                put(hall, act)


def put(hall: Hall, act: Form | Open | Close | Tell) -> None:
    if isinstance(act, Form):
        hall.form(act, PACE)
    elif isinstance(act, Open):
        hall.open(act)
    elif isinstance(act, Close):
        hall.close(act)
    else:
        hall.tell(act.number, act.told)


def keys(store: Store) -> list[str]:
    return [kv.key for kv in store.range(f"{KEYS.prefix}pairs/").kvs]


def test_three_meet_each_other_and_leave_nothing(halls: Enter, stores: Callable[[], Store]) -> None:
    there = halls("a", "b", "c")
    drive(there, lambda hall, act: DONE)
    assert {frozenset(p) for r in there[0].view.rounds for p in r.pairs} == {frozenset("ab"), frozenset("bc"), frozenset("ac")}
    for hall in there:
        result = judge_pairs(hall.view, hall.me.node)
        assert result.outcome is Outcome.PASS and result.details == judge_pairs(there[0].view, "a").details
    other = stores()
    for hall in there:
        assert keys(other), "the records stay for those who have not judged yet"
        hall.leave()
    assert keys(other) == []


def test_the_dead_vanish_and_their_partners_meet_each_other(halls: Enter, stores: Callable[[], Store]) -> None:
    there = halls("a", "b", "c", "d")
    killer = stores()

    def meet(hall: Hall, act: Meet) -> Told | None:
        if hall.me.node == "d":
            killer.revoke(hall.view.seats["d"].lease)  # as when its lease runs out
            return None
        return DONE if act.partner.node != "d" else Told(failed="its partner has gone")

    drive(there, meet)
    results = {h.me.node: judge_pairs(h.view, h.me.node) for h in there[:3]}
    assert {r.outcome for r in results.values()} == {Outcome.PASS}
    assert not there[0].view.alive("d") and there[0].view.alive("a")


def test_two_that_would_begin_make_one_meeting(halls: Enter, stores: Callable[[], Store]) -> None:
    there = halls("a", "b")
    wait_until(lambda: all(len(h.view.waiting) == 2 for h in there), "both see both")
    acts = [Form(h.view.waiting) for h in there]
    for hall, act in zip(there, acts, strict=True):
        hall.form(act, PACE)
    wait_until(lambda: all(h.view.roll is not None for h in there), "both are in a meeting")
    assert there[0].view.roll == there[1].view.roll
    assert len([k for k in keys(stores()) if k.endswith("/roll")]) == 1


def test_nothing_is_told_after_the_end_and_nothing_twice(halls: Enter) -> None:
    there = halls("a", "b")
    drive(there, lambda hall, act: DONE)
    there[0].tell(0, Told(failed="late"))
    there[0].tell(1, DONE)
    assert there[0].view.told == {(0, "a"): DONE, (0, "b"): DONE}


def test_a_process_that_comes_back_takes_the_seat_and_the_older_one_leaves(halls: Enter) -> None:
    old = halls("a")[0]
    new = halls("a", incarnation="2")[0]
    wait_until(lambda: old.view.seats["a"].here.incarnation == "a-2", "the older one sees it")
    assert "another process" in str(step(old.view, old.me, old.since, PACE, time.monotonic()))
    old.leave()
    assert isinstance(step(new.view, new.me, new.since, PACE, time.monotonic()), Wait), "its leaving took nothing of the newer one"


def test_keys_that_others_wrote_count_as_absent(halls: Enter, stores: Callable[[], Store]) -> None:
    store = stores()
    for key in (KEYS.pair_here(POOL, "x"), KEYS.pairs(POOL) + "meetings/m/roll", KEYS.pairs(POOL) + "odd", KEYS.pair_here(POOL, "y")):
        store.txn(Txn((), (Put(key, b'{"node": 1}' if key.endswith("x") else b"\xff["),)))
    there = halls("a", "b")
    drive(there, lambda hall, act: DONE)
    assert set(there[0].view.seats) == {"a", "b"}


def test_lost_answers_change_nothing() -> None:
    server = MemoryStore()
    sessions = [MemorySession(server), MemorySession(server)]
    there = [Hall(s, KEYS, POOL, Here(n, n, "127.0.0.1")) for n, s in zip("ab", sessions, strict=True)]
    for hall in there:
        hall.enter()
    for session in sessions:
        session.faults.extend([Fault(FaultKind.REPLY_LOST), Fault(FaultKind.LOST), Fault(FaultKind.NOT_SENT)])
    try:
        drive(there, lambda hall, act: DONE)
        assert {judge_pairs(h.view, h.me.node, base(10.0, (1048576,))).outcome for h in there} == {Outcome.PASS}
        assert not any(session.faults for session in sessions)
    finally:
        for hall in there:
            hall.leave()
    assert keys(MemorySession(server)) == []


@pytest.mark.slow
def test_who_can_not_renew_gives_up_though_nobody_can_tell_it_so() -> None:
    session = MemorySession(MemoryStore())
    hall = Hall(session, KEYS, POOL, Here("a", "a", "127.0.0.1"))
    hall.enter()
    session.set_down(True)
    wait_until(lambda: "lost its place" in str(step(hall.view, hall.me, hall.since, PACE, time.monotonic())), "it knows", 3 * LEASE_S)
    hall.leave()


def test_pools_are_apart_and_names_fit_in_a_key() -> None:
    assert pool_of("r", "x") != pool_of("r", "y") != pool_of("s", "y") and pool_of("", "") == "by-hand.any"
    long = pool_of("r" * 250, "t" * 250)
    assert len(long) < 253 and long != pool_of("r" * 250, "u" * 250)


# ---- the whole check, with a stand-in for the benchmark


def base(value: float, sizes: tuple[int, ...] = (1048576, 4194304, 16777216, 67108864)) -> Baseline:
    runs = [Run(f"r{i}", dict.fromkeys(sizes, value)) for i in range(3)]
    return Baseline(CHECK, "box", "GB/s", 3, combine(runs), Provenance("n", "2026-01-01T00:00:00Z"))


class Fleet:
    """Nodes on loopback addresses: the first is 127.0.1.1.  `stored`: their baseline is the store's."""

    stored = False

    def __init__(self, etcd: EtcdCluster, folder: Path, table: Mapping[str, object], baseline: Baseline | None) -> None:
        self.etcd, self.baseline = etcd, baseline
        hosts = {pair: "+".join(sorted(self.host(node) for node in pair)) for pair in table}
        (folder / "table.json").write_text(json.dumps({hosts[pair]: value for pair, value in table.items()}))
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} {folder / "table.json"} "$@"\n')
        self.python.chmod(0o755)

    @staticmethod
    def host(node: str) -> str:
        return f"127.0.1.{ord(node) - ord('a') + 1}"

    def check(self, node: str, cancel: Order | None = None, limit_s: float = 60, **more: object) -> CheckResult:
        store = EtcdSession.connect(self.etcd.endpoints, timeout_s=10)
        parameters = {"wait_s": 15, "settle_s": 0.5, "round_s": 12, **more}
        spec = CheckSpec("pair", Kind.PAIR, frozenset(Stage), time_limit_s=limit_s, parameters=parameters)
        own = None if self.stored else lambda context: self.baseline
        runner = pair_runner(store, self.host(node), baselines=own, python=str(self.python))
        try:
            return run_stage([spec], Context(Stage.JOIN, node, "r", "box"), {Kind.PAIR: runner}, total_s=limit_s, cancel=cancel)[0]
        finally:
            store.close()

    def all(self, nodes: str, **more: object) -> dict[str, CheckResult]:
        more.setdefault("expect", len(nodes))
        with ThreadPoolExecutor(len(nodes)) as pool:
            return dict(zip(nodes, pool.map(lambda n: self.check(n, **more), nodes), strict=True))  # type: ignore[arg-type]

    def nothing_is_left(self) -> bool:
        return not self.etcd.ctl("get", "--prefix", "--keys-only", f"{KEYS.prefix}pairs/").strip()


def outcomes(results: Mapping[str, CheckResult]) -> dict[str, str]:
    return {node: r.outcome.value for node, r in results.items()}


@pytest.mark.parametrize("nodes", ["abc", "abcd", "abcde"])
@pytest.mark.parametrize("kind", [1.0, "wrong"])
def test_a_bad_node_is_named(one_etcd: EtcdCluster, tmp_path: Path, nodes: str, kind: object) -> None:
    fleet = Fleet(one_etcd, tmp_path, {f"b{n}": kind for n in nodes if n != "b"}, base(10.0))
    results = fleet.all(nodes)
    assert outcomes(results) == {n: "fail" if n == "b" else "pass" for n in nodes}, results
    assert {x for r in results.values() for f in r.findings for x in f.nodes} == {"b"}
    wanted = FindingKind.WRONG_RESULT if kind == "wrong" else FindingKind.LOW_BANDWIDTH
    assert wanted in {f.kind for f in results["b"].findings}
    assert fleet.nothing_is_left()


@pytest.mark.slow
def test_a_node_whose_pairs_never_end_is_named_and_nothing_runs_on(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    fleet = Fleet(one_etcd, tmp_path, {"ab": "hang", "bc": "hang"}, None)
    results = fleet.all("abc", round_s=3)
    assert results["b"].outcome is Outcome.FAIL and "did not end" in results["b"].summary, results
    assert {x for r in results.values() for f in r.findings for x in f.nodes} == {"b"}
    assert results["a"].outcome is not Outcome.FAIL and fleet.nothing_is_left()


@pytest.mark.parametrize("word", ["crash", "absent"])
def test_a_benchmark_that_breaks_has_measured_nothing(one_etcd: EtcdCluster, tmp_path: Path, word: str) -> None:
    fleet = Fleet(one_etcd, tmp_path, {"ab": word, "ac": word, "bc": word}, base(10.0))
    results = fleet.all("abc")
    assert set(outcomes(results).values()) == {"not_measured"} and max(r.seconds for r in results.values()) < 12, results
    assert not {x for r in results.values() for f in r.findings for x in f.nodes}


def test_two_nodes_without_a_baseline_are_not_measured_and_with_one_they_are(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    fleet = Fleet(one_etcd, tmp_path, {}, None)
    assert set(outcomes(fleet.all("ab")).values()) == {"not_measured"}
    fleet.baseline = base(10.0)
    assert set(outcomes(fleet.all("ab")).values()) == {"pass"}


def test_who_is_alone_is_not_measured_and_the_order_to_stop_is_obeyed(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    fleet = Fleet(one_etcd, tmp_path, {"ab": "hang"}, base(10.0))
    alone = fleet.check("a", wait_s=0.5)
    assert alone.outcome is Outcome.NOT_MEASURED and "no other node came" in alone.summary
    late = fleet.check("a", limit_s=4)
    assert late.outcome is Outcome.NOT_MEASURED and "limit" in late.summary and late.seconds < 4
    order, began = Order(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        stopped = pool.submit(fleet.check, "a", order, expect=2, round_s=20)
        other = pool.submit(fleet.check, "b", None, expect=2, round_s=20)
        offered = f"{KEYS.pairs(POOL)}meetings/"
        wait_until(lambda: "/offers/" in one_etcd.ctl("get", "--prefix", "--keys-only", offered), "they have begun", 20)
        order.give()
        assert stopped.result().outcome is Outcome.NOT_MEASURED and "told to stop" in stopped.result().summary
        assert other.result().outcome is Outcome.NOT_MEASURED, other.result()
    assert time.monotonic() - began < 15 and fleet.nothing_is_left()
    order.close()


def test_a_store_that_is_gone_a_wrong_rule_and_no_address(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    fleet = Fleet(one_etcd, tmp_path, {}, None)
    wrong = fleet.check("a", sizes=[0])
    assert wrong.outcome is Outcome.NOT_MEASURED and "sizes in bytes" in wrong.summary
    server = MemorySession(MemoryStore())
    server.set_down(True)
    spec = CheckSpec("pair", Kind.PAIR, frozenset(Stage), time_limit_s=5)
    down = pair_runner(server, "127.0.0.1")(spec, Context(Stage.JOIN, "a"), Order())
    assert down.outcome is Outcome.NOT_MEASURED and "no meeting" in down.summary
    assert pair_runner(server, "")(spec, Context(Stage.JOIN, "a"), Order()).outcome is Outcome.SKIPPED


def test_the_stored_baseline_of_the_node_type_is_used_and_a_broken_one_is_said(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    fleet = Fleet(one_etcd, tmp_path, {}, None)
    fleet.stored = True
    store = EtcdSession.connect(one_etcd.endpoints, timeout_s=10)
    write(store, KEYS, base(10.0), at="2026-01-01T00:00:00Z", by="n")
    assert set(outcomes(fleet.all("ab")).values()) == {"pass"}
    write(store, KEYS, base(20.0), at="2026-01-01T00:00:00Z", by="n", force=True)
    results = fleet.all("ab")
    assert set(outcomes(results).values()) == {"not_measured"} and results["a"].details["suspects"] == ["a", "b"]
    store.txn(Txn((), (Put(KEYS.baseline("box", CHECK), b"[]"),)))
    broken = fleet.check("a")
    assert broken.outcome is Outcome.NOT_MEASURED and "baseline" in broken.summary and broken.seconds < 5
    store.close()


def test_a_port_that_is_taken_is_said(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    with socket.create_server((Fleet.host("a"), 0)) as taken, socket.create_server((Fleet.host("b"), taken.getsockname()[1])):
        fleet = Fleet(one_etcd, tmp_path, {}, base(10.0))
        results = fleet.all("ab", port=taken.getsockname()[1], round_s=4)
        assert set(outcomes(results).values()) == {"not_measured"}, results


NCCL = """#!/bin/sh
# stands in for mpirun and all_reduce_perf: $1 is the hosts
case "$1" in
  *127.0.1.2*) speed=1.00;;
  *) speed=10.00;;
esac
echo "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 5 agg iters: 1 validation: 1 graph: 0"
echo "#  Rank  0 Group  0 Pid  1 on  n1 device  0 [0x0f] NVIDIA H100 80GB HBM3"
echo "#  Rank  1 Group  0 Pid  2 on  n2 device  0 [0x0f] NVIDIA H100 80GB HBM3"
echo "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
echo "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
for size in 1048576 2097152 4194304; do
  echo "     $size        262144     float     sum      -1    100.0   $speed   $speed      0    100.0   $speed   $speed      0"
done
echo "# Out of bounds values : 0 OK"
echo "# Avg bus bandwidth    : $speed"
"""


def test_nccl_tests_across_the_pair_by_a_command(one_etcd: EtcdCluster, tmp_path: Path) -> None:
    program = tmp_path / "launch"
    program.write_text(NCCL)
    program.chmod(0o755)
    fleet = Fleet(one_etcd, tmp_path, {}, base(10.0, (1048576, 2097152, 4194304)))
    results = fleet.all("abc", command=[str(program), "{hosts}", "-n", "{ranks}", "{endpoint}"], ranks=2)
    assert outcomes(results) == {"a": "pass", "b": "fail", "c": "pass"}, results
    assert fleet.all("ac", command=[str(program), "{hosts}"], ranks=16)["a"].outcome is Outcome.NOT_MEASURED, "two ranks are not sixteen"
    gone = fleet.all("ac", command=["no-such-launcher", "{hosts}"], ranks=2)
    assert set(outcomes(gone).values()) == {"not_measured"}
