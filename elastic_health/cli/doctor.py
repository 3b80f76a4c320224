"""`elastic-health doctor`: one screen on whether a run could start here."""

from __future__ import annotations

import argparse
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from elastic_health._version import __version__
from elastic_health.cli.codes import Code
from elastic_health.cli.reach import add_arguments
from elastic_health.cli.show import say, say_json
from elastic_health.codec import plain, shown
from elastic_health.config.load_os import Launch, load_launch
from elastic_health.config.mistakes import ConfigMistakes
from elastic_health.errors import ConfigError
from elastic_health.preflight.doctor import TOOLS, ready, report
from elastic_health.preflight.doctor_facts import ConfigFacts, EtcdFacts, Facts, Trouble
from elastic_health.preflight.doctor_lines import Line, Mark
from elastic_health.preflight.doctor_os import look_at_host, look_at_plugin, own_gpus, own_nics
from elastic_health.preflight.doctor_stages import stage_checks
from elastic_health.variables import CONFIG, ENDPOINT

PLUGIN_S = 60.0
ETCD_S = 20.0
HOST_S = 5.0
T = TypeVar("T")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `doctor`."""
    one = commands.add_parser("doctor", help="could a run start here: plugin, torch, YAML, etcd, limits, tools")
    one.add_argument("--node", help="this node's name, as `node` in --rdzv-conf")
    add_arguments(one)
    one.set_defaults(do=doctor)


def doctor(arguments: argparse.Namespace) -> Code:
    lines = report(look(arguments))
    if arguments.json:
        say_json(as_object(lines))
    else:
        say(as_text(lines))
    return Code.OK if ready(lines) else Code.NOT_READY


def as_object(lines: Sequence[Line]) -> dict[str, Any]:
    """For `--json`: always these fields."""
    return {"ready": ready(lines), "version": __version__, "lines": plain(list(lines))}


def as_text(lines: Sequence[Line]) -> list[str]:
    wide = max(len(line.topic.value) for line in lines)
    told = [f"{line.mark.value.upper():<7} {line.topic.value:<{wide}}  {shown(line.found, 200)}{_do(line)}" for line in lines]
    bad = sum(line.mark is Mark.FAIL for line in lines)
    return [*told, "", "ready: nothing that was looked at would stop a run" if not bad else f"not ready: {bad} line(s) say FAIL"]


def _do(line: Line) -> str:
    return f" -> {shown(line.do, 240)}" if line.do else ""


# ---- looking
def look(arguments: argparse.Namespace) -> Facts:
    """Everything side by side, each within its limit."""
    plug = _start(lambda: look_at_plugin(PLUGIN_S))
    machine = _start(lambda: look_at_host(TOOLS))
    launch = _launch(arguments)
    endpoint = arguments.endpoint or os.environ.get(ENDPOINT) or ""
    private: str | Trouble | None = None
    etcd: EtcdFacts | Trouble | None = None
    if not endpoint:
        private = _within(_start(_private), ETCD_S, "looking for an etcd to start", "see whether `etcd --version` hangs")
    elif isinstance(launch, Launch):
        etcd = _etcd(endpoint, arguments.prefix, launch)
    else:
        etcd = Trouble("not looked at, since the YAML may say how to reach it", "correct the YAML first", looked=False)
    stages = stage_checks(launch.policies.preflight) if isinstance(launch, Launch) else ()
    told = _config(launch, arguments.config or os.environ.get(CONFIG) or "")
    host = _within(machine, HOST_S, "looking at this machine", "look for a file system that hangs")
    return Facts(_within(plug, PLUGIN_S + HOST_S, "importing torch", "try `python -c 'import torch'`"), told, etcd, host, private, stages)


def _launch(arguments: argparse.Namespace) -> Launch | ConfigError:
    conf = {name: value for name, value in (("config", arguments.config), ("node", arguments.node)) if value is not None}
    try:
        return load_launch(conf, os.environ, socket.gethostname())
    except ConfigError as e:
        return e


def _config(launch: Launch | ConfigError, path: str) -> ConfigFacts | Trouble:
    if isinstance(launch, Launch):
        return ConfigFacts(launch.path, (), launch.node)
    if isinstance(launch, ConfigMistakes):
        return ConfigFacts(path, tuple(line.strip() for line in launch.lines()[1:]))
    return Trouble(f"expected {launch.expected}; found {launch.found}", launch.do)


def _etcd(endpoint: str, prefix: str | None, launch: Launch) -> EtcdFacts | Trouble:
    from elastic_health.preflight.doctor_etcd import Own, look_at_etcd  # gRPC takes time to import

    def looking() -> EtcdFacts | Trouble:
        own = Own(launch.node, own_gpus(), own_nics())
        return look_at_etcd(endpoint, launch.config.store, prefix or launch.prefix, own, os.environ)

    return _within(_start(looking), ETCD_S, f"looking at etcd at {endpoint}", "check the endpoint, and this machine's resolver")


def _private() -> str | Trouble:
    from elastic_health.rendezvous.private_etcd import etcd_version, find_etcd

    try:
        binary = find_etcd(None)
        version = etcd_version(binary)
    except ConfigError as e:
        return Trouble(e.found, e.do)
    except (OSError, subprocess.SubprocessError) as e:
        return Trouble(str(e), "install etcd, or give --endpoint")
    return f"{binary}, {'.'.join(map(str, version)) if version else 'which does not tell its version'}"


def _start(call: Callable[[], T]) -> queue.Queue[T | Exception]:
    """Begin; the answer comes in the queue.  A thread that hangs (in a resolver, on a dead mount) ends with the process."""
    answer: queue.Queue[T | Exception] = queue.Queue()

    def run() -> None:
        try:
            answer.put(call())
        except Exception as e:  # handed over to whoever waits, and raised there
            answer.put(e)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _within(answer: queue.Queue[T | Exception], limit_s: float, what: str, do: str) -> T | Trouble:
    try:
        found = answer.get(timeout=limit_s)
    except queue.Empty:
        return Trouble(f"{what} took more than {limit_s:g} s", do)
    if isinstance(found, Exception):
        raise found
    return found
