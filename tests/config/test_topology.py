"""Where a node stands, from four sources; the addresses are written as Slurm's documentation of its variables does."""

from __future__ import annotations

import pytest

from elastic_health.config.load_os import load_launch
from elastic_health.config.model import TopologySection
from elastic_health.config.topology import place_of, slurm_place
from elastic_health.errors import ConfigError

pytestmark = pytest.mark.spec("R2", "U2")


@pytest.mark.parametrize(
    ("addr", "pattern", "place"),
    [
        ("s0.s4.s8.node13", "switch.switch.switch.node", "s0.s4.s8"),
        ("s0.s4.gpu.site.org", "switch.switch.node", "s0.s4"),
        ("block3.node13", "block.node", "block3"),
        ("node13", "node", ""),
        ("node13", "", ""),
        ("s0.node13", "", "s0"),
        ("", "switch.node", ""),
        ("s0.no\nde", "switch.node", ""),
        ("s" * 300 + ".node", "switch.node", ""),
    ],
)
def test_slurm_names_the_switches_above_a_node(addr: str, pattern: str, place: str) -> None:
    assert slurm_place({"SLURM_TOPOLOGY_ADDR": addr, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}) == place


def test_without_a_pattern_the_nodes_own_name_is_left_out() -> None:
    assert slurm_place({"SLURM_TOPOLOGY_ADDR": "s0.s1.gpu.site", "SLURMD_NODENAME": "gpu.site"}) == "s0.s1"


def test_the_first_source_that_says_something_wins() -> None:
    slurm = {"SLURM_TOPOLOGY_ADDR": "s1.n1", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}
    section = TopologySection(env="RACK", racks={"n?": "r1", "n*": "r2"})
    assert place_of("pod.rack", section, "n1", {"RACK": "r9", **slurm}) == "pod.rack"
    assert place_of(None, section, "n1", {"RACK": "r9", **slurm}) == "r9"
    assert place_of(None, section, "n1", {"RACK": "", **slurm}) == "r1"
    assert place_of(None, section, "n10", slurm) == "r2"
    assert place_of(None, section, "other", slurm) == "s1"
    assert place_of(None, TopologySection(slurm=False), "other", slurm) == ""
    assert place_of(None, TopologySection(), "other", {}) == ""


@pytest.mark.parametrize("wrong", ["rack 7", "räck", "r\n", "x" * 300])
def test_a_place_that_is_none_is_refused_with_its_source(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"pod1\.rack7") as e:
        place_of(wrong + "!", TopologySection(), "n", {})
    assert "topology=" in str(e.value)
    with pytest.raises(ConfigError, match="RACK"):
        place_of(None, TopologySection(env="RACK"), "n", {"RACK": wrong + "!"})


def test_a_launch_carries_it() -> None:
    assert load_launch({"topology": "pod1.rack7"}, {}, "host").topology == "pod1.rack7"
    assert load_launch({}, {"SLURM_TOPOLOGY_ADDR": "s1.n1"}, "host").topology == "s1"
