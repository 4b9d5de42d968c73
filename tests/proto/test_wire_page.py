"""docs/wire-protocol.md covers the whole client protocol, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinymq.base import errors
from tinymq.base.config import Limits, Timing
from tinymq.broker.partition.admission import LIGHT_UNPACKED_BYTES_MAX, LIGHT_VALUES_MAX
from tinymq.broker.partition.commit_watchers import WOKEN_MAX
from tinymq.broker.serve.unpack_queue import JOBS_MAX
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import BATCHES_MAX, OTHERS_MAX, REPEATED_MAX
from tinymq.rpc.services.admin import TOPIC_TIMEOUT_S

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "wire-protocol.md").read_text()
CLIENTS, BROKERS = PAGE.split("## Between brokers")
NAMES = set(re.findall(r"`([A-Za-z_]+)`", CLIENTS))
STREAMED = (
    pb.ProduceBatch, pb.ProduceResult, pb.FetchRequest, pb.FetchReply, pb.WorkRequest, pb.WorkReply, pb.Error,
)  # fmt: skip


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


def test_every_bound_of_a_request_is_there() -> None:
    rows = re.findall(r"(?m)^\| `(\w+\.\w+)` \| ([\d,]+) \|$", CLIENTS)
    assert {name: int(most.replace(",", "")) for name, most in rows} == REPEATED_MAX


def test_numbers() -> None:
    limits, timing = Limits(), Timing()
    for said, number in {
        "8.25 MiB": limits.grpc_message_bytes_max / (1 << 20) == 8.25,
        "(256)": limits.connection_streams_max == 256,
        "(32 MiB)": limits.stream_inflight_bytes_max == 32 << 20,
        "`stream_requests_max` (4,096)": limits.stream_requests_max == 4096,
        "`waiting_fetches_max` (16,384)": limits.waiting_fetches_max == 16_384,
        "Up to 4,096 batches": BATCHES_MAX == 4096,
        "more than 64 fields": OTHERS_MAX == 64,
        "declares more than 256 KiB": LIGHT_UNPACKED_BYTES_MAX == 256 << 10,
        "more than 32,768 records and headers": LIGHT_VALUES_MAX == 32_768,
        "Two of these validations run": JOBS_MAX == 2,
        "32 in each turn": WOKEN_MAX == 32,
        "at most this long (30 s)": timing.fetch_wait_s_max == 30,
        "`OutcomeUnknown`; 0: 30 s": timing.produce_timeout_s == 30,
        "(0: 10 s)": TOPIC_TIMEOUT_S == 10,
    }.items():
        assert said in " ".join(CLIENTS.split())
        assert number, said
