"""The URL of a registry in ZooKeeper: its parts, and the values that are refused."""

from __future__ import annotations

import pytest

from tinymq.base.config import BrokerConfig, ZookeeperUrl, parse_zookeeper
from tinymq.base.errors import InvalidConfig
from tinymq.base.types import PeerAddress


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("zookeeper://a:2181", ZookeeperUrl(("a:2181",), "/tinymq")),
        ("zookeeper://a:2181/", ZookeeperUrl(("a:2181",), "/tinymq")),
        ("zookeeper://a:1,b:2,[::1]:3/x/y-z", ZookeeperUrl(("a:1", "b:2", "[::1]:3"), "/x/y-z")),
        ("zookeeper://me:se:c@ret@a:1/x", ZookeeperUrl(("a:1",), "/x", "me", "se:c@ret")),
    ],
)
def test_urls(text: str, url: ZookeeperUrl) -> None:
    assert parse_zookeeper(text) == url


@pytest.mark.parametrize(
    "place",
    ["", "a", "a:", "a:0", ":1", "a:1,", ",a:1", "a:1,b", "a:1 ,b:1", "a:1/x/", "a:1//x", "a:1/../x", "a:1/.", "a:1/é",
     "a:1/x y", "a:1/zookeeper", "a:1/zookeeper/x", "a:99999/x", "@a:1", "me@a:1", "me:@a:1", ":hidden@a:1"],
)  # fmt: skip
def test_invalid_urls_are_refused(place: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        _config(f"zookeeper://{place}")
    assert "zookeeper://host:port" in refused.value.hint
    assert "hidden" not in str(refused.value)


def test_no_password_is_shown() -> None:
    config = _config("zookeeper://me:hidden@a:1/x")
    assert "hidden" not in repr(config)
    assert "hidden" not in repr(parse_zookeeper(config.registry))


def test_an_entry_point_without_a_registry_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="'etcd'"):
        _config("etcd")


def _config(registry: str) -> BrokerConfig:
    return BrokerConfig(1, "d", (PeerAddress(1, "h", 1),), b"x" * 16, registry=registry)
