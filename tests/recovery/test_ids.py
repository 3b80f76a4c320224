"""Identifiers whose text order is time order."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from elastic_health.ids import RANDOM_BYTES, ulid, ulid_time_s


def test_known_value_of_the_public_specification() -> None:
    assert ulid(1469918176.385, bytes(RANDOM_BYTES)).startswith("01ARYZ6S41")
    assert ulid(0.0, bytes(RANDOM_BYTES)) == "0" * 26


@given(st.integers(0, 2**47), st.integers(0, 2**47), st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_order_and_time(a_ms: int, b_ms: int, ra: bytes, rb: bytes) -> None:
    a, b = ulid(a_ms / 1000, ra), ulid(b_ms / 1000, rb)
    if abs(a_ms - b_ms) > 1:
        assert (a < b) == (a_ms < b_ms)
    assert len(a) == 26 and abs(ulid_time_s(a) - a_ms / 1000) <= 0.0021


@pytest.mark.parametrize("length", [0, 9, 11])
def test_needs_ten_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="10 random bytes"):
        ulid(1.0, bytes(length))
