"""Which brokers a command talks to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinymq.cli import devfolder
from tinymq.cli.servers import Where
from tinymq.errors import InvalidRequest, NotFound


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_name_it_is_the_local_cluster() -> None:
    with pytest.raises(NotFound) as nobody:
        Where().addresses()
    assert "tinymq dev up" in nobody.value.hint
    folder = devfolder.create(devfolder.DEFAULT, 3)
    assert Where().addresses() == ",".join(broker.address for broker in folder.brokers)
    assert Where("h:1,h:2").addresses() == "h:1,h:2"


def test_a_timeout_is_above_zero() -> None:
    with pytest.raises(InvalidRequest, match="--timeout 0"):
        Where("h:1", 0).connect()
