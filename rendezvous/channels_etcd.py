"""One gRPC channel an endpoint, and which of them is in use.

Law: a write goes only onto a channel that is *proven*, i.e. has answered since its last failure.  So a write that
fails by never reaching the server can be told from one whose answer was lost.
gRPC's own retries, proxies and shared connections are switched off: they would hide what happened to a request.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.endpoints import Endpoint, TlsFiles
from elastic_health.rendezvous.wire_etcd import METHODS, STREAMS

MAX_REPLY_BYTES = 256 * 1024 * 1024
CONNECT_TIMEOUT_S = 2.0
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),  # also the bound of one connection attempt
    ("grpc.keepalive_time_ms", 10_000),  # etcd takes more than one ping in 5 s for abuse
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),  # etcd's enforcement counts those as abuse too
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.max_send_message_length", MAX_REPLY_BYTES),  # etcd's own limit is checked by the session
)
_RETIRED_AT_MOST = 4

Metadata = Sequence[tuple[str, str]]


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError("a readable PEM file", str(error), "check the path") from error


def _stamps(tls: TlsFiles | None) -> tuple[tuple[int, int], ...] | None:
    """What tells a replaced certificate file from the one before; None without files, or while one is missing."""
    try:
        found = [os.stat(path) for path in (tls.ca, tls.certificate, tls.key) if path] if tls else []
    except OSError:
        return None
    return tuple((s.st_mtime_ns, s.st_ino) for s in found) or None


class CallFailed(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """A call that failed on this side, in the form of gRPC's own errors."""

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details


class Channel:
    """A channel to one endpoint, with a callable for each method.  `proven`: it answered since its last failure."""

    def __init__(self, endpoint: Endpoint, tls: TlsFiles | None) -> None:
        self.endpoint = endpoint
        self.proven = False
        self._closed = False
        self._tls, self._files = tls, _stamps(tls)
        options = list(_OPTIONS)
        if tls is None:
            self._channel = grpc.insecure_channel(endpoint.address, options)
        else:
            named: list[tuple[str, Any]] = [*options, *([("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else [])]
            credentials = grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))
            self._channel = grpc.secure_channel(endpoint.address, credentials, named)
        self._calls = {name: self._callable(name) for name in METHODS}

    def _callable(self, method: str) -> Any:
        path, request, response = METHODS[method]
        make = self._channel.stream_stream if method in STREAMS else self._channel.unary_unary
        return make(path, request_serializer=request.SerializeToString, response_deserializer=response.FromString)

    def call(self, method: str, request: Any, timeout_s: float, metadata: Metadata) -> Any:
        """One unary call.

        Raises:
            grpc.RpcError: as gRPC has it.
        """
        response = self._invoke(method, request, timeout_s, metadata)
        self.proven = True
        return response

    def begin(self, method: str, request: Any, timeout_s: float, metadata: Metadata) -> Any:
        """Send one unary call and return gRPC's future of it.

        Raises:
            CallFailed: the channel is closed.
        """
        return self._invoke(method, request, timeout_s, metadata, later=True)

    def stream(self, method: str, requests: Iterator[Any], timeout_s: float | None, metadata: Metadata) -> Any:
        """Open a stream; iterate over the result for responses, `cancel()` it to end."""
        return self._invoke(method, requests, timeout_s, metadata)

    def _invoke(self, method: str, request: Any, timeout_s: float | None, metadata: Metadata, *, later: bool = False) -> Any:
        call = self._calls[method].future if later else self._calls[method]
        try:
            return call(request, timeout=timeout_s, metadata=metadata)
        except ValueError as error:
            if not self._closed:
                raise
            raise CallFailed("cannot invoke rpc on closed channel") from error  # gRPC says so by a ValueError

    @property
    def outdated(self) -> bool:
        """Whether certificate files have been replaced since: gRPC keeps those that it was given."""
        now = _stamps(self._tls)
        return now is not None and now != self._files

    def close(self) -> None:
        self._closed = True
        self._channel.close()


class Channels:
    """The channels of one session; all methods are thread-safe.  Made lazily, so an unused endpoint costs nothing."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: TlsFiles | None, first: int) -> None:
        self.endpoints = tuple(endpoints)
        self._tls = tls
        self._index = first % len(self.endpoints)
        self.reset()

    def reset(self) -> None:
        """Forget every channel without touching it: what a forked child must do with its parent's."""
        self._lock = threading.Lock()
        self._open: dict[int, Channel] = {}
        self._retired: list[Channel] = []

    def current(self) -> Channel:
        """The channel in use."""
        with self._lock:
            return self._at(self._index)

    def of(self, index: int) -> Channel:
        """The channel of one endpoint, for asking each member."""
        with self._lock:
            return self._at(index)

    def _at(self, index: int) -> Channel:
        if index not in self._open:
            self._open[index] = Channel(self.endpoints[index], self._tls)
        return self._open[index]

    def prefer(self, endpoint: Endpoint) -> None:
        """Use this endpoint next."""
        with self._lock:
            self._index = self.endpoints.index(endpoint)

    def failed(self, channel: Channel, *, hung: bool = False) -> None:
        """Move on to the next endpoint if `channel` is still the one in use.

        `hung`: its connection may be dead without either side knowing; open a new one next time.  The old channel
        is kept for a while, since others may have calls on it.
        """
        channel.proven = False
        with self._lock:
            if self._open.get(self._index) is channel:
                self._index = (self._index + 1) % len(self.endpoints)
            if hung or channel.outdated:
                self._retire(channel)

    def _retire(self, channel: Channel) -> None:
        index = self.endpoints.index(channel.endpoint)
        if self._open.get(index) is channel:
            del self._open[index]
            self._retired.append(channel)
            if len(self._retired) > _RETIRED_AT_MOST:
                self._retired.pop(0).close()

    def close(self) -> None:
        with self._lock:
            channels = [*self._open.values(), *self._retired]
            self._open, self._retired = {}, []
        for channel in channels:
            channel.close()
