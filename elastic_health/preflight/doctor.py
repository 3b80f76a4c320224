"""What `doctor` says: from facts to one line a topic, with what to do about it.

Laws:
 - `fail` is said only of what would stop a run here, or keep this node out of it;
 - what was not found out is `unknown`, never `ok`;
 - every line that is not `ok` says what to do, unless nothing needs doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from elastic_health.preflight.doctor_facts import ConfigFacts, Facts, HostFacts, PlugFacts, StageCheck, Trouble
from elastic_health.preflight.doctor_lines import Line, Mark, Topic, version_of
from elastic_health.preflight.doctor_store import etcd
from elastic_health.preflight.host_limits import HostLimits

MIB = 1024.0**2
GIB = 1024.0**3


TOOLS: Mapping[str, tuple[str, bool]] = {
    "dcgmi": ("NVIDIA's diagnostics; install datacenter-gpu-manager", True),
    "all_reduce_perf": ("bandwidth inside and between nodes; build nccl-tests and put it on $PATH", True),
    "nvidia-smi": ("comes with the driver", True),
    "py-spy": ("stacks of stuck workers; pip install py-spy", False),
    "etcdctl": ("looking into the store by hand; comes with etcd", False),
    "tc": ("only for tests of slow links; comes with iproute2", False),
}
"""Tool -> (what for and where from, only of use where there is a GPU)."""


def report(facts: Facts) -> tuple[Line, ...]:
    """Everything, in the order of the screen."""
    tools = dict(facts.host.tools) if isinstance(facts.host, HostFacts) else {}
    gpus = facts.host.gpus if isinstance(facts.host, HostFacts) else 0
    return (
        *plugin(facts.plug),
        *config(facts.config),
        *(private(facts.private) if facts.private is not None else ()),
        *(etcd(facts.etcd) if facts.etcd is not None else ()),
        *host(facts.host),
        *stages(facts.stages, tools, gpus),
    )


def ready(lines: Iterable[Line]) -> bool:
    """Would nothing that was found stop a run?"""
    return all(line.mark is not Mark.FAIL for line in lines)


# ---- plugin and torch
def plugin(p: PlugFacts | Trouble) -> tuple[Line, ...]:
    if isinstance(p, Trouble):
        return (Line(Topic.PLUGIN, Mark.FAIL, p.found, p.do),)
    return (_plugin(p), _torch(p), _torchrun(p))


def _plugin(p: PlugFacts) -> Line:
    again = "install the package again, in the environment of torchrun: pip install elastic-health"
    if not p.installed:
        return Line(
            Topic.PLUGIN, Mark.FAIL, "no entry point `healthy-etcd` in torchrun.handlers: torchrun does not know the backend", again
        )
    if p.load_error:
        return Line(Topic.PLUGIN, Mark.FAIL, f"the entry point {p.installed[0][0]} does not load: {p.load_error}", again)
    if len(p.installed) > 1:
        names = ", ".join(f"{value} of {version}" for value, version in p.installed)
        return Line(Topic.PLUGIN, Mark.WARN, f"several entry points `healthy-etcd` ({names}): one of them is used", "uninstall all but one")
    if p.registered is False:
        do = "look for `Exception while registering out of tree plugin` in torchrun's output"
        return Line(Topic.PLUGIN, Mark.FAIL, "the entry point loads, but torch did not register it", do)
    installed = p.installed[0][1]
    if installed != p.package:
        found = f"version {p.package} is imported, while version {installed} is what is installed"
        return Line(Topic.PLUGIN, Mark.WARN, found, "install it again, or clear PYTHONPATH: all nodes must run one version")
    if p.registered is None:
        return Line(
            Topic.PLUGIN, Mark.UNKNOWN, f"{p.package}: healthy-etcd loads; whether torch lists it was not seen", "see the line of torch"
        )
    return Line(Topic.PLUGIN, Mark.OK, f"{p.package}: torchrun knows --rdzv-backend=healthy-etcd")


def _torch(p: PlugFacts) -> Line:
    if not p.torch:
        return Line(Topic.TORCH, Mark.FAIL, f"torch can't be imported: {p.torch_error or 'no reason given'}", "pip install 'torch>=2.13'")
    built = f"{p.torch}, built {f'for CUDA {p.cuda}' if p.cuda else 'without CUDA'}"
    if p.seam_error:
        return Line(Topic.TORCH, Mark.FAIL, f"{built}: {p.seam_error}", "use a torch version that the README lists")
    version = version_of(p.torch)
    if version is None or version < (2, 13):
        return Line(Topic.TORCH, Mark.FAIL, f"{built}: older than 2.13, the oldest supported", "pip install 'torch>=2.13'")
    if version[:2] > (2, 13):
        return Line(Topic.TORCH, Mark.WARN, f"{built}: the agent fits in, but this version is not tested", "try it with a short run first")
    return Line(Topic.TORCH, Mark.OK, f"{built}: the agent fits in")


def _torchrun(p: PlugFacts) -> Line:
    if not p.torchrun:
        return Line(Topic.TORCHRUN, Mark.NOTE, "no torchrun script on $PATH", f"run {p.python} -m torch.distributed.run")
    if p.torchrun != p.python:
        found = f"torchrun on $PATH runs {p.torchrun}, and this is {p.python}"
        return Line(Topic.TORCHRUN, Mark.WARN, found, "activate one environment for both, or run python -m torch.distributed.run")
    return Line(Topic.TORCHRUN, Mark.OK, f"runs this interpreter, {p.python}")


# ---- the YAML
def config(c: ConfigFacts | Trouble) -> tuple[Line, ...]:
    if isinstance(c, Trouble):
        return (Line(Topic.CONFIG, Mark.FAIL, c.found, c.do),)
    if c.mistakes:
        return tuple(Line(Topic.CONFIG, Mark.FAIL, mistake, "correct this line") for mistake in c.mistakes)
    where = f"{c.path}: no mistakes" if c.path else "no YAML: the defaults hold"
    return (Line(Topic.CONFIG, Mark.OK, where), Line(Topic.NODE, Mark.OK, f"this node is {c.node}"))


# ---- etcd
def private(found: str | Trouble) -> tuple[Line, ...]:
    """No endpoint: torchrun would start an etcd for this machine."""
    if isinstance(found, Trouble):
        return (Line(Topic.ETCD, Mark.FAIL, f"no --endpoint, and no etcd that torchrun could start: {found.found}", found.do),)
    do = "give --endpoint, as torchrun's --rdzv-endpoint, to look at the etcd of several nodes"
    return (Line(Topic.ETCD, Mark.NOTE, f"no --endpoint: torchrun would start a private etcd for this machine ({found})", do),)


# ---- this machine
def host(h: HostFacts | Trouble) -> tuple[Line, ...]:
    if isinstance(h, Trouble):
        return (Line(Topic.HOST, Mark.UNKNOWN, h.found, h.do),)
    return (_gpu(h), _tools(h), _open_files(h), _shared_memory(h))


def _gpu(h: HostFacts) -> Line:
    if not h.driver:
        return Line(Topic.GPU, Mark.NOTE, "no NVIDIA driver is loaded: checks of GPUs are skipped")
    if not h.gpus:
        return Line(Topic.GPU, Mark.WARN, f"driver {h.driver} is loaded and lists no GPU", "look at nvidia-smi and dmesg")
    return Line(Topic.GPU, Mark.OK, f"driver {h.driver}, {h.gpus} GPU(s)")


def _tools(h: HostFacts) -> Line:
    there = [name for name, path in h.tools if path]
    missing = [name for name, path in h.tools if not path]
    found = f"found {', '.join(there) or 'none'}; not on $PATH: {', '.join(missing) or 'none'}"
    if not missing:
        return Line(Topic.TOOLS, Mark.OK, f"found {', '.join(there)}")
    wanted = [name for name in missing if name in TOOLS and (h.gpus or not TOOLS[name][1])]
    do = "; ".join(f"{name}: {TOOLS[name][0]}" for name in wanted)
    return Line(Topic.TOOLS, Mark.WARN if h.gpus and any(TOOLS[name][1] for name in wanted) else Mark.NOTE, found, do)


def _open_files(h: HostFacts) -> Line:
    """Bounds: 1024 is the usual soft default, used up by one worker's sockets and loaders; 4096 the kernel's old hard default."""
    soft, hard = h.open_files
    found = f"soft limit {_count(soft)}, hard limit {_count(hard)}"
    do = "raise it (ulimit -Hn, LimitNOFILE=, or the container's --ulimit nofile)"
    if 0 <= hard < 1024:
        return Line(Topic.OPEN_FILES, Mark.FAIL, found, do)
    return Line(Topic.OPEN_FILES, Mark.WARN, found, do) if 0 <= hard < 8192 else Line(Topic.OPEN_FILES, Mark.OK, found)


def _count(limit: int) -> str:
    return "none" if limit < 0 else str(limit)


def _shared_memory(h: HostFacts) -> Line:
    """NVIDIA's NCCL guide asks for --shm-size=1g; Docker's default is 64 MiB."""
    do = "free it, or enlarge it (docker run --shm-size=8g, or an emptyDir of medium Memory)"
    if h.shm_free_bytes is None:
        return Line(Topic.SHARED_MEMORY, Mark.FAIL, "no /dev/shm: workers and loaders share memory there", "mount a tmpfs at /dev/shm")
    found = f"{h.shm_free_bytes / GIB:.3g} GiB free of {h.shm_bytes / GIB:.3g} GiB in /dev/shm"
    if h.shm_free_bytes < HostLimits().shm_bytes:
        return Line(Topic.SHARED_MEMORY, Mark.FAIL, found, do)
    return Line(Topic.SHARED_MEMORY, Mark.WARN if h.shm_free_bytes < GIB else Mark.OK, found, do if h.shm_free_bytes < GIB else "")


# ---- the gate
def stages(checks: Sequence[StageCheck], tools: Mapping[str, str], gpus: int) -> tuple[Line, ...]:
    """What each stage of the gate would run here."""
    return tuple(_stage(name, [c for c in checks if c.stage == name], tools, gpus) for name in dict.fromkeys(c.stage for c in checks))


def why_skipped(check: StageCheck, tools: Mapping[str, str], gpus: int) -> str:
    """Why this check would be skipped here, "" if it would run."""
    missing = [tool for tool in check.needs if not tools.get(tool)]
    if missing:
        return f"no {', '.join(missing)}"
    return "no GPU" if check.needs_gpu and not gpus else ""


def _stage(name: str, checks: Sequence[StageCheck], tools: Mapping[str, str], gpus: int) -> Line:
    skipped = {c.check: why for c in checks if (why := why_skipped(c, tools, gpus))}
    run = [f"{c.check} (up to {c.limit_s:g} s)" if c.limit_s else c.check for c in checks if c.check not in skipped]
    found = f"{name}: runs {', '.join(run) or 'nothing'}"
    if skipped:
        found += f"; skips {', '.join(f'{check} ({why})' for check, why in skipped.items())}"
    barred = [c.check for c in checks if c.required and c.check in skipped]
    if barred:
        return Line(
            Topic.STAGE, Mark.FAIL, found, f"{', '.join(barred)}: required by the YAML: install what is missing, or make it optional"
        )
    return Line(Topic.STAGE, Mark.OK if run else Mark.NOTE, found)
