"""From torchrun's parameters to a handler: settings, run id, the store session, the run's secret.

Law: everything that can be wrong with what a person typed is found here, before any worker starts, and ends with one
message and its documented exit status.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import NoReturn

from torch.distributed.elastic.rendezvous import RendezvousParameters

from elastic_health.config.load_os import Launch, load_launch, read_password, tls_files
from elastic_health.errors import ConfigError, HealthError
from elastic_health.exits import ExitStatus
from elastic_health.rendezvous.fence import Stamp
from elastic_health.rendezvous.handler_torch import HealthyHandler, LinkFactory, Place
from elastic_health.rendezvous.keys import RunKeys, check_segment
from elastic_health.rendezvous.private_etcd import PrivateEtcd
from elastic_health.rendezvous.secret_etcd import ensure_secret
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import NotEtcd, Store, StoreError, StoreRefused, StoreUnavailable

log = logging.getLogger("elastic_health")
_NO_RUN_ID = ("none", "", None)
_STATUS: Mapping[type[HealthError], ExitStatus] = {
    ConfigError: ExitStatus.BAD_CONFIG,
    StoreRefused: ExitStatus.STORE_REFUSED,
    NotEtcd: ExitStatus.STORE_UNREACHABLE,
    StoreUnavailable: ExitStatus.STORE_UNREACHABLE,
}


def create_handler(params: RendezvousParameters, links: LinkFactory) -> HealthyHandler:
    """Make the handler, or end the process with one message.

    Args:
        links: makes the agent links (they belong to the agent's side).

    Raises:
        SystemExit: with a status of `elastic_health.exits`.
    """
    try:
        return HealthyHandler(_place(params, links))
    except HealthError as e:
        _end(e)


def _end(e: HealthError) -> NoReturn:
    status = next((s for kind, s in _STATUS.items() if isinstance(e, kind)), ExitStatus.STORE_UNREACHABLE)
    sys.stderr.write(f"healthy-etcd: {e}\n")
    raise SystemExit(int(status))


def _place(params: RendezvousParameters, links: LinkFactory) -> Place:
    launch = load_launch(_conf(params), os.environ, socket.gethostname())
    if launch.topology:
        log.info("this node's place in the network: %s", launch.topology)
    run = run_id(params.run_id, private=not params.endpoint)
    endpoints, close = _endpoints(params.endpoint)
    try:
        store = _connect(launch, endpoints)
        keys = RunKeys(run, launch.prefix)
        stamp = Stamp(datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds"), launch.node)
        secret = ensure_secret(store, keys, stamp)
    except BaseException:
        close()
        raise
    return Place(
        store=store,
        keys=keys,
        node=launch.node,
        policies=launch.policies,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        endpoints=tuple(e for e in endpoints.split(",") if e),
        secret=secret,
        local_addr=params.local_addr,
        topology=launch.topology,
        links=links,
        close=close,
        config_path=launch.path,
        listen=launch.listen,
    )


def _conf(params: RendezvousParameters) -> dict[str, object]:
    return {k: v for k, v in params.config.items() if v is not None}


def run_id(given: str | None, *, private: bool) -> str:
    """The run id: torchrun's default is refused on a shared etcd (strangers would merge) and new at each launch on a private one.

    Raises:
        ConfigError: no usable run id.
    """
    if given not in _NO_RUN_ID:
        return check_segment("--rdzv-id", str(given))
    if private:
        return f"run-{uuid.uuid4().hex[:12]}"
    raise ConfigError("--rdzv-id with the name of this run", "none", "give every run on a shared etcd its own --rdzv-id")


def _endpoints(given: str) -> tuple[str, Callable[[], None]]:
    """The endpoints, and how to let go of what was started for them."""
    if given:
        return re.sub(r"\s", "", given), lambda: None
    etcd = PrivateEtcd.start()
    for note in etcd.notes:
        log.warning("private etcd: %s", note)
    return etcd.endpoint, lambda: _stop(etcd)


def _stop(etcd: PrivateEtcd) -> None:
    etcd.stop()


def _connect(launch: Launch, endpoints: str) -> Store:
    store = launch.config.store
    try:
        return EtcdSession.connect(
            endpoints,
            tls=tls_files(store),
            user=store.user,
            password=read_password(store, os.environ),
            timeout_s=store.timeout_s,
        )
    except StoreError as e:
        log.debug("no session: %s", e)
        raise
