"""When silence on a link means that it is broken.

Law: silence is the other side's only while this side ran: a pause of this process is discounted, and then the other
side has a beat to be heard before it is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from elastic_health.agents.link_types import LinkTiming


@dataclass(frozen=True)
class Pulse:
    """When this side last heard and last spoke, in seconds of its own monotonic clock."""

    heard_at: float
    sent_at: float


class PulseState(Enum):
    STEADY = "steady"
    PING_DUE = "ping_due"
    SILENT = "silent"


def judge_pulse(pulse: Pulse, now: float, timing: LinkTiming) -> PulseState:
    """Whether the link is broken by silence, or a ping is due so that the other side doesn't think so of this one."""
    if now - pulse.heard_at > timing.timeout_s:
        return PulseState.SILENT
    return PulseState.PING_DUE if now - pulse.sent_at >= timing.beat_s else PulseState.STEADY


def forgive(pulse: Pulse, now: float, gap_s: float, timing: LinkTiming) -> Pulse:
    """After this side itself did not run for `gap_s`: that time is not the other side's silence, and it gets a beat to speak in."""
    heard = max(pulse.heard_at + gap_s, now - timing.timeout_s + timing.forgiveness_s)
    return replace(pulse, heard_at=min(heard, now))
