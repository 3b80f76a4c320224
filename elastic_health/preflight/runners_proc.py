"""Runners of the checks that need more than one command and a judge: the canary, and bandwidth against a baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from elastic_health.codec import build
from elastic_health.errors import BaselineError
from elastic_health.findings import Level
from elastic_health.preflight.baselines import Baseline, Run, compare, node_type
from elastic_health.preflight.baselines_etcd import read as read_stored
from elastic_health.preflight.baselines_os import node_facts, read_file
from elastic_health.preflight.canary_etcd import Fleet, check_canary
from elastic_health.preflight.canary_proc import COMMAND, ENVIRONMENT
from elastic_health.preflight.canary_report import Report, read_report
from elastic_health.preflight.checks import Cancel, CheckSpec, Context, Runner
from elastic_health.preflight.command_proc import run_command
from elastic_health.preflight.commands import Command, Ran, cleaned, text_of
from elastic_health.preflight.host_os import gpu_devices
from elastic_health.preflight.nccl_tests import bus_bandwidths, judge_nccl_tests, parse_nccl_tests
from elastic_health.preflight.policy import BandwidthRule, CanaryRule
from elastic_health.preflight.results import CheckResult, Outcome, not_measured
from elastic_health.preflight.tool import judged
from elastic_health.preflight.tool_proc import run_for
from elastic_health.rendezvous.keys import FleetKeys
from elastic_health.rendezvous.store import Store, StoreError

_AMD = "/dev/kfd"


@dataclass(frozen=True)
class Stored:
    """Where votes and baselines are kept.  `store` None: nowhere.  `barred`: nodes and devices in quarantine."""

    store: Store | None = None
    keys: FleetKeys = field(default_factory=FleetKeys)
    barred: Callable[[], frozenset[str]] = frozenset


def canary_runner(stored: Stored, secrets: Collection[str] = ()) -> Runner:
    """On each GPU, in a process of its own; where there is none on the CPU, in this one."""

    def run(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        rule = build(CanaryRule, dict(spec.parameters), f"check {spec.name}")
        fleet = None
        if stored.store is not None:
            wait_s = min(rule.wait_s, spec.time_limit_s)
            fleet = Fleet(stored.store, stored.keys, stored.barred(), wait_s=wait_s)
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        if not gpu_devices() and not os.path.exists(_AMD):
            return check_canary(fleet, _on_cpu(), context.node, at=at)
        environment = {**cleaned(os.environ, secrets), **ENVIRONMENT}
        ran = run_command(Command(tuple(COMMAND), environment, spec.time_limit_s), cancel)
        return judged(spec, ran, lambda ran: check_canary(fleet, read_report(ran.stdout), context.node, at=at))

    return run


def _on_cpu() -> Report:
    from elastic_health.preflight.canary_torch import measure_cpu  # torch takes seconds to import, where it isn't there yet

    return measure_cpu()


def bandwidth_runner(stored: Stored, secrets: Collection[str] = ()) -> Runner:
    """nccl-tests within the node, against the baseline of its node type."""

    def run(spec: CheckSpec, context: Context, cancel: Cancel) -> CheckResult:
        rule = build(BandwidthRule, dict(spec.parameters), f"check {spec.name}")
        gpus = gpu_devices() or max(1, context.workers)
        argv = tuple(word.replace("{gpus}", str(gpus)) for word in rule.command)
        ran = run_for(spec, context, cancel, argv, secrets)
        return judged(spec, ran, lambda ran: _against_baseline(ran, rule, spec, context))

    def _against_baseline(ran: Ran, rule: BandwidthRule, spec: CheckSpec, context: Context) -> CheckResult:
        parsed = parse_nccl_tests(text_of(ran), ran.status)
        alone = judge_nccl_tests(parsed, check=spec.name)
        if alone.outcome in (Outcome.FAIL, Outcome.NOT_MEASURED):
            return alone
        try:
            baseline = _baseline(stored, rule, context.node_type or node_type(node_facts()))
        except (BaselineError, StoreError) as e:
            return not_measured(spec.name, f"its baseline can't be read: {e}", details=alone.details)
        compared = compare(Run(spec.name, bus_bandwidths(parsed)), baseline, rule.min_ratio, check=spec.name, node=context.node)
        warned = tuple(f for f in alone.findings if f.level is Level.WARN)
        outcome = Outcome.WARN if warned and compared.outcome is Outcome.PASS else compared.outcome
        return replace(compared, outcome=outcome, findings=(*compared.findings, *warned))

    return run


def _baseline(stored: Stored, rule: BandwidthRule, kind: str) -> Baseline | None:
    if rule.file:
        return read_file(rule.file)
    return read_stored(stored.store, stored.keys, kind, rule.check) if stored.store is not None else None
