"""The offset of this host's clock, bounded by what others say about theirs.

etcd has no clock in its API.  Its HTTP server has one: every answer carries a `Date` (RFC 9110, 6.6.1), in whole seconds, so
one question bounds the offset to about a second, and several that straddle a tick bound it more closely.  Stamps (`at`) that
other agents write into the store bound it from one side: a value can't have been written after it was received.

Law: with true clocks elsewhere, the offset lies in every sample's interval.  Where samples contradict each other somebody
else's clock is wrong, and the sample that speaks best of this host holds: it is not accused by a clock that may be wrong itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

RESOLUTION_S = 1.0
"""Of a `Date` header."""
DATE_FORM = "%a, %d %b %Y %H:%M:%S GMT"
"""IMF-fixdate, RFC 9110, 5.6.7."""


@dataclass(frozen=True)
class ClockSample:
    """One look at another clock, all in seconds since the epoch.

    Attributes:
        sent, received: this host's clock before and after.
        earliest, latest: bounds of the other clock at some moment in between.
    """

    sent: float
    received: float
    earliest: float
    latest: float


@dataclass(frozen=True)
class Offset:
    """This host's clock minus the others', in seconds: at least `low`, at most `high`."""

    low: float
    high: float

    @property
    def least(self) -> float:
        """The smallest offset that explains what was seen; 0 where none is needed."""
        if self.low > 0:
            return self.low
        return self.high if self.high < 0 else 0.0


def from_date(sent: float, received: float, header: str) -> ClockSample | None:
    """A sample from an HTTP answer's `Date`; None where the header can't be read."""
    try:
        at = datetime.strptime(header.strip(), DATE_FORM).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    return ClockSample(sent, received, at, at + RESOLUTION_S)


def from_stamp(received: float, at: float) -> ClockSample:
    """A sample from a stamp in the store: the other clock showed at least `at` when the value was received."""
    return ClockSample(-math.inf, received, at, math.inf)


def offset(samples: Iterable[ClockSample]) -> Offset | None:
    """What all samples leave possible; None without a usable one (a clock that was set between sending and receiving)."""
    found = [Offset(s.sent - s.latest, s.received - s.earliest) for s in samples if s.received >= s.sent]
    if not found:
        return None
    low, high = max(o.low for o in found), min(o.high for o in found)
    return Offset(low, high) if low <= high else min(found, key=lambda o: abs(o.least))
