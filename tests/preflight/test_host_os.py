"""Facts of a host: of this real one, and of others from trees as /proc and /sys show them."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastic_health import variables
from elastic_health.findings import Finding, FindingKind
from elastic_health.preflight import host_os
from elastic_health.preflight.checks import CheckSpec, Context, Kind, Stage
from elastic_health.preflight.command_proc import Order
from elastic_health.preflight.commands import Ended, Ran, Stuck
from elastic_health.preflight.host_facts import HostFacts, Memory
from elastic_health.preflight.host_limits import HostLimits
from elastic_health.preflight.host_proc import host_runner, read_facts
from elastic_health.preflight.kernel_log_os import MAX_BYTES, read_kernel_log
from elastic_health.preflight.results import CheckResult, Outcome

pytestmark = pytest.mark.spec("P5")

CONTEXT = Context(Stage.JOIN, "n1")


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


# ---- this machine


def test_this_machines_facts_agree_with_psutil() -> None:
    facts, ran = read_facts(HostLimits(paths=("/",)), 30.0)
    assert ran.whole and facts.silent == {}
    seen = psutil.virtual_memory()
    assert facts.memory is not None and facts.memory.total_bytes <= seen.total
    assert 0 < facts.memory.available_bytes <= facts.memory.total_bytes
    assert facts.spaces is not None and "/" in [s.path for s in facts.spaces]
    root = next(s for s in facts.spaces if s.path == "/")
    assert root.total_bytes == pytest.approx(psutil.disk_usage("/").total, rel=0.01) and not root.error
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert facts.limits is not None and facts.limits.open_files_hard == (None if hard == resource.RLIM_INFINITY else hard)
    assert facts.network is not None and set(psutil.net_if_addrs()) <= {nic.name for nic in facts.network.nics}
    assert facts.orphans is not None and facts.gpus is not None


def test_the_host_check_is_quick() -> None:
    spec = CheckSpec("host", Kind.HOST, frozenset(Stage), time_limit_s=30.0)
    order, took = Order(), []
    for _ in range(3):
        started = time.monotonic()
        result = host_runner()(spec, CONTEXT, order)
        took.append(time.monotonic() - started)
        assert result.outcome in (Outcome.PASS, Outcome.WARN) and result.check == "host"
    order.close()
    assert min(took) < 1.0  # about 0.12 s on an idle machine; a busy one is allowed more


# ---- memory and control groups


def test_a_control_group_bounds_the_memory(tmp_path: Path) -> None:
    group = {"memory.max": "2000", "memory.current": "1500", "memory.stat": "anon 1\ninactive_file 300\n"}
    root = tree(tmp_path, {f"pod/job/{n}": v for n, v in group.items()} | {"pod/memory.max": "max", "pod/memory.current": "1"})
    own = root / "own"
    own.write_text("0::/pod/job\n")
    assert host_os.memory(str(root), str(own)) == Memory(2000, 800)
    (root / "pod" / "memory.max").write_text("1800")
    (root / "pod" / "memory.current").write_text("1700")
    assert host_os.memory(str(root), str(own)) == Memory(1800, 100)


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    files = {"memory.limit_in_bytes": "5000", "memory.usage_in_bytes": "4000", "memory.stat": "total_inactive_file 1000\n"}
    root = tree(tmp_path, {f"memory/job/{n}": v for n, v in files.items()} | {"memory/memory.limit_in_bytes": str(2**63 - 4096)})
    own = root / "own"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/job\n")
    assert host_os.memory(str(root), str(own)) == Memory(5000, 2000)


def test_without_a_bound_the_hosts_memory_counts(tmp_path: Path) -> None:
    found = host_os.memory(str(tmp_path), str(tmp_path / "none"))
    assert found.total_bytes == psutil.virtual_memory().total


# ---- network


def test_network_trees(tmp_path: Path) -> None:
    nets = tree(
        tmp_path / "net",
        {
            "eth0/operstate": "up\n",
            "eth0/speed": "25000\n",
            "eth0/device/vendor": "0x15b3",
            "eth1/operstate": "down\n",
            "eth1/speed": "-1\n",
            "tun0/operstate": "unknown\n",
            "tun0/carrier": "1\n",
        },
    )
    ports = tree(
        tmp_path / "ib",
        {
            "mlx5_0/ports/1/state": "4: ACTIVE\n",
            "mlx5_0/ports/1/phys_state": "5: LinkUp\n",
            "mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            "mlx5_0/ports/1/link_layer": "InfiniBand\n",
            "mlx5_1/ports/1/state": "1: DOWN\n",
            "mlx5_1/ports/1/phys_state": "3: Disabled\n",
            "mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",
            "mlx5_1/ports/1/link_layer": "Ethernet\n",
            "broken/ports/1/state": "",
        },
    )
    found = host_os.network(str(nets), str(ports))
    assert [dataclasses.astuple(nic) for nic in found.nics] == [
        ("eth0", True, True, 25000),
        ("eth1", False, False, None),
        ("tun0", True, False, None),
    ]
    assert [dataclasses.astuple(p) for p in found.ports] == [
        ("broken", 1, "", "", "", 0.0),
        ("mlx5_0", 1, "ACTIVE", "LinkUp", "InfiniBand", 400.0),
        ("mlx5_1", 1, "DOWN", "Disabled", "Ethernet", 2.5),
    ]
    assert host_os.network(str(tmp_path / "no"), str(tmp_path / "no")).nics == ()


def test_gpu_devices(tmp_path: Path) -> None:
    nodes = tree(tmp_path / "dev", {f"nvidia{i}": "" for i in range(8)} | {"nvidiactl": "", "nvidia-uvm": "", "nvidia-caps/x": ""})
    assert host_os.gpu_devices(str(nodes), "/no") == 8
    listed = tree(tmp_path / "gpus", {"0000:18:00.0/information": "", "0000:2a:00.0/information": ""})
    assert host_os.gpu_devices(str(tmp_path), str(listed)) == 2 and host_os.gpu_devices(str(tmp_path), "/no") == 0


# ---- orphans, really


WORKER = """
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(os.getpid(), child.pid, flush=True)
    time.sleep(600)
"""


def worker(own_parent: bool) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with a worker's environment and a child of its own; without `own_parent` its parent ends at once."""
    environment = os.environ | {"TORCHELASTIC_RUN_ID": "old-run", variables.WORKER_TOKEN: "t"}
    body = "\n".join(line[4:] for line in WORKER.splitlines())
    start = [sys.executable, "-c", body]
    if not own_parent:
        start = [sys.executable, "-c", f"import os, sys\nif os.fork(): os._exit(0)\nos.setsid(); os.execv(sys.executable, {start!r})"]
    process = subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


def marked(pids: list[int]) -> dict[int, str]:
    """Those of `pids` that show a worker's environment: all of them, once the kernel has finished starting them."""
    deadline = time.monotonic() + 20.0
    while len(found := {pid: run for pid, run in host_os.marked().items() if pid in pids}) < len(pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@pytest.fixture
def ended() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_workers_whose_agent_is_gone_are_orphans_with_their_children(ended: list[int]) -> None:
    """GaTech-RL2/EgoVerse#682: data-loader workers, re-parented to init, held all GPUs."""
    process, pids = worker(own_parent=False)
    ended += pids
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()
    found = host_os.orphans(marked(pids), os.getpid())
    assert {(o.pid, o.run) for o in found} == {(pid, "old-run") for pid in pids}
    assert all(o.resident_bytes > 0 and o.age_s < 100 for o in found)


@pytest.mark.parametrize(
    ("pid", "name", "program", "reaps"),
    [
        (1, "systemd", "/sbin/init", True),
        (1, "bash", "bash", True),  # a container's shell, whose agent was its child
        (1, "python3", "/usr/bin/python3", False),  # a container whose first process is the agent
        (1, "torchrun", "/opt/venv/bin/torchrun", False),
        (900, "systemd", "/usr/lib/systemd/systemd", True),  # of the user's session
        (900, "slurmstepd", "slurmstepd: [12.0]", True),
        (900, "bash", "-bash", False),
        (900, "python", "", False),
    ],
)
def test_who_inherits_orphans(pid: int, name: str, program: str, reaps: bool) -> None:
    assert host_os.is_reaper(pid, name, program) is reaps


def test_workers_of_a_living_agent_are_none(ended: list[int]) -> None:
    process, pids = worker(own_parent=True)
    ended += pids
    assert set(marked(pids)) == set(pids) and host_os.orphans(marked(pids), os.getpid()) == ()
    assert host_os.descends(pids[1], os.getpid()) and not host_os.descends(os.getpid(), pids[1])
    process.kill()
    os.kill(pids[1], signal.SIGKILL)
    process.communicate(timeout=30)


# ---- the runner


def run_host(parameters: dict[str, object], **more: object) -> CheckResult:
    order = Order()
    try:
        return host_runner(**more)(CheckSpec("fit", Kind.HOST, frozenset(Stage), parameters=parameters), CONTEXT, order)  # type: ignore[arg-type]
    finally:
        order.close()


def test_parameters_are_the_limits(tmp_path: Path) -> None:
    parts = ["space", "memory"]
    assert run_host({"parts": parts, "paths": [str(tmp_path)]}).outcome in (Outcome.PASS, Outcome.WARN)
    low = run_host({"parts": parts, "paths": [str(tmp_path)], "disk_bytes": 2.0**60})
    assert low.outcome is Outcome.FAIL and str(tmp_path) in low.summary and low.check == "fit"
    gone = run_host({"parts": ["space"], "paths": [str(tmp_path / "nowhere")]})
    assert gone.outcome is Outcome.FAIL and "No such file" in gone.summary


def test_a_kernel_log_is_read_from_where_the_yaml_says(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[ 12.3] NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.\n")

    def xid(text: str) -> CheckResult:
        found = (Finding(FindingKind.DEVICE_ERROR, "Xid 79"),) if "Xid" in text else ()
        return CheckResult("xid", Outcome.FAIL, found)

    result = run_host({"parts": ["kernel_log"], "kernel_log": str(tmp_path / "log")}, xid=xid)
    assert result.outcome is Outcome.FAIL and result.summary == "Xid 79"
    silent = run_host({"parts": ["kernel_log"], "kernel_log": str(tmp_path / "none")}, xid=xid)
    assert silent.outcome is Outcome.PASS and "skipped" in silent.findings[0].reason


def test_a_reader_that_cannot_be_killed_fails_the_node() -> None:
    stuck = Ran(("x",), Ended.TIME_LIMIT, stuck=(Stuck(5, "python", "D", "nfs_wait"),))
    result = run_host({}, facts=lambda limits, limit_s, cancel: (HostFacts(silent={"gpus": "no answer"}), stuck))
    assert result.outcome is Outcome.FAIL and "nfs_wait" in result.summary


# ---- kernel log


def test_the_real_kernel_log_is_read_or_says_why_not() -> None:
    started = time.monotonic()
    log = read_kernel_log()
    assert time.monotonic() - started < 10.0
    assert log.text if log.readable else log.why_not


def test_a_log_file_is_read_to_its_end_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"first\n" + b"x" * 99 + b"\xff\n" + b"last\n")
    assert read_kernel_log(str(path)).text.startswith("first\n") and read_kernel_log(str(path)).text.endswith("\ufffd\nlast\n")
    path.write_bytes(b"old\n" + b"y" * (MAX_BYTES + 100_000) + b"\nnew\n")
    text = read_kernel_log(str(path)).text
    assert text.endswith("new\n") and "old" not in text and len(text) <= MAX_BYTES


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    log = read_kernel_log(str(tmp_path / "none"))
    assert not log.readable and "No such file" in log.why_not


def test_a_log_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writer, b"one record\n")
    assert read_kernel_log(str(tmp_path / "pipe")).text == "one record\n"
    os.close(writer)
