"""--rdzv-conf and the environment beside the YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config

from elastic_health.config.load_os import load_launch
from elastic_health.config.rdzv_conf import RdzvConf, parse_rdzv_conf
from elastic_health.errors import ConfigError

pytestmark = pytest.mark.spec("U1", "U2")


def test_what_torchrun_hands_over() -> None:
    given = _parse_rendezvous_config("config=/etc/h.yaml,node=n-1,prefix=/team/a/,listen=29400")
    assert parse_rdzv_conf({**given, "timeout": 900}) == RdzvConf("/etc/h.yaml", "n-1", "/team/a/", 29400, None)
    assert parse_rdzv_conf({"timeout": "60"}).timeout_s == 60.0
    assert parse_rdzv_conf({"timeout": 900}) == RdzvConf()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"nod": "a"}, "write node="),
        ({"last_call_timeout": "1"}, "membership.last_call_s in the YAML"),
        ({"max_restarts": "1"}, "restarts.total"),
        ({"node": "a/b"}, "node name"),
        ({"node": ""}, "node name"),
        ({"prefix": "x"}, "prefix="),
        ({"listen": "99999"}, "0 to 65535"),
        ({"listen": "-1"}, "0 to 65535"),
        ({"timeout": "soon"}, "seconds"),
        ({"timeout": "0"}, "above 0"),
        ({"config": ""}, "a path"),
    ],
)
def test_each_mistake_has_one_message(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_rdzv_conf(given)


def test_precedence(tmp_path: Path) -> None:
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text("store: {prefix: /a/}\nports: {listen: 7}\nmembership: {join_timeout_s: 5}\n")
    b.write_text("store: {prefix: /b/}\n")
    environ = {"ELASTIC_HEALTH_CONFIG": str(b), "ELASTIC_HEALTH_NODE": "env-node"}
    launch = load_launch({"config": str(a), "node": "n", "prefix": "/c/", "listen": "9", "timeout": "8"}, environ, "host")
    assert (launch.path, launch.node, launch.prefix, launch.listen) == (str(a), "n", "/c/", 9)
    assert launch.policies.membership.join_timeout_s == 8.0
    launch = load_launch({"timeout": "900"}, environ, "host")
    assert (launch.path, launch.node, launch.prefix, launch.listen) == (str(b), "env-node", "/b/", 0)
    launch = load_launch({}, {}, "host")
    assert (launch.path, launch.node, launch.prefix) == ("", "host", "/elastic-health/")
