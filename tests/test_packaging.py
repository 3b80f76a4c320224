"""What is built and installed: the three folders, one top-level name, the plug's entry point, from tree and sdist alike.

A mapping alone, links alone, or an sdist that lost its links can each build a wheel that lacks a room; so the contents
are compared with the folders, file by file.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"elastic_health": "elastic_health", "agents": "elastic_health/agents", "rendezvous": "elastic_health/rendezvous"}


def run(words: list[str], cwd: Path, **environ: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(words, cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def expected_files() -> set[str]:
    """Every file of the three real folders, by its name in the wheel."""
    found = set()
    for folder, inside in ROOMS.items():
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT / folder)
            if folder == "elastic_health" and relative.parts[0] in ("agents", "rendezvous"):
                continue
            if path.is_file() and "__pycache__" not in relative.parts and path.suffix != ".pyc":
                found.add(f"{inside}/{relative.as_posix()}")
    return found


def packages() -> set[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return set(parser["options"]["packages"].split())


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in, links kept, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("tree") / "checkout"
    leave = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.egg-info", "build", "dist", ".*_cache", ".hypothesis", "*-out")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=leave)
    return copy


def build_wheel(source: Path, into: Path) -> Path:
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(into), str(source)], into)
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("sdist")
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(into), str(tree)], into)
    (archive,) = into.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel)], target)
    return target


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def code(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: body for name, body in files.items() if ".dist-info/" not in name}


def metadata(files: dict[str, bytes], name: str) -> str:
    return next(body for path, body in files.items() if path.endswith(f".dist-info/{name}")).decode()


def test_setup_cfg_names_every_package() -> None:
    found = {path.removesuffix("/__init__.py").replace("/", ".") for path in expected_files() if path.endswith("/__init__.py")}
    assert packages() == found
    bare = {path.rpartition("/")[0].replace("/", ".") for path in expected_files() if path.endswith(".py")} - found
    bare -= {"elastic_health.worker.site_hook"}  # a folder for PYTHONPATH, never imported as a package; its file ships as package data
    assert not bare, "folders with modules but no __init__.py"


def test_the_wheel_holds_exactly_the_three_folders(wheel: Path) -> None:
    assert set(code(contents(wheel))) == expected_files()


def test_an_sdist_without_links_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    with tarfile.open(sdist) as archive:
        assert not [m.name for m in archive if m.issym() or m.islnk()]
        archive.extractall(unpacked)
    (source,) = unpacked.iterdir()
    for name in ("LICENSE", "Makefile", "CHANGELOG.md", "tests/conftest.py", "agents/__init__.py"):
        assert (source / name).is_file(), name
    out = tmp_path / "out"
    out.mkdir()
    assert code(contents(build_wheel(source, out))) == code(contents(wheel))


def test_one_top_level_name_and_the_entry_points(wheel: Path) -> None:
    files = contents(wheel)
    assert metadata(files, "top_level.txt").split() == ["elastic_health"]
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == {"elastic_health"}
    entries = configparser.ConfigParser()
    entries.read_string(metadata(files, "entry_points.txt"))
    assert dict(entries["torchrun.handlers"]) == {"healthy-etcd": "elastic_health.rendezvous.plug:creator"}
    assert dict(entries["console_scripts"]) == {"elastic-health": "elastic_health.cli.main:main"}


def test_it_imports_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    """In a folder of its own, with the checkout's editable install out of the way."""
    names = sorted(packages())
    script = (
        "import importlib, sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        f"for name in {names!r}:\n"
        "    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(installed)!r}), module.__file__\n"
        "for bare in ('agents', 'rendezvous'):\n"
        "    assert importlib.util.find_spec(bare) is None, bare\n"
    )
    run([sys.executable, "-c", script], tmp_path, PYTHONPATH=str(installed))


@pytest.mark.spec("U1")
def test_torch_finds_the_plug_in_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    """The entry point loads to a function of no arguments that returns the creator, and loading it stays light."""
    script = (
        "import inspect, sys\n"
        "from importlib.metadata import entry_points\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        "plug = next(e for e in entry_points(group='torchrun.handlers') if e.name == 'healthy-etcd').load()\n"
        f"assert inspect.getfile(plug).startswith({str(installed)!r}), inspect.getfile(plug)\n"
        "heavy = {'grpc', 'google.protobuf', 'yaml', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert callable(plug())\n"
        "from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry\n"
        "assert 'healthy-etcd' in registry._registry, sorted(registry._registry)\n"
    )
    run([sys.executable, "-c", script], tmp_path, PYTHONPATH=str(installed))


@pytest.mark.spec("U1")
@pytest.mark.parametrize("form", [[str(Path(sys.executable).parent / "torchrun")], [sys.executable, "-m", "torch.distributed.run"]])
@pytest.mark.parametrize("where", ["root", "elsewhere"])
def test_both_forms_of_torchrun_know_the_backend(form: list[str], where: str, tmp_path: Path) -> None:
    """A wrong endpoint is answered by our plug, so the plug was found, from the repository's root and from elsewhere."""
    script = tmp_path / "train.py"
    script.write_text("print('never')\n")
    words = [*form, "--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=healthy-etcd", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=none"]
    done = subprocess.run(
        [*words, str(script)], cwd=ROOT if where == "root" else tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode not in (0, 1, 2), done.stderr[-3000:]
    assert "is not registered" not in done.stderr and "Did you forget" not in done.stderr, done.stderr[-3000:]
    assert "expected" in done.stderr and "found" in done.stderr, done.stderr[-3000:]
