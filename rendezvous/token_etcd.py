"""The login of one session: etcd hands out a token for user and password, and takes it back when it pleases.

Law: the password leaves this object only inside an `Authenticate` request, and never enters a repr or an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from elastic_health.errors import ConfigError
from elastic_health.rendezvous.channels_etcd import Channel, Metadata
from elastic_health.rendezvous.replies import Reply, meaning
from elastic_health.rendezvous.wire_etcd import MESSAGES

_FIELD = "token"
Password = str | Callable[[], str | None] | None


class Token:
    """The token in use.  All members accept it, so one serves every channel.  Without a user there is none."""

    def __init__(self, user: str | None, password: Password) -> None:
        self._user, self.__password = user, password
        self.__last: str | None = None
        self._value: str | None = None
        self.reset()

    def reset(self) -> None:
        """A fresh lock, in a forked child; the token itself is still good."""
        self._lock = threading.Lock()

    def metadata(self, channel: Channel, timeout_s: float) -> Metadata:
        """The token as call metadata; logs in over `channel` if there is none.

        Raises:
            grpc.RpcError: logging in failed.
        """
        if self._user is None:
            return ()
        with self._lock:
            if self._value is None:
                self._value = self._login(channel, timeout_s)
            return ((_FIELD, self._value),) if self._value else ()

    def held(self) -> Metadata | None:
        """As `metadata`, without ever logging in: None where that is due."""
        if self._user is None:
            return ()
        with self._lock:
            return None if self._value is None else ((_FIELD, self._value),) if self._value else ()

    def _login(self, channel: Channel, timeout_s: float) -> str:
        request = MESSAGES["AuthenticateRequest"](name=self._user, password=self._secret() or "")
        try:
            return str(channel.call("Authenticate", request, timeout_s, ()).token)
        except grpc.RpcError as error:
            if meaning(error.code().name, error.details() or "") is Reply.AUTH_OFF:
                return ""  # the server has no users yet; a later refusal brings us back here
            raise

    @property
    def given(self) -> bool:
        """Has etcd handed out a token?  Not if it has no users."""
        return bool(self._value)

    @property
    def has_password(self) -> bool:
        return self._secret() is not None

    def _secret(self) -> str | None:
        if not callable(self.__password):
            return self.__password
        try:
            self.__last = self.__password()
        except ConfigError:  # the file is gone, or being replaced: the one before may still do
            if self.__last is None:
                raise
        return self.__last

    def forget(self, metadata: Metadata) -> None:
        """Drop the token that a failed call used, unless another call has replaced it already."""
        used = dict(metadata).get(_FIELD, "")
        with self._lock:
            if self._value == used:
                self._value = None

    def may_renew(self, reply: Reply, text: str) -> bool:
        """Whether a failed call may succeed with a fresh token."""
        return self._user is not None and (reply is Reply.TOKEN_STALE or "user name is empty" in text)
