"""External commands as plain data: what is to be run, how it ended, and what it may see of our environment.

Laws:
 - `Ran.whole` is True only of a command that started, ended by itself and whose output was kept to the last byte: what
   is not whole has proved nothing;
 - no command gets a variable that holds a secret, or one by which torchrun, MPI or our agent tells a worker who it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from elastic_health import variables

KEEP_BYTES = 1024 * 1024
"""Of each stream: `dcgmi diag -j` of 8 GPUs is about 100 KB, an nccl-tests table 10 KB."""
OUTPUT_BYTES = 64 * 1024 * 1024
"""A command that writes more than this in all is ended: no check has so much to say."""
GRACE_S = 3.0
"""From SIGTERM to SIGKILL: `dcgmi` uses it to tell its host engine to stop a running diagnostic."""
KILL_S = 5.0
"""SIGKILL takes effect at once but for a process that sleeps uninterruptibly in the kernel."""


@dataclass(frozen=True)
class Command:
    """What to run.

    Attributes:
        argv: program and arguments; a program without a slash is looked for on the PATH of `environment`.
        environment: all that it sees (see `cleaned`).
        limit_s: after so long it is ended, with everything that it started.
        grace_s: from SIGTERM to SIGKILL then; also what it leaves behind gets so much to end.
        keep_bytes: of each stream, the first and last halves of so much are kept.
        output_bytes: a command that writes more in all is ended.
        folder: where it runs; "" for here.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    limit_s: float
    grace_s: float = GRACE_S
    kill_s: float = KILL_S
    keep_bytes: int = KEEP_BYTES
    output_bytes: int = OUTPUT_BYTES
    folder: str = ""


class Ended(Enum):
    """How a command came to its end."""

    BY_ITSELF = "by_itself"
    TIME_LIMIT = "time_limit"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"
    MISSING = "missing"
    NOT_EXECUTABLE = "not_executable"
    NOT_STARTED = "not_started"
    LOST = "lost"

    @property
    def started(self) -> bool:
        return self not in (Ended.MISSING, Ended.NOT_EXECUTABLE, Ended.NOT_STARTED)


@dataclass(frozen=True)
class Stuck:
    """A process that SIGKILL did not end; `wchan` is the kernel function that it sleeps in, "" if unknown."""

    pid: int
    name: str
    state: str
    wchan: str = ""


@dataclass(frozen=True)
class Ran:
    """How a command went.

    Attributes:
        exit_status: its status; None when it was ended by a signal, by us, or never ran.
        signal: number of the signal that ended it, 0 for none.
        detail: why it could not be started, "" otherwise.
        omitted: bytes of output that were not kept.
        strays: processes that it left behind and that were ended.
        stuck: processes that could not be ended.
    """

    argv: tuple[str, ...]
    ended: Ended
    exit_status: int | None = None
    signal: int = 0
    seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""
    detail: str = ""
    omitted: int = 0
    strays: int = 0
    stuck: tuple[Stuck, ...] = ()

    @property
    def whole(self) -> bool:
        return self.ended is Ended.BY_ITSELF and not self.omitted

    @property
    def status(self) -> int | None:
        """As `subprocess` has it: negative for a signal; None where the command did not end by itself."""
        if self.ended is not Ended.BY_ITSELF:
            return None
        return -self.signal if self.signal else self.exit_status


def text_of(ran: Ran) -> str:
    """What a judge reads: stdout, or stderr where a tool that could not begin said nothing else."""
    return ran.stdout if ran.stdout.strip() else ran.stderr


@dataclass
class Kept:
    """The first and last bytes of a stream that may be endless."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.limit // 2 - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > self.limit:
            del self.tail[: len(self.tail) - self._most()]

    @property
    def omitted(self) -> int:
        return max(0, self.total - len(self.head) - self._most())

    def text(self) -> str:
        """As UTF-8, bytes that are none replaced; a gap is marked on a line of its own."""
        tail = self.tail[-self._most() :] if self._most() else bytearray()
        if not self.omitted:
            return (self.head + tail).decode("utf-8", "replace")
        mark = f"\n[elastic-health left out {self.omitted} bytes]\n"
        return self.head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")

    def _most(self) -> int:
        return self.limit - self.limit // 2


_TELLS_A_WORKER = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR "
    "MASTER_PORT NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_ASYNC_ERROR_HANDLING MPI_LOCALRANKID MPI_LOCALNRANKS".split()
)
"""What torchrun tells its workers: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"."""
_TELLS_A_WORKER_PREFIXES = ("TORCHELASTIC_", "PET_", "PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "MV2_COMM_WORLD_")
"""A tool built with MPI that finds these takes itself for a rank of the step that started the agents, and waits for the others."""
_OURS = frozenset(
    (
        variables.WORKER_TOKEN,
        variables.PAGE,
        variables.LINK,
        variables.SERVER,
        variables.LOCAL,
        variables.GENERATION,
        variables.GO_FD,
        variables.STDERR_TAP,
        variables.PRELOAD,
        variables.AGENT_PID,
        variables.HOOKED,
        variables.PYTHONPATH,
    )
)
_SECRET = re.compile(
    r"PASSW|PASSPHRASE|SECRET|CREDENTIAL|(^|_)(TOKEN|PAT|AUTH|BEARER|COOKIE|DSN|WEBHOOK)($|_)|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION|ACCOUNT)_?KEY",
    re.IGNORECASE,
)
_USER_IN_URL = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)


def cleaned(environ: Mapping[str, str], secrets: Collection[str] = (), keep: Collection[str] = ()) -> dict[str, str]:
    """The environment that an external command gets.

    Args:
        secrets: names that the YAML says hold secrets (`store.password_env`, `page.webhook_env`); never passed on.
        keep: names that the YAML passes on although they look like secrets or tell a worker who it is.
    """
    wanted = frozenset(keep)
    return {n: v for n, v in environ.items() if n not in secrets and (n in wanted or not (_identity(n) or _secret(n, v)))}


def _identity(name: str) -> bool:
    return name in _TELLS_A_WORKER or name in _OURS or name.startswith(_TELLS_A_WORKER_PREFIXES)


def _secret(name: str, value: str) -> bool:
    return bool(_SECRET.search(name) or _USER_IN_URL.match(value))
