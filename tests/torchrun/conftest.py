"""Fixtures: a fresh etcd a test and a run on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd_fixture import EtcdCluster, one_etcd, three_etcd
from tests.torchrun.runs import Run, a_run

__all__ = ["one_etcd", "run", "three_etcd"]


@pytest.fixture
def run(one_etcd: EtcdCluster, tmp_path: Path) -> Iterator[Run]:
    """A run on one real etcd."""
    with a_run(tmp_path / "run", one_etcd.endpoints[0]) as made:
        yield made
