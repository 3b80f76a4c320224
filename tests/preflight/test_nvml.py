"""GPU facts through a stand-in for NVML, and through the real package where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import psutil
import pytest

from elastic_health.codec import build, plain
from elastic_health.preflight import host_os, nvml_os
from elastic_health.preflight.checks import Context, Stage
from elastic_health.preflight.commands import Ended
from elastic_health.preflight.host_facts import Gpu, GpuProcess, Gpus, Part
from elastic_health.preflight.host_limits import HostLimits
from elastic_health.preflight.host_proc import read_facts
from elastic_health.preflight.nvml_os import ABSENT, read_gpus
from tests.preflight import fake_nvml

pytestmark = pytest.mark.spec("P5")

CONTEXT = Context(Stage.JOIN, "n1")


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


# ---- NVML


def gpus_of(monkeypatch: pytest.MonkeyPatch, *gpus: dict[str, object] | str, visible: str | None = None) -> Gpus:
    said = gpus[0] if gpus and isinstance(gpus[0], str) else list(gpus)
    monkeypatch.setenv("FAKE_NVML", json.dumps(said))
    return read_gpus(len(gpus), visible, lambda pid, used: GpuProcess(pid, "p", used), fake_nvml.loaded())


def test_what_nvml_says_becomes_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpus_of(monkeypatch, fake_nvml.GOOD | {"ComputeRunningProcesses": [[77, 1024], [78, None]]})
    assert found.library and found.driver == "580.65.06"
    assert found.gpus[0] == Gpu(
        0,
        "GPU-aaaa",
        "NVIDIA H100 80GB HBM3",
        "00000000:18:00.0",
        memory_bytes=85899345920,
        ecc=True,
        mig=False,
        corrected=5,
        corrected_ever=6,
        uncorrected=0,
        uncorrected_ever=3,
        remapped=2,
        remap_pending=False,
        remap_failed=False,
        reasons=1,
        temperature_c=41,
        state=8,
        pcie_width=16,
        pcie_width_max=16,
        pcie_generation=1,
        pcie_generation_max=5,
        links=(True, True, False),
        processes=(GpuProcess(77, "p", 1024), GpuProcess(78, "p", None)),
    )


def test_a_card_that_supports_nothing_has_no_findings_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpus_of(monkeypatch, {"UUID": "GPU-b", "Name": "old", "MemoryInfo": 1})
    assert found.gpus == (Gpu(0, "GPU-b", "old", "00000000:18:00.0", memory_bytes=1),)


@pytest.mark.parametrize("broken", [{"handle": "GPU is lost"}, fake_nvml.GOOD | {"MemoryInfo": "!GPU is lost"}])
def test_a_lost_gpu_says_so_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch, broken: dict[str, object]) -> None:
    found = gpus_of(monkeypatch, fake_nvml.GOOD, broken)
    assert [g.error for g in found.gpus] == ["", "GPU is lost"]
    assert found.gpus[1].uuid == ("GPU-aaaa" if "UUID" in broken else "")


def test_gpus_that_are_not_ours_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpus_of(monkeypatch, fake_nvml.GOOD, fake_nvml.GOOD | {"UUID": "GPU-b"}, visible="1")
    assert [g.visible for g in found.gpus] == [False, True]


def test_a_library_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpus_of(monkeypatch, "Driver Not Loaded")
    assert not found.library and found.why_not == "NVML: Driver Not Loaded"


def test_without_the_package_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert read_gpus(8, None, GpuProcess) == Gpus(8, why_not=ABSENT)  # type: ignore[arg-type]
    assert read_gpus(0, None, GpuProcess).why_not == "no NVIDIA GPU here"  # type: ignore[arg-type]


def test_the_real_package_has_every_name_that_is_asked_for() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    asked = set(re.findall(r"\b(?:nvml[A-Z]|NVML_?[A-Z])\w+", Path(nvml_os.__file__).read_text()))
    assert len(asked) > 25 and {name for name in asked if not hasattr(pynvml, name)} == set()


def test_a_real_gpu() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if not host_os.gpu_devices():
        pytest.skip("no NVIDIA GPU here")
    facts, _ = read_facts(HostLimits(parts=(Part.GPUS,)), 60.0)
    assert facts.gpus is not None and facts.gpus.library and facts.gpus.driver
    for gpu in facts.gpus.gpus:
        assert gpu.uuid.startswith("GPU-") and gpu.model and not gpu.error and (gpu.memory_bytes or 0) > 0


def test_a_driver_that_hangs_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("FAKE_NVML", '"hang"')
    facts, ran = read_facts(HostLimits(), 2.0)
    assert ran.ended is Ended.TIME_LIMIT and set(facts.silent) == {"gpus"} and "no answer within 2" in facts.silent["gpus"]
    assert facts.memory is not None and facts.spaces and facts.orphans is not None


def test_gpu_facts_come_back_from_their_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("FAKE_NVML", json.dumps([fake_nvml.GOOD | {"ComputeRunningProcesses": [[os.getpid(), 7], [1, 8]]}]))
    facts, _ = read_facts(HostLimits(parts=(Part.GPUS,)), 30.0)
    assert facts.gpus is not None
    ours, other = facts.gpus.gpus[0].processes
    assert ours.ours and ours.name == psutil.Process().name() and (other.pid, other.ours, other.cared_for) == (1, False, False)


def test_facts_survive_the_way_through_json() -> None:
    gpus = Gpus(1, True, "", "580", (Gpu(0, links=(True,), processes=(GpuProcess(1),)),))
    assert build(Gpus, json.loads(json.dumps(plain(gpus))), "gpus") == gpus
