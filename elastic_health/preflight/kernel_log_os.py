"""The kernel's messages since boot: from /dev/kmsg, else from `dmesg`, else not readable.

Law: never waits for a message that has not been written yet, and never keeps more than `MAX_BYTES` (the newest).
"""

from __future__ import annotations

import errno
import os
from collections import deque

from elastic_health.preflight.command_proc import run_command
from elastic_health.preflight.commands import Command, cleaned
from elastic_health.preflight.host_facts import KernelLog

KMSG = "/dev/kmsg"
MAX_BYTES = 16 * 1024 * 1024
"""Kernels are seldom built or booted with a larger buffer."""
_RECORD_BYTES = 8192
"""A record of /dev/kmsg is never longer (PRINTK_MESSAGE_MAX and its prefix)."""
_DMESG_LIMIT_S = 3.0


def read_kernel_log(path: str = KMSG, *, newest_bytes: int = 0) -> KernelLog:
    """Read all that is there.

    Args:
        path: the device, or a file to read in its place (a container that has the host's log mounted).
        newest_bytes: read no more than about this, and start no program for it; 0: all.
    """
    try:
        return KernelLog(_read(path, newest_bytes or MAX_BYTES))
    except OSError as error:
        why = f"{path}: {error.strerror}"
    return _dmesg(why) if path == KMSG and not newest_bytes else KernelLog(readable=False, why_not=why)


def _read(path: str, most: int) -> str:
    """One record a read, or a part of a file."""
    kept: deque[bytes] = deque()
    size = 0
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size > most:  # a file
            os.lseek(fd, -most, os.SEEK_END)
        while True:
            try:
                data = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: the next read goes on behind the gap
                    continue
                raise
            if not data:
                break
            kept.append(data)
            size += len(data)
            while size > most:
                size -= len(kept.popleft())
    finally:
        os.close(fd)
    return b"".join(kept).decode("utf-8", "replace")


def _dmesg(why: str) -> KernelLog:
    ran = run_command(Command(("dmesg",), cleaned(os.environ), _DMESG_LIMIT_S, keep_bytes=2 * MAX_BYTES))
    if ran.whole and ran.exit_status == 0:
        return KernelLog(ran.stdout)
    said = ran.stderr.strip().splitlines()
    return KernelLog(readable=False, why_not=f"{why}; {said[-1] if said else ran.detail or 'dmesg: ' + ran.ended.value}")
