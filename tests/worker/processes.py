"""Starts scripts for tests: as `python -u` does, through the bootstrap, and in a warm process that becomes the script."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_health import variables
from elastic_health.liveness.page_os import Page
from elastic_health.worker.start_os import hooked

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = "elastic_health.worker"
LIMIT_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """How a process ended; addresses and thread ids, which differ between any two runs, are blotted out."""

    code: int
    out: str
    err: str


@dataclass
class Watched:
    """A process with a page."""

    process: subprocess.Popen[bytes]
    page: Page
    server: str

    def outcome(self, limit_s: float = LIMIT_S) -> Outcome:
        out, err = self.process.communicate(timeout=limit_s)
        return Outcome(self.process.returncode, blotted(out), blotted(err))


def blotted(raw: bytes) -> str:
    return re.sub(r"0x[0-9a-f]+|started \d{9,}", "@", raw.decode(errors="replace"))


def write(folder: Path, source: str, name: str = "script.py") -> str:
    (folder / name).write_text(textwrap.dedent(source))
    return name


def clean_environ(**more: str) -> dict[str, str]:
    """This environment without what would change a Python process."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("ELASTIC_HEALTH_", "PYTHON", "TORCH"))} | tokens() | more


def tokens() -> dict[str, str]:
    """What finds a test's processes afterwards."""
    return {k: v for k, v in os.environ.items() if k == "ELASTIC_HEALTH_TEST_SESSION"}


def stock(folder: Path, words: Sequence[str], stdin: bytes = b"", **environ: str) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-u", *words],
        cwd=folder,
        env=clean_environ(**environ),
        input=stdin,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Outcome(done.returncode, blotted(done.stdout), blotted(done.stderr))


def told(folder: Path, **environ: str) -> tuple[Page, dict[str, str]]:
    """A page, and the environment that an agent would give."""
    page = Page.create(f"/dev/shm/eh-test-{os.getpid()}-{time.monotonic_ns()}")
    agent = {
        variables.PAGE: page.path,
        variables.SERVER: f"{tempfile.gettempdir()}/w{os.getpid()}-{time.monotonic_ns()}",
        variables.LINK: f"{folder}/link",
        variables.WORKER_TOKEN: "token",
        variables.GENERATION: "1",
        variables.RUN: "run",
        variables.AGENT_PID: str(os.getpid()),
        "LOCAL_RANK": "0",
    }
    return page, clean_environ(**{**agent, **environ})


@contextlib.contextmanager
def watched(folder: Path, words: Sequence[str], stdin: bytes | None = None, direct: bool = False, **environ: str) -> Iterator[Watched]:
    """A cold start: by the module, or `direct` with one interpreter start only."""
    page, env = told(folder, **environ)
    process = subprocess.Popen(
        [sys.executable, "-u", *(() if direct else ("-m", BOOTSTRAP)), *words],
        cwd=folder,
        env=hooked(env) if direct else env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    if stdin is not None:
        process.stdin.write(stdin)
    with ended(process, page, env[variables.SERVER]) as worker:
        yield worker


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes], page: Page, server: str) -> Iterator[Watched]:
    try:
        yield Watched(process, page, server)
    finally:
        end(process)
        for path in (page.path, server):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill its whole session (it leads one), close its streams."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@dataclass
class Waiting:
    """A warm process before its go."""

    process: subprocess.Popen[bytes]
    ours: socket.socket

    def ready(self) -> bool:
        self.ours.settimeout(LIMIT_S)
        return self.ours.recv(64) == b"ready\n"

    def go(self, folder: Path, words: Sequence[str], env: dict[str, str], stdout: str | None = None, stderr: str | None = None) -> None:
        line = {"env": env, "argv": list(words), "cwd": str(folder), "stdout": stdout, "stderr": stderr}
        self.ours.sendall(json.dumps(line).encode() + b"\n")


@contextlib.contextmanager
def waiting(**environ: str) -> Iterator[Waiting]:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", BOOTSTRAP, "--warm"],
        env=clean_environ(**{variables.GO_FD: str(theirs.fileno()), **environ}),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(theirs.fileno(),),
    )
    theirs.close()
    try:
        yield Waiting(process, ours)
    finally:
        ours.close()
        end(process)


def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
