"""The gate's thread in the agent: one answer a preflight, none of one that was cancelled, and never a hang of the loop."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from elastic_health.agents.gatekeeper_proc import Gatekeeper
from elastic_health.codec import load
from elastic_health.config.validate import parse
from elastic_health.generations import RunSpec
from elastic_health.incidents import Record
from elastic_health.preflight import admission_proc
from elastic_health.preflight.standing import Standing
from elastic_health.preflight.standing_etcd import read, write
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.membership import start
from elastic_health.rendezvous.memory import MemoryStore
from elastic_health.rendezvous.memory_session import MemorySession
from elastic_health.rendezvous.state import Me, Settings
from elastic_health.variables import REPAIRED

pytestmark = pytest.mark.spec("P7")
KEYS, FLEET = RunKeys("job"), FleetKeys()
SOON_S = 20.0
NOTHING = "host: {stages: []}, canary: {stages: []}, bandwidth: {stages: []}, dcgm: {levels: {join: 0, after_repair: 0}}"


class Gate:
    """A gatekeeper on an in-memory store, and what it answered."""

    def __init__(self, rest: str, environ: Mapping[str, str] | None = None) -> None:
        self.store = MemorySession(MemoryStore())
        self.answers: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        policy = parse(f"preflight: {{{NOTHING}{', ' if rest else ''}{rest}}}").policies().preflight
        me = Me("n1", "i0", "127.0.0.1:1", 1, RunSpec(1, 1, "", "", 0))
        state = start(Settings(KEYS, me), ev.Clock(0.0, 0.0))
        self.keeper = Gatekeeper(
            policy, self.store, None, environ or {}, lambda: state, lambda: f"id{time.monotonic_ns()}", self.answers.put
        )

    def answer(self, stage: str = "join") -> ev.PreflightDone:
        self.keeper.preflight(stage)
        found = self.answers.get(timeout=SOON_S)
        assert isinstance(found, ev.PreflightDone)
        return found

    def silent(self) -> bool:
        self.keeper.stop()
        return self.answers.empty()

    @property
    def records(self) -> list[Record]:
        return [load(Record, kv.value, kv.key) for kv in self.store.range(KEYS.records).kvs]

    def standing(self) -> Standing | None:
        """Written behind the answer."""
        self.keeper.stop()
        return read(self.store, FLEET, "n1")


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "stages"


def check(folder: Path, body: str, name: str = "own-check", **more: object) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    rest = "".join(f", {k}: {v}" for k, v in more.items())
    return f"own: [{{name: {name}, command: [{path}], stages: [join, restart, after_repair]{rest}}}]"


def test_without_checks_the_answer_is_there_at_once() -> None:
    gate = Gate("")
    gate.keeper.preflight("restart")
    assert gate.answers.get_nowait() == ev.PreflightDone(True) and gate.standing() is None


def test_own_checks_of_one_stage_alone(tmp_path: Path) -> None:
    gate = Gate(check(tmp_path, "exit 1").replace("[join, restart, after_repair]", "[after_repair]"))
    assert gate.answer("restart").fit and gate.answer("join").fit


def test_a_fit_node_is_let_in_and_remembered(tmp_path: Path) -> None:
    gate = Gate(check(tmp_path, "exit 0"))
    assert gate.answer() == ev.PreflightDone(True)
    found = gate.standing()
    assert found is not None and (found.verdict, found.stage, found.failures) == ("admit", "join", 0) and not gate.records


def test_a_failing_one_is_recorded_before_it_is_answered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gate = Gate(check(tmp_path, "echo too hot; exit 1"))
    said = gate.answer()
    (found,) = gate.records
    assert not said.fit and "own-check: it ended with status 1: too hot" in said.reason
    assert (found.action, found.decision, found.nodes, found.done, found.signature) == (
        "preflight",
        "refuse",
        ("n1",),
        True,
        "own-check:own_check",
    )
    assert "too hot" in capfd.readouterr().err and [c["why"] for c in found.details["checks"]] == ["failed"]
    again = gate.answer("restart")
    assert not again.fit and "(restart)" in again.reason
    found_now = gate.standing()
    assert found_now is not None and found_now.failures == 2


def test_observe_only_lets_it_in_with_the_same_record(tmp_path: Path) -> None:
    gate = Gate(f"mode: observe_only, {check(tmp_path, 'exit 1')}")
    assert gate.answer() == ev.PreflightDone(True)
    assert [(r.decision, r.done) for r in gate.records] == [("admit_observed", False)]


def test_a_newer_preflight_ends_the_older_one(tmp_path: Path) -> None:
    gate = Gate(check(tmp_path, f"test -e {tmp_path}/second || {{ touch {tmp_path}/begun; sleep 1000; }}", time_limit_s=500.0))
    gate.keeper.preflight("join")
    deadline = time.monotonic() + SOON_S
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "second").touch()
    assert gate.answer() == ev.PreflightDone(True)
    assert gate.silent() and not gate.records


def test_stop_ends_what_runs_and_answers_nothing(tmp_path: Path) -> None:
    gate = Gate(check(tmp_path, f"touch {tmp_path}/begun; exec sleep 1000", time_limit_s=500.0))
    gate.keeper.preflight("join")
    deadline = time.monotonic() + SOON_S
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    began = time.monotonic()
    assert gate.silent() and time.monotonic() - began < 5.0
    assert not any(t.name == "eh-preflight" and t.is_alive() for t in threading.enumerate())


def test_a_store_that_is_out_keeps_nobody_out(tmp_path: Path) -> None:
    gate = Gate(check(tmp_path, "exit 0"))
    gate.store.set_down(True)
    assert gate.answer() == ev.PreflightDone(True)
    bad = Gate(check(tmp_path, "exit 1", "other"))
    bad.store.set_down(True)
    assert not bad.answer().fit


def test_a_gate_that_breaks_lets_the_node_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_proc, "run_stage", lambda *args, **more: 1 // 0)
    assert Gate(check(tmp_path, "exit 1")).answer() == ev.PreflightDone(True)


def test_the_stage_of_a_node_that_was_repaired(tmp_path: Path) -> None:
    stages = tmp_path / "stages"
    body = f'echo "$ELASTIC_HEALTH_CHECK" | sed \'s/.*"stage":"\\([a-z_]*\\)".*/\\1/\' >> {stages}'

    def seen(gate: Gate, *asked: str) -> list[str]:
        stages.write_text("")
        for stage in asked:
            assert gate.answer(stage).fit
            gate.keeper.stop()  # what it came to is written
        return stages.read_text().split()

    assert seen(Gate(check(tmp_path, body)), "join", "restart", "join") == ["join", "restart", "join"]
    assert seen(Gate(check(tmp_path, body), {REPAIRED: "1"}), "join", "restart", "join") == ["after_repair", "restart", "join"]
    listed = Gate(check(tmp_path, body))
    write(listed.store, FLEET, Standing("n1", quarantined=True), "")
    assert seen(listed, "restart", "join", "join") == ["restart", "after_repair", "join"]
    left = Gate(check(tmp_path, body))
    left.keeper.left_quarantined()
    assert seen(left, "join") == ["after_repair"]
