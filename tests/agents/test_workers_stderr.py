"""The tap on stderr: byte for byte, in order, complete at the exit, and a terminal stays a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.agents.stderr_proc import PIPE_BYTES, TAIL_BYTES, StderrTap, file_tail
from tests.agents.groups import until


@pytest.fixture
def out() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def write_into(tap: StderrTap, code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], stderr=tap.write_fd)
    tap.handed_over()
    return process


def read_all(fd: int, size: int, timeout_s: float = 20.0) -> bytes:
    data, deadline = b"", time.monotonic() + timeout_s
    while len(data) < size and time.monotonic() < deadline:
        if select.select([fd], [], [], 0.1)[0]:
            data += os.read(fd, 1 << 20)
    return data


def test_every_byte_arrives_in_order_and_the_end_is_kept(out: tuple[int, int]) -> None:
    read, write = out
    tap = StderrTap(write)
    size = 3_000_000
    process = write_into(tap, f"import os\nfor i in range({size // 10}): os.write(2, b'%09d\\n' % i)")
    data = read_all(read, size)
    assert process.wait(20) == 0
    expected = b"".join(b"%09d\n" % i for i in range(size // 10))
    assert data == expected
    assert tap.drain() == expected[-TAIL_BYTES:].decode()
    tap.close()


def test_bytes_that_are_no_text_pass_unchanged(out: tuple[int, int]) -> None:
    read, write = out
    tap = StderrTap(write)
    blob = bytes(range(256))
    process = write_into(tap, "import os; os.write(2, bytes(range(256)))")
    assert read_all(read, 256) == blob
    process.wait(20)
    assert len(tap.drain()) == 256
    tap.close()


def test_last_words_of_a_killed_process_are_all_there_at_its_end(out: tuple[int, int]) -> None:
    read, write = out
    tap = StderrTap(write)
    process = write_into(tap, "import os, signal; os.write(2, b'x' * 60000 + b'end'); os.kill(os.getpid(), signal.SIGKILL)")
    process.wait(20)
    assert tap.drain(flush_s=0.0).endswith("xend")
    assert len(read_all(read, 60003)) == 60003
    tap.close()


def test_a_blocked_terminal_holds_the_writer_and_loses_nothing(out: tuple[int, int]) -> None:
    read, write = out
    tap = StderrTap(write)
    size = 4 * PIPE_BYTES
    process = write_into(tap, f"import os\nfor i in range({size // 1000}): os.write(2, b'y' * 1000)")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    started = time.monotonic()
    assert tap.drain(flush_s=0.1)
    assert time.monotonic() - started < 10
    total = size // 1000 * 1000
    assert len(read_all(read, total)) == total
    assert process.wait(20) == 0
    tap.close()


def test_a_target_that_is_gone_stops_nobody() -> None:
    read, write = os.pipe()
    tap = StderrTap(write)
    os.close(read)
    process = write_into(tap, f"import os; os.write(2, b'z' * {2 * PIPE_BYTES}); os.write(2, b'end')")
    assert process.wait(20) == 0
    assert tap.drain().endswith("zend")
    tap.close()
    os.close(write)


def test_a_muted_tap_forwards_nothing_and_keeps_the_end(out: tuple[int, int]) -> None:
    read, write = out
    tap = StderrTap(write)
    tap.mute()
    write_into(tap, "import os; os.write(2, b'secret')").wait(20)
    assert tap.drain() == "secret"
    assert not select.select([read], [], [], 0)[0]
    tap.close()


def test_a_daemon_that_keeps_writing_does_not_hold_up_the_exit(out: tuple[int, int]) -> None:
    _, write = out
    tap = StderrTap(write)
    tap.mute()
    process = write_into(tap, "import os\nwhile True: os.write(2, b'w' * 4096)")
    try:
        until(lambda: tap.tail())
        tap.drain(flush_s=0.1)
    finally:
        process.kill()
        process.wait()
    tap.close()


def test_taps_use_no_time_while_nothing_is_written(out: tuple[int, int]) -> None:
    """Also after the worker's end, when the stream reads as ended again and again."""
    tap = StderrTap(out[1])
    write_into(tap, "pass").wait(20)
    tap.drain()
    before = time.thread_time_ns(), time.process_time()
    select.select([], [], [], 0.5)
    assert time.process_time() - before[1] < 0.2
    tap.close()


def test_no_descriptor_and_no_thread_stays(out: tuple[int, int]) -> None:
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        tap = StderrTap(out[1])
        tap.close()
        tap.close()
    # What an earlier test has left to the garbage collector may go meanwhile: nothing may have come.
    assert set(os.listdir("/proc/self/fd")) <= before[0] and threading.active_count() <= before[1]


# ---- terminals


def test_a_terminal_stays_a_terminal_of_the_same_size_and_bytes() -> None:
    """Progress bars ask for isatty and the width, and rely on a bare carriage return."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    tap = StderrTap(slave)
    code = "import os, sys; s = os.get_terminal_size(2); sys.stderr.write(f'{os.isatty(2)} {s.lines} {s.columns}\\rbar\\nend')"
    assert write_into(tap, code).wait(20) == 0
    assert tap.drain() == "True 33 111\rbar\nend"
    # The real terminal translates the newline, once.
    assert read_all(master, 20) == b"True 33 111\rbar\r\nend"
    tap.close()
    os.close(master)
    os.close(slave)


def test_a_worker_on_a_terminal_tap_gets_no_controlling_terminal() -> None:
    master, slave = pty.openpty()
    tap = StderrTap(slave)
    process = subprocess.Popen(
        [sys.executable, "-c", "import os, sys\ntry: os.open('/dev/tty', os.O_RDWR); sys.exit(9)\nexcept OSError: pass"],
        stderr=tap.write_fd,
        start_new_session=True,
    )
    tap.handed_over()
    assert process.wait(20) == 0
    tap.close()
    os.close(master)
    os.close(slave)


# ---- files


def test_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    assert file_tail(str(path)) == ""
    path.write_bytes(b"a" * TAIL_BYTES + b"b\xff")
    assert file_tail(str(path)) == "a" * (TAIL_BYTES - 2) + "b\N{REPLACEMENT CHARACTER}"
    assert file_tail("/dev/null") == ""
