"""configs/ says what the code does: every key is there, with its default; the schema is current."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_health.config.load_os import load
from elastic_health.config.model import Config
from elastic_health.config.schema import schema_text
from elastic_health.config.validate import all_names, parse
from elastic_health.policies import Policies

pytestmark = pytest.mark.spec("U2")
CONFIGS = Path(__file__).parents[2] / "configs"


def dotted(value: Any, at: str = "") -> set[str]:
    if not isinstance(value, dict):
        return set()
    return {f"{at}{k}" for k in value} | {x for k, v in value.items() for x in dotted(v, f"{at}{k}.")}


def test_health_yaml_equals_the_defaults() -> None:
    assert load(CONFIGS / "health.yaml") == Config() == load(None) == parse("")


def test_the_defaults_are_the_policies_own() -> None:
    assert Config().policies() == Policies()


def test_health_yaml_names_every_key() -> None:
    given = dotted(yaml.safe_load((CONFIGS / "health.yaml").read_text()))
    inside_tls = {n for n in all_names() if n.startswith("store.tls.")}
    assert given == set(all_names()) - inside_tls
    comments = "\n".join(line for line in (CONFIGS / "health.yaml").read_text().splitlines() if line.lstrip().startswith("#"))
    assert all(n.rsplit(".", 1)[1] in comments for n in inside_tls)


def test_every_key_has_a_comment_above_it_or_above_its_group() -> None:
    lines = (CONFIGS / "health.yaml").read_text().splitlines()
    bare = []
    for i, line in enumerate(lines):
        if ":" in line and not line.lstrip().startswith("#") and not line.endswith(":"):
            above = lines[i - 1].lstrip()
            if not above.startswith("#") and ("#" not in line) and not (above and lines[i - 2].lstrip().startswith("#")):
                bare.append(line.strip())
    # The third of the three password keys, and the page's timeout, share the comment of those above them.
    assert set(bare) <= {"password_env: null", "timeout_s: 10.0"}


def test_schema_json_is_current() -> None:
    assert (CONFIGS / "schema.json").read_text() == schema_text(), "run: elastic-health config schema > configs/schema.json"


def test_policies_carry_what_the_file_says() -> None:
    config = parse(
        "restarts: {max_restarts: 0, per_hour: null, backoff_s: [1, 2.5]}\n"
        "membership: {scale_up: off, lease_s: 7}\n"
        "store: {outage: {policy: stop, bound_s: 9}}\n"
        "liveness: {stall_after_s: 3, adapt_factor: 0}\n"
        "workers: {warm: off}\n"
        "observe_only: [restart]\n"
        "checkpoints: {start_over: false}\n"
        "page: {command: [notify, -s]}\n"
    )
    p = config.policies()
    assert (p.recovery.caps.total, p.recovery.caps.per_hour, p.recovery.caps.backoff_s) == (0, None, (1.0, 2.5))
    assert (p.membership.scale_up.value, p.recovery.scale_up.value, p.membership.bounds.lease_s) == ("off", "off", 7.0)
    assert (p.outage.choice.value, p.outage.bound_s, p.stall.stall_after_s, p.warm.value) == ("stop", 9.0, 3.0, "off")
    assert ({a.value for a in p.recovery.observe_only}, p.recovery.start_over, p.page.command) == ({"restart"}, False, ("notify", "-s"))
