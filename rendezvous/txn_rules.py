"""etcd's limits on one transaction, checked before anything is sent.

Law: every store applies exactly these checks, so that what the in-memory store accepts, etcd accepts too.
"""

from __future__ import annotations

from elastic_health.rendezvous.store import Delete, Op, Put, RequestTooLarge, Txn

MAX_OPS = 128  # etcd's default of --max-txn-ops; counts each list of a transaction by itself
MAX_REQUEST_BYTES = 1536 * 1024  # etcd's default of --max-request-bytes
_ENVELOPE_BYTES = 1024  # raft header and user name, which etcd counts too
_OP_BYTES = 48  # an upper bound of one operation's own framing


def txn_size_bytes(txn: Txn) -> int:
    """An upper bound of what etcd will count for this transaction."""
    size = _ENVELOPE_BYTES
    for compare in txn.compare:
        size += _OP_BYTES + len(compare.key.encode("utf-8", "surrogateescape"))
        size += len(compare.value) if isinstance(compare.value, bytes) else 0
    for op in (*txn.then, *txn.otherwise):
        size += _OP_BYTES + len(op.key.encode("utf-8", "surrogateescape")) + (len(op.value) if isinstance(op, Put) else 0)
    return size


def writes(txn: Txn) -> bool:
    """Whether either branch can change the store."""
    return any(isinstance(op, (Put, Delete)) for op in (*txn.then, *txn.otherwise))


def _check_branch(ops: tuple[Op, ...]) -> None:
    puts = [op.key for op in ops if isinstance(op, Put)]
    if len(set(puts)) < len(puts):
        raise ValueError("a transaction puts one key twice; etcd refuses that")
    for op in ops:
        if isinstance(op, Delete) and any(k == op.key or (op.prefix and k.startswith(op.key)) for k in puts):
            raise ValueError(f"a transaction both puts and deletes {op.key!r}; etcd refuses that")
    if any(not op.key and not getattr(op, "prefix", False) for op in ops):
        raise ValueError("an operation without a key; etcd refuses that")


def check_txn(txn: Txn) -> None:
    """Pass a transaction that etcd would accept.

    Raises:
        RequestTooLarge: over 128 comparisons or operations of a branch, or over 1.5 MiB.
        ValueError: a programming error: a key put twice, or put and deleted, or empty.
    """
    most = max(len(txn.compare), len(txn.then), len(txn.otherwise))
    if most > MAX_OPS:
        raise RequestTooLarge(f"at most {MAX_OPS} operations in a transaction", str(most), "split it")
    size = txn_size_bytes(txn)
    if size > MAX_REQUEST_BYTES:
        raise RequestTooLarge(f"at most {MAX_REQUEST_BYTES} bytes in a request", str(size), "split it over several keys")
    _check_branch(txn.then)
    _check_branch(txn.otherwise)
