"""`elastic-health`: parses the command, runs it, and turns every known error into one message and a documented status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from elastic_health._version import __version__
from elastic_health.cli import analyze, baseline, doctor, papers, preflight, quarantine, runs, telling
from elastic_health.cli.codes import Code
from elastic_health.cli.reach import NotFound
from elastic_health.cli.show import say
from elastic_health.errors import ConfigError, DataError, HealthError, InputError, RunRefused
from elastic_health.rendezvous.store import NotEtcd, StoreError, StoreRefused, StoreUnavailable

_CODES: tuple[tuple[type[HealthError], Code], ...] = (
    (ConfigError, Code.BAD_CONFIG),
    (DataError, Code.BAD_CONFIG),
    (InputError, Code.NO_INPUT),
    (RunRefused, Code.RUN_REFUSED),
    (StoreUnavailable, Code.STORE_UNREACHABLE),
    (NotEtcd, Code.STORE_UNREACHABLE),
    (StoreRefused, Code.STORE_REFUSED),
    (StoreError, Code.STORE_FAILED),
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="elastic-health", description="What the healthy-etcd rendezvous knows, and what people may tell it.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for room in (telling, runs, preflight, quarantine, baseline, doctor, papers, analyze):
        room.add_commands(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status (`Code`)."""
    given = parser().parse_args(arguments)
    try:
        return int(given.do(given))
    except NotFound as e:
        say([str(e)], sys.stderr)
        return Code.NOT_FOUND
    except HealthError as e:
        say(str(e).splitlines(), sys.stderr)
        return int(next((code for kind, code in _CODES if isinstance(e, kind)), Code.STORE_FAILED))
    except KeyboardInterrupt:
        return Code.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough.  Python would complain once more when it flushes at its end.
        sys.stderr.close()
        return Code.OK


if __name__ == "__main__":
    sys.exit(main())
