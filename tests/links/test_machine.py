"""The link machine without sockets: any cut of the bytes means the same, any damaged byte is refused, nobody without
the secret gets in, nothing is played twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.agents.link_types import DownReason, LinkHello, Purpose
from elastic_health.agents.links import MAX_HANDSHAKE_BYTES, Broken, Got, Link, LinkOutcome, LinkState, Opened, Side, Unknown
from elastic_health.codec import plain
from elastic_health.errors import LinkError
from elastic_health.messages import MAX_LINE_BYTES, LinkMessage, Ping, Reaped, Started, Suspect, VerdictSeen
from elastic_health.verdicts import Cause, Verdict, VerdictKind

SECRET = bytes(range(32))
DIALER = LinkHello("run", "node-b", "i2", 7)
LISTENER = LinkHello("run", "node-a", "i1")

MESSAGES = st.one_of(
    st.builds(Started, st.integers(0, 10**9)),
    st.builds(Ping, st.integers(0, 10**6)),
    st.builds(Suspect, st.text(max_size=20), st.text(max_size=20)),
    st.builds(
        VerdictSeen,
        st.builds(Verdict, st.sampled_from(VerdictKind), st.sampled_from(Cause), st.integers(0, 99), reason=st.text(max_size=50)),
    ),
)


def pair(dialer_secret: bytes = SECRET, dialer: LinkHello = DIALER) -> tuple[Link, Link]:
    return Link(Side.DIALER, dialer_secret, dialer, b"d" * 32), Link(Side.LISTENER, SECRET, LISTENER, b"l" * 32)


def shake(dialer: Link, listener: Link) -> tuple[list[LinkOutcome], list[LinkOutcome]]:
    """Run the handshake; returns what each side made of it."""
    to_listener, to_dialer = dialer.start(), b""
    at_dialer: list[LinkOutcome] = []
    at_listener: list[LinkOutcome] = []
    while to_listener or to_dialer:
        outcomes, to_dialer = listener.receive(to_listener)
        at_listener += outcomes
        outcomes, to_listener = dialer.receive(to_dialer)
        at_dialer += outcomes
    return at_dialer, at_listener


def open_pair() -> tuple[Link, Link]:
    dialer, listener = pair()
    shake(dialer, listener)
    assert dialer.state is listener.state is LinkState.OPEN
    return dialer, listener


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    out = []
    for size in sizes:
        out.append(data[:size])
        data = data[size:]
    return [*out, data]


def test_both_sides_learn_who_the_other_is() -> None:
    at_dialer, at_listener = shake(*pair())
    assert [o.hello.node for o in at_dialer if isinstance(o, Opened)] == ["node-a"]
    assert at_listener == [Opened(DIALER)]


def test_purpose_and_generation_reach_the_listener() -> None:
    probing = LinkHello("run", "node-b", "i2", 9, Purpose.PROBE)
    _, at_listener = shake(*pair(dialer=probing))
    assert at_listener == [Opened(probing)]


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=6), st.lists(st.integers(0, 60), max_size=40))
def test_any_chunking_gives_the_same_messages(messages: list[LinkMessage], sizes: list[int]) -> None:
    """The whole conversation of the dialer, its handshake included, cut anywhere."""
    dialer, _ = pair()
    listener = Link(Side.LISTENER, SECRET, LISTENER, b"l" * 32)
    got: list[LinkOutcome] = []

    def say(data: bytes) -> bytes:
        answer = b""
        for chunk in chunks(data, sizes):
            outcomes, reply = listener.receive(chunk)
            got.extend(outcomes)
            answer += reply
        return answer

    _, hello = dialer.receive(say(dialer.start()))
    assert dialer.receive(say(hello))[0] == [Opened(replace(LISTENER, generation=7))]
    assert say(b"".join(dialer.send(m) for m in messages)) == b""
    assert got == [Opened(DIALER), *(Got(m) for m in messages)]


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES, min_size=2, max_size=4), st.data())
def test_any_damaged_byte_is_refused(messages: list[LinkMessage], data: st.DataObject) -> None:
    dialer, listener = open_pair()
    frames = [dialer.send(m) for m in messages]
    sent = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= data.draw(st.integers(1, 255))
    outcomes, _ = listener.receive(bytes(sent))
    whole = next(i for i in range(len(frames)) if at < sum(map(len, frames[: i + 1])))
    assert [o for o in outcomes if isinstance(o, Got)] == [Got(m) for m in messages[:whole]]
    if at == len(sent) - 1:  # the last line's end: the next frame, whatever it is, shows it
        outcomes, _ = listener.receive(dialer.send(Ping()))
    assert isinstance(outcomes[-1], Broken)
    assert outcomes[-1].reason is DownReason.PROTOCOL
    assert listener.state is LinkState.BROKEN


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 3), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_any_damaged_handshake_byte_opens_no_link(which: int, where: float, flip: int) -> None:
    dialer, listener = pair()

    def pass_on(line: bytes, number: int) -> bytes:
        if number != which:
            return line
        at = int(where * (len(line) - 1))  # all but the end of the line: without it the line goes on
        return line[:at] + bytes([line[at] ^ flip]) + line[at + 1 :]

    _, nonce = listener.receive(pass_on(dialer.start(), 0))
    _, hello = dialer.receive(pass_on(nonce, 1)) if nonce else ([], b"")
    _, answer = listener.receive(pass_on(hello, 2)) if hello else ([], b"")
    if answer:
        dialer.receive(pass_on(answer, 3))
    assert dialer.state is not LinkState.OPEN
    assert listener.state is not LinkState.OPEN or which == 3  # it has heard all it needs by then


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_never_opens_nor_raises(data: bytes) -> None:
    listener = Link(Side.LISTENER, SECRET, LISTENER, b"l" * 32)
    outcomes, reply = listener.receive(data + b"\n")
    assert all(isinstance(o, Broken) for o in outcomes)
    assert len(reply) < 100


def test_wrong_secret_is_refused_by_both() -> None:
    dialer, listener = pair(dialer_secret=b"x" * 32)
    at_dialer, at_listener = shake(dialer, listener)
    assert isinstance(at_dialer[-1], Broken)
    assert "secret" in str(at_dialer[-1].error)
    assert at_listener == []
    hello = json.dumps(plain(DIALER)).encode()
    outcomes, _ = listener.receive(hello + b" " + b"0" * 64 + b"\n")  # a dialer that goes on all the same
    assert isinstance(outcomes[-1], Broken)


def test_a_listeners_own_proof_is_no_dialers_proof() -> None:
    """Reflection: what the listener proves can't be sent back to it."""
    dialer, listener = pair()
    _, answer = listener.receive(dialer.start())
    hello = json.dumps(plain(DIALER)).encode()
    for body in (hello, answer.rsplit(b" ", 1)[0]):
        _, listener = pair()
        _, answer = listener.receive(dialer.start())
        outcomes, reply = listener.receive(body + b" " + answer.rsplit(b" ", 1)[1])
        assert isinstance(outcomes[-1], Broken) and reply == b""


def test_a_stranger_learns_nothing_from_a_listener() -> None:
    """One who speaks the protocol, and even knows run and nodes, but not the secret: no name comes back."""
    listener = Link(Side.LISTENER, SECRET, LISTENER, b"l" * 32)
    stranger = Link(Side.DIALER, b"x" * 32, DIALER, b"d" * 32)
    _, answer = listener.receive(stranger.start())
    stranger._transcript += b"\n" + answer.rsplit(b" ", 1)[0]
    _, more = listener.receive(stranger._say(plain(DIALER)))  # it doesn't mind the listener's proof, and goes on
    assert more == b"" and listener.state is LinkState.BROKEN
    assert json.loads(answer.rsplit(b" ", 1)[0]).keys() == {"eh", "nonce"}
    for word in (b"run", b"node-a", b"i1"):
        assert word not in answer.replace(b'"nonce"', b"")


def test_a_dialer_names_itself_to_nobody_without_the_secret() -> None:
    """A port that a dead agent left behind may be anybody's by now."""
    dialer, _ = pair()
    first = dialer.start()
    false = Link(Side.LISTENER, b"x" * 32, LISTENER, b"l" * 32)
    _, answer = false.receive(first)
    outcomes, more = dialer.receive(answer)
    assert isinstance(outcomes[-1], Broken) and more == b""
    assert b"node-b" not in first and b"run" not in first


def test_another_run_is_told_so() -> None:
    at_dialer, at_listener = shake(*pair(dialer=LinkHello("other", "node-b", "i2", 7)))
    assert isinstance(at_listener[-1], Broken) and "run run" in str(at_listener[-1].error)
    assert isinstance(at_dialer[-1], Broken) and "other_run" in str(at_dialer[-1].error)


def test_another_version_is_told_so() -> None:
    _, listener = pair()
    outcomes, reply = listener.receive(b'{"eh":1} -\n')
    assert isinstance(outcomes[-1], Broken)
    assert json.loads(reply.rsplit(b" ", 1)[0])["refused"] == "version"


def test_a_frame_is_taken_once() -> None:
    dialer, listener = open_pair()
    frame = dialer.send(Reaped(7))
    assert listener.receive(frame)[0] == [Got(Reaped(7))]
    assert isinstance(listener.receive(frame)[0][-1], Broken)


def test_frames_of_one_connection_mean_nothing_in_another() -> None:
    first, _ = open_pair()
    replayed = first.send(Reaped(7))
    dialer = Link(Side.DIALER, SECRET, DIALER, b"e" * 32)
    listener = Link(Side.LISTENER, SECRET, LISTENER, b"m" * 32)
    shake(dialer, listener)
    assert isinstance(listener.receive(replayed)[0][-1], Broken)


def test_a_frame_sent_back_to_its_sender_is_refused() -> None:
    dialer, _ = open_pair()
    assert isinstance(dialer.receive(dialer.send(Reaped(7)))[0][-1], Broken)


def test_lost_frame_is_noticed() -> None:
    dialer, listener = open_pair()
    dialer.send(Started(1))
    assert isinstance(listener.receive(dialer.send(Started(2)))[0][-1], Broken)


def test_an_endless_first_line_is_bounded() -> None:
    _, listener = pair()
    outcomes: list[LinkOutcome] = []
    for _ in range(MAX_HANDSHAKE_BYTES // 100 + 2):
        outcomes += listener.receive(b"a" * 100)[0]
    assert len(outcomes) == 1 and isinstance(outcomes[0], Broken)


def test_an_endless_frame_is_bounded() -> None:
    _, listener = open_pair()
    piece = b"a" * (1 << 20)
    outcomes = [o for _ in range(MAX_LINE_BYTES // len(piece) + 2) for o in listener.receive(piece)[0]]
    assert len(outcomes) == 1 and isinstance(outcomes[0], Broken)


def test_too_long_a_message_is_the_senders_error_and_the_link_lives() -> None:
    dialer, listener = open_pair()
    with pytest.raises(LinkError, match="split"):
        dialer.send(Suspect("n" * (MAX_LINE_BYTES + 1), "i"))
    assert listener.receive(dialer.send(Started(1)))[0] == [Got(Started(1))]


def test_a_newer_peers_unknown_message_changes_nothing() -> None:
    dialer, listener = open_pair()
    assert listener.receive(dialer.frame(b'{"op":"Later","x":1}'))[0] == [Unknown("Later")]
    assert listener.receive(dialer.send(Started(1)))[0] == [Got(Started(1))]


def test_a_message_of_the_wrong_shape_breaks_the_link() -> None:
    dialer, listener = open_pair()
    outcomes, _ = listener.receive(dialer.frame(b'{"op":"Started","generation":"seven"}'))
    assert isinstance(outcomes[-1], Broken) and "link.Started.generation" in str(outcomes[-1].error)


def test_sending_before_the_proofs_is_an_error() -> None:
    dialer, _ = pair()
    with pytest.raises(LinkError):
        dialer.send(Ping())


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(LinkError, match="16 bytes"):
        Link(Side.DIALER, b"short", DIALER, b"d" * 32)
