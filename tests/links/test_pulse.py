"""Silence, pings and what a pause of one's own process is worth."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from elastic_health.agents.link_pulse import Pulse, PulseState, forgive, judge_pulse
from elastic_health.agents.link_types import LinkTiming

TIMING = LinkTiming(timeout_s=3.0)


@pytest.mark.parametrize(
    ("pulse", "now", "state"),
    [
        (Pulse(10.0, 10.0), 10.9, PulseState.STEADY),
        (Pulse(10.0, 10.0), 11.0, PulseState.PING_DUE),
        (Pulse(10.0, 12.5), 13.0, PulseState.STEADY),
        (Pulse(10.0, 12.5), 13.1, PulseState.SILENT),
    ],
)
def test_states(pulse: Pulse, now: float, state: PulseState) -> None:
    assert judge_pulse(pulse, now, TIMING) is state


@given(st.floats(0, 100), st.floats(0, 1000), st.floats(0, 3))
def test_after_a_pause_the_other_side_has_a_beat_to_speak(heard_at: float, gap_s: float, idle_s: float) -> None:
    now = heard_at + gap_s + idle_s
    after = forgive(Pulse(heard_at, heard_at), now, gap_s, TIMING)
    assert judge_pulse(after, now + TIMING.beat_s, TIMING) is not PulseState.SILENT
    assert after.heard_at <= now
    assert judge_pulse(after, now + TIMING.timeout_s + 0.01, TIMING) is PulseState.SILENT  # forgiven, not forgotten
