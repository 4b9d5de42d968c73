"""docs/wire-protocol.md leaves nothing of the client's protocol out, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinymq import errors
from tinymq.config import Limits, Timing
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.admin import TOPIC_TIMEOUT_S

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "wire-protocol.md").read_text()
CLIENTS, BROKERS = PAGE.split("## Between brokers")
NAMES = set(re.findall(r"`([A-Za-z_]+)`", CLIENTS))
STREAMED = (pb.ProduceBatch, pb.ProduceResult, pb.FetchRequest, pb.FetchReply, pb.Error)


def test_every_call_is_there() -> None:
    methods = {method.name for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods}
    assert methods <= NAMES


@pytest.mark.parametrize("message", STREAMED, ids=lambda m: m.DESCRIPTOR.name)
def test_every_field_of_the_streams_is_there(message: type[pb.FetchReply]) -> None:
    assert {field.name for field in message.DESCRIPTOR.fields} <= NAMES


def test_every_code_is_one() -> None:
    in_tables = set(re.findall(r"`([A-Z][A-Za-z]+)`", CLIENTS)) & set(errors.BY_CODE)
    assert {"NotLeader", "OutcomeUnknown", "OffsetOutOfRange"} <= in_tables
    codes = {
        name for row in re.findall(r"(?m)^\| (`[^|]+`) \| [^|]*\|$", CLIENTS) for name in re.findall(r"`(\w+)`", row)
    }
    fields = {field.name for message in STREAMED for field in message.DESCRIPTOR.fields}
    messages = {message.DESCRIPTOR.name for message in STREAMED}
    assert codes - fields - messages <= set(errors.BY_CODE)


def test_numbers() -> None:
    limits, timing = Limits(), Timing()
    for said, number in {
        "8.25 MiB": limits.grpc_message_bytes_max / (1 << 20) == 8.25,
        "(256)": limits.connection_streams_max == 256,
        "(32 MiB)": limits.stream_inflight_bytes_max == 32 << 20,
        "4,096": limits.stream_requests_max == 4096,
        "at most so long (30 s)": timing.fetch_wait_s_max == 30,
        "`OutcomeUnknown`; 0: 30 s": timing.produce_timeout_s == 30,
        "(0: 10 s)": TOPIC_TIMEOUT_S == 10,
    }.items():
        assert said in CLIENTS
        assert number, said
