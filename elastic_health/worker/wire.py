"""How the worker link's messages look on the wire: one JSON object a line, `op` names the type, `id` pairs ask and answer.

Law: whatever bytes come in, the result is a message of the right direction or one `BadValue`; nothing is half read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

from elastic_health import messages
from elastic_health.codec import build, plain
from elastic_health.errors import BadValue

HELLO_ID = 0
"""The id of a `Hello`, which is not answered; requests count from 1 on each connection."""
_REQUESTS: Mapping[str, type] = MappingProxyType({t.__name__: t for t in get_args(messages.WorkerMessage)})
_REPLIES: Mapping[str, type] = MappingProxyType({t.__name__: t for t in get_args(messages.AgentReply)})


def encode(message: object, n: int) -> bytes:
    """One line.

    Raises:
        BadValue: it would be longer than `MAX_LINE_BYTES`.
    """
    line = json.dumps({"id": n, "op": type(message).__name__, **plain(message)}, separators=(",", ":")).encode() + b"\n"
    if len(line) > messages.MAX_LINE_BYTES:
        found = f"{type(message).__name__} of {len(line)} bytes"
        raise BadValue(f"a message of at most {messages.MAX_LINE_BYTES} bytes", found, "send less at once")
    return line


def decode_request(line: bytes) -> tuple[int, Any]:
    """What a worker sent: (id, message).

    Raises:
        BadValue: no JSON object, no id, an unknown op, or a wrong field.
    """
    return _decode(line, _REQUESTS)


def decode_reply(line: bytes) -> tuple[int, Any]:
    """What the agent sent; see `decode_request`."""
    return _decode(line, _REPLIES)


def request_id(line: bytes) -> int:
    """The id of a line that may be broken otherwise, so that its refusal finds its caller; HELLO_ID if there is none."""
    try:
        n = json.loads(line).get("id")
    except (ValueError, AttributeError, RecursionError):
        return HELLO_ID
    return n if isinstance(n, int) else HELLO_ID


def _decode(line: bytes, kinds: Mapping[str, type]) -> tuple[int, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise BadValue("a JSON object", f"worker link: {e}", _ONE_VERSION) from e
    if not isinstance(body, dict) or not isinstance(body.get("id"), int):
        raise BadValue("a JSON object with an integer id", f"worker link: {line[:80]!r}", _ONE_VERSION)
    op = body.get("op")
    kind = kinds.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadValue(f"one of {', '.join(kinds)}", f"op {op!r} on the worker link", _ONE_VERSION)
    return body["id"], build(kind, body, f"worker link, {op}")


_ONE_VERSION = "use one version of elastic-health on a node"
