"""`--rdzv-conf`: the few settings that differ from node to node; everything else is in the YAML."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.keys import check_segment

TORCH_DEFAULT_TIMEOUT = "900"
"""torch's launcher puts `timeout=900` in when the user gave none, so this value says nothing."""
_KNOWN = ("config", "node", "prefix", "listen", "timeout", "topology")
_FROM_C10D: Mapping[str, str] = {
    "join_timeout": "membership.join_timeout_s",
    "last_call_timeout": "membership.last_call_s",
    "keep_alive_interval": "membership.lease_s",
    "keep_alive_max_attempt": "membership.lease_s",
    "close_timeout": "membership.start_s",
    "read_timeout": "store.timeout_s",
    "max_restarts": "restarts.total",
}
_PREFIX = re.compile(r"/([A-Za-z0-9._:@-]+/)+")


@dataclass(frozen=True)
class RdzvConf:
    """`--rdzv-conf config=…,node=…,prefix=…,listen=…,timeout=…,topology=…`; None: not given."""

    config: str | None = None
    node: str | None = None
    prefix: str | None = None
    listen: int | None = None
    timeout_s: float | None = None
    topology: str | None = None


def parse_rdzv_conf(given: Mapping[str, object]) -> RdzvConf:
    """Check what torchrun parsed from `--rdzv-conf`.

    Raises:
        ConfigError: an unknown key, or a value of another form.
    """
    values = {name: str(value) for name, value in given.items() if value is not None}
    for name in values:
        if name not in _KNOWN:
            raise _unknown(name)
    if values.get("config") == "":
        raise ConfigError("a path in --rdzv-conf config=", "nothing", "write config=health.yaml, or leave it out")
    node = values.get("node")
    return RdzvConf(
        config=values.get("config"),
        node=None if node is None else check_segment("node name", node),
        prefix=_prefix(values.get("prefix")),
        listen=_port(values.get("listen")),
        timeout_s=_timeout_s(values.get("timeout")),
        topology=values.get("topology"),
    )


def _unknown(name: str) -> ConfigError:
    if name in _FROM_C10D:
        do = f"set {_FROM_C10D[name]} in the YAML (--rdzv-conf config=health.yaml)"
    else:
        near = difflib.get_close_matches(name, _KNOWN, 1, 0.6)
        do = f"write {near[0]}=" if near else "put other settings into the YAML"
    return ConfigError(f"one of {', '.join(_KNOWN)} in --rdzv-conf", f"`{name}`", do)


def _prefix(text: str | None) -> str | None:
    if text is None:
        return None
    if not _PREFIX.fullmatch(text):
        raise ConfigError("prefix= as /name/ of letters, digits and ._:@-", repr(text), "write e.g. prefix=/elastic-health/")
    return text


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise ConfigError("listen= as a port from 0 to 65535", repr(text), "write e.g. listen=29400, or leave it out for any free port")
    return int(text)


def _timeout_s(text: str | None) -> float | None:
    if text is None or text == TORCH_DEFAULT_TIMEOUT:
        return None
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]+)?", text) or float(text) <= 0:
        raise ConfigError("timeout= in seconds, above 0", repr(text), "write e.g. timeout=600 (or membership.join_timeout_s in the YAML)")
    return float(text)
