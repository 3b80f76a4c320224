"""Whoever has no business at an agent's port: bounded, refused, one warning, and no link disturbed."""

from __future__ import annotations

import logging
import os
import socket
import time

import pytest

from elastic_health.agents.link_types import DialFailed, Down, DownReason, LinkLimits, Message, Up
from elastic_health.agents.links_net import LinkListener
from elastic_health.messages import Started
from tests.links.parts import FAST, SECRET, Heard, agent, until

WRONG = os.urandom(32)


def connect(listener: LinkListener) -> socket.socket:
    host, port = listener.address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=10)
    return sock


def ends(sock: socket.socket) -> bytes:
    """What comes until the other side closes."""
    got = b""
    try:
        while data := sock.recv(4096):
            got += data
    except ConnectionResetError:
        return got
    finally:
        sock.close()
    return got


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and r.name == "elastic_health.links"]


@pytest.mark.spec("U5")
def test_wrong_secret_gets_no_link_and_both_say_why(caplog: pytest.LogCaptureFixture) -> None:
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a) as a, agent("b", heard_b, secret=WRONG) as b:
        b.dial(a.address, 7)
        failed = heard_b.wait(DialFailed)
        assert failed.reason is DownReason.PROTOCOL and "secret" in failed.detail
        assert heard_a.of(Up) == heard_b.of(Up) == []
        until(lambda: len(warnings(caplog)) == 1)
    assert SECRET.hex() not in caplog.text and WRONG.hex() not in caplog.text


def test_another_run_is_told_so() -> None:
    heard_b = Heard()
    with agent("a") as a, agent("b", heard_b, run="other") as b:
        b.dial(a.address, 7)
        failed = heard_b.wait(DialFailed)
        assert failed.reason is DownReason.PROTOCOL and "other_run" in failed.detail


FOREIGN = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\n", b"\n" * 100, b"{}\n", b"A" * 10_000)


@pytest.mark.parametrize("said", [*FOREIGN, b'{"eh":1} -\n', b'{"eh":2} -\n'])
def test_foreign_programs_are_refused_with_one_warning(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a) as a, agent("b", heard_b) as b:
        b.dial(a.address, 7)
        peer = heard_b.wait(Up).peer
        for _ in range(5):
            sock = connect(a)
            sock.sendall(said)
            assert len(ends(sock)) < 100
        b.send(peer, Started(1))
        heard_a.wait(Message)
        assert heard_a.of(Down) == []
        assert len(warnings(caplog)) <= 2  # one for each kind: refused, and perhaps reset


def test_silence_and_dribbling_end_at_the_handshake_deadline() -> None:
    with agent("a") as a:
        silent, slow = connect(a), connect(a)
        began = time.monotonic()
        slow.settimeout(FAST.beat_s / 4)
        closed = False
        while not closed and time.monotonic() - began < 10:
            try:
                slow.send(b"{")
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                closed = True
        slow.close()
        assert closed
        assert ends(silent) == b""
        assert time.monotonic() - began >= FAST.handshake_s * 0.9


def test_a_crowd_of_strangers_keeps_no_member_out() -> None:
    heard_a, heard_b = Heard(), Heard()
    crowd: list[socket.socket] = []
    with agent("a", heard_a, limits=LinkLimits(pending=20)) as a, agent("b", heard_b) as b:
        try:
            crowd = [connect(a) for _ in range(100)]
            b.dial(a.address, 7)
            heard_b.wait(Up)
            heard_a.wait(Up)
            assert len(a._pending) <= 20
        finally:
            for sock in crowd:
                sock.close()


def test_a_full_agent_takes_no_more_and_keeps_what_it_has() -> None:
    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a, limits=LinkLimits(links=3)) as a, agent("b", heard_b) as b:
        for _ in range(3):
            b.dial(a.address, 7)
        until(lambda: len(heard_b.of(Up)) == 3)
        b.dial(a.address, 7)
        assert heard_b.wait(DialFailed).reason in (DownReason.EOF, DownReason.RESET)
        a.broadcast(Started(1))
        until(lambda: len(heard_b.of(Message)) == 3)


def test_without_file_descriptors_open_links_live_and_new_ones_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    heard_a, heard_b = Heard(), Heard()
    with agent("a", heard_a) as a, agent("b", heard_b) as b:
        b.dial(a.address, 7)
        peer = heard_b.wait(Up).peer
        assert a._door is not None
        real = a._door._sock
        refusals: list[int] = []

        class Exhausted:
            def accept(self) -> tuple[socket.socket, object]:
                if len(refusals) < 2:
                    refusals.append(1)
                    raise OSError(errno.EMFILE, "Too many open files")
                return real.accept()

            def fileno(self) -> int:
                return real.fileno()

            def close(self) -> None:
                real.close()

        monkeypatch.setattr(a._door, "_sock", Exhausted())
        b.dial(a.address, 8)
        until(lambda: len(refusals) >= 1)
        b.send(peer, Started(1))
        heard_a.wait(Message)
        heard_b.wait(Up, lambda e: e.peer.generation == 8)
        assert len(refusals) == 2
