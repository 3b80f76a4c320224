"""What the creator does with secrets: out of the environment while the handler lives, and in no text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from elastic_health.rendezvous.create_torch import create_handler
from tests.etcd_fixture import EtcdCluster, one_etcd

__all__ = ["one_etcd"]
PASSWORD, HOOK = "marked-password", "http://127.0.0.1:1/marked-hook"


class NoLinks:
    address = "127.0.0.1:1"

    def close(self) -> None: ...


@pytest.mark.spec("U5")
def test_secrets_are_in_no_childs_environment_and_in_no_text(
    one_etcd: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "health.yaml"
    config.write_text("store: {user: eh, password_env: THE_PASSWORD}\npage: {webhook_env: THE_HOOK}\n")
    monkeypatch.setenv("THE_PASSWORD", PASSWORD)
    monkeypatch.setenv("THE_HOOK", HOOK)
    given: list[Any] = []

    def links(identity: Any, post: Any) -> Any:
        given.append(identity)
        return NoLinks()

    params = RendezvousParameters("healthy-etcd", one_etcd.endpoints[0], "job", 1, 1, config=str(config))
    for _ in range(2):  # a second launch from the same process finds them again
        handler = create_handler(params, links)
        place = handler.place
        try:
            assert "THE_PASSWORD" not in os.environ and "THE_HOOK" not in os.environ
            assert place.environ["THE_HOOK"] == HOOK, "the pager still has it"
            shown = "\n".join((repr(place), repr(vars(handler)), repr(vars(place.store)), str(vars(place.store))))
            for secret in (PASSWORD, "marked-hook", place.secret.hex(), repr(place.secret)):
                assert secret not in shown
        finally:
            handler.close()
            place.store.close()
            place.close()
        assert os.environ["THE_PASSWORD"] == PASSWORD and os.environ["THE_HOOK"] == HOOK
