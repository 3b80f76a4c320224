"""The agent's side of the guardian: starts it, tells it what to guard, notices its death, starts another.

Law: at any time the guardian has been told everything that is guarded, or is about to be replaced by one that is told
everything at its start.  Orders are whole lines below PIPE_BUF, so none is ever torn.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from elastic_health import variables
from elastic_health.agents import tree_os
from elastic_health.errors import HealthError

PROGRAM = Path(__file__).resolve().with_name("guardian_main_os.py")
DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Guardian:
    """One guardian process at a time.  Call `start` from the agent's main thread.

    Not thread-safe: all calls from one thread.
    """

    def __init__(self) -> None:
        self._tokens: set[str] = set()
        self._roots: set[tree_os.Root] = set()
        self._folders: set[str] = set()
        self._deadline: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._pidfd = -1
        self.starts = 0

    def start(self) -> None:
        """Start it (again) and tell it everything."""
        self._discard()
        read, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        env = {name: value for name, value in os.environ.items() if name != variables.WORKER_TOKEN}
        # It inherits the blocked signals: one sent to everything of the job before it runs must not end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
        try:
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", str(PROGRAM), str(os.getpid())),
                stdin=read,
                stdout=subprocess.DEVNULL,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(read)
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(self._process.pid)
        self.starts += 1
        for line in self._everything():
            self._write(line)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else -1

    def fileno(self) -> int:
        """A descriptor for a selector, readable when the guardian has died; -1 where the kernel gives none."""
        return self._pidfd

    def well(self) -> bool:
        """Alive, not stopped, and listening."""
        if self._process is None or self._process.poll() is not None or self._pipe < 0:
            return False
        proc = tree_os.read_proc(self._process.pid)
        return proc is not None and proc.state not in "Tt"

    def ensure(self) -> bool:
        """Replace a guardian that isn't well; True if one was replaced (then `fileno` is another)."""
        if self.well():
            return False
        self.start()
        return True

    def guard(self, tokens: Collection[str], roots: Collection[tree_os.Root] = ()) -> None:
        """From now on guard these too."""
        self._order([f"token {t}" for t in tokens if t not in self._tokens])
        self._order([f"root {r.pid} {r.started}" for r in roots if r not in self._roots])
        self._tokens.update(tokens)
        self._roots.update(roots)

    def release(self, tokens: Collection[str], roots: Collection[tree_os.Root] = ()) -> None:
        """These are reaped: guard them no more."""
        self._order([f"untoken {t}" for t in tokens if t in self._tokens])
        self._order([f"unroot {r.pid} {r.started}" for r in roots if r in self._roots])
        self._tokens.difference_update(tokens)
        self._roots.difference_update(roots)

    def folder(self, path: str) -> None:
        """Remove this folder (owned by us, mode 0700) when the agent is dead."""
        self._folders.add(path)
        self._order([f"folder {path}"])

    def deadline(self, at: float | None) -> None:
        """The workers may live until `at` (`time.monotonic()`); tell a later one before that, or they are killed."""
        self._deadline = at
        self._order([_deadline(at)])

    def bye(self, timeout_s: float = 2.0) -> None:
        """The agent has cleaned up itself: the guardian exits and kills nobody."""
        if self._process is None:
            return
        self._order(["bye"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self._discard()

    # ---- inside

    def _everything(self) -> list[str]:
        told = [f"token {t}" for t in self._tokens] + [f"root {r.pid} {r.started}" for r in self._roots]
        return told + [f"folder {f}" for f in self._folders] + [_deadline(self._deadline)]

    def _order(self, lines: list[str]) -> None:
        if not all(self._write(line) for line in lines):
            self._kill()  # the next one is told everything

    def _write(self, line: str) -> bool:
        data = line.encode() + b"\n"
        if "\n" in line or len(data) > 512:
            raise HealthError("an order of one line, 512 bytes at most", repr(line[:80]), "shorten the run's folder")
        try:
            return self._pipe >= 0 and os.write(self._pipe, data) == len(data)
        except OSError:  # dead, or stopped for so long that the pipe is full
            return False

    def _discard(self) -> None:
        self._kill()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        self._close_pipe()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._process = None

    def _kill(self) -> None:
        """Before its pipe is closed: one that was only slow would take the end of the pipe for our death."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _deadline(at: float | None) -> str:
    return "deadline none" if at is None else f"deadline {at:.6f}"


def new_token() -> str:
    """A token for one generation's workers on one node."""
    return secrets.token_hex(16)
