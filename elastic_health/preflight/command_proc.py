"""Runs one external command to its end, bounded in time and output, and leaves nothing of it behind.

Law: `run_command` returns within limit + grace + kill seconds and a little, and what it could not end it names in
`Ran.stuck`.  A command outlives neither its limit, nor `cancel`, nor this process (`reaper_main_os` sees to all three).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from elastic_health.preflight.checks import Cancel
from elastic_health.preflight.commands import Command, Ended, Kept, Ran, Stuck

REAPER = str(Path(__file__).with_name("reaper_main_os.py"))
MARGIN_S = 2.0
"""Beyond its own bounds, for the reaper's start and end on a busy machine."""
DRAIN_S = 0.5
_CHUNK_BYTES = 256 * 1024


class Order:
    """An order to stop, which any thread may give."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False

    def fileno(self) -> int:
        return self._fd

    def is_set(self) -> bool:
        return self._set

    def give(self) -> None:
        """Give the order; again does nothing more."""
        os.eventfd_write(self._fd, 1)
        self._set = True  # last: whoever sees it may close the descriptor

    def close(self) -> None:
        os.close(self._fd)


def run_command(command: Command, cancel: Cancel | None = None) -> Ran:
    """Run a command; blocks until it and all that it started have ended.  Raises nothing on account of the command."""
    program, why, detail = _found(command)
    if program is None:
        return Ran(command.argv, why, detail=detail)
    started = time.monotonic()
    report, reported = os.pipe()
    try:
        process = _start(command, program, reported)
    except OSError as error:
        os.close(report)
        return Ran(command.argv, Ended.NOT_STARTED, detail=f"{program}: {error.strerror}")
    finally:
        os.close(reported)
    with _Running(command, process, report) as running:
        running.pump(started, cancel)
        return running.ran(time.monotonic() - started)


def _found(command: Command) -> tuple[str | None, Ended, str]:
    """The file to execute, or why there is none."""
    name = command.argv[0] if command.argv else ""
    if not name or "\0" in "".join(command.argv):
        return None, Ended.NOT_STARTED, "an empty command, or a zero byte in it"
    if "/" not in name:
        found = shutil.which(name, path=command.environment.get("PATH", os.defpath))
        return (found, Ended.BY_ITSELF, "") if found else (None, Ended.MISSING, f"no {name} on PATH")
    path = os.path.join(command.folder, name)
    if not os.path.exists(path):
        return None, Ended.MISSING, f"no file {name}"
    if os.path.isdir(path):
        return None, Ended.NOT_EXECUTABLE, f"{name} is a folder"
    if not os.access(path, os.X_OK):
        return None, Ended.NOT_EXECUTABLE, f"{name} is not executable by this user"
    return os.path.abspath(path), Ended.BY_ITSELF, ""


def _start(command: Command, program: str, reported: int) -> subprocess.Popen[bytes]:
    bounds = [str(reported), str(command.limit_s), str(command.grace_s), str(command.kill_s), str(int("LC_CTYPE" in command.environment))]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", REAPER, *bounds, program, *command.argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(command.environment),
        cwd=command.folder or None,
        pass_fds=(reported,),
        start_new_session=True,
    )


class _Running:
    """A command between its start and its end: reads what it writes, bounded, and what its reaper reports."""

    def __init__(self, command: Command, process: subprocess.Popen[bytes], report: int) -> None:
        self._command, self._process = command, process
        self._out, self._err = Kept(command.keep_bytes), Kept(command.keep_bytes)
        self._report, self._said = report, Kept(1 << 16)
        self._ended: Ended | None = None

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *error: object) -> None:
        self._order_end()
        try:
            self._process.wait(MARGIN_S)
        except subprocess.TimeoutExpired:
            self._kill()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        os.close(self._report)

    # ---- reading

    def pump(self, started: float, cancel: Cancel | None) -> None:
        """Until the reaper has reported and the output has ended, or all bounds have passed."""
        bounds = self._command
        last = started + bounds.limit_s + bounds.grace_s + bounds.kill_s + MARGIN_S
        with selectors.DefaultSelector() as selector:
            for source, kept in self._sources():
                if source is not None:
                    selector.register(source, selectors.EVENT_READ, kept)
            if cancel is not None:
                selector.register(cancel, selectors.EVENT_READ, None)
            while self._open(selector) and (left := last - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    self._take(selector, key)
                if self._said not in self._kept(selector):
                    last = min(last, time.monotonic() + DRAIN_S)  # nobody is left to write, but a stuck process may hold a pipe

    def _sources(self) -> tuple[tuple[IO[bytes] | int | None, Kept], ...]:
        return ((self._process.stdout, self._out), (self._process.stderr, self._err), (self._report, self._said))

    @staticmethod
    def _kept(selector: selectors.BaseSelector) -> list[object]:
        return [key.data for key in selector.get_map().values()]

    def _open(self, selector: selectors.BaseSelector) -> bool:
        return any(kept is not None for kept in self._kept(selector))

    def _take(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.data is None:
            selector.unregister(key.fileobj)
            self._end(Ended.CANCELLED)
            return
        data = os.read(key.fd, _CHUNK_BYTES)
        if not data:
            selector.unregister(key.fileobj)
        key.data.add(data)
        if self._out.total + self._err.total > self._command.output_bytes:
            self._end(Ended.OUTPUT_LIMIT)

    # ---- ending

    def _end(self, why: Ended) -> None:
        self._ended = self._ended or why
        self._order_end()

    def _order_end(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _kill(self) -> None:
        """The reaper is gone wrong (stopped, starved): end it, and the command's own session with it."""
        pid = self._told().get("pid")
        self._process.kill()
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, 9)
        self._process.wait()

    # ---- what it came to

    def _told(self) -> dict[str, object]:
        said: dict[str, object] = {}
        for line in self._said.text().splitlines():
            with contextlib.suppress(ValueError):
                said.update(json.loads(line))
        return said

    def ran(self, seconds: float) -> Ran:
        said = self._told()
        failed, status = said.get("failed"), said.get("status", -1)
        if isinstance(failed, int):
            why = Ended.NOT_EXECUTABLE if failed in (errno.EACCES, errno.ENOEXEC) else Ended.NOT_STARTED
            return Ran(self._command.argv, why, seconds=seconds, detail=f"{self._command.argv[0]}: {said.get('detail', '')}")
        code = os.waitstatus_to_exitcode(status) if isinstance(status, int) and status >= 0 else None
        return Ran(
            self._command.argv,
            self._how(said),
            exit_status=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else 0,
            seconds=_number(said.get("seconds"), seconds),
            stdout=self._out.text(),
            stderr=self._err.text(),
            detail="" if "why" in said else "its supervisor ended without a report",
            omitted=self._out.omitted + self._err.omitted,
            strays=int(_number(said.get("strays"), 0)),
            stuck=_stuck(said.get("stuck")),
        )

    def _how(self, said: Mapping[str, object]) -> Ended:
        why = said.get("why")
        if why == "cancelled":
            return self._ended or Ended.LOST  # no order of ours: our own end of the pipe is gone
        return self._ended or (Ended(why) if isinstance(why, str) else Ended.LOST)


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


def _stuck(said: object) -> tuple[Stuck, ...]:
    rows = said if isinstance(said, list) else []
    return tuple(Stuck(int(row["pid"]), str(row["name"]), str(row["state"]), str(row["wchan"])) for row in rows)
