"""What `doctor` says of the etcd that it looked at."""

from __future__ import annotations

import statistics

from elastic_health.preflight.doctor_facts import EtcdFacts, MemberFacts, Trouble
from elastic_health.preflight.doctor_lines import Line, Mark, Topic, version_of

MIB = 1024.0**2
GIB = 1024.0**3
DEFAULT_QUOTA_BYTES = 2 * GIB
"""etcd's own default, and what its documentation calls the default storage size limit."""
YOUNG_REVISIONS = 10_000
"""Fewer changes than this tell nothing of whether old ones are ever compacted away."""
KEPT_REVISIONS = 1_000_000
"""More than an hour of changes of a busy store: whatever compacted it (somebody by hand?) does not do so any more."""
SLOW_READ_S, ELECTION_S = 0.1, 1.0
"""etcd's tuning guide: by default its heartbeat is 100 ms and its election timeout 1000 ms."""
CLOCK_S = 2.0
"""etcd's HTTP date counts whole seconds."""


def etcd(e: EtcdFacts | Trouble) -> tuple[Line, ...]:
    if isinstance(e, Trouble):
        return (Line(Topic.ETCD, Mark.FAIL if e.looked else Mark.UNKNOWN, e.found, e.do),)
    lines = [_etcd(e), _members(e), _latency(e), _login(e), _rights(e), _space(e), _compaction(e), _clock(e), _quarantine(e)]
    return tuple(line for line in lines if line is not None)


def _answering(e: EtcdFacts) -> list[MemberFacts]:
    return [m for m in e.members if not m.error]


def _etcd(e: EtcdFacts) -> Line:
    up = _answering(e)
    if not up:
        found = "; ".join(f"{m.endpoint}: {m.error}" for m in e.members)
        return Line(Topic.ETCD, Mark.UNKNOWN, f"it answers, but tells nothing of itself: {found}", "look at etcd's own log")
    said = f"{', '.join(sorted({m.version for m in up}))} at {', '.join(m.endpoint for m in up)}"
    versions = [version_of(m.version) for m in up]
    if any(v is None or v < (3, 4) for v in versions):
        return Line(Topic.ETCD, Mark.FAIL, f"{said}: older than 3.4, the oldest supported", "update etcd")
    if any(v is not None and (3, 5, 0) <= v <= (3, 5, 2) for v in versions):
        return Line(Topic.ETCD, Mark.WARN, f"{said}: 3.5.0 to 3.5.2 may lose data in a crash", "update etcd to 3.5.3 or newer")
    return Line(Topic.ETCD, Mark.OK, said)


def _members(e: EtcdFacts) -> Line:
    up, silent = _answering(e), [m for m in e.members if m.error]
    if up and not any(m.leader for m in up):
        do = "see why the members don't reach each other: etcdctl endpoint status --cluster"
        return Line(Topic.MEMBERS, Mark.FAIL, "no leader: etcd can't write", do)
    if len({m.leader for m in up if m.leader}) > 1:
        do = "give the endpoints of one cluster"
        return Line(Topic.MEMBERS, Mark.FAIL, "the endpoints name different leaders: they belong to different clusters", do)
    if silent:
        found = "; ".join(f"{m.endpoint}: {m.error}" for m in silent)
        return Line(
            Topic.MEMBERS,
            Mark.WARN,
            f"{len(up)} of {len(e.members)} endpoints answer ({found})",
            "start those members, or correct the endpoints",
        )
    if e.cluster is None:
        return Line(Topic.MEMBERS, Mark.UNKNOWN, f"{len(up)} endpoint(s) answer; etcd did not tell its members", "ask etcdctl member list")
    missing = sorted(name or f"{i:x}, never started" for i, name in e.cluster if i not in {m.id for m in up})
    if missing:
        found = f"the endpoints leave out {len(missing)} of {len(e.cluster)} members ({', '.join(missing)})"
        return Line(Topic.MEMBERS, Mark.WARN, found, "name all of them, so that agents reach etcd while one is down")
    if len(e.cluster) == 1:
        found = "one member: while it is down nothing is committed and nobody joins"
        return Line(Topic.MEMBERS, Mark.NOTE, found, "use three for runs that matter")
    if len(e.cluster) % 2 == 0:
        found = f"{len(e.cluster)} members survive no more losses than {len(e.cluster) - 1} would"
        return Line(Topic.MEMBERS, Mark.NOTE, found, "use an odd number")
    return Line(Topic.MEMBERS, Mark.OK, f"{len(e.cluster)} members, all answer, one leader; {(len(e.cluster) - 1) // 2} may fail")


def _latency(e: EtcdFacts) -> Line:
    if not e.reads_s:
        return Line(Topic.LATENCY, Mark.UNKNOWN, "no read was answered", "see the lines above")
    median = statistics.median(e.reads_s)
    found = f"median of {len(e.reads_s)} quorum reads {median * 1000:.1f} ms, slowest {max(e.reads_s) * 1000:.1f} ms"
    if median >= SLOW_READ_S:
        found += ": members will take each other for dead" if median >= ELECTION_S else ""
        return Line(Topic.LATENCY, Mark.WARN, found, "give etcd a disk of its own (an SSD) and a near network")
    return Line(Topic.LATENCY, Mark.OK, found)


def _login(e: EtcdFacts) -> Line:
    if e.logged_in:
        return Line(Topic.LOGIN, Mark.OK, f"etcd took user {e.user}")
    if e.user:
        found = f"user {e.user} is set, but etcd has authentication off: whoever reaches it may write"
        return Line(Topic.LOGIN, Mark.WARN, found, "etcdctl auth enable (docs/SECURITY.md)")
    found = "etcd asks for no user and password: whoever reaches it may write, unless it asks for client certificates"
    return Line(Topic.LOGIN, Mark.NOTE, found, "docs/SECURITY.md says how to close it")


def _rights(e: EtcdFacts) -> Line:
    if e.rights is not None:
        return Line(Topic.RIGHTS, Mark.FAIL, e.rights.found, e.rights.do)
    return Line(Topic.RIGHTS, Mark.OK, "an agent may read and write what it must")


def _space(e: EtcdFacts) -> Line:
    """Of the fullest member."""
    up = _answering(e)
    alarms = sorted({a for m in up for a in m.alarms})
    if any("NOSPACE" in a for a in alarms):
        do = "etcdctl compact, defrag, alarm disarm (docs/OPERATIONS.md)"
        return Line(Topic.SPACE, Mark.FAIL, f"etcd is full and takes no writes ({'; '.join(alarms)})", do)
    if alarms:
        return Line(Topic.SPACE, Mark.FAIL, f"etcd says: {'; '.join(alarms)}", "see etcdctl alarm list and etcd's documentation")
    if not up:
        return Line(Topic.SPACE, Mark.UNKNOWN, "no member told its size", "see the lines above")
    fullest = max(up, key=lambda m: m.size_bytes / (m.quota_bytes or DEFAULT_QUOTA_BYTES))
    quota = fullest.quota_bytes or DEFAULT_QUOTA_BYTES
    share = fullest.size_bytes / quota
    of = f"of {quota / GIB:.3g} GiB" if fullest.quota_bytes else f"(its quota is not told; etcd's default is {quota / GIB:.3g} GiB)"
    found = f"{fullest.size_bytes / MIB:.3g} MiB on disk {of}, {fullest.in_use_bytes / MIB:.3g} MiB in use"
    do = "compact and defragment it, delete old runs (elastic-health runs delete --older-than), or raise --quota-backend-bytes"
    if share >= 0.95:
        return Line(Topic.SPACE, Mark.WARN, f"{found}: nearly full; a full one takes no writes", do)
    if share >= 0.70:
        return Line(Topic.SPACE, Mark.WARN, found, do)
    return Line(Topic.SPACE, Mark.OK, found)


def _compaction(e: EtcdFacts) -> Line:
    """etcd tells nobody its setting; what history can still be read shows whether anything compacts it."""
    set_it = "start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=1h"
    if e.oldest is None:
        return Line(Topic.COMPACTION, Mark.UNKNOWN, "which old revisions can still be read was not found out", set_it)
    kept = e.revision - e.oldest + 1
    if e.oldest > 1:
        found = f"old revisions are compacted away: the newest {kept} of {e.revision} can still be read"
        return Line(Topic.COMPACTION, Mark.WARN if kept > KEPT_REVISIONS else Mark.OK, found, set_it if kept > KEPT_REVISIONS else "")
    if e.revision >= YOUNG_REVISIONS:
        return Line(Topic.COMPACTION, Mark.WARN, f"none of {e.revision} revisions was ever compacted away: etcd only grows", set_it)
    return Line(Topic.COMPACTION, Mark.UNKNOWN, f"etcd is young ({e.revision} revisions), so nothing is to be seen yet", set_it)


def _clock(e: EtcdFacts) -> Line:
    if e.clock_s is None:
        return Line(Topic.CLOCK, Mark.UNKNOWN, "etcd did not tell its time over HTTP", "see that NTP or chrony runs")
    if abs(e.clock_s) > CLOCK_S:
        found = f"this machine's clock is {abs(e.clock_s):.0f} s {'ahead of' if e.clock_s > 0 else 'behind'} etcd's"
        return Line(Topic.CLOCK, Mark.WARN, found, "start NTP or chrony: the ends of quarantines, and records, go by it")
    return Line(Topic.CLOCK, Mark.OK, "within 2 s of etcd's")


def _quarantine(e: EtcdFacts) -> Line | None:
    if not e.quarantine:
        return None
    found = "; ".join(f"{what} is in quarantine: {reason or 'no reason given'}" for what, reason in e.quarantine)
    return Line(Topic.QUARANTINE, Mark.FAIL, found, "elastic-health quarantine show, and release once it is repaired")
