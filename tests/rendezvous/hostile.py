"""What nobody of us writes: every key of the layout, and values that none of them may hold."""

from __future__ import annotations

import json
from collections.abc import Mapping

from elastic_health.generations import checkpoint_name
from elastic_health.rendezvous.keys import FleetKeys, RunKeys

BAD: Mapping[str, bytes] = {
    "broken": b'{"v":1,"genera',
    "not an object": b"[1,2,3]",
    "wrong types": b'{"v":1,"generation":"two","number":[],"kind":7,"step":{},"start":"x","restarts":"many","until":"never","host":3,'
    b'"node":5,"secret":9,"id":[],"nodes":"all"}',
    "another schema": b'{"v":2,"at":"2031-01-01T00:00:00Z","by":"node-z","generation":1}',
    "no text": b"\xff\xfe\x00\x80",
    "deep": b"[" * 200_000,
    "huge": json.dumps({"generation": "x" * 1_000_000, "junk": ["y" * 1000] * 200}).encode(),
    "huge number": b'{"generation":1' + b"0" * 3000 + b"}",
    "empty": b"",
}


def kinds(keys: RunKeys, g: int, member: tuple[str, str] = ("a", "x-0")) -> dict[str, str]:
    """Every kind of key of a run in generation `g`, by its name; `member` is one of its members."""
    return {
        "current": keys.current,
        "generation": keys.generation(g),
        "verdict": keys.verdict(g),
        "store": keys.store(g),
        "budget": keys.budget,
        "own candidate": keys.candidate(*member),
        "a candidate": keys.candidate("stranger", "y-0"),
        "a checkpoint": keys.checkpoint(checkpoint_name(40, g)),
        "a skip": keys.skip("s"),
        "a record": keys.record("01A"),
        "an incident": keys.incident("01A"),
        "paged": keys.paged,
        "progress": keys.progress,
        "summary": keys.summary,
        "secret": keys.secret,
        "an older layout": f"{keys.root}members/0",
        "a key without a name": keys.candidates,
        "a strange number": f"{keys.generations}seven",
        "quarantine": FleetKeys(keys.prefix).quarantined_node("stranger"),
        "unknown to the fleet": f"{keys.prefix}nodes/a",
        "a run without keys": f"{keys.prefix}runs/other",
    }
