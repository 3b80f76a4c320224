"""What `doctor` has found out of this machine and its etcd, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Trouble:
    """A look that failed: what was found instead of an answer, and what to do.  `looked` False: it could not even begin."""

    found: str
    do: str
    looked: bool = True


@dataclass(frozen=True)
class PlugFacts:
    """The plugin as a fresh Python of this environment sees it.

    Attributes:
        package: version of the package that was imported.
        installed: `(entry point's value, version of the distribution that brings it)` of each entry point `healthy-etcd`.
        load_error: why it could not be loaded, "" if it could.
        registered: torch lists the backend; None if this torch does not tell.
        torch: its version, "" if it can't be imported, because of `torch_error`.
        cuda: the CUDA version that torch was built for, "" for none.
        seam_error: why the agent can't be put into this torch's launcher, "" if it can.
        python, torchrun: this interpreter, and the one that `torchrun` on $PATH runs ("": no torchrun there, or no script).
    """

    package: str
    installed: tuple[tuple[str, str], ...] = ()
    load_error: str = ""
    registered: bool | None = None
    torch: str = ""
    torch_error: str = ""
    cuda: str = ""
    seam_error: str = ""
    python: str = ""
    torchrun: str = ""


@dataclass(frozen=True)
class MemberFacts:
    """One endpoint.  `error`: it did not answer, and the rest is empty.  `quota_bytes` 0: not told."""

    endpoint: str
    version: str = ""
    id: int = 0
    leader: int = 0
    size_bytes: int = 0
    in_use_bytes: int = 0
    quota_bytes: int = 0
    alarms: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class EtcdFacts:
    """An etcd that answered.

    Attributes:
        members: of the endpoints that were given.
        cluster: ids and names of all voting members, None where etcd did not say.
        reads_s: how long some reads took, each of which asks for a quorum.
        revision: the newest; `oldest`: the oldest that can still be read, None where that was not found out.
        user: the user that was given; `logged_in`: etcd wanted and took it.
        rights: why the user may not do what an agent must, None if it may.
        quarantine: what holds for this node, its GPUs and its NICs: (`node n1`, reason or "") each.
        clock_s: how far this machine's clock is ahead of etcd's, None where etcd did not say; good to a second.
    """

    members: tuple[MemberFacts, ...]
    cluster: tuple[tuple[int, str], ...] | None = None
    reads_s: tuple[float, ...] = ()
    revision: int = 0
    oldest: int | None = None
    user: str = ""
    logged_in: bool = False
    rights: Trouble | None = None
    quarantine: tuple[tuple[str, str], ...] = ()
    clock_s: float | None = None


@dataclass(frozen=True)
class HostFacts:
    """This machine.

    Attributes:
        tools: name -> path, "" for one that is not on $PATH.
        open_files: soft and hard limit, -1 for none.
        shm_free_bytes, shm_bytes: of /dev/shm; None: there is none.
        driver: version of NVIDIA's kernel module, "" where it is not loaded.
        gpus: how many GPUs that module lists.
    """

    tools: tuple[tuple[str, str], ...] = ()
    open_files: tuple[int, int] = (-1, -1)
    shm_free_bytes: int | None = None
    shm_bytes: int = 0
    driver: str = ""
    gpus: int = 0


@dataclass(frozen=True)
class ConfigFacts:
    """The YAML.  `path` "": none is used, the defaults hold.  `mistakes`: one line each."""

    path: str = ""
    mistakes: tuple[str, ...] = ()
    node: str = ""


@dataclass(frozen=True)
class StageCheck:
    """One check of one stage of the gate, as far as `doctor` tells of it.

    Attributes:
        stage, check: as the YAML spells them.
        needs: tools on $PATH without which it is skipped.
        needs_gpu: it is skipped where there is no GPU.
        required: a skipped one keeps the node out.
        limit_s: its time limit.
    """

    stage: str
    check: str
    needs: tuple[str, ...] = ()
    needs_gpu: bool = False
    required: bool = False
    limit_s: float = 0.0


@dataclass(frozen=True)
class Facts:
    """All of it; a `Trouble` where a look failed, None where there was nothing to look at.

    `private`: no endpoint was given, so this is the etcd that `torchrun` would start itself: its version, or why not.
    """

    plug: PlugFacts | Trouble
    config: ConfigFacts | Trouble
    etcd: EtcdFacts | Trouble | None
    host: HostFacts | Trouble
    private: str | Trouble | None = None
    stages: tuple[StageCheck, ...] = field(default=())
