"""Where a node stands: `pod1.rack7`, the widest level first.  The order of ranks keeps those of one place together.

Law: the first source that says something wins: `--rdzv-conf topology=`, the variable that the YAML names, the YAML's
patterns of node names, Slurm's variables.  Nothing said is no mistake: such nodes go by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from elastic_health.config.model import TopologySection
from elastic_health.errors import ConfigError

SLURM_ADDR, SLURM_PATTERN, SLURM_NODE = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN", "SLURMD_NODENAME"
_MOST_CHARS = 256
_PLACE = re.compile(r"[A-Za-z0-9_./:@+\[\],-]+")


def place_of(given: str | None, section: TopologySection, node: str, environ: Mapping[str, str]) -> str:
    """This node's place, "" if nothing says one.

    Args:
        given: from `--rdzv-conf topology=`.

    Raises:
        ConfigError: a place that is no path of names.
    """
    if given:
        return _checked("--rdzv-conf topology=", given)
    if section.env and environ.get(section.env):
        return _checked(f"the variable {section.env} (topology.env)", environ[section.env])
    for pattern, place in section.racks.items():
        if fnmatchcase(node, pattern):
            return _checked(f"topology.racks, {pattern}", place)
    return slurm_place(environ) if section.slurm else ""


def slurm_place(environ: Mapping[str, str]) -> str:
    """The switches or blocks above this node, as Slurm's topology plugin names them; "" without one.

    `SLURM_TOPOLOGY_ADDR` is `s0.s4.node13`, and its pattern `switch.switch.node` (slurm.conf, sbatch(1)): all but the node.
    """
    addr = environ.get(SLURM_ADDR, "").strip()
    if not addr or len(addr) > _MOST_CHARS or not addr.isprintable():
        return ""
    words = [w for w in environ.get(SLURM_PATTERN, "").strip().split(".") if w]
    if "node" in words:
        above = addr.split(".")[: words.index("node")]
    else:
        own = environ.get(SLURM_NODE, "")
        above = addr.removesuffix(own).split(".")[:-1] if own and addr.endswith(f".{own}") else addr.split(".")[:-1]
    return ".".join(above)


def _checked(where: str, place: str) -> str:
    place = place.strip()
    if len(place) > _MOST_CHARS or not _PLACE.fullmatch(place):
        found = f"{place[:40]!r}" if len(place) <= _MOST_CHARS else f"{len(place)} characters"
        raise ConfigError(f"a place such as pod1.rack7 in {where}, the widest level first", found, "use letters, digits and ._:@+-/")
    return place
