"""Every environment variable that the package reads or sets, in one place.

People set: `NODE`, `CONFIG`, `ENDPOINT`.  The agent sets the rest for its workers; a script has no need to read them.
"""

from __future__ import annotations

NODE = "ELASTIC_HEALTH_NODE"
"""This node's name (else `node` in --rdzv-conf, else the host name)."""
CONFIG = "ELASTIC_HEALTH_CONFIG"
"""Path of the YAML (else `config` in --rdzv-conf, else the defaults)."""

ENDPOINT = "ELASTIC_HEALTH_ENDPOINT"
"""Where the command line finds etcd (else `--endpoint`); torchrun has its own `--rdzv-endpoint`."""

WORKER_TOKEN = "ELASTIC_HEALTH_WORKER_TOKEN"
"""Random, one per generation and node: every process of the worker trees carries it, so that none can hide."""
PAGE = "ELASTIC_HEALTH_PAGE"
"""Path of this worker's progress page (a file in shared memory, made by the agent)."""
LINK = "ELASTIC_HEALTH_LINK"
"""Path of the agent's worker-link socket (Unix, owner-only)."""
SERVER = "ELASTIC_HEALTH_SERVER"
"""Path at which the worker opens torch's worker server (a Unix socket)."""
LOCAL = "ELASTIC_HEALTH_LOCAL_RANK"
"""The worker's own local rank: under `--virtual-local-rank`, LOCAL_RANK is 0 in every worker."""
GENERATION = "ELASTIC_HEALTH_GENERATION"
"""Number of the generation that the worker was started for."""
RUN = "ELASTIC_HEALTH_RUN"
"""The run id."""
GO_FD = "ELASTIC_HEALTH_GO_FD"
"""Only in a warm process: number of the pipe on which it waits for its environment."""
STDERR_TAP = "ELASTIC_HEALTH_STDERR_TAP"
"""Only in a worker that is a function: path through which it opens the agent's tap as its stderr."""
PRELOAD = "ELASTIC_HEALTH_PRELOAD"
"""Only in a warm process: comma-separated modules that it imports while it waits."""
LOG = "ELASTIC_HEALTH_LOG"
"""Level of the agent's own log (default INFO)."""
AGENT_PID = "ELASTIC_HEALTH_AGENT_PID"
"""The agent's pid, optional: a worker whose parent is another process by the time it starts ends at once."""
HOOKED = "ELASTIC_HEALTH_HOOKED"
"""Between the two interpreter starts of a worker only: pid of the process that shall run the site hook, or `any`."""
PYTHONPATH = "ELASTIC_HEALTH_PYTHONPATH"
"""Between the two interpreter starts of a worker only: PYTHONPATH as it was, absent if it was not set."""
