"""Members that die, freeze or lose the lead: reads, renewals and watches go on with another member."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import StoreAmbiguous, StoreUnavailable
from tests.etcd_fixture import EtcdCluster, TcpProxy, etcd_cluster, wait_until
from tests.store.conftest import QUICK
from tests.store.shapes import Heard, create, later, put


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    with etcd_cluster(3) as running:
        yield running


@pytest.fixture
def healed(cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    """All three up, before and after."""
    yield cluster
    for member in cluster.members:
        assert member.process is not None
        if member.process.poll() is None:
            member.thaw()
        else:
            member.start()
    for member in cluster.members:
        member.wait_healthy()


def connect(cluster: EtcdCluster, first: int = 0, timeout_s: float = 6.0) -> EtcdSession:
    return EtcdSession.connect(cluster.endpoints, first=first, pace=QUICK, timeout_s=timeout_s)


@pytest.mark.spec("U5")
@pytest.mark.sound_etcd
@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_killed_member(healed: EtcdCluster, prefix: str, which: str) -> None:
    leader = healed.leader()
    victim = leader if which == "leader" else next(m for m in healed.members if m is not leader)
    session, heard = connect(healed, healed.members.index(victim)), Heard()
    start = put(session, prefix + "k", b"0")
    lease = session.grant(30)
    session.watch(prefix, start, heard.batch, heard.trouble.append)
    wait_until(lambda: heard.values == [b"0"], "the watch runs")
    victim.kill()
    begun = time.monotonic()
    assert session.renew(lease.id) == lease.ttl_s
    print(f"\nrenewed {time.monotonic() - begun:.3f} s after the {which} was killed")
    put(session, prefix + "k", b"1")
    wait_until(lambda: heard.values == [b"0", b"1"], "the watch went on")
    print(f"write heard {time.monotonic() - begun:.3f} s after")
    session.close()


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_frozen_member(healed: EtcdCluster, prefix: str, which: str) -> None:
    """A stopped process keeps its connections open and answers nothing: only deadlines notice."""
    leader = healed.leader()
    victim = leader if which == "leader" else next(m for m in healed.members if m is not leader)
    session, heard = connect(healed, healed.members.index(victim)), Heard()
    start = put(session, prefix + "k", b"0")
    lease = session.grant(30)
    session.watch(prefix, start, heard.batch, heard.trouble.append)
    wait_until(lambda: heard.values == [b"0"], "the watch runs")
    victim.freeze()
    begun = time.monotonic()
    assert session.renew(lease.id, timeout_s=4.0) == lease.ttl_s
    print(f"\nrenewed {time.monotonic() - begun:.3f} s after the {which} froze")
    put(session, prefix + "k", b"1")
    wait_until(lambda: heard.values == [b"0", b"1"], "the watch left the frozen member")
    print(f"write heard {time.monotonic() - begun:.3f} s after")
    session.close()


def test_a_write_to_a_frozen_member_is_ambiguous_and_the_next_goes_elsewhere(healed: EtcdCluster, prefix: str) -> None:
    victim = next(m for m in healed.members if m is not healed.leader())
    session = connect(healed, healed.members.index(victim))
    put(session, prefix + "warm", b"")
    victim.freeze()
    with pytest.raises(StoreAmbiguous):
        session.txn(create(prefix + "k", b"1"), timeout_s=0.5)
    second = session.txn(create(prefix + "k", b"2"))
    assert second.succeeded, f"the key holds {second.reads[0].kvs[0].value!r}: 1 was applied by a stopped process, 2 was sent twice"
    session.close()


def test_an_async_write_to_a_frozen_member_is_ambiguous_and_the_next_goes_elsewhere(healed: EtcdCluster, prefix: str) -> None:
    victim = next(m for m in healed.members if m is not healed.leader())
    session = connect(healed, healed.members.index(victim))
    put(session, prefix + "warm", b"")
    victim.freeze()
    with pytest.raises(StoreAmbiguous):
        later(session, create(prefix + "k", b"1"), 0.5)
    second = later(session, create(prefix + "k", b"2"))
    assert second.succeeded, f"the key holds {second.reads[0].kvs[0].value!r}: 1 was applied by a stopped process, 2 was sent twice"
    session.close()


def test_async_writes_need_no_thread_while_all_is_well_and_go_on_when_a_member_dies(healed: EtcdCluster, prefix: str) -> None:
    victim = next(m for m in healed.members if m is not healed.leader())
    session = connect(healed, healed.members.index(victim))
    put(session, prefix + "warm", b"")
    with ThreadPoolExecutor(1) as other:  # the main thread, where signals strike, leaves it to one of the session's
        assert all(other.map(lambda i: later(session, create(f"{prefix}a{i}", b"")).succeeded, range(20)))
    assert not session._txn_pool._threads
    victim.kill()
    written, unsure = 0, 0
    for i in range(20):
        try:
            written += later(session, create(f"{prefix}b{i}", b"")).succeeded
        except StoreAmbiguous:
            unsure += 1
    assert written + unsure == 20 and unsure <= 1, "only what was under way when the member died is unsure"
    session.close()


def test_the_lead_moves(healed: EtcdCluster, prefix: str) -> None:
    session, heard = connect(healed), Heard()
    start = put(session, prefix + "k", b"0")
    session.watch(prefix, start, heard.batch)
    old = healed.leader()
    status = {s.endpoint: s for s in session.status()}
    heir = next(s for s in status.values() if not s.is_leader)
    healed.ctl("move-leader", f"{heir.member_id:x}", endpoints=[old.endpoint])
    put(session, prefix + "k", b"1")
    wait_until(lambda: heard.values == [b"0", b"1"], "both writes are heard")
    assert healed.leader().endpoint == heir.endpoint
    session.close()


@pytest.mark.sound_etcd
def test_without_a_quorum_writes_are_refused_and_come_back_with_it(healed: EtcdCluster, prefix: str) -> None:
    session, heard = connect(healed), Heard()
    start = put(session, prefix + "k", b"0")
    session.watch(prefix, start, heard.batch, heard.trouble.append)
    wait_until(lambda: heard.values == [b"0"], "the watch runs")
    for member in healed.members[1:]:
        member.kill()
    # one member alone: refused before raft once it knows that it has no leader, unknown until then
    wait_until(lambda: _refused(session, prefix), "a write is surely refused")
    wait_until(lambda: heard.trouble, "the watch tells of it")
    for member in healed.members[1:]:
        member.start()
    for member in healed.members:
        member.wait_healthy()
    assert session.txn(create(prefix + "back", b"")).revision > start
    wait_until(lambda: prefix + "back" in heard.keys, "the watch is back")
    session.close()


def _refused(session: EtcdSession, prefix: str) -> bool:
    try:
        session.txn(create(prefix + "none", b""), timeout_s=0.5)
    except StoreUnavailable:
        return True
    except StoreAmbiguous:
        return False
    return False


def test_status_names_each_member(cluster: EtcdCluster) -> None:
    session = connect(cluster)
    try:
        members = session.status()
    finally:
        session.close()
    assert [m.endpoint for m in members] == cluster.endpoints
    assert sum(m.is_leader for m in members) == 1
    assert all(m.version.count(".") == 2 and m.db_size_bytes > 0 and m.error is None for m in members)


def test_status_says_which_member_is_down(cluster: EtcdCluster) -> None:
    proxy = TcpProxy(cluster.endpoints[0])
    session = EtcdSession.connect([cluster.endpoints[1], proxy.endpoint], first=0)
    try:
        proxy.refuse()
        up, down = session.status()
    finally:
        session.close()
        proxy.close()
    assert up.error is None and down.error


def test_a_stalled_connection_is_left_for_a_new_one(cluster: EtcdCluster, prefix: str) -> None:
    """The server lives, the connection does not: with a single endpoint there is nobody else to ask."""
    proxy = TcpProxy(cluster.endpoints[0])
    session, heard = EtcdSession.connect(proxy.endpoint, pace=QUICK), Heard()
    start = put(session, prefix + "k", b"0")
    session.watch(prefix, start, heard.batch, heard.trouble.append)
    wait_until(lambda: heard.values == [b"0"], "the watch runs")
    proxy.stall()
    with pytest.raises(StoreUnavailable):
        session.get(prefix + "k", timeout_s=0.3)
    wait_until(lambda: heard.trouble, "the watch notices the silence")
    proxy.flow()
    put(session, prefix + "k", b"1")
    wait_until(lambda: heard.values == [b"0", b"1"], "the watch went on")
    session.close()
    proxy.close()


def test_a_forked_child_has_a_working_session(cluster: EtcdCluster, prefix: str) -> None:
    session, heard = connect(cluster), Heard()
    start = put(session, prefix + "parent", b"")
    session.watch(prefix, start, heard.batch)
    wait_until(lambda: heard.keys, "the watch runs")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            put(session, prefix + "child", b"")
            code = 0
        finally:
            os._exit(code)
    with open(os.pidfd_open(child)) as ended:
        assert select.select([ended], [], [], 20)[0], "the child ended"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    put(session, prefix + "parent", b"again")
    wait_until(lambda: len(heard.keys) == 3, "the parent's watch hears the child's write and its own")
    session.close()


def test_a_closed_session_answers_every_call_still_waiting(cluster: EtcdCluster, prefix: str) -> None:
    proxy = TcpProxy(cluster.endpoints[0])
    session = EtcdSession.connect(proxy.endpoint, timeout_s=20)
    put(session, prefix + "warm", b"")
    proxy.stall()
    answers: list[object] = []
    for i in range(8):  # more than the session has threads
        session.txn_async(create(f"{prefix}{i}", b""), answers.append)
    session.renew_async(1, answers.append)
    session.close()
    wait_until(lambda: len(answers) == 9, "all nine answered, long before their deadline")
    assert all(isinstance(a, (StoreUnavailable, StoreAmbiguous)) for a in answers)
    with pytest.raises(StoreUnavailable):
        session.get(prefix)
    proxy.close()
