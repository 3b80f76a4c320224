"""Run by Python's `site` in a worker before its script: starts the watching, then makes way for the user's own sitecustomize.

Law: when this file has run, nothing of it is left that the script could meet: not in `sys.path`, `sys.modules` or the
environment.  A child of the script never runs it.
"""

import sys

_BEFORE = frozenset(sys.modules)

import importlib.machinery  # noqa: E402 - what was imported before is to be known first
import importlib.util  # noqa: E402
import os  # noqa: E402

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_FOLDER))


def _restore() -> bool:
    """Undo what brought Python here; is this the process that was meant?"""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)
    own = os.environ.pop("ELASTIC_HEALTH_PYTHONPATH", None)
    if own is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = own
    return os.environ.pop("ELASTIC_HEALTH_HOOKED", "") in ("any", str(os.getpid()))


def _watch() -> None:
    # By its place: whether the script's own path would find the package, or another one, doesn't matter.
    if "elastic_health" not in sys.modules:
        init = os.path.join(_PACKAGE, "__init__.py")
        spec = importlib.util.spec_from_file_location("elastic_health", init, submodule_search_locations=[_PACKAGE])
        assert spec is not None and spec.loader is not None
        sys.modules["elastic_health"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    from elastic_health.worker.boot_os import cold

    cold(_BEFORE)


def _users_own() -> None:
    """The sitecustomize that Python would have found without this one; none: as if there were no such module."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if _restore():
    _watch()
_users_own()
