"""One node through one stage of the gate: puts the runners together, runs the checks that are due, decides.

The agent and `elastic-health preflight` both come here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic_health.preflight.checks import Cancel, CheckSpec, Context, Kind, Registry, Stage
from elastic_health.preflight.clock import ClockSample
from elastic_health.preflight.dcgm import parse_dcgm
from elastic_health.preflight.gate import Decision, decide
from elastic_health.preflight.gate_proc import run_stage
from elastic_health.preflight.pairs_proc import pair_runner
from elastic_health.preflight.policy import PreflightPolicy
from elastic_health.preflight.registry_proc import registry
from elastic_health.preflight.results import CheckResult
from elastic_health.preflight.runners_proc import Stored, bandwidth_runner, canary_runner
from elastic_health.preflight.tool import Tool
from elastic_health.preflight.xid import analyze_xid

_SPEAKERS = ("nvrm", "xid", "nvidia", "nvlink", "nvswitch", "gpu", "fallen off", "adapter")
"""Every message of a GPU, its driver or its switches holds one of these."""


@dataclass(frozen=True)
class Site:
    """Where the gate stands.

    Attributes:
        workers: how many this node will run.
        stored: votes and baselines.
        clock: looks at the store's clock, None where there is no store.
        secrets: names of variables that no check may see.
        host: this node's address, at which other nodes reach it ("": unknown).
        expect: how many nodes will be checked at the same time, as far as is known.
    """

    node: str
    run: str = ""
    workers: int = 0
    stored: Stored = field(default_factory=Stored)
    clock: Callable[[], tuple[ClockSample, ...]] | None = None
    secrets: frozenset[str] = frozenset()
    host: str = ""
    expect: int = 0


def runners(site: Site) -> Registry:
    """Who runs which kind of check here."""
    tools: Mapping[Kind, Tool] = {Kind.DCGM: Tool(_diag, lambda ran: parse_dcgm(ran.stdout, ran.status, ran.stderr))}
    ours = {Kind.CANARY: canary_runner(site.stored, site.secrets), Kind.BANDWIDTH: bandwidth_runner(site.stored, site.secrets)}
    store, keys = site.stored.store, site.stored.keys
    if store is not None:
        ours[Kind.PAIR] = pair_runner(store, site.host, keys=keys, expect=site.expect, secrets=site.secrets)
    return registry(tools=tools, runners=ours, clock=site.clock, xid=judge_log, secrets=site.secrets)


def _diag(spec: CheckSpec, context: Context) -> tuple[str, ...]:
    return ("dcgmi", "diag", "-r", str(spec.parameters["level"]), "-j")


def judge_log(text: str) -> CheckResult:
    """The kernel's own log, which was read: a long one in which no GPU speaks is not read line by line."""
    low = text.lower()
    return analyze_xid(text if any(word in low for word in _SPEAKERS) else "", readable=True, this_boot=True)


def admit(policy: PreflightPolicy, stage: Stage, site: Site, cancel: Cancel | None = None) -> Decision:
    """Check this node.  Blocks for as long as the checks take, within their limits.

    Raises:
        ConfigError: as `PreflightPolicy.at`.
    """
    started = time.monotonic()
    specs = policy.at(stage)
    context = Context(stage, site.node, site.run, policy.node_type, site.workers)
    results = run_stage(specs, context, runners(site), total_s=policy.total_s, cancel=cancel) if specs else ()
    seconds = time.monotonic() - started
    return decide(stage, site.node, specs, results, observe_only=policy.observe_only, seconds=seconds)
