"""Frames that brokers send from their files on the stream port: equal to those that a read returns, a few at a time. A
replica that sends damaged bytes without reading them is found out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.running import run
from tests.fakes.raw_client import Raw
from tests.fakes.transacted import transact
from tests.rpc.server.test_stream_server import FETCH, port_of, welcomed
from tinymq import Client
from tinymq.base.config import Limits
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.serve.messages import pack_record
from tinymq.format.entry import iter_entries
from tinymq.log.files.layout import SEGMENT, group_directory, in_group
from tinymq.log.segment.reads import StoredFrames
from tinymq.net import frame_stream
from tinymq.net.frame_stream import FilePart
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft.replica.group import Role
from tinymq.rpc.services import fetch
from tinymq.testing.cluster import Cluster

RECORDS = 40
VALUE_BYTES = 100_000
LIMITS = Limits(segment_bytes=64 << 20, tail_cache_bytes_max=1)  # all records are on disk, none in memory


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    return cluster.client()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that brokers of this process have sent from files, one number per call."""
    found: list[int] = []
    real = frame_stream.send_file

    async def counted(sock: int, body: FilePart) -> None:
        found.append(len(body))
        await real(sock, body)

    monkeypatch.setattr(frame_stream, "send_file", counted)
    return found


class Held:
    """All live StoredFrames of the brokers in this process."""

    def __init__(self) -> None:
        self.now: set[int] = set()
        self.most = 0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found = Held()
    made, closed = StoredFrames.__init__, StoredFrames.close

    def make(self: StoredFrames, *values: Any) -> None:
        made(self, *values)
        found.now.add(id(self))
        found.most = max(found.most, len(found.now))

    def close(self: StoredFrames) -> None:
        found.now.discard(id(self))
        closed(self)

    monkeypatch.setattr(StoredFrames, "__init__", make)
    monkeypatch.setattr(StoredFrames, "close", close)
    return found


def filled(cluster: Cluster, mq: Client, name: str, *, published: bool = False) -> tuple[bytes, int, list[bytes]]:
    """Create a topic with RECORDS batches of one record, which are `published` by a transaction or plain. Returns its
    id, a follower that has all of them, and their values.
    """
    topic_id = mq.admin.create_topic(name, partitions=1).topic_id
    values = [random.Random(f"{name}{n}").randbytes(VALUE_BYTES) for n in range(RECORDS)]
    leader = cluster.wait_leader(name)
    follower = leader % 3 + 1
    if published:
        broker = cluster.brokers[leader].serving.broker
        assert broker is not None
        partition = broker.find(topic_id, 0)
        cluster.run(transact(partition, [pack_record(None, value, (), 1) for value in values], 1))
    else:
        for value in values:
            mq.send(name, value, partition=0)

    def shown() -> bool:
        broker = cluster.brokers[follower].serving.broker
        replica = broker.replica_host.get(topic_id, 0) if broker is not None else None
        return replica is not None and replica.high_watermark == RECORDS

    cluster.wait_until(shown)
    return topic_id, follower, values


@pytest.mark.parametrize("published", [False, True])
def test_sent_bytes_equal_read_bytes(cluster: Cluster, mq: Client, sent: list[int], published: bool) -> None:
    topic_id, follower, _ = filled(cluster, mq, f"same{published}", published=published)

    async def main() -> None:
        async with welcomed(port_of(cluster, follower), FETCH) as stream, Raw(cluster.address(follower)) as raw:
            for offset, bytes_max, end in ((0, 1 << 20, 0), (7, 1, 0), (3, 16 << 20, 20), (39, 1 << 20, 0)):
                ask = pb.FetchRequest(request_id=1, topic_id=topic_id, offset=offset, max_bytes=bytes_max, end=end)
                answers = []
                for verify in (False, True):
                    before = len(sent)
                    ask.verify = verify
                    await stream.send(ask.SerializeToString())
                    head, frames = await stream.receive()
                    answers.append((pb.FetchReply.FromString(head), bytes(frames)))
                    assert len(sent) - before == (not verify)
                assert answers[0] == answers[1]
                reply = await raw.fetch(topic_id, offset, max_bytes=bytes_max, end=end)
                assert reply.frames == answers[0][1]
                assert next(iter_entries(reply.frames)).header.base_offset == offset

    run(main())


def test_a_client_that_reads_no_answers_keeps_few_files_open(cluster: Cluster, mq: Client, held: Held) -> None:
    topic_id, follower, _ = filled(cluster, mq, "slow")

    async def main() -> None:
        async with welcomed(port_of(cluster, follower), FETCH) as stream:
            transport = stream._transport
            assert transport is not None
            transport.pause_reading()
            for number in range(60):
                ask = pb.FetchRequest(request_id=number, topic_id=topic_id, offset=0, max_bytes=1 << 20)
                await stream.send(ask.SerializeToString())
            cluster.wait_until(lambda: bool(held.now))
            transport.resume_reading()
            answers = [await stream.receive() for _ in range(60)]
            assert sorted(pb.FetchReply.FromString(head).request_id for head, _ in answers) == list(range(60))
            assert len({bytes(frames) for _, frames in answers}) == 1
            cluster.wait_until(lambda: not held.now)  # the broker closes the last one after the client has it
            assert held.most <= fetch.FILES_MAX + 1, "and the frame in transmission"

    run(main())


@pytest.mark.parametrize("published", [False, True])
def test_a_replica_that_sends_damage_learns_of_it_and_is_repaired(
    cluster: Cluster, mq: Client, sent: list[int], published: bool
) -> None:
    name = f"damaged{published}"
    topic_id, follower, values = filled(cluster, mq, name, published=published)
    leader = cluster.wait_leader(name)
    folder = cluster._config(follower).data_dir
    path = Path(folder, in_group(group_directory(GroupId(TopicId(topic_id), 0)), 1, SEGMENT))
    content = bytearray(path.read_bytes())
    content[content.index(values[20]) + 5] ^= 1
    path.write_bytes(content)
    with mq.scan(name, 0, 0, RECORDS, replicas=((follower,), (leader,))) as scan:
        got = [value.as_py() for batch in scan for value in batch.column("value")]
    assert got == values
    assert sent, "the broker has not read the frame"
    assert scan.served.get(leader), "once it has, another replica serves"

    def whole() -> bool:
        group = cluster.brokers[follower].host.groups[GroupId(TopicId(topic_id), 0)]
        return group.role is Role.FOLLOWER and group.commit_index == group.log.last_index

    cluster.wait_until(whole)
    with mq.scan(name, 0, 0, RECORDS, replicas=((follower,),)) as scan:
        assert [value.as_py() for batch in scan for value in batch.column("value")] == values


def test_a_client_that_leaves_with_a_waiting_fetch_leaves_no_file_open(
    cluster: Cluster, mq: Client, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection is off: its next run may be hours away."""
    topic_id, follower, _ = filled(cluster, mq, "left")
    began: list[int] = []
    enough, read = asyncio.Event(), fetch.FetchStream._read

    async def together(self: fetch.FetchStream, number: int, *how: Any) -> None:
        """If read one by one, each frame would be sent before the next is read, until one does not fit into the
        sockets.
        """
        began.append(number)
        if len(began) == fetch.FILES_MAX:
            enough.set()
        await enough.wait()
        await read(self, number, *how)

    monkeypatch.setattr(fetch.FetchStream, "_read", together)

    async def main() -> None:
        async with welcomed(port_of(cluster, follower), FETCH) as stream:
            assert stream._transport is not None
            stream._transport.pause_reading()
            stream._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            waits = pb.FetchRequest(
                request_id=99, topic_id=topic_id, offset=RECORDS, max_bytes=1, min_bytes=1, max_wait_ms=30_000
            )
            await stream.send(waits.SerializeToString())
            for number in range(60):
                ask = pb.FetchRequest(request_id=number, topic_id=topic_id, offset=0, max_bytes=4 << 20)
                await stream.send(ask.SerializeToString())
            cluster.wait_until(lambda: len(held.now) > 1)
        cluster.wait_until(lambda: not held.now)

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


def test_a_client_with_a_quota_gets_the_frames_that_were_read(sent: list[int]) -> None:
    """Waiting frames would keep their files open, and their pages might leave the page cache."""
    limits = dataclasses.replace(LIMITS, client_fetch_bytes_per_s=100 << 20)
    with Cluster(nodes=1, limits=limits) as cluster, cluster.client() as client:
        client.admin.create_topic("t", partitions=1)
        for _ in range(5):
            client.send("t", bytes(VALUE_BYTES), partition=0)
        with client.scan("t", 0, 0, 5) as scan:
            assert sum(batch.num_rows for batch in scan) == 5
        assert not sent
