"""Settings: an error for an unknown name or a value out of range says what to use instead."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any, get_type_hints

import pytest

from tinymq.base.errors import InvalidConfig
from tinymq.base.types import check_consumer_name
from tinymq.client import Client
from tinymq.client.common.config import (
    ClientConfig,
    ProducerConfig,
    QueueConfig,
    ReaderConfig,
    configure,
    default_client_id,
    inflight_max,
    is_numbered,
)
from tinymq.client.common.options import ClientOptions, ProducerOptions, QueueOptions, ReaderOptions
from tinymq.client.common.servers import parse_servers


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match=r"lingr_ms.*did you mean linger_ms"):
        configure(ProducerConfig, {"lingr_ms": 1})
    with pytest.raises(InvalidConfig, match="did you mean request_timeout_ms"):
        Client("a:1", request_timeout=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidConfig, match="known: replica"):
        configure(ReaderConfig, {"zzz": 1})


BAD = [
    (ProducerConfig, {"compression": "lz5"}, "did you mean 'lz4'"),
    (ProducerConfig, {"acks": "all"}, "'quorum'"),
    (ProducerConfig, {"partitioner": "murmur"}, "'keyed'"),
    (ProducerConfig, {"linger_ms": -1}, "0 or more"),
    (ProducerConfig, {"buffer_bytes_max": 0}, "1 or more"),
    (ProducerConfig, {"inflight_batches_max": 6}, "at most 5"),
    (ReaderConfig, {"replica": "leder"}, "did you mean 'leader'"),
    (ProducerConfig, {"linger_ms": math.nan}, "0 or more"),
    (ProducerConfig, {"delivery_timeout_ms": math.inf}, "up to"),
    (ProducerConfig, {"block_ms_max": True}, "0 or more"),
    (ProducerConfig, {"batch_bytes_max": 1.5}, "whole number"),
    (ReaderConfig, {"fetch_bytes_max": 1 << 40}, "at most"),
    (ReaderConfig, {"fetch_wait_ms": math.inf}, "up to"),
    (ClientConfig, {"rack": b"a"}, "pass a str"),
    (ClientConfig, {"limits": None}, "pass a Limits"),
    (ClientConfig, {"client_id": 5}, "pass a str"),
    (ClientConfig, {"client_id": "no spaces"}, "contains ' '"),
    (ReaderConfig, {"on_trimmed": "skp"}, "did you mean 'skip'"),
    (QueueConfig, {"on_trimmed": "skp"}, "did you mean 'skip'"),
    (QueueConfig, {"commit_interval_ms": 0}, "1 or more"),
    (QueueConfig, {"auto_commit": 1}, "pass a bool"),
    (QueueConfig, {"fetch_bytes_max": 0}, "1 or more"),
    (ClientConfig, {"request_timeout_ms": 0}, "1 or more"),
]


@pytest.mark.parametrize(("kind", "settings", "says"), BAD)
def test_a_setting_out_of_range_is_refused(kind: type[object], settings: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        configure(kind, settings)


@pytest.mark.parametrize(
    ("options", "config"),
    [
        (ClientOptions, ClientConfig),
        (ProducerOptions, ProducerConfig),
        (ReaderOptions, ReaderConfig),
        (QueueOptions, QueueConfig),
    ],
)
def test_type_checkers_know_the_same_settings(options: type[object], config: type[object]) -> None:
    assert list(get_type_hints(options)) == [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]


def test_the_default_client_id_has_host_and_process() -> None:
    name = default_client_id()
    assert name == check_consumer_name(name)
    assert name.endswith(f"-{os.getpid()}")


def test_servers_may_be_text_or_a_list() -> None:
    assert parse_servers("a:1, b:2,[::1]:3") == ("a:1", "b:2", "[::1]:3")
    assert parse_servers(["a:1"]) == ("a:1",)
    bad_ones: list[Any] = ["", [], "a", "a:b", "a:1,b", 5, None, [1]]
    for bad in bad_ones:
        with pytest.raises(InvalidConfig):
            parse_servers(bad)


def test_without_sequence_numbers_one_batch_is_in_flight() -> None:
    assert inflight_max(ProducerConfig()) == 5
    assert inflight_max(ProducerConfig(idempotent=False)) == 1
    assert not is_numbered(ProducerConfig(acks="none"))
