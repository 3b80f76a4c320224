"""The clock's offset: bounded by samples, never invented by them; asked of HTTP servers and of real etcds."""

from __future__ import annotations

import http.server
import math
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from elastic_health.findings import FindingKind
from elastic_health.preflight.clock import ClockSample, from_date, from_stamp, offset
from elastic_health.preflight.clock_net import ask_clock
from elastic_health.preflight.host_facts import (
    HostFacts,
    Part,
)
from elastic_health.preflight.host_limits import HostLimits
from elastic_health.preflight.results import Outcome
from tests.certificates import make_certificates, server_flags
from tests.etcd_fixture import Etcd, etcd_cluster, wait_until
from tests.preflight.hosts import judged, only

pytestmark = pytest.mark.spec("P5")

# ---- judgement


@pytest.mark.parametrize(
    ("ahead_s", "outcome"),
    [(0.0, Outcome.PASS), (0.9, Outcome.PASS), (5.0, Outcome.WARN), (-5.0, Outcome.WARN), (60.0, Outcome.FAIL), (-3600.0, Outcome.FAIL)],
)
def test_clock(ahead_s: float, outcome: Outcome) -> None:
    true = 1_700_000_000.25
    sample = ClockSample(true + ahead_s, true + ahead_s + 0.01, math.floor(true), math.floor(true) + 1.0)
    result = judged(HostFacts(), clock=(sample,))
    assert result.outcome is outcome
    if outcome is not Outcome.PASS:
        found = only(result)
        assert (
            found.kind is FindingKind.CLOCK_OFFSET
            and ("ahead" in found.reason) is (ahead_s > 0)
            and abs(ahead_s) - 1 <= (found.measured or 0)
        )


def test_a_store_that_tells_no_time_is_not_measured_and_none_is_no_finding() -> None:
    assert judged(HostFacts(), clock=()).outcome is Outcome.NOT_MEASURED
    assert judged(HostFacts(), clock=None).outcome is Outcome.PASS
    assert judged(HostFacts(), HostLimits(parts=(Part.MEMORY,)), clock=()).outcome is Outcome.PASS


@given(st.floats(-5000, 5000), st.lists(st.tuples(st.floats(0, 100), st.floats(0, 2)), min_size=1, max_size=6))
def test_the_true_offset_is_never_outside_of_what_samples_leave_possible(true: float, looks: list[tuple[float, float]]) -> None:
    samples = []
    for at, trip in looks:
        other = 1e6 + at + trip / 2  # the other clock, somewhere between sending and receiving
        samples.append(ClockSample(1e6 + at + true, 1e6 + at + trip + true, float(math.floor(other)), math.floor(other) + 1.0))
    found = offset(samples)
    assert found is not None and found.low - 1e-6 <= true <= found.high + 1e-6
    assert abs(found.least) <= abs(true) + 1e-6


def test_a_stamp_from_the_future_bounds_the_offset_and_one_from_the_past_says_nothing() -> None:
    behind = offset([from_stamp(1000.0, 1042.0)])
    assert behind is not None and behind.least == -42.0
    fine = offset([from_stamp(1000.0, 400.0)])
    assert fine is not None and fine.least == 0.0


def test_clocks_that_contradict_each_other_accuse_nobody_by_the_worse_one() -> None:
    right, wrong = ClockSample(1000.0, 1000.0, 999.5, 1000.5), ClockSample(1000.0, 1000.0, 4000.0, 4001.0)
    found = offset([wrong, right])
    assert found is not None and found.least == 0.0


def test_a_clock_that_was_set_in_between_is_no_sample() -> None:
    assert offset([ClockSample(1000.0, 990.0, 1.0, 2.0)]) is None and offset([]) is None


def test_dates_are_read_as_http_writes_them() -> None:
    assert from_date(1.0, 2.0, "Sun, 06 Nov 1994 08:49:37 GMT") == ClockSample(1.0, 2.0, 784111777.0, 784111778.0)
    for bad in ("", "yesterday", "1994-11-06T08:49:37Z", "Sun, 06 Nov 1994 08:49:37 CET"):
        assert from_date(1.0, 2.0, bad) is None


# ---- asking


class _Clock(http.server.BaseHTTPRequestHandler):
    ahead_s = 0.0

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(int(time.time() + self.ahead_s))

    def do_GET(self) -> None:
        self.send_response(503 if self.path != "/version" else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.parametrize("ahead_s", [0.0, 120.0, -120.0])
def test_the_date_of_an_answer_bounds_our_offset(ahead_s: float) -> None:
    handler = type("Handler", (_Clock,), {"ahead_s": ahead_s})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = offset(ask_clock([("127.0.0.1", 1), ("127.0.0.1", server.server_port)]))
        server.shutdown()
        thread.join()
    assert found is not None and found.low <= -ahead_s + 0.01 and found.high >= -ahead_s - 0.01
    assert found.high - found.low < 1.5


def test_nobody_answers() -> None:
    assert ask_clock([("127.0.0.1", 1)]) == () and ask_clock([]) == ()


def test_the_probe_is_quiet_where_http_is_not_spoken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            conversation, _ = listener.accept()
            with conversation:
                conversation.recv(100)
                conversation.sendall(b"\x00\x00\x12garbage\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask_clock([("127.0.0.1", listener.getsockname()[1])]) == ()
        thread.join()


def test_a_real_etcd_tells_the_time_and_a_frozen_one_is_passed_over() -> None:
    with etcd_cluster(1) as cluster:
        endpoint = ("127.0.0.1", cluster.members[0].client_port)
        found = offset(ask_clock([endpoint]))
        assert found is not None and abs(found.least) < 1.0
        cluster.members[0].freeze()
        started = time.monotonic()
        assert ask_clock([endpoint], timeout_s=0.3) == () and time.monotonic() - started < 5.0
        cluster.members[0].thaw()


def test_an_etcd_with_tls_and_client_certificates_tells_the_time(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    etcd = Etcd(tmp_path, "m0", server_flags(tmp_path), scheme="https")
    context = ssl.create_default_context(cafile=f"{tmp_path}/ca.pem")
    context.load_cert_chain(f"{tmp_path}/client.pem", f"{tmp_path}/client.key")
    endpoint = ("127.0.0.1", etcd.client_port)
    etcd.start()
    try:
        etcd.wait_healthy()
        wait_until(lambda: ask_clock([endpoint], context), "etcd answers over TLS")
        assert len(ask_clock([endpoint], context, "etcd.test")) == 1
        assert ask_clock([endpoint], context, "another.name") == ()
        assert ask_clock([endpoint], ssl.create_default_context()) == () and ask_clock([endpoint]) == ()
    finally:
        etcd.stop()
