"""A person is called once a run, within a time limit, and no failure of the call harms the run."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.pager_net import Page, Paged, deliver, page_once
from elastic_health.policies import PagePolicy
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.session_etcd import EtcdSession
from tests.etcd_fixture import etcd_cluster

pytestmark = pytest.mark.spec("R6")
KEYS = RunKeys("demo")


def page(node: str = "node-a") -> Page:
    return Page(f"01{node}", "demo", 4, "cap reached: 3 restarts within the last hour", 82, node, "2025-01-01T00:00:00Z")


@pytest.fixture
def heard() -> Iterator[tuple[str, list[dict[str, object]]]]:
    got: list[dict[str, object]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_of_many_agents_one_pages(tmp_path: Path) -> None:
    out = tmp_path / "out"
    policy = PagePolicy(command=(sys.executable, "-c", f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read())"))
    with etcd_cluster(1) as etcd:
        store = EtcdSession.connect(etcd.endpoints)
        results = [page_once(store, KEYS, policy, page(node), {}) for node in ("node-a", "node-b", "node-c")]
        store.close()
    assert results == [Paged(True, True), Paged(False, False), Paged(False, False)]
    assert out.read_text().count("\n") == 1 and "cap reached" in out.read_text() and "82" in out.read_text()


def test_webhook_gets_json_and_its_url_stays_out_of_messages(heard: tuple[str, list[dict[str, object]]]) -> None:
    url, got = heard
    assert deliver(PagePolicy(webhook=url), page(), {}) == Paged(True, True)
    assert deliver(PagePolicy(webhook_env="HOOK"), page(), {"HOOK": url}) == Paged(True, True)
    assert got[0] == got[1] and (got[0]["run"], got[0]["exit_status"]) == ("demo", 82) and "cap reached" in str(got[0]["text"])
    refused = deliver(PagePolicy(webhook=url + "/broken"), page(), {})
    assert not refused.delivered and url not in str(refused.trouble)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (PagePolicy(command=("/nonexistent/notify",)), "could not be started"),
        (PagePolicy(command=(sys.executable, "-c", "raise SystemExit(3)")), "status 3"),
        (PagePolicy(command=(sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.2), "longer than 0.2 s"),
        (PagePolicy(webhook="http://127.0.0.1:1/", timeout_s=1.0), "failed"),
        (PagePolicy(webhook="http://[bad", timeout_s=1.0), "failed"),
        (PagePolicy(webhook_env="UNSET"), "UNSET is not set"),
    ],
)
def test_trouble_is_told_not_raised(policy: PagePolicy, says: str) -> None:
    got = deliver(policy, page(), {})
    assert got.claimed and not got.delivered and says in " ".join(got.trouble)


def test_without_anything_to_call_nothing_is_wrong() -> None:
    assert deliver(PagePolicy(), page(), {}) == Paged(True, False)
