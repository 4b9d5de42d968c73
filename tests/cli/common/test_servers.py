"""Which brokers a command talks to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tinymq.base.errors import InvalidConfig, InvalidRequest, NotFound
from tinymq.cli.common.servers import Where
from tinymq.dev import dev_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_name_it_is_the_local_cluster() -> None:
    with pytest.raises(NotFound) as nobody:
        Where().addresses()
    assert "tinymq dev up" in nobody.value.hint
    folder = dev_folder.create(dev_folder.DEFAULT, 3)
    assert Where().addresses() == ",".join(broker.address for broker in folder.brokers)
    assert Where("h:1,h:2").addresses() == "h:1,h:2"


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e9])
def test_a_timeout_is_above_zero_and_bounded(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="--timeout"):
        Where("h:1", seconds)


@pytest.mark.parametrize("servers", ["http://h:1", "h:1,grpc://h:2", "h:1,h"])
def test_what_is_no_address_is_refused_at_once(servers: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        Where(servers).addresses()
    assert "host:port" in raised.value.hint
