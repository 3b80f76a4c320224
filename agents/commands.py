"""What torchrun's command becomes: the same interpreter with the bootstrap in front of the script.

torchrun builds `python -u script args…` or `python -u -m module args…`.  Anything else (`--no-python`) is an
arbitrary program and stays as it is: it gets what the agent can do from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

BOOTSTRAP = "elastic_health.worker"


@dataclass(frozen=True)
class Command:
    """A program and its arguments.

    Attributes:
        entrypoint, args: what to execute.
        script: for a bootstrapped command what the bootstrap is told: `[-m] script args…`; else None.
    """

    entrypoint: str
    args: tuple[str, ...]
    script: tuple[str, ...] | None = None


def bootstrapped(entrypoint: str, args: Sequence[object], interpreters: Collection[str]) -> Command:
    """Put the bootstrap in front of the script if `entrypoint` is one of `interpreters`, called as torchrun calls it."""
    words = tuple(str(a) for a in args)
    script = words[1:]
    if entrypoint not in interpreters or words[:1] != ("-u",) or not _is_script(script):
        return Command(entrypoint, words)
    return Command(entrypoint, ("-u", "-m", BOOTSTRAP, *script), script)


def _is_script(words: tuple[str, ...]) -> bool:
    if words[:1] == ("-m",):
        return len(words) > 1
    return bool(words) and not words[0].startswith("-")
