"""The part of etcd's v3 wire format that the session speaks: messages, method paths, and the two translations.

Law: only field numbers and method paths of etcd's public v3 API appear here, and the message classes live in a
descriptor pool of their own, so that any other etcd client, with any generated code, can be loaded in the same process.
The classes are made at import from the table below; neither `protoc` nor generated code is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from elastic_health.rendezvous.store import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    RangeResult,
    Target,
    Txn,
    TxnResult,
    WatchEvent,
)

# One line a field: `name:type=number`; `*` repeated, `|` member of the message's one oneof.  Enums travel as int32
# (the same bytes), so none is declared.
_SCHEMA: Mapping[str, str] = {
    "Header": "cluster_id:uint64=1 member_id:uint64=2 revision:int64=3 raft_term:uint64=4",
    "KeyValue": "key:bytes=1 create_revision:int64=2 mod_revision:int64=3 version:int64=4 value:bytes=5 lease:int64=6",
    "Event": "type:int32=1 kv:KeyValue=2",
    "RangeRequest": "key:bytes=1 range_end:bytes=2 limit:int64=3 revision:int64=4 serializable:bool=7 count_only:bool=9",
    "RangeResponse": "header:Header=1 *kvs:KeyValue=2 more:bool=3 count:int64=4",
    "PutRequest": "key:bytes=1 value:bytes=2 lease:int64=3",
    "PutResponse": "header:Header=1",
    "DeleteRangeRequest": "key:bytes=1 range_end:bytes=2",
    "DeleteRangeResponse": "header:Header=1 deleted:int64=2",
    "RequestOp": "|request_range:RangeRequest=1 |request_put:PutRequest=2 |request_delete_range:DeleteRangeRequest=3",
    "ResponseOp": "|response_range:RangeResponse=1 |response_put:PutResponse=2 |response_delete_range:DeleteRangeResponse=3",
    "Compare": "result:int32=1 target:int32=2 key:bytes=3 |version:int64=4 |create_revision:int64=5 |mod_revision:int64=6 |value:bytes=7",
    "TxnRequest": "*compare:Compare=1 *success:RequestOp=2 *failure:RequestOp=3",
    "TxnResponse": "header:Header=1 succeeded:bool=2 *responses:ResponseOp=3",
    "LeaseGrantRequest": "TTL:int64=1 ID:int64=2",
    "LeaseGrantResponse": "header:Header=1 ID:int64=2 TTL:int64=3 error:string=4",
    "LeaseRevokeRequest": "ID:int64=1",
    "LeaseRevokeResponse": "header:Header=1",
    "LeaseKeepAliveRequest": "ID:int64=1",
    "LeaseKeepAliveResponse": "header:Header=1 ID:int64=2 TTL:int64=3",
    "WatchCreateRequest": "key:bytes=1 range_end:bytes=2 start_revision:int64=3 progress_notify:bool=4 fragment:bool=8 *filters:int32=5",
    "WatchProgressRequest": "",
    "WatchRequest": "|create_request:WatchCreateRequest=1 |progress_request:WatchProgressRequest=3",
    "WatchResponse": "header:Header=1 watch_id:int64=2 created:bool=3 canceled:bool=4 compact_revision:int64=5"
    " cancel_reason:string=6 fragment:bool=7 *events:Event=11",
    "AuthenticateRequest": "name:string=1 password:string=2",
    "AuthenticateResponse": "header:Header=1 token:string=2",
    "StatusRequest": "",
    "StatusResponse": "header:Header=1 version:string=2 dbSize:int64=3 leader:uint64=4 raftIndex:uint64=5 raftTerm:uint64=6"
    " *errors:string=8 dbSizeInUse:int64=9 dbSizeQuota:int64=12",
    "Member": "ID:uint64=1 name:string=2 *peerURLs:string=3 *clientURLs:string=4 isLearner:bool=5",
    "MemberListRequest": "linearizable:bool=1",
    "MemberListResponse": "header:Header=1 *members:Member=2",
    "AlarmRequest": "action:int32=1 memberID:uint64=2 alarm:int32=3",
    "AlarmMember": "memberID:uint64=1 alarm:int32=2",
    "AlarmResponse": "header:Header=1 *alarms:AlarmMember=2",
}
_PACKAGE = "elastic_health.etcd"
_F = descriptor_pb2.FieldDescriptorProto
_SCALARS: Mapping[str, int] = {
    "int64": _F.TYPE_INT64,
    "uint64": _F.TYPE_UINT64,
    "int32": _F.TYPE_INT32,
    "bool": _F.TYPE_BOOL,
    "bytes": _F.TYPE_BYTES,
    "string": _F.TYPE_STRING,
}


def _add_field(message: descriptor_pb2.DescriptorProto, spec: str) -> None:
    mark = spec[0] if spec[0] in "*|" else ""
    name, kind_number = spec.lstrip("*|").split(":")
    kind, number = kind_number.split("=")
    field = message.field.add(name=name, number=int(number))
    field.label = _F.LABEL_REPEATED if mark == "*" else _F.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    if mark == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="elastic_health/etcd.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for spec in fields.split():
            _add_field(message, spec)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _SCHEMA}


MESSAGES: Mapping[str, Any] = _message_classes()

_SERVICES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "KV": {"Range": ("RangeRequest", "RangeResponse"), "Txn": ("TxnRequest", "TxnResponse")},
    "Lease": {
        "LeaseGrant": ("LeaseGrantRequest", "LeaseGrantResponse"),
        "LeaseRevoke": ("LeaseRevokeRequest", "LeaseRevokeResponse"),
        "LeaseKeepAlive": ("LeaseKeepAliveRequest", "LeaseKeepAliveResponse"),
    },
    "Watch": {"Watch": ("WatchRequest", "WatchResponse")},
    "Auth": {"Authenticate": ("AuthenticateRequest", "AuthenticateResponse")},
    "Cluster": {"MemberList": ("MemberListRequest", "MemberListResponse")},
    "Maintenance": {"Status": ("StatusRequest", "StatusResponse"), "Alarm": ("AlarmRequest", "AlarmResponse")},
}
STREAMS = frozenset({"LeaseKeepAlive", "Watch"})
# method name -> (path, request class, response class)
METHODS: Mapping[str, tuple[str, Any, Any]] = {
    method: (f"/etcdserverpb.{service}/{method}", MESSAGES[request], MESSAGES[response])
    for service, methods in _SERVICES.items()
    for method, (request, response) in methods.items()
}

_TARGETS: Mapping[Target, tuple[int, str]] = {
    Target.VERSION: (0, "version"),
    Target.CREATE: (1, "create_revision"),
    Target.MOD: (2, "mod_revision"),
    Target.VALUE: (3, "value"),
}


def encode_key(key: str) -> bytes:
    """A key's bytes; keys that are no UTF-8 come and go as surrogate escapes."""
    return key.encode("utf-8", "surrogateescape")


def prefix_end(prefix: bytes) -> bytes:
    """The smallest key behind every key with this prefix; a zero byte means the end of the key space."""
    for i in reversed(range(len(prefix))):
        if prefix[i] < 0xFF:
            return prefix[:i] + bytes([prefix[i] + 1])
    return b"\0"


def span(key: str, prefix: bool) -> dict[str, bytes]:
    """`key` and `range_end` of a range request, as keyword arguments."""
    raw = encode_key(key)
    if not prefix:
        return {"key": raw}
    return {"key": raw or b"\0", "range_end": prefix_end(raw)}


def span_after(prefix: str, after: str) -> dict[str, bytes]:
    """As `span` of a prefix, without what starts with `after` and all before it."""
    whole = span(prefix, True)
    return {**whole, "key": prefix_end(encode_key(after))} if after else whole


def _op_message(op: Op) -> Any:
    if isinstance(op, Put):
        put = MESSAGES["PutRequest"](key=encode_key(op.key), value=op.value, lease=op.lease)
        return MESSAGES["RequestOp"](request_put=put)
    if isinstance(op, Delete):
        return MESSAGES["RequestOp"](request_delete_range=MESSAGES["DeleteRangeRequest"](**span(op.key, op.prefix)))
    assert isinstance(op, Get)
    return MESSAGES["RequestOp"](request_range=MESSAGES["RangeRequest"](**span(op.key, op.prefix), count_only=op.count))


def _compare_message(compare: Compare) -> Any:
    number, field = _TARGETS[compare.target]
    return MESSAGES["Compare"](result=0, target=number, key=encode_key(compare.key), **{field: compare.value})


def txn_message(txn: Txn) -> Any:
    """A `TxnRequest`."""
    return MESSAGES["TxnRequest"](
        compare=[_compare_message(c) for c in txn.compare],
        success=[_op_message(op) for op in txn.then],
        failure=[_op_message(op) for op in txn.otherwise],
    )


def key_value(kv: Any) -> KeyValue:
    """A `KeyValue` message as plain data."""
    key = kv.key.decode("utf-8", "surrogateescape")
    return KeyValue(key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def txn_result(response: Any) -> TxnResult:
    """A `TxnResponse` as plain data."""
    revision = response.header.revision
    reads = tuple(
        RangeResult(revision, tuple(key_value(kv) for kv in r.response_range.kvs), r.response_range.count)
        for r in response.responses
        if r.WhichOneof("choice") == "response_range"
    )
    return TxnResult(response.succeeded, revision, reads)


def watch_event(event: Any) -> WatchEvent:
    """An `Event` as plain data; etcd leaves all but key and revision of a deleted key empty."""
    return WatchEvent(event.type == 1, key_value(event.kv))
