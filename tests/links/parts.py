"""Pieces for tests of real links: a recorder of events, and peers in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from elastic_health.agents.link_types import LinkEvent, LinkHello, LinkLimits, LinkTiming
from elastic_health.agents.links_net import LinkListener

SECRET = bytes(range(32))
FAST = LinkTiming(timeout_s=0.9, handshake_s=0.9)
PATIENCE_S = 15.0
E = TypeVar("E")


class Heard:
    """Collects events of the link thread and waits for the one that is asked for."""

    def __init__(self) -> None:
        self.events: list[LinkEvent] = []
        self._changed = threading.Condition()

    def __call__(self, event: LinkEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, kind: type[E], where: Callable[[E], bool] = lambda _: True, within_s: float = PATIENCE_S) -> E:
        def found() -> E | None:
            return next((e for e in self.events if isinstance(e, kind) and where(e)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, within_s), f"no {kind.__name__} among {self.events}"
            event = found()
        assert event is not None
        return event

    def of(self, kind: type[E]) -> list[E]:
        with self._changed:
            return [e for e in self.events if isinstance(e, kind)]


def agent(
    node: str,
    heard: Callable[[LinkEvent], None] | None = None,
    *,
    secret: bytes = SECRET,
    run: str = "run",
    host: str = "127.0.0.1",
    port: int = 0,
    timing: LinkTiming = FAST,
    limits: LinkLimits | None = None,
) -> LinkListener:
    """Links of one agent in this process; its incarnation is `<node>-1`."""
    hello = LinkHello(run, node, f"{node}-1")
    return LinkListener(secret, host, heard or Heard(), hello=hello, port=port, timing=timing, limits=limits)


class Process:
    """A running `peer.py`."""

    def __init__(self, command: list[str]) -> None:
        root = str(Path(__file__).parents[2])
        env = {**os.environ, "PYTHONPATH": root}
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=root)
        self.address = self.line()

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait(PATIENCE_S)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def process(
    node: str, incarnation: str = "1", *, port: int = 0, host: str = "127.0.0.1", extra: str = "", inside: tuple[str, ...] = ()
) -> Iterator[Process]:
    """A peer in a process of its own; `inside`: the command that it runs under."""
    command = [*inside, sys.executable, str(Path(__file__).parent / "peer.py")]
    started = Process([*command, SECRET.hex(), node, incarnation, host, str(port), str(FAST.timeout_s), extra])
    try:
        yield started
    finally:
        started.end()


def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait for a condition that no event announces."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "condition never came true"
        time.sleep(0.01)
