"""`import elastic_health` costs nothing; the API's names come on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import elastic_health

pytestmark = pytest.mark.spec("U1")


def test_importing_the_package_imports_no_torch() -> None:
    # torchrun loads our entry point in every process, and the command line must answer at once.
    code = "import sys, elastic_health; print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'grpc', 'yaml')))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in elastic_health.__all__:
        assert getattr(elastic_health, name) is not None
    assert set(elastic_health.__all__) <= set(dir(elastic_health))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = elastic_health.Nothing
