"""Identifiers that sort by time, from a passed-in time and passed-in random bytes.

Layout as the public ULID specification has it: 48 bits of milliseconds since the epoch, then 80 random bits, as 26
characters of Crockford's base 32.  Law: text order is time order (to the millisecond).
"""

from __future__ import annotations

RANDOM_BYTES = 10
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_MAX_MS = (1 << 48) - 1


def ulid(at: float, random: bytes) -> str:
    """An identifier for a thing that happened at `at`.

    Args:
        at: seconds since the epoch; clamped to what 48 bits of milliseconds hold.
        random: `RANDOM_BYTES` bytes, e.g. from `os.urandom`.

    Raises:
        ValueError: `random` has another length.
    """
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"ulid needs {RANDOM_BYTES} random bytes, got {len(random)}")
    ms = min(max(int(at * 1000), 0), _MAX_MS)
    bits = (ms << 80) | int.from_bytes(random, "big")
    return "".join(_ALPHABET[(bits >> shift) & 31] for shift in range(125, -1, -5))


def ulid_time_s(ident: str) -> float:
    """The time (seconds since the epoch) that an identifier was made from.

    Raises:
        ValueError: not 26 characters of the alphabet.
    """
    if len(ident) != 26:
        raise ValueError(f"a ulid has 26 characters, not {len(ident)}")
    bits = 0
    for char in ident.upper():
        bits = (bits << 5) | _ALPHABET.index(char)
    return (bits >> 80) / 1000.0
