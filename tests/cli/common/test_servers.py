"""The brokers that a command talks to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tinymq.base.errors import InvalidConfig, InvalidRequest, NotFound
from tinymq.cli.common.servers import ServerOptions
from tinymq.dev import dev_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_default_is_the_local_cluster() -> None:
    with pytest.raises(NotFound) as nobody:
        ServerOptions().addresses()
    assert "tinymq dev up" in nobody.value.hint
    folder = dev_folder.create(dev_folder.DEFAULT, 3)
    assert ServerOptions().addresses() == ",".join(broker.address for broker in folder.brokers)
    assert ServerOptions("h:1,h:2").addresses() == "h:1,h:2"


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e9])
def test_a_timeout_is_above_zero_and_bounded(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="--timeout"):
        ServerOptions("h:1", seconds)


@pytest.mark.parametrize("servers", ["http://h:1", "h:1,grpc://h:2", "h:1,h"])
def test_a_malformed_address_is_refused_at_once(servers: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ServerOptions(servers).addresses()
    assert "host:port" in raised.value.hint
