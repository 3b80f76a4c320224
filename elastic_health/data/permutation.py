"""A keyed permutation of 0 … n-1 with random access: any element in O(1) time and memory, also at n = 10**12.

Law: for each (seed, epoch, n) `permute` is a bijection of range(n), and its values never change between versions of
the package (golden values in the tests hold it): a run that resumes next year must see the same order.

Construction: n is laid out as a grid of a rows and b columns, a = ceil(sqrt n), b = ceil(n / a).  Rounds move each cell
alternately within its column and within its row by a keyed pseudorandom distance (a generalised Feistel network on
Z_a x Z_b: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002); a value that lands at or above n
is sent through again (cycle walking; the grid has fewer than sqrt n spare cells, so this is rare).  The round function
is the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) on column or row XOR round key; the round keys
are BLAKE2b digests of seed, epoch and n.  It shuffles; it is no encryption.

Rounds: a small grid offers few moves a round and mixes slowly.  Measured over all orders of 6 samples, chi-squared lies
140 standard deviations off after 8 rounds, 10 after 12, 2 after 16 and none after 24; so small data sets get 24.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from math import isqrt

from elastic_health.errors import DataError

SMALL = 2**16
"""Below it the grid counts as small."""
ROUNDS, ROUNDS_SMALL = 8, 24
"""A multiple of 8: round keys are the words of 64-byte digests."""
MAX_N = 2**62
"""Rows and columns stay below 2**31 and all sums below 2**63, so that a signed 64-bit twin can follow."""
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1


def grid(n: int) -> tuple[int, int]:
    """Rows and columns of the grid for n: the smallest near-square one that holds n cells.

    Raises:
        DataError: n is not in 1 … MAX_N.
    """
    if not 1 <= n <= MAX_N:
        raise DataError(f"a data set of 1 to {MAX_N} samples", f"{n}", "pass len(dataset)")
    rows = isqrt(n - 1) + 1
    return rows, -(-n // rows)


@lru_cache(maxsize=64)
def round_keys(n: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Unsigned 64-bit keys, one a round: little-endian words of BLAKE2b over the texts `seed/epoch/n/block`."""
    blocks = (ROUNDS_SMALL if n < SMALL else ROUNDS) // 8
    texts = (f"{seed}/{epoch}/{n}/{block}" for block in range(blocks))
    words = b"".join(blake2b(text.encode(), person=b"eh permutation 1").digest() for text in texts)
    return tuple(int.from_bytes(words[i : i + 8], "little") for i in range(0, len(words), 8))


def distance(key: int, x: int, modulus: int) -> int:
    """How far a cell moves: a pseudorandom number below `modulus` (top 63 bits of the mixed word)."""
    z = x ^ key
    z = (z ^ (z >> 30)) * MIX_1 & _MASK
    z = (z ^ (z >> 27)) * MIX_2 & _MASK
    return ((z ^ (z >> 31)) >> 1) % modulus


def permute(i: int, n: int, seed: int, epoch: int) -> int:
    """The element at place `i` (0 <= i < n) of epoch `epoch`'s order."""
    rows, columns = grid(n)
    keys = round_keys(n, seed, epoch)
    x = i
    while True:
        r, c = divmod(x, columns)
        for turn, key in enumerate(keys):
            if turn % 2 == 0:
                r = (r + distance(key, c, rows)) % rows
            else:
                c = (c + distance(key, r, columns)) % columns
        x = r * columns + c
        if x < n:
            return x


def place_of(j: int, n: int, seed: int, epoch: int) -> int:
    """The inverse of `permute`: at which place of epoch `epoch` element `j` comes."""
    rows, columns = grid(n)
    keys = round_keys(n, seed, epoch)
    x = j
    while True:
        r, c = divmod(x, columns)
        for turn in reversed(range(len(keys))):
            if turn % 2 == 0:
                r = (r - distance(keys[turn], c, rows)) % rows
            else:
                c = (c - distance(keys[turn], r, columns)) % columns
        x = r * columns + c
        if x < n:
            return x
