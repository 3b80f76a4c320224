"""`elastic-health preflight`: this machine through the gate, by hand, with the code that an agent runs."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from elastic_health.cli.codes import Code
from elastic_health.cli.reach import add_arguments, reached
from elastic_health.cli.show import say, say_json
from elastic_health.config.load_os import load, tls_files
from elastic_health.preflight.checks import Stage
from elastic_health.preflight.gate import Decision, Why, record
from elastic_health.preflight.gate_text import headline, table_lines
from elastic_health.preflight.policy import Mode
from elastic_health.rendezvous.keys import FleetKeys, check_segment
from elastic_health.variables import CONFIG, ENDPOINT, NODE

if TYPE_CHECKING:
    from elastic_health.config.model import Config
    from elastic_health.preflight.admission_proc import Site


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `preflight`."""
    what = "run the gate's checks here: exit status 0 (would be let in), 80 (would be refused) or 3 (nothing was measured)"
    one = commands.add_parser("preflight", help=what)
    one.add_argument("--stage", choices=[stage.value for stage in Stage], default=Stage.JOIN.value, help="whose checks (default: join)")
    one.add_argument("--node", default="", help=f"this node's name (default: ${NODE}, else the host name)")
    one.add_argument("--workers", type=int, default=0, metavar="N", help="as torchrun's --nproc-per-node, where no GPU is seen")
    add_arguments(one)
    one.set_defaults(do=preflight)


def preflight(arguments: argparse.Namespace) -> Code:
    """Without `--endpoint` nothing is compared with other nodes, and baselines come from a file or not at all."""
    from elastic_health.preflight.admission_proc import admit  # psutil, and parsers that no other command needs

    config = load(arguments.config or os.environ.get(CONFIG) or None)
    policy = config.preflight.policy()
    with _site(arguments, config) as site:
        decision = admit(policy, Stage(arguments.stage), site)
    status = _status(decision)
    if arguments.json:
        said = {**record(decision), "decision": decision.verdict.value, "verdict": _verdict(status, decision)}
        say_json({"node": decision.node, "mode": policy.mode.value, **said})
        return status
    off = [f"preflight.mode is {policy.mode.value}: an agent runs no checks"] if policy.mode is Mode.OFF else []
    say([headline(decision), *off, "", *table_lines(decision, everything=True)])
    return status


@contextmanager
def _site(arguments: argparse.Namespace, config: Config) -> Iterator[Site]:
    from elastic_health.preflight.admission_proc import Site
    from elastic_health.preflight.clock_net import store_clock
    from elastic_health.preflight.runners_proc import Stored

    node = check_segment("node name", arguments.node or os.environ.get(NODE) or socket.gethostname())
    secrets = frozenset(name for name in (config.store.password_env, config.page.webhook_env) if name)
    endpoint = arguments.endpoint or os.environ.get(ENDPOINT)
    if not endpoint:
        yield Site(node, workers=arguments.workers, secrets=secrets)
        return
    with reached(arguments) as (store, prefix):
        keys = FleetKeys(prefix)
        clock = store_clock(endpoint, tls_files(config.store))
        yield Site(node, workers=arguments.workers, stored=Stored(store, keys), clock=clock, secrets=secrets)


def _status(decision: Decision) -> Code:
    if decision.refusing:
        return Code.UNFIT
    measured = any(row.why in (Why.PASSED, Why.WARNED) for row in decision.rows)
    return Code.OK if measured else Code.NOT_MEASURED


def _verdict(status: Code, decision: Decision) -> str:
    """As `analyze` spells it; the gate's own word is under `decision`."""
    if status is not Code.OK:
        return {Code.UNFIT: "fail", Code.NOT_MEASURED: "not_measured"}[status]
    return "warn" if any(row.why is Why.WARNED for row in decision.rows) else "pass"
