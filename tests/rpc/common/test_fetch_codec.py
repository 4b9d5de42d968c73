"""The bytes packed by hand equal those that protobuf packs."""

from __future__ import annotations

import pytest

from tinymq.client.net.wire import read_fetched
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.fetch_codec import FetchAnswer


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_protobuf_and_clients_read_it(size: int) -> None:
    frames = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    head = pb.FetchReply(
        request_id=7, high_watermark=300, log_start=2, leader_epoch=5, leader=3, next_offset=9, history=1
    )
    packed = FetchAnswer(head, frames).SerializeToString()
    whole = pb.FetchReply()
    whole.CopyFrom(head)
    whole.frames = frames
    assert pb.FetchReply.FromString(packed) == whole
    fetched = read_fetched(packed)
    assert (fetched.request_id, fetched.next_offset, bytes(fetched.frames)) == (7, 9, frames)
