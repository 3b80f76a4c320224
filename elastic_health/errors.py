"""Every error that the package raises on purpose, as one small tree.

A message says what was expected, what was found, and what to do; `HealthError` puts the three together so that
no caller forgets one.  The store's errors live beside the store protocol (`elastic_health.rendezvous.store`) and
derive from `HealthError` too.
"""

from __future__ import annotations


class HealthError(Exception):
    """Root of the tree.

    Args:
        expected: what should have been there.
        found: what was there instead.
        do: what the reader can do about it.
    """

    def __init__(self, expected: str, found: str, do: str) -> None:
        super().__init__(f"expected {expected}; found {found}; {do}")
        self.expected, self.found, self.do = expected, found, do


class ConfigError(HealthError):
    """The YAML, the `--rdzv-conf` or an environment variable is wrong."""


class BaselineError(ConfigError):
    """Figures, a stored baseline, or a request to record one can't be used."""


class RunRefused(HealthError):
    """This run id can't be joined: finished, capped, other MIN:MAX or script, or no id at all."""


class UnfitNode(HealthError):
    """This node failed its preflight or is in quarantine."""


class CheckpointError(HealthError):
    """A checkpoint could not be written, verified or restored."""


class CheckpointFolderError(CheckpointError):
    """The folder for checkpoints can't serve: not writable, or not shared by the nodes.

    An agent takes a worker that ends with it for a mistake in the set-up: a restart would meet it again, so a run that has
    never committed a checkpoint stops with exit status 64.
    """


class CheckpointUnusable(CheckpointError):
    """The plan's checkpoint is torn or corrupt, and the agent has been told: it restarts the group one further back.

    A script does not handle it: it lets the worker end.
    """


class DataError(HealthError):
    """A position, window, share or loader state makes no sense."""


class InputError(HealthError):
    """A file that a command was told to read can't be read."""


class LinkError(HealthError):
    """An agent link or worker link broke its protocol or failed to authenticate."""


class BadValue(HealthError):
    """A stored JSON value doesn't have the form that its key requires; `found` names the key."""


class OtherVersion(BadValue):
    """A stored value has the schema of another major version of this package."""
