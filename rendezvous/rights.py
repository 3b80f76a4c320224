"""What an agent's etcd user may be limited to, and what is said when it is limited further.  Pure.

Law: an agent reads and writes below its run, and reads the quarantine list; without any other right it runs, and what its
preflight would have compared or remembered by one is not measured (`wanted`).
"""

from __future__ import annotations

from elastic_health.rendezvous.keys import FleetKeys, RunKeys
from elastic_health.rendezvous.replies import PERMISSION_DENIED
from elastic_health.rendezvous.store import StoreRefused


def needed(keys: RunKeys) -> tuple[tuple[str, str], ...]:
    """Pairs of etcd's permission word and key prefix, for one run."""
    return (("readwrite", keys.root), ("read", FleetKeys(keys.prefix).quarantine))


def wanted(prefix: str) -> tuple[tuple[str, str], ...]:
    """What the preflight uses besides: votes on canary digests, nodes' standings, meetings of pairs, baselines."""
    fleet = FleetKeys(prefix)
    return (("readwrite", fleet.canary_root), ("readwrite", fleet.preflights), ("readwrite", fleet.pairs_root), ("read", fleet.baselines))


def explained(refused: StoreRefused, keys: RunKeys) -> StoreRefused:
    """The same refusal, with the rights that are needed and how to grant them, where missing rights are the reason."""
    if PERMISSION_DENIED not in refused.found:
        return refused
    fleet = FleetKeys(keys.prefix)
    rights = " and ".join(f"{right} below {prefix}" for right, prefix in needed(keys))
    lines = " and ".join(
        f"`etcdctl role grant-permission ROLE --prefix=true {right} {prefix}`"
        for right, prefix in (("readwrite", fleet.runs), ("read", fleet.quarantine), *wanted(keys.prefix))
    )
    return StoreRefused(f"a user with the rights {rights}", refused.found, f"check user and role: {lines} (docs/SECURITY.md)")
