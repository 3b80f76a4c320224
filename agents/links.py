"""One agent link as a machine without sockets: bytes in, outcomes and bytes out.

Law: nothing is delivered that the other end of *this* connection did not say, whole, once and in order.  Both ends
prove that they hold the run's secret over both nonces and both hellos before either is believed, and neither names run,
node or incarnation before the other has proven it; every later frame carries its number and a MAC under a key of this
connection and this direction.  The first violation is final.

The handshake (each a line of at most `MAX_HANDSHAKE_BYTES`; a proof is an HMAC-SHA256 over all bodies so far):

    dialer    {"eh":2, "nonce"} -
    listener  {"eh":2, "nonce"} proof("listener")
    dialer    {"run", "node", "incarnation", "generation", "purpose"} proof("dialer")
    listener  {"run", "node", "incarnation", …} proof("listener")

and then, both ways, `<number> <MAC, 16 bytes in hex> <JSON object>` a line.  A refusal is
`{"eh":2, "refused": why} -`: it is not proven, so it explains and is never taken as a fact about the other agent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from elastic_health.agents.link_types import DownReason, LinkHello
from elastic_health.codec import build, plain
from elastic_health.errors import BadValue, LinkError
from elastic_health.messages import MAX_LINE_BYTES, LinkMessage

PROTOCOL = 2
NONCE_BYTES = 32
SECRET_BYTES = 32
MAC_HEX = 32
MAX_HANDSHAKE_BYTES = 4096
_FRAME_HEAD_BYTES = 64

_OPS: Mapping[str, type] = {cls.__name__: cls for cls in typing.get_args(LinkMessage)}


class Side(Enum):
    DIALER = "dialer"
    LISTENER = "listener"


class LinkState(Enum):
    """`nonce`: the other side's nonce is awaited (a listener's comes with its proof); `hello`: who it is, proven."""

    NONCE = "nonce"
    HELLO = "hello"
    OPEN = "open"
    BROKEN = "broken"


@dataclass(frozen=True)
class Opened:
    """The other side has proven the secret; `hello` is what it said of itself."""

    hello: LinkHello


@dataclass(frozen=True)
class Got:
    message: LinkMessage


@dataclass(frozen=True)
class Unknown:
    """A proven peer sent an `op` that this version doesn't know: nothing changes."""

    op: str


@dataclass(frozen=True)
class Broken:
    """The link must be closed; `error` says what was expected and found."""

    reason: DownReason
    error: LinkError


LinkOutcome = Opened | Got | Unknown | Broken


class Link:
    """One connection, from its first byte.

    Args:
        secret: the run's secret, `SECRET_BYTES` random bytes.
        hello: what this side says of itself.
        nonce: `NONCE_BYTES` fresh random bytes, used for this connection only.

    Raises:
        LinkError: a secret or nonce that is too short to prove anything.
    """

    def __init__(self, side: Side, secret: bytes, hello: LinkHello, nonce: bytes) -> None:
        if len(secret) < 16 or len(nonce) < 16:
            raise LinkError("a secret and a nonce of at least 16 bytes", f"{len(secret)} and {len(nonce)}", "pass random bytes")
        self.state = LinkState.NONCE
        self.side, self.hello = side, hello
        self._secret, self._nonce = secret, nonce
        self._buffer, self._scanned = bytearray(), 0
        self._sent, self._heard = 0, 0
        self._transcript = b""
        self._keys: tuple[bytes, bytes] = (b"", b"")

    def start(self) -> bytes:
        """The bytes to send first: the dialer's nonce; a listener waits."""
        if self.side is Side.LISTENER:
            return b""
        body = _compact(self._opening())
        self._transcript = body
        return body + b" -\n"

    def receive(self, data: bytes) -> tuple[list[LinkOutcome], bytes]:
        """Take what came in, in whatever pieces.

        Returns:
            What it meant, in order, and the bytes to send back.  Nothing follows a `Broken`.
        """
        outcomes: list[LinkOutcome] = []
        reply = bytearray()
        if self.state is LinkState.BROKEN:
            return outcomes, b""
        self._buffer += data
        try:
            while (line := self._take_line()) is not None:
                answer, outcome = _STEPS[self.side, self.state](self, line)
                reply += answer
                if outcome is not None:
                    outcomes.append(outcome)
        except _Refusal as e:
            reply += e.answer
            outcomes.append(self._break(e.error))
        return outcomes, bytes(reply)

    def send(self, message: LinkMessage) -> bytes:
        """The bytes of one frame.

        Raises:
            LinkError: the link is not open, or the message is longer than a line may be.
        """
        return self.frame(encode(message))

    def frame(self, body: bytes) -> bytes:
        """As `send`, for a message that is `encode`d already.

        Raises:
            LinkError: the link is not open.
        """
        if self.state is not LinkState.OPEN:
            raise LinkError("an open link", f"state {self.state.value}", "send after Up and before Down")
        head = b"%d" % self._sent
        self._sent += 1
        return b"%s %s %s\n" % (head, _mac(self._keys[0], head, body), body)

    def _take_line(self) -> bytes | None:
        limit = MAX_LINE_BYTES + _FRAME_HEAD_BYTES if self.state is LinkState.OPEN else MAX_HANDSHAKE_BYTES
        at = self._buffer.find(b"\n", self._scanned)
        if at < 0:
            self._scanned = len(self._buffer)
        if (at if at >= 0 else len(self._buffer)) > limit:
            raise _refuse(f"a line of at most {limit} bytes", f"{len(self._buffer)} bytes", "check what is dialing this port")
        if at < 0:
            return None
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        self._scanned = 0
        return line

    def _break(self, error: LinkError) -> Broken:
        self.state = LinkState.BROKEN
        self._buffer.clear()
        return Broken(DownReason.PROTOCOL, error)

    # ---- one method a row of the table below; each returns (bytes to send, outcome)
    def _listener_nonce(self, line: bytes) -> tuple[bytes, LinkOutcome | None]:
        body, proof = _split(line)
        _check_nonce(_fields(body))
        if proof != b"-":
            raise _refuse("a nonce without a proof", "a proof", "check what is dialing this port")
        self._transcript, self.state = body, LinkState.HELLO
        return self._say(self._opening()), None

    def _listener_hello(self, line: bytes) -> tuple[bytes, LinkOutcome | None]:
        hello = self._proven_hello(line, Side.DIALER)
        if hello.run != self.hello.run:
            raise _refuse(f"a member of run {self.hello.run}", f"run {hello.run}", "check --rdzv-id and addresses", tell="other_run")
        answer = self._say(plain(replace(self.hello, generation=hello.generation, purpose=hello.purpose)))
        return answer, self._open(hello)

    def _dialer_nonce(self, line: bytes) -> tuple[bytes, LinkOutcome | None]:
        body, proof = _split(line)
        fields = _fields(body)
        _check_not_refused(fields)
        self._check(body, proof, Side.LISTENER)
        _check_nonce(fields)
        self.state = LinkState.HELLO
        return self._say(plain(self.hello)), None

    def _dialer_hello(self, line: bytes) -> tuple[bytes, LinkOutcome | None]:
        return b"", self._open(self._proven_hello(line, Side.LISTENER))

    def _opening(self) -> dict[str, Any]:
        return {"eh": PROTOCOL, "nonce": self._nonce.hex()}

    def _say(self, fields: dict[str, Any]) -> bytes:
        """A handshake line with this side's proof of all that was said, itself included."""
        body = _compact(fields)
        self._transcript += b"\n" + body
        return b"%s %s\n" % (body, self._proof(self.side))

    def _check(self, body: bytes, proof: bytes, by: Side) -> None:
        self._transcript += b"\n" + body
        if not hmac.compare_digest(proof, self._proof(by)):
            raise _refuse(f"a {by.value} that holds the run's secret", "a wrong proof", "check that both agents use the same store and run")

    def _proven_hello(self, line: bytes, by: Side) -> LinkHello:
        body, proof = _split(line)
        fields = _fields(body)
        _check_not_refused(fields)
        self._check(body, proof, by)
        try:
            return build(LinkHello, fields, "hello")
        except BadValue as e:
            raise _refuse(e.expected, e.found, e.do) from e

    def _frame(self, line: bytes) -> tuple[bytes, LinkOutcome | None]:
        head, mac, body = _cut_frame(line)
        if head != b"%d" % self._heard or not hmac.compare_digest(mac, _mac(self._keys[1], head, body)):
            found = f"frame {head[:20]!r} that is damaged, forged or repeated"
            raise _refuse(f"frame {self._heard} with its MAC", found, "the link is dialed anew")
        self._heard += 1
        return b"", decode(body)

    def _open(self, hello: LinkHello) -> Opened:
        session = hmac.digest(self._secret, b"session" + hashlib.sha256(self._transcript).digest(), "sha256")
        mine = hmac.digest(session, self.side.value.encode(), "sha256")
        other = Side.LISTENER if self.side is Side.DIALER else Side.DIALER
        self._keys = (mine, hmac.digest(session, other.value.encode(), "sha256"))
        self.state = LinkState.OPEN
        return Opened(hello)

    def _proof(self, by: Side) -> bytes:
        said = by.value.encode() + b"\0" + hashlib.sha256(self._transcript).digest()
        return hmac.digest(self._secret, said, "sha256").hex().encode()


_STEPS: Mapping[tuple[Side, LinkState], Callable[[Link, bytes], tuple[bytes, LinkOutcome | None]]] = {
    (Side.LISTENER, LinkState.NONCE): Link._listener_nonce,
    (Side.LISTENER, LinkState.HELLO): Link._listener_hello,
    (Side.LISTENER, LinkState.OPEN): Link._frame,
    (Side.DIALER, LinkState.NONCE): Link._dialer_nonce,
    (Side.DIALER, LinkState.HELLO): Link._dialer_hello,
    (Side.DIALER, LinkState.OPEN): Link._frame,
}


class _Refusal(Exception):
    """Ends the link from inside a step; `answer` is what the other side may be told."""

    def __init__(self, error: LinkError, answer: bytes) -> None:
        super().__init__(str(error))
        self.error, self.answer = error, answer


def _refuse(expected: str, found: str, do: str, tell: str = "") -> _Refusal:
    return _Refusal(LinkError(expected, found, do), _line({"eh": PROTOCOL, "refused": tell}) if tell else b"")


def encode(message: LinkMessage) -> bytes:
    """One JSON object on one line, `op` naming the type.

    Raises:
        LinkError: longer than `MAX_LINE_BYTES`.
    """
    body = _compact({"op": type(message).__name__, **plain(message)})
    if len(body) > MAX_LINE_BYTES:
        raise LinkError(f"a message of at most {MAX_LINE_BYTES} bytes", f"{len(body)} bytes", "split the message")
    return body


def decode(body: bytes) -> LinkOutcome:
    """The message of a proven frame.  A body that doesn't fit its `op` breaks the link; an unknown `op` doesn't."""
    fields = _fields(body)
    op = fields.get("op")
    cls = _OPS.get(op) if isinstance(op, str) else None
    if cls is None:
        return Unknown(str(op)[:40])
    try:
        return Got(build(cls, fields, f"link.{op}"))
    except BadValue as e:
        raise _refuse(e.expected, e.found, e.do) from e


def _compact(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _line(body: dict[str, Any]) -> bytes:
    return _compact(body) + b" -\n"


def _split(line: bytes) -> tuple[bytes, bytes]:
    body, space, proof = line.rpartition(b" ")
    if not space or not body.startswith(b"{"):
        raise _refuse("a link handshake", repr(line[:40]), "check what is dialing this port")
    return body, proof


def _cut_frame(line: bytes) -> tuple[bytes, bytes, bytes]:
    parts = line.split(b" ", 2)
    if len(parts) != 3:
        raise _refuse("a link frame", repr(line[:40]), "the link is dialed anew")
    return parts[0], parts[1], parts[2]


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise _refuse("a JSON object", repr(body[:40]), "check what is dialing this port")
    return fields


def _check_nonce(fields: dict[str, Any]) -> None:
    if fields.get("eh") != PROTOCOL:
        raise _refuse(f"link protocol {PROTOCOL}", f"{fields.get('eh')!r}"[:40], "run one version of elastic-health", tell="version")
    nonce = fields.get("nonce")
    if not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES:
        raise _refuse(f"a nonce of {NONCE_BYTES} bytes", repr(nonce)[:40], "check what is dialing this port")


def _check_not_refused(fields: dict[str, Any]) -> None:
    if "refused" in fields:
        raise _refuse("to be let in", f"refused: {str(fields['refused'])[:40]}", "check run id and version on both nodes")


def _mac(key: bytes, head: bytes, body: bytes) -> bytes:
    return hmac.digest(key, head + b" " + body, "sha256").hex()[:MAC_HEX].encode()
