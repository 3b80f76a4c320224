"""Sockets of agent links: how they are opened and set up, what an error number means for a link.

Law: every socket is non-blocking, is not inherited by exec, and gives up on a dead route within the link timeout.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import socket

from elastic_health.agents.addresses_net import HostPort, SockAddr, resolve
from elastic_health.agents.link_types import DownReason, LinkTiming
from elastic_health.errors import LinkError

BACKLOG = 4096
_IP_RECVERR, _IPV6_RECVERR, _IPPROTO_IPV6 = 11, 25, 41
"""linux/in.h, linux/in6.h: Python's socket module has no names for the first two."""
_ICMP_ORIGINS = (2, 3)
"""SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6 (linux/errqueue.h)."""
_UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM}
)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `host`, or on all interfaces when `host` is no address of this machine (NAT, a service name).

    Raises:
        LinkError: the name does not resolve or the port is taken.
    """
    resolved = resolve(HostPort(host, port))
    if not resolved.addresses:
        raise LinkError("a local address to listen on", f"{host}: {resolved.error}", "correct --local-addr")
    try:
        for family, address in resolved.addresses:
            try:
                return _listen_at(family, address)
            except OSError as e:
                if e.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
        family = resolved.addresses[0][0]
        return _listen_at(family, ("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    except OSError as e:
        do = "choose another port (listen= in --rdzv-conf, or ports.listen; 0 takes any free one)" if port else "correct --local-addr"
        raise LinkError(f"to listen for other agents at {HostPort(host, port)}", str(e), do) from e


def _listen_at(family: int, address: SockAddr) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def listen_beside(sock: socket.socket) -> socket.socket:
    """A listening socket at the same local address as a listening one, on a free port.

    Raises:
        LinkError: there is no free port or descriptor.
    """
    bound = sock.getsockname()
    try:
        return _listen_at(sock.family, (bound[0], 0, *bound[2:]))
    except OSError as e:
        raise LinkError(f"a free port at {bound[0]}", str(e), "close other programs' ports, or raise the limit of open files") from e


def start_connect(family: int, address: SockAddr, timing: LinkTiming) -> tuple[socket.socket, int]:
    """Begin a connection.

    Returns:
        The socket and 0 or an error number; `EINPROGRESS` means that writability tells.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    tune(sock, timing)
    _keep_icmp(sock, True)
    return sock, sock.connect_ex(address)


def tune(sock: socket.socket, timing: LinkTiming) -> None:
    """No delay for small frames; unacknowledged data and idle dead routes end within about the link timeout."""
    beat_s = max(1, round(timing.beat_s))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, beat_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, beat_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(timing.timeout_s * 1000)))


def connected_to_itself(sock: socket.socket) -> bool:
    """A dial of a dead port of the ephemeral range on the same host can meet its own SYN: nobody listens there."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False


def why_not_connected(sock: socket.socket, error: int) -> DownReason:
    """What a failed connect says.  Only the host itself refuses (by a reset): a firewall or router that rejects by ICMP
    makes the same error number, and proves nothing about who listens behind it."""
    reason = reason_of(error)
    return DownReason.UNREACHABLE if reason is DownReason.REFUSED and _told_by_icmp(sock) else reason


def connected(sock: socket.socket) -> None:
    """After the connect: ICMP errors are again what TCP takes them for, hints that don't end a connection."""
    _keep_icmp(sock, False)


def _keep_icmp(sock: socket.socket, on: bool) -> None:
    level, option = (_IPPROTO_IPV6, _IPV6_RECVERR) if sock.family == socket.AF_INET6 else (socket.IPPROTO_IP, _IP_RECVERR)
    with contextlib.suppress(OSError):  # without it every refusal counts as the host's own
        sock.setsockopt(level, option, int(on))


def _told_by_icmp(sock: socket.socket) -> bool:
    """Is the origin of the socket's error an ICMP message (ip(7), IP_RECVERR)?  A reset leaves nothing in the queue."""
    try:
        _, ancillary, _, _ = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return False
    # struct sock_extended_err: errno (4 bytes), origin, type, code, pad, info, data.
    return any(len(data) > 4 and data[4] in _ICMP_ORIGINS for _, _, data in ancillary)


def reason_of(error: int) -> DownReason:
    """What an error number of connect, recv or send says about the link."""
    if error == errno.ECONNREFUSED:
        return DownReason.REFUSED
    if error == errno.ETIMEDOUT:
        return DownReason.TIMEOUT
    return DownReason.UNREACHABLE if error in _UNREACHABLE else DownReason.RESET


def raise_open_files(wanted: int = 65536) -> int:
    """Raise the soft limit of open files towards `wanted`, within the hard limit; returns the soft limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return soft
