"""`python -m elastic_health.preflight.doctor_torch SECONDS`: what a fresh Python of this environment sees of torch and the plugin.

A process of its own, since an installation can be broken in ways that end or hang a process.  It ends
itself after so many seconds.  The last line of its output is a JSON object with fields of `doctor_facts.PlugFacts`.
"""

from __future__ import annotations

import importlib.metadata
import json
import signal
import sys
from typing import Any

from elastic_health._version import __version__
from elastic_health.errors import HealthError

BACKEND = "healthy-etcd"


def look() -> dict[str, Any]:
    found: dict[str, Any] = {"package": __version__}
    entries = [e for e in importlib.metadata.entry_points(group="torchrun.handlers") if e.name == BACKEND]
    found["installed"] = [(e.value, e.dist.version if e.dist is not None else "") for e in entries]
    for entry in entries[:1]:
        try:
            if not callable(entry.load()()):
                found["load_error"] = "it gives nothing that can be called"
        except Exception as e:  # a broken installation may raise anything; torch only logs it, and so it is told here
            found["load_error"] = f"{type(e).__name__}: {e}"
    try:
        import torch
    except Exception as e:  # the same: a library that is missing, a file that was cut off
        found["torch_error"] = f"{type(e).__name__}: {e}"
        return found
    found["torch"], found["cuda"] = str(torch.__version__), torch.version.cuda or ""
    try:
        from elastic_health.agents.seam_torch import install

        install()
    except HealthError as e:
        found["seam_error"] = str(e)
    except Exception as e:  # a torch without a launcher, or without elastic
        found["seam_error"] = f"{type(e).__name__}: {e}"
        return found
    found["registered"] = _registered()
    return found


def _registered() -> bool | None:
    """Does torch list the backend?  None where this torch keeps its list elsewhere."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    names = getattr(rendezvous_handler_registry, "_registry", None)
    return BACKEND in names if isinstance(names, dict) else None


if __name__ == "__main__":
    signal.alarm(int(sys.argv[1]))  # who asked may have been killed meanwhile
    sys.stdout.write("\n" + json.dumps(look()) + "\n")
