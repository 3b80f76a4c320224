"""Reaching the store: the arguments that all such commands share, and a session made from them."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from elastic_health.config.load_os import load, read_password, tls_files
from elastic_health.errors import ConfigError
from elastic_health.recovery.snapshot import RunSnapshot, snapshot
from elastic_health.rendezvous.keys import FleetKeys, RunKeys, check_segment
from elastic_health.rendezvous.store import KeyValue, Store
from elastic_health.variables import CONFIG, ENDPOINT

if TYPE_CHECKING:
    from elastic_health.config.model import Config


class NotFound(Exception):
    """Nothing is known of the run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--endpoint`, `--config`, `--prefix`, `--json`."""
    parser.add_argument("--endpoint", metavar="HOST:PORT[,…]", help=f"etcd, as in torchrun's --rdzv-endpoint (default: ${ENDPOINT})")
    parser.add_argument("--config", metavar="FILE", help=f"the YAML, for TLS, user and prefix (default: ${CONFIG})")
    parser.add_argument("--prefix", metavar="/…/", help="the key prefix (default: the YAML's store.prefix)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


@contextmanager
def reached(arguments: argparse.Namespace) -> Iterator[tuple[Store, str]]:
    """A session and the key prefix.

    Raises:
        ConfigError: no endpoint, or the YAML is wrong.
        StoreError: as `EtcdSession.connect`.
    """
    from elastic_health.rendezvous.session_etcd import EtcdSession  # gRPC takes time to import, and not all commands need it

    endpoint = arguments.endpoint or os.environ.get(ENDPOINT)
    if not endpoint:
        raise ConfigError("an etcd endpoint", "neither --endpoint nor " + ENDPOINT, "write --endpoint host:2379, as in --rdzv-endpoint")
    config: Config = load(arguments.config or os.environ.get(CONFIG) or None)
    store = config.store
    session = EtcdSession.connect(
        endpoint, tls=tls_files(store), user=store.user, password=read_password(store, os.environ), timeout_s=store.timeout_s
    )
    try:
        yield session, arguments.prefix or store.prefix
    finally:
        session.close()


def run_keys(arguments: argparse.Namespace, prefix: str) -> RunKeys:
    """The keys of the run that the command names."""
    return RunKeys(check_segment("run id", arguments.run), prefix)


def read_run(store: Store, keys: RunKeys) -> RunSnapshot:
    """All of a run's keys at one revision.

    Raises:
        NotFound: there are none.
    """
    kvs = store.range(keys.root).kvs
    if not kvs:
        raise NotFound(f"expected a run below {keys.prefix}runs/; found nothing of {keys.run}; see `elastic-health runs list`")
    return snapshot(keys, kvs)


def by_run(store: Store, prefix: str) -> dict[str, list[KeyValue]]:
    """All keys of all runs, in order of the run ids; a key right below `runs/` belongs to none."""
    root, found = FleetKeys(prefix).runs, dict[str, list[KeyValue]]()
    for kv in store.range(root).kvs:
        run, slash, _ = kv.key[len(root) :].partition("/")
        if slash:
            found.setdefault(run, []).append(kv)
    return dict(sorted(found.items()))


def utc(now: float) -> str:
    """Seconds since the epoch as ISO 8601."""
    return datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def me() -> str:
    """user@host, for `by`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
