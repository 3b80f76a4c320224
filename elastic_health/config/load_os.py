"""Reads the YAML, the secrets that it points to, and what one launch says beside it.

Order of precedence: `--rdzv-conf`, then the environment, then the YAML, then the defaults.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from elastic_health.config.model import Config, StoreSection
from elastic_health.config.nodes import MAX_BYTES
from elastic_health.config.rdzv_conf import RdzvConf, parse_rdzv_conf
from elastic_health.config.topology import place_of
from elastic_health.config.validate import parse
from elastic_health.errors import ConfigError
from elastic_health.policies import Policies
from elastic_health.rendezvous.endpoints import TlsFiles
from elastic_health.rendezvous.keys import check_segment
from elastic_health.variables import CONFIG, NODE


@dataclass(frozen=True)
class Launch:
    """One agent's settings: the file (`path` "": none, the defaults), this node's name, key prefix, link port
    and place in the network."""

    config: Config
    policies: Policies
    path: str
    node: str
    prefix: str
    listen: int
    topology: str = ""


def load(path: str | os.PathLike[str] | None) -> Config:
    """The configuration in a file; the defaults for None.

    Raises:
        ConfigError: there is no such file, it is no UTF-8 text, or it has mistakes (`ConfigMistakes`, all of them).
    """
    return Config() if path is None else parse(_text(str(path)), str(path))


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1).decode()
    except OSError as e:
        raise ConfigError("a YAML file", f"{path}: {e.strerror}", "correct the path in --rdzv-conf config= or --config") from e
    except UnicodeDecodeError as e:
        raise ConfigError("UTF-8 text", f"{path}: byte {e.start} is not", "save the file as UTF-8") from e


def load_launch(conf: Mapping[str, object], environ: Mapping[str, str], host: str) -> Launch:
    """Everything that one agent is told from outside.

    Args:
        conf: torchrun's parsed `--rdzv-conf`.
        host: this machine's name; the node's name where none is given.

    Raises:
        ConfigError: as `load` and `parse_rdzv_conf`; or the node's name can't stand in a key.
    """
    given: RdzvConf = parse_rdzv_conf(conf)
    path = given.config or environ.get(CONFIG) or None
    config = load(path)
    policies = config.policies()
    if given.timeout_s is not None:
        policies = replace(policies, membership=replace(policies.membership, join_timeout_s=given.timeout_s))
    node = check_segment("node name", given.node or environ.get(NODE) or host)
    listen = config.ports.listen if given.listen is None else given.listen
    place = place_of(given.topology, config.topology, node, environ)
    return Launch(config, policies, path or "", node, given.prefix or config.store.prefix, listen, place)


def tls_files(store: StoreSection) -> TlsFiles | None:
    """The TLS files that a session takes, or None.

    Raises:
        ConfigError: one of them can't be read.
    """
    if store.tls is None:
        return None
    for field, path in (("ca", store.tls.ca), ("cert", store.tls.cert), ("key", store.tls.key)):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"a readable file in store.tls.{field}", path, "correct the path or its permissions")
    return TlsFiles(store.tls.ca, store.tls.cert, store.tls.key, store.tls.server_name)


def hide_secrets(config: Config, environ: MutableMapping[str, str]) -> dict[str, str]:
    """Take the variables that hold secrets out of `environ`, so that no process started from here on inherits them."""
    names = (config.store.password_env, config.page.webhook_env)
    return {name: environ.pop(name) for name in names if name and name in environ}


def read_password(store: StoreSection, environ: Mapping[str, str]) -> str | None:
    """The store's password from its file or variable; one line end at its end is dropped.  None: none is asked for.

    Raises:
        ConfigError: the file is missing or readable by every user, or the variable is not set.
    """
    if store.password_env is not None:
        if not environ.get(store.password_env):
            raise ConfigError(f"a password in the variable {store.password_env}", "nothing", "set it, or use store.password_file")
        return environ[store.password_env]
    if store.password_file is None:
        return None
    path = Path(store.password_file)
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError("a readable text file in store.password_file", f"{path}: {e}", "correct the path or its permissions") from e
    if mode & stat.S_IROTH:
        raise ConfigError("a password file that only its owner can read", f"{path} with mode {stat.S_IMODE(mode):o}", f"chmod 600 {path}")
    return text[:-1] if text.endswith("\n") else text
