"""What a simulated agent's shell does with each effect: one arm a kind, with delays and faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from elastic_health.exits import ExitStatus
from elastic_health.generations import CheckpointState, StoreAddress
from elastic_health.rendezvous import events as ev
from tests.simulator.ledger import need
from tests.simulator.network import LATEST_WRITE_S

if TYPE_CHECKING:
    from tests.simulator.node import Node


LATE_S = 3.0
"""Teardown and telling, after the deadline of a drain."""


def _run_preflight(n: Node, e: ev.RunPreflight) -> None:
    unfit, n.unfit, n.checked = n.unfit, False, False

    def done() -> None:
        n.checked = not unfit
        n.feed(ev.PreflightDone(not unfit, "planted" if unfit else ""))

    n.mine(n.world.clockwork.delay(0.1), done)


def _open_store(n: Node, e: ev.OpenStore) -> None:
    g = e.generation.number
    n.later(n.world.clockwork.delay(), ev.StoreOpened(g, StoreAddress(n.name, g, "")))


def _start_workers(n: Node, e: ev.StartWorkers) -> None:
    n.mine(n.world.clockwork.delay(0.3), lambda: n.spawn(e.generation))


def _stop_workers(n: Node, e: ev.StopWorkers) -> None:
    slow = n.world.clockwork.random.uniform(0.0, max(0.0, e.until - n.now)) if n.crew is not None else 0.0
    n.mine(n.world.clockwork.delay(0.2) + slow / n.rate, lambda: n.reap(e.generation))


def _wish_checkpoint(n: Node, e: ev.WishCheckpoint) -> None:
    if n.crew is not None:
        n.crew.wish = True


def _pass_signal(n: Node, e: ev.PassSignal) -> None:
    """Most programs end by it, some take no notice; who waits for them in a collective fails then."""
    crew, r = n.crew, n.world.clockwork.random
    if crew is None or r.random() < 0.4:
        return

    def end() -> None:
        if n.crew is not crew:
            return
        n.crew = None
        n.feed(ev.WorkersLeft(e.generation, True))
        for peer in n.world.nodes:
            if peer.crew is not None and peer.crew.communicator == crew.communicator and r.random() < 0.5:
                there = peer.crew
                peer.mine(r.uniform(0.02, 0.4), lambda p=peer, c=there: p.end_with_peer(c))  # type: ignore[misc]

    n.mine(r.uniform(0.0, 1.5), end)


def _hold_workers(n: Node, e: ev.HoldWorkers) -> None:
    n.later(n.world.clockwork.delay(), ev.Held(e.generation, n.crew is not None and n.crew.held))


def _commit_answered(n: Node, e: ev.CommitAnswered) -> None:
    crew, c = n.crew, n.world.clockwork
    if e.committed and e.record is not None:
        need("I7", e.record.name in n.world.ledger.checkpoints, f"{e.record.name} is called committed and is not in the store")
        c.note(f"{n.name}: committed {e.record.name}")
    if crew is not None and crew.pending == e.request:
        if e.waits:
            crew.committed = crew.asked
        crew.pending = 0
        if e.committed and e.record is not None:
            crew.committed = e.record.position
        else:
            c.note(f"{n.name}: not committed: {e.reason}")


def _remove_files(n: Node, e: ev.RemoveFiles) -> None:
    name, ledger = e.record.name, n.world.ledger
    need(
        "I8",
        ledger.checkpoints[name].state is CheckpointState.DELETING,
        f"files of {name} go, and its record says {ledger.checkpoints[name].state.value}",
    )
    n.world.removed.add(name)
    # As in an agent: files, and so the record, go later than any write of that record could still land.
    n.later(LATEST_WRITE_S + n.world.clockwork.delay(), ev.FilesGone(name))


def _say(n: Node, e: ev.Say) -> None:
    line = f"{n.name}: {e.what}: {e.text}"
    if line != n._said:  # as the real shell does
        n._said = line
        n.world.clockwork.note(line)


def _leave(n: Node, e: ev.Leave) -> None:
    w = n.world
    w.clockwork.note(f"{n.name}: leaves with {e.status}: {e.text}")
    g = w.ledger.generations.get(w.ledger.current)
    if g is not None and g.number not in w.ledger.verdicts and g.member(*n.state.who) is not None and n.state.view.current < g.number:
        w.unaware += 1
    n.left, n.crew = e.status, None
    w.links.cut(n)
    patience = w.policies.membership.join_timeout_s
    if e.status in (ExitStatus.REPLACED, ExitStatus.NOT_FORMED, ExitStatus.STORE_UNREACHABLE):
        waited = w.clockwork.now - n.outside_since
        need("I6", waited >= patience * 0.9, f"{n.name} gives up ({e.text}) after {waited:.1f} s outside, join timeout {patience:g} s")
    life = n.life
    w.clockwork.after(w.clockwork.random.uniform(1.0, 5.0), lambda: n.boot() if n.life == life and not w.finished else None)


UNSEEN = (ev.Say, ev.WriteRecord)
"""Effects that nobody but people can see: no boundary before them."""
CARRY: Mapping[type, Callable[[Node, Any], object]] = {
    ev.Send: lambda n, e: n.world.send(n, e),
    ev.Attend: lambda n, e: n.mine(n.world.clockwork.delay(), n.attend),
    ev.GrantLease: lambda n, e: n.world.grant(n, e.ttl_s),
    ev.RenewLease: lambda n, e: n.world.renew(n, e.lease),
    ev.RevokeLease: lambda n, e: n.world.revoke(n, e.lease),
    ev.RunPreflight: _run_preflight,
    ev.OpenStore: _open_store,
    ev.StartWorkers: _start_workers,
    ev.StopWorkers: _stop_workers,
    ev.WishCheckpoint: _wish_checkpoint,
    ev.PassSignal: _pass_signal,
    ev.HoldWorkers: _hold_workers,
    ev.TakeUp: lambda n, e: n.take_up(e.generation),
    ev.Connect: lambda n, e: n.world.links.connect(n, e.who),
    ev.CloseLinks: lambda n, e: n.world.links.close(n),
    ev.Tell: lambda n, e: n.world.links.tell(n, e),
    ev.Probe: lambda n, e: n.world.links.probe(n, e.who),
    ev.CommitAnswered: _commit_answered,
    ev.RemoveFiles: _remove_files,
    ev.WriteRecord: lambda n, e: None,
    ev.PageHuman: lambda n, e: n.world.page(n, e.verdict),
    ev.Say: _say,
    ev.Leave: _leave,
}
