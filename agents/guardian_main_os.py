"""The guardian's own program: ends the agent's worker trees when the agent can't.

Law: once the agent's process has ended, or the last deadline it told has passed, every process of the guarded trees is
killed, again and again until none is seen (bounded).  Nothing is killed while the agent lives and its deadline holds.

Runs as `python -I -S <this file> <agent's pid>`: standard library only, a session of its own, deaf to the signals that
end its agent.  Stdin carries one order a line:

    token T, untoken T        guard what carries T in its environment
    root PID STARTED, unroot PID STARTED   guard what descends from or is in the session of a worker
    folder PATH               remove this when the agent is dead
    deadline T                monotonic seconds; `none` takes it back
    bye                       the agent has cleaned up itself: exit
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_health.agents import tree_os
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    tree_os = importlib.import_module("tree_os")

KILL_FOR_S = 20.0
AGAIN_S = 0.02


class Guard:
    """What is guarded, and until when the agent is trusted."""

    def __init__(self) -> None:
        self.tokens: set[str] = set()
        self.roots: set[tree_os.Root] = set()
        self.folders: set[str] = set()
        self.deadline: float | None = None
        self.bye = False

    def obey(self, line: str) -> None:
        """Take one order; an order that makes no sense changes nothing."""
        word, _, rest = line.strip().partition(" ")
        try:
            if word == "token":
                self.tokens.add(rest)
            elif word == "untoken":
                self.tokens.discard(rest)
            elif word == "root":
                self.roots.add(_root(rest))
            elif word == "unroot":
                self.roots.discard(_root(rest))
            elif word == "folder":
                self.folders.add(rest)
            elif word == "deadline":
                self.deadline = None if rest == "none" else float(rest)
            elif word == "bye":
                self.bye = True
        except ValueError:
            return

    def kill(self) -> int:
        """Kill the trees until nothing of them is seen; returns how many processes there were."""
        killed: set[tuple[int, int]] = set()
        end = time.monotonic() + KILL_FOR_S
        while time.monotonic() < end:
            found = tree_os.surely(self.tokens, self.roots)
            if not found:
                break
            # Whoever is seen once stays known: its children lose their parent in this very moment.
            self.roots.update(tree_os.Root(p.pid, p.started) for p in found.values())
            killed.update((p.pid, p.started) for p in found.values())
            tree_os.kill_all(found)
            time.sleep(AGAIN_S)
        return len(killed)


def _root(text: str) -> tree_os.Root:
    pid, started = text.split()
    return tree_os.Root(int(pid), int(started))


def watch(guard: Guard, stdin: int, agent: int) -> None:
    """Obey until the agent says bye or has ended.  Kills whenever the deadline has passed."""
    poll = select.poll()
    poll.register(stdin, select.POLLIN)
    if agent >= 0:
        poll.register(agent, select.POLLIN)
    rest, killed_for = b"", None
    while not guard.bye:
        # All orders that are there come first: a guardian that was frozen too must not judge by an old deadline.
        left = None if guard.deadline in (None, killed_for) else max(0.0, guard.deadline - time.monotonic()) * 1000 + 1
        ready = {fd for fd, _ in poll.poll(left)}
        if stdin in ready:
            data = os.read(stdin, 65536)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                guard.obey(line.decode("utf-8", "replace"))
            if not data:
                return
        elif agent in ready:
            return
        elif guard.deadline is not None and guard.deadline != killed_for and time.monotonic() >= guard.deadline:
            killed_for = guard.deadline
            killed = guard.kill()
            say(f"the agent's deadline has passed (it is stopped or stuck): killed {killed} processes of its workers")


def remove(folder: str) -> None:
    """Remove a private folder with all that is in it; a link, another's folder or one open to others stays."""
    try:
        found = os.lstat(folder)
    except OSError:
        return
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000 or len(folder.strip("/").split("/")) < 2:
        return
    for base, folders, files in os.walk(folder, topdown=False):
        for name in files:
            _quietly(os.unlink, os.path.join(base, name))
        for name in folders:
            path = os.path.join(base, name)
            _quietly(os.unlink if os.path.islink(path) else os.rmdir, path)
    _quietly(os.rmdir, folder)


def _quietly(action: Callable[[str], None], path: str) -> None:
    try:
        action(path)
    except OSError:
        pass


def say(text: str) -> None:
    """One line for people; last, since a stderr that nobody reads may block."""
    try:
        os.write(2, f"elastic-health guardian: {text}\n".encode())
    except OSError:
        return


def main(agent_pid: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    try:
        agent = os.pidfd_open(agent_pid) if os.getppid() == agent_pid else -1
    except OSError:  # no pidfds, or it is dead already: the end of stdin tells
        agent = -1
    guard = Guard()
    watch(guard, 0, agent)
    if guard.bye:
        return
    killed = guard.kill()
    for folder in guard.folders:
        remove(folder)
    if killed:
        say(f"the agent (pid {agent_pid}) has died: killed {killed} processes of its workers")


if __name__ == "__main__":
    main(int(sys.argv[1]))
