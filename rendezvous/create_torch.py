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

from elastic_health.config.load_os import Launch, hide_secrets, load_launch, read_password, tls_files
from elastic_health.errors import BadValue, ConfigError, HealthError, LinkError, RunRefused
from elastic_health.exits import ExitStatus
from elastic_health.preflight.clock_net import store_clock
from elastic_health.rendezvous.endpoints import parse_endpoints
from elastic_health.rendezvous.fence import Stamp
from elastic_health.rendezvous.handler_torch import HealthyHandler, LinkFactory, Place
from elastic_health.rendezvous.keys import RunKeys, check_segment
from elastic_health.rendezvous.private_etcd import PrivateEtcd
from elastic_health.rendezvous.rights_etcd import check_rights
from elastic_health.rendezvous.secret_etcd import ensure_secret
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import NameUnknown, NotEtcd, Store, StoreRefused, StoreSilent, StoreUnavailable

log = logging.getLogger("elastic_health")
_NO_RUN_ID = ("none", "", None)
_STATUS: Mapping[type[HealthError], ExitStatus] = {
    ConfigError: ExitStatus.BAD_CONFIG,
    RunRefused: ExitStatus.RUN_REFUSED,
    BadValue: ExitStatus.RUN_REFUSED,
    LinkError: ExitStatus.BAD_CONFIG,  # before any link is up it can only be the address or port to listen at
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


def status_of(e: HealthError) -> ExitStatus:
    """With which status an agent ends that `e` kept from starting."""
    return next((s for kind, s in _STATUS.items() if isinstance(e, kind)), ExitStatus.STORE_UNREACHABLE)


def _end(e: HealthError) -> NoReturn:
    sys.stderr.write(f"healthy-etcd: {e}\n")
    raise SystemExit(int(status_of(e)))


def _place(params: RendezvousParameters, links: LinkFactory) -> Place:
    launch = load_launch(_conf(params), os.environ, socket.gethostname())
    if launch.topology:
        log.info("this node's place in the network: %s", launch.topology)
    run = run_id(params.run_id, private=not params.endpoint)
    environ = dict(os.environ)
    hidden = hide_secrets(launch.config, os.environ)
    endpoints, stop = _endpoints(params.endpoint)

    def close() -> None:
        stop()
        os.environ.update(hidden)  # for another launch from this process

    try:
        store = _connect(launch, endpoints, environ)
        keys = RunKeys(run, launch.prefix)
        stamp = Stamp(datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds"), launch.node)
        check_rights(store, keys)
        secret = ensure_secret(store, keys, stamp, launch.policies.membership.join_timeout_s)
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
        endpoints=tuple(e.address for e in parse_endpoints(endpoints)),
        secret=secret,
        local_addr=params.local_addr,
        topology=launch.topology,
        links=links,
        close=close,
        config_path=launch.path,
        listen=launch.listen,
        environ=environ,
        clock=store_clock(endpoints, tls_files(launch.config.store)),
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


def _connect(launch: Launch, endpoints: str, environ: Mapping[str, str]) -> Store:
    """A session.  A name that does not resolve may be a DNS entry that comes late: asked again until the join timeout.  An
    etcd that doesn't answer may be out for a while, as it may be for a group that trains: asked again for `store.connect_s`."""
    store, patience_s = launch.config.store, launch.policies.membership.join_timeout_s
    began, told = time.monotonic(), False
    deadline = began + patience_s
    while True:
        try:
            return EtcdSession.connect(
                endpoints,
                tls=tls_files(store),
                user=store.user,
                password=lambda: read_password(store, environ),
                timeout_s=min(store.timeout_s, max(0.1, deadline - time.monotonic())),
                calls_s=store.timeout_s,
            )
        except NameUnknown as e:
            if time.monotonic() >= deadline:
                raise
            if not told:
                log.warning("%s; asking again for up to %g s (membership.join_timeout_s)", e, patience_s)
            told = True
        except (StoreUnavailable, StoreSilent) as e:
            if time.monotonic() >= min(deadline, began + store.connect_s):
                raise
            if not told:
                log.warning("%s; asking again for up to %g s (store.connect_s)", e, store.connect_s)
            told = True
            time.sleep(min(0.5, store.connect_s / 10))
