"""One node of a pair check, as a process: `python -m tests.preflight.pair_node NODE HOST ENDPOINT PARAMETERS LIMIT`.

Prints the check's result as JSON.
"""

from __future__ import annotations

import json
import sys

from elastic_health.codec import plain
from elastic_health.preflight.checks import CheckSpec, Context, Kind, Stage
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.pairs_proc import pair_runner
from elastic_health.rendezvous.session_etcd import EtcdSession


def main(node: str, host: str, endpoint: str, parameters: str, limit: str) -> None:
    store = EtcdSession.connect([endpoint], timeout_s=20)
    spec = CheckSpec("pair", Kind.PAIR, frozenset(Stage), time_limit_s=float(limit), parameters=json.loads(parameters))
    result = pair_runner(store, host)(spec, Context(Stage.JOIN, node, run="r", node_type="box"), Order())
    print(json.dumps(plain(result)), flush=True)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
