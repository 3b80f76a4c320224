"""Links over real sockets, within one process and to processes that are killed and stopped."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from elastic_health.agents.link_types import (
    DialFailed,
    Direction,
    Down,
    DownReason,
    LinkEvent,
    LinkHello,
    LinkLimits,
    LinkTiming,
    Message,
    Peer,
    Up,
)
from elastic_health.agents.links_net import LinkListener
from elastic_health.agents.prober_net import ProbeOutcome, probe
from elastic_health.errors import ConfigError, LinkError
from elastic_health.liveness.facts import Phase, ProcState, RankFacts
from elastic_health.messages import Goodbye, Progress, Reaped, Started, Suspect, VerdictSeen
from elastic_health.verdicts import Cause, Verdict, VerdictKind
from tests.links.parts import FAST, SECRET, Heard, agent, process, until

VERDICT = VerdictSeen(Verdict(VerdictKind.RESTART, Cause.STALL, 7))


def facts(rank: int) -> RankFacts:
    return RankFacts(rank, "n", rank, 1, 7, Phase.STEP, 0.0, ProcState.RUNNING, 0.1, 5, 0.1, 5, 0.1, (), 0.1, 0.1, False, 1.0, 0, 0.0)


def linked(a: Heard, b: Heard, dialer: LinkListener, address: str, generation: int = 7) -> tuple[Peer, Peer]:
    """Dial; returns the peer as each side sees it."""
    number = dialer.dial(address, generation)
    mine = a.wait(Up, lambda e: e.peer.link == number).peer
    theirs = b.wait(Up, lambda e: e.peer.direction is Direction.ACCEPTED and e.peer.generation == generation).peer
    return mine, theirs


@pytest.mark.spec("R1")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_messages_both_ways_in_order(host: str) -> None:
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a, host=host) as a, agent("b", heard_b) as b:
        mine, theirs = linked(heard_b, heard_a, b, a.address)
        assert (mine.node, theirs.who, theirs.generation) == ("a", ("b", "b-1"), 7)
        for n in range(200):
            b.send(mine, Started(n))
        a.send_to(("b", "b-1"), VERDICT)
        a.broadcast(Progress(7, (facts(0),)))
        heard_a.wait(Message, lambda m: m.message == Started(199))
        assert [m.message for m in heard_a.of(Message)] == [Started(n) for n in range(200)]
        heard_b.wait(Message, lambda m: m.message == Progress(7, (facts(0),)))
        assert heard_b.of(Message)[0].message == VERDICT


def test_a_deliberate_end_delivers_all_and_is_no_loss_to_who_ends_it() -> None:
    """The last word arrives although the other side's words lie unread: no reset destroys it."""
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a) as a, agent("b", heard_b) as b:
        mine, theirs = linked(heard_b, heard_a, b, a.address)
        for _ in range(100):
            b.send(mine, Progress(7, tuple(facts(r) for r in range(50))))
        a.send(theirs, VERDICT)
        a.drop(theirs)
        assert heard_b.wait(Down).reason is DownReason.EOF
        assert heard_b.of(Message)[-1].message == VERDICT
        assert heard_a.of(Down) == []


def test_closing_says_the_last_word_to_everyone() -> None:
    heards = [Heard() for _ in range(5)]
    heard_a = Heard()
    with agent("a", heard_a) as a:
        members = [agent(f"m{i}", h) for i, h in enumerate(heards)]
        for m in members:
            m.dial(a.address, 7)
        until(lambda: len(heard_a.of(Up)) == 5)
        a.broadcast(Goodbye(7))
        a.close()
        for h, m in zip(heards, members, strict=True):
            assert h.wait(Down).reason is DownReason.EOF
            assert [x.message for x in h.of(Message)] == [Goodbye(7)]
            m.close()


def test_only_the_links_of_a_generation_are_dropped() -> None:
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a) as a, agent("b", heard_b) as b:
        old, _ = linked(heard_b, heard_a, b, a.address, 7)
        new, _ = linked(heard_b, heard_a, b, a.address, 8)
        a.broadcast(Started(8), generation=8)
        assert heard_b.wait(Message).peer == new
        a.drop_generation(7)
        assert heard_b.wait(Down).peer == old
        a.send_to(("b", "b-1"), Started(9))
        assert heard_b.wait(Message, lambda m: m.message == Started(9)).peer == new


def test_idle_links_stay_up() -> None:
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a) as a, agent("b", heard_b) as b:
        linked(heard_b, heard_a, b, a.address)
        time.sleep(3 * FAST.timeout_s)  # the thing tested is that time alone changes nothing
        assert heard_a.of(Down) == heard_b.of(Down) == []
        assert heard_a.of(Message) == []  # pings are the link's own


@pytest.mark.spec("R2")
def test_a_killed_process_is_noticed_at_once() -> None:
    heard = Heard()
    with agent("a", heard) as a, process("b") as b:
        a.dial(b.address, 7)
        heard.wait(Up)
        b.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        down = heard.wait(Down)
        assert down.reason in (DownReason.EOF, DownReason.RESET)
        assert down.at - killed_at < FAST.timeout_s  # by the closing socket, not by silence


@pytest.mark.spec("R2")
def test_a_killed_process_is_noticed_although_its_forked_child_lives() -> None:
    """GaTech-RL2/EgoVerse#682 has children that outlive their parent: they must not keep its links open."""
    heard = Heard()
    with agent("a", heard) as a, process("b", extra="fork") as b:
        child = int(b.line())
        try:
            a.dial(b.address, 7)
            heard.wait(Up)
            b.signal(signal.SIGKILL)
            assert heard.wait(Down).reason in (DownReason.EOF, DownReason.RESET)
            assert probe(b.address, SECRET, LinkHello("run", "c", "c-1"), 5.0).outcome is ProbeOutcome.REFUSED
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_stopped_process_is_down_by_silence() -> None:
    heard = Heard()
    with agent("a", heard) as a, process("b") as b:
        a.dial(b.address, 7)
        heard.wait(Up)
        b.signal(signal.SIGSTOP)
        assert heard.wait(Down).reason is DownReason.TIMEOUT


def test_a_short_stop_is_forgiven_by_the_stopped_side_too() -> None:
    """Both sides were quiet for less than the timeout as the other saw it: the link stays."""
    heard = Heard()
    with agent("a", heard) as a, process("b") as b:
        a.dial(b.address, 7)
        peer = heard.wait(Up).peer
        b.signal(signal.SIGSTOP)
        time.sleep(FAST.timeout_s * 0.4)
        b.signal(signal.SIGCONT)
        a.send(peer, Started(3))
        heard.wait(Message, lambda m: m.message == Reaped(3))
        assert heard.of(Down) == []


def test_a_woken_process_does_not_blame_its_live_peers() -> None:
    """It was stopped longer than its own timeout, and its peer, far more patient, was quiet for just as long."""
    heard, patient = Heard(), LinkTiming(timeout_s=30.0, handshake_s=5.0)
    with agent("a", heard, timing=patient) as a, process("b") as b:
        a.dial(b.address, 7)
        peer = heard.wait(Up).peer
        assert b.line().startswith("Up")
        b.signal(signal.SIGSTOP)
        time.sleep(FAST.timeout_s * 1.5)
        b.signal(signal.SIGCONT)
        time.sleep(FAST.beat_s)  # its chance to judge wrongly, before anything is said to it
        a.send(peer, Started(4))
        assert heard.wait(Message).message == Reaped(4)
        assert b.line().startswith("Message")


def test_dialing_nobody_is_refused() -> None:
    heard = Heard()
    with agent("a", heard) as a:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            number = a.dial(f"127.0.0.1:{free.getsockname()[1]}", 7)
            failed = heard.wait(DialFailed)
        assert (failed.dial, failed.reason) == (number, DownReason.REFUSED)


def test_dialing_a_name_without_address() -> None:
    heard = Heard()
    with agent("a", heard) as a:
        a.dial("no.such.name.invalid:80", 7)
        assert heard.wait(DialFailed).reason in (DownReason.UNREACHABLE, DownReason.TIMEOUT)
        with pytest.raises(ConfigError):
            a.dial("nonsense", 7)


def test_a_taken_port_is_said() -> None:
    with agent("a") as a, pytest.raises(LinkError, match="another port"):
        agent("b", port=int(a.address.rsplit(":", 1)[1]))


def test_a_host_that_is_none_of_ours_listens_everywhere() -> None:
    """Behind address translation the advertised host can't be bound."""
    heard = Heard()
    with agent("a", host="192.0.2.1") as a, agent("b", heard) as b:
        assert a.address.startswith("192.0.2.1:")
        b.dial("127.0.0.1:" + a.address.rsplit(":", 1)[1], 7)
        assert heard.wait(Up).peer.node == "a"


def test_a_peer_that_reads_nothing_loses_progress_never_verdicts() -> None:
    limits = LinkLimits(drop_bytes=64 * 1024)
    patient = LinkTiming(timeout_s=30.0, handshake_s=5.0)
    gate, heard_b = threading.Event(), Heard()

    def slow(event: LinkEvent) -> None:
        if isinstance(event, Message):
            gate.wait(20)
        heard_b(event)

    heard_a = Heard()
    with agent("a", heard_a, limits=limits, timing=patient) as a, agent("b", slow, timing=patient) as b:
        b.dial(a.address, 7)
        peer = heard_a.wait(Up).peer
        big = Progress(7, tuple(facts(r) for r in range(100)))
        for n in range(400):
            a.send(peer, big)
            if n % 50 == 0:
                a.send(peer, Started(n))
        a.send(peer, VERDICT)
        until(lambda: not a._calls)
        gate.set()
        heard_b.wait(Message, lambda m: m.message == VERDICT)
        messages = [m.message for m in heard_b.of(Message)]
        assert [m for m in messages if isinstance(m, Started)] == [Started(n) for n in range(0, 400, 50)]
        assert 0 < sum(isinstance(m, Progress) for m in messages) < 400


def test_a_peer_that_never_reads_is_ended_not_waited_for() -> None:
    limits = LinkLimits(queue_bytes=1024 * 1024)
    patient = LinkTiming(timeout_s=30.0, handshake_s=5.0)
    gate, heard_a = threading.Event(), Heard()

    def stuck(event: LinkEvent) -> None:
        if isinstance(event, Message):
            gate.wait(20)

    with agent("a", heard_a, limits=limits, timing=patient) as a, agent("b", stuck, timing=patient) as b:
        b.dial(a.address, 7)
        peer = heard_a.wait(Up).peer
        for _ in range(20):
            a.send(peer, Suspect("n" * 1024 * 1024, "i"))
        assert heard_a.wait(Down).reason is DownReason.SLOW
        gate.set()


def test_a_receiver_that_raises_ends_no_link(caplog: pytest.LogCaptureFixture) -> None:
    heard_a, heard_b = Heard(), Heard()

    def faulty(event: LinkEvent) -> None:
        heard_a(event)
        if isinstance(event, Message) and event.message == Started(1):
            raise ValueError("receiver's own fault")

    with agent("a", faulty) as a, agent("b", heard_b) as b:
        mine, _ = linked(heard_b, heard_a, b, a.address)
        b.send(mine, Started(1))
        b.send(mine, Started(2))
        heard_a.wait(Message, lambda m: m.message == Started(2))
    assert "receiver's own fault" in caplog.text


def open_files() -> set[int]:
    names = [int(f) for f in os.listdir("/proc/self/fd")]
    return {f for f in names if os.path.exists(f"/proc/self/fd/{f}")}


def test_nothing_stays_open_after_close() -> None:
    heard_a, heard_b = Heard(), Heard()
    before = open_files()
    with agent("a", heard_a) as a, agent("b", heard_b) as b:
        linked(heard_b, heard_a, b, a.address)
        ours = open_files() - before
        assert len(ours) >= 10
        assert not [f for f in ours if os.get_inheritable(f)]
    a.close()
    assert not [t for t in threading.enumerate() if t.name == "eh-links"]
    assert open_files() == before


def test_hundreds_of_links_at_one_agent() -> None:
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a) as a, agent("b", heard_b) as b:
        for _ in range(300):
            b.dial(a.address, 7)
        until(lambda: len(heard_a.of(Up)) == 300 and len(heard_b.of(Up)) == 300)
        a.broadcast(VERDICT)
        until(lambda: len(heard_b.of(Message)) == 300)
        assert SECRET and heard_a.of(Down) == heard_b.of(Down) == []
