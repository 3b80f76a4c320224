"""All links of one agent: one thread, one selector, from the listening socket to the last byte.

Law: only the link thread touches sockets and machines; others post calls to it (bounded) and are never blocked by a
peer.  Foreign, silent and slow connections are bounded in number, bytes and time, and disturb no other link.  Silence
is judged only after reading, and time in which this process itself did not run is no peer's silence.
"""

from __future__ import annotations

import collections
import errno
import itertools
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from elastic_health.agents import link_sockets_net as sockets
from elastic_health.agents.addresses_net import HostPort, Resolved, resolve_without_blocking
from elastic_health.agents.link_door_net import Door, Warnings
from elastic_health.agents.link_pulse import Pulse, PulseState, forgive, judge_pulse
from elastic_health.agents.link_types import (
    DialFailed,
    Direction,
    Down,
    DownReason,
    LinkEvent,
    LinkHello,
    LinkLimits,
    LinkTiming,
    Message,
    Peer,
    Purpose,
    Up,
)
from elastic_health.agents.link_wire_net import Closing, Wire, new_machine, verdict_of
from elastic_health.agents.links import Got, LinkOutcome, Opened, Unknown, encode
from elastic_health.messages import Ping

log = logging.getLogger("elastic_health.links")
OnEvent = Callable[[LinkEvent], None]
Call = Callable[[], object]

LINGER_S = 1.0
_PING = encode(Ping())


class LinkThread:
    """The thread of an agent's links; `elastic_health.agents.links_net` has what others call.

    Args:
        secret: the run's secret.
        hello: who this agent is; each dial fills in `generation` and `purpose`.
        on_event: called in the link thread, one event at a time; must return soon, may call any public method.
    """

    def __init__(
        self, secret: bytes, hello: LinkHello, on_event: OnEvent, *, timing: LinkTiming | None = None, limits: LinkLimits | None = None
    ) -> None:
        self.hello, self.timing, self.limits = hello, timing or LinkTiming(), limits or LinkLimits()
        self._secret, self._on_event = secret, on_event
        self._selector = selectors.DefaultSelector()
        self._warnings = Warnings()
        self._door: Door | None = None
        self._wires: dict[int, Wire] = {}
        self._pending: dict[int, Wire] = {}
        self._newest: dict[tuple[str, str], int] = {}
        self._numbers = itertools.count(1)
        self._calls: collections.deque[Call] = collections.deque()
        self._asleep, self._next_sweep = False, 0.0
        self._waker, self._woken = socket.socketpair()
        self._closing, self._closed = False, threading.Event()
        for sock in (self._waker, self._woken):
            sock.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="eh-links", daemon=True)

    # ---- calls from other threads
    def _post(self, call: Call) -> None:
        self._calls.append(call)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError:  # already full, so it wakes anyway; or closed, so nobody sleeps
            return

    # ---- the link thread
    def _run(self) -> None:
        try:
            self._turn_until_closing()
            self._leave_all()
        except Exception:  # whatever it is, it is shown, and the links end rather than stay silently dead
            log.exception("the link thread failed; all links of this agent end")
            for wire in self._up_wires(None):
                self._end(wire, Closing(DownReason.RESET, "this agent's link thread failed"), time.monotonic())
        finally:
            for wire in list(self._wires.values()):
                self._forget(wire)
            self.close_files()
            self._closed.set()

    def _turn_until_closing(self) -> None:
        looked_at = time.monotonic()
        while not self._closing:
            nap_s = max(0.0, self._next_sweep - time.monotonic())
            ready = self._sleep(nap_s)
            now = time.monotonic()
            self._discount(now, now - looked_at - nap_s)
            looked_at = now
            self._turn(ready, now)
            if now >= self._next_sweep:
                self._sweep(now)

    def _sleep(self, nap_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        self._asleep = True
        ready = self._selector.select(0.0 if self._calls else nap_s)
        self._asleep = False
        return ready

    def _discount(self, now: float, gap_s: float) -> None:
        if gap_s <= self.timing.beat_s / 2:
            return
        level = logging.INFO if gap_s > self.timing.timeout_s else logging.DEBUG
        log.log(level, "the link thread did not run for %.1f s; that is not counted as silence of others", gap_s)
        for wire in self._wires.values():
            wire.pulse = forgive(wire.pulse, now, gap_s, self.timing)
            wire.until += gap_s

    def _turn(self, ready: list[tuple[selectors.SelectorKey, int]], now: float) -> None:
        self._run_calls()
        for key, mask in ready:
            if isinstance(key.data, Wire):
                if key.data.sock is key.fileobj:  # else it was closed earlier in this turn
                    self._serve(key.data, mask, now)
            elif key.data is not None:
                self._accept(now)
            else:
                self._woken.recv(4096)
        self._run_calls()

    def _run_calls(self) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def _serve(self, wire: Wire, mask: int, now: float) -> None:
        if wire.connecting:
            why = wire.connected()
            if why is not None:
                self._next_address(wire, why, now)
                return
        elif mask & selectors.EVENT_READ:
            self._read(wire, now)
        if wire.sock is not None:
            self._flush(wire, now)

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + self.timing.beat_s / 4
        if self._door is not None:
            self._door.reopen(now)
        for wire in list(self._wires.values()):
            if wire.up:
                self._judge(wire, now)
            elif now > wire.until:
                self._end(wire, Closing(DownReason.TIMEOUT, "no handshake in time"), now)

    def _judge(self, wire: Wire, now: float) -> None:
        state = judge_pulse(wire.pulse, now, self.timing)
        if state is PulseState.SILENT:
            self._end(wire, Closing(DownReason.TIMEOUT, f"silent for {now - wire.pulse.heard_at:.1f} s"), now)
        elif state is PulseState.PING_DUE and not wire.out:
            self._put(wire.number, _PING, False)

    # ---- beginnings
    def _accept(self, now: float) -> None:
        assert self._door is not None
        for sock, host in self._door.accept(now):
            if len(self._wires) >= self.limits.links:
                sock.close()
                self._warnings.say("", "full", f"{self.limits.links} links are open; a new one was closed (see the limit of open files)")
                continue
            if len(self._pending) >= self.limits.pending:
                oldest = next(iter(self._pending.values()))
                self._end(oldest, Closing(DownReason.TIMEOUT, "pushed out by newer unproven connections"), now)
            self._take(sock, host, now)

    def _take(self, sock: socket.socket, host: str, now: float) -> None:
        sock.setblocking(False)
        try:
            sockets.tune(sock, self.timing)
        except OSError:  # the other side reset it already; reading says so
            log.debug("a connection from %s was gone at once", host)
        machine, until = new_machine(Direction.ACCEPTED, self._secret, self.hello), now + self.timing.handshake_s
        wire = Wire(next(self._numbers), Direction.ACCEPTED, machine, host, until, Pulse(now, now), self._on_event, sock)
        self._wires[wire.number] = self._pending[wire.number] = wire
        self._watch(wire)

    def _start_dial(self, number: int, target: HostPort, hello: LinkHello, until: float, tell: OnEvent) -> None:
        now, machine = time.monotonic(), new_machine(Direction.DIALED, self._secret, hello)
        self._wires[number] = Wire(number, Direction.DIALED, machine, str(target), until, Pulse(now, now), tell)
        resolve_without_blocking(target, lambda found: self._post(lambda: self._resolved(number, found)))

    def _resolved(self, number: int, found: Resolved) -> None:
        wire = self._wires.get(number)
        if wire is None:
            return
        wire.left = list(found.addresses)
        if not wire.left:
            wire.failed.append(Closing(DownReason.UNREACHABLE, f"no address for this name: {found.error}"))
        self._try_next(wire, time.monotonic())

    def _try_next(self, wire: Wire, now: float) -> None:
        if not wire.left:
            self._end(wire, verdict_of(wire.failed), now)
            return
        try:
            sock, error = sockets.start_connect(*wire.left.pop(0), self.timing)
        except OSError as e:
            self._next_address(wire, Closing(sockets.reason_of(e.errno or errno.EIO), os.strerror(e.errno or errno.EIO)), now)
            return
        wire.sock = sock
        if error in (0, errno.EINPROGRESS):
            wire.connecting = True
            self._watch(wire)
        else:
            self._next_address(wire, Closing(sockets.why_not_connected(sock, error), os.strerror(error)), now)

    def _next_address(self, wire: Wire, why: Closing, now: float) -> None:
        self._close_socket(wire)
        wire.failed.append(why)
        self._try_next(wire, now)

    # ---- bytes and messages
    def _read(self, wire: Wire, now: float) -> None:
        outcomes, why = wire.read()
        wire.pulse = replace(wire.pulse, heard_at=now)
        for outcome in outcomes:
            if not wire.leaving:  # the callback may have closed it
                self._deliver(wire, outcome, now)
        if why is not None:
            if why.reason is DownReason.PROTOCOL and wire.sock is not None:
                wire.flush()  # a refusal may be told
            self._end(wire, why, now)

    def _deliver(self, wire: Wire, outcome: LinkOutcome, now: float) -> None:
        if isinstance(outcome, Opened):
            self._opened(wire, outcome.hello, now)
        elif isinstance(outcome, Unknown):
            self._warnings.say(wire.remote, outcome.op, f"a message of unknown kind {outcome.op!r} from {wire.remote} was ignored")
        elif isinstance(outcome, Got) and wire.peer is not None and not isinstance(outcome.message, Ping):
            self._say(wire, Message(wire.peer, outcome.message))

    def _opened(self, wire: Wire, other: LinkHello, now: float) -> None:
        self._pending.pop(wire.number, None)
        wire.pulse = Pulse(now, now)
        dialed = wire.direction is Direction.DIALED
        dialer = wire.link.hello if dialed else other
        wire.peer = Peer(other.node, other.incarnation, dialer.generation, wire.direction, wire.number, wire.remote)
        if dialer.purpose is Purpose.LINK:
            self._newest[wire.peer.who] = wire.number
        if dialer.purpose is Purpose.LINK or dialed:
            self._say(wire, Up(wire.peer))
        if dialer.purpose is Purpose.PROBE:
            self._leave(wire.number)

    def _put(self, number: int, body: bytes, may_drop: bool) -> None:
        wire = self._wires.get(number)
        if wire is None or not wire.up:
            return
        now = time.monotonic()
        why = wire.put(body, may_drop, self.limits)
        if why is not None:
            self._end(wire, why, now)
        else:
            self._flush(wire, now)

    def _put_all(self, body: bytes, may_drop: bool, generation: int | None) -> None:
        for wire in self._up_wires(generation):
            self._put(wire.number, body, may_drop)

    def _up_wires(self, generation: int | None) -> list[Wire]:
        return [w for w in self._wires.values() if w.up and w.peer is not None and generation in (None, w.peer.generation)]

    def _flush(self, wire: Wire, now: float) -> None:
        if wire.out:
            wire.pulse = replace(wire.pulse, sent_at=now)
            why = wire.flush()
            if why is not None:
                self._end(wire, why, now)
                return
        self._watch(wire)

    # ---- ends
    def _end(self, wire: Wire, why: Closing, now: float) -> None:
        """Close a link that failed, and say so: `Down`, `DialFailed`, or for a stranger one warning."""
        self._forget(wire)
        if wire.leaving:
            return
        if wire.peer is not None:
            self._say(wire, Down(wire.peer, why.reason, now, why.detail))
        elif wire.direction is Direction.DIALED:
            self._say(wire, DialFailed(wire.number, wire.remote, why.reason, now, why.detail))
        else:
            text = f"a connection from {wire.remote} was refused ({why.reason.value}): {why.detail}"
            self._warnings.say(wire.remote, why.reason.value, text)

    def _leave(self, number: int) -> None:
        wire = self._wires.get(number)
        if wire is None or wire.leaving:
            return
        now = time.monotonic()
        was_up, wire.leaving, wire.until = wire.up, True, now + LINGER_S
        if not was_up or wire.sock is None:
            self._forget(wire)
        elif wire.flush() is not None:
            self._end(wire, Closing(DownReason.RESET), now)
        else:
            self._watch(wire)

    def _leave_generation(self, generation: int) -> None:
        for wire in self._up_wires(generation):
            self._leave(wire.number)

    def _leave_all(self) -> None:
        self._run_calls()
        if self._door is not None:
            self._door.close()
        for number in list(self._wires):
            self._leave(number)
        until = time.monotonic() + LINGER_S
        while self._wires and (now := time.monotonic()) < until:
            self._turn(self._selector.select(until - now), now)

    def _forget(self, wire: Wire) -> None:
        self._wires.pop(wire.number, None)
        self._pending.pop(wire.number, None)
        if wire.peer is not None and self._newest.get(wire.peer.who) == wire.number:
            del self._newest[wire.peer.who]
        self._close_socket(wire)

    def _close_socket(self, wire: Wire) -> None:
        if wire.sock is None:
            return
        if wire.mask:
            self._selector.unregister(wire.sock)
        wire.sock.close()
        wire.sock, wire.mask, wire.connecting = None, 0, False

    def _watch(self, wire: Wire) -> None:
        if wire.sock is None:
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.out or wire.connecting else 0)
        if wire.mask == mask:
            return
        (self._selector.modify if wire.mask else self._selector.register)(wire.sock, mask, wire)
        wire.mask = mask

    def _say(self, wire: Wire, event: LinkEvent) -> None:
        try:
            wire.tell(event)
        except Exception:  # the caller's own fault must not end the other links; its traceback is shown
            log.exception("the receiver of link events failed on %s", type(event).__name__)

    def close_files(self, *, forked: bool = False) -> None:
        """Close what the thread owns; `forked`: in a child process, where the links themselves are copies to close too."""
        for wire in list(self._wires.values()) if forked else []:
            if wire.sock is not None:
                wire.sock.close()
        if self._door is not None:
            self._door.close()
        self._waker.close()
        self._woken.close()
        self._selector.close()
