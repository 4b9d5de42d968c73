"""Channels on a real cluster: many commands in one request, times, listings, trims, holds, and bad input."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.batches import TIME_US
from tests.fakes.raw_client import WAIT_S, Raw
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.services.channels import BY_OFFSET, _cut_to
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

ID = b"i" * 16


class Led:
    """A topic of one partition, and the stub of its leader."""

    def __init__(self, raw: Raw, topic: pb.TopicInfo) -> None:
        self.raw = raw
        self.stub = pb_grpc.ChannelsStub(raw.channel)
        self.topic_id = topic.topic_id

    async def change(self, *commands: pb.ChannelCommand) -> list[pb.ChannelOutcome]:
        for command in commands:
            if not command.HasField("partition"):
                command.partition = 0
        request = pb.ChannelsRequest(topic_id=self.topic_id, commands=commands)
        reply = await self.stub.Change(request, timeout=WAIT_S)
        assert not reply.HasField("error"), reply.error
        return list(reply.outcomes)

    async def codes(self, *commands: pb.ChannelCommand) -> list[str]:
        return [outcome.error.code for outcome in await self.change(*commands)]

    async def listed(self) -> pb.PartitionChannels:
        reply = await self.stub.List(pb.ListChannelsRequest(topic_id=self.topic_id, partitions=[0]), timeout=WAIT_S)
        (found,) = reply.partitions
        assert not found.HasField("error"), found.error
        return found

    async def hold(self, offset: int, lease_ms: int, hold_id: bytes = ID, *, light: bool = False) -> pb.HoldOutcome:
        ranges = [pb.HoldRange(partition=0, offset=offset)]
        request = pb.HoldRequest(topic_id=self.topic_id, hold_id=hold_id, ranges=ranges, lease_ms=lease_ms, light=light)
        reply = await self.stub.Hold(request, timeout=WAIT_S)
        return pb.HoldOutcome(error=reply.error) if reply.HasField("error") else reply.outcomes[0]

    async def trim(self, time_us: int, offset: int = 0) -> pb.TrimReply:
        request = pb.TrimRequest(topic_id=self.topic_id, partition=0, before_us=time_us, before_offset=offset)
        return await self.stub.Trim(request, timeout=WAIT_S)


def run(cluster: Cluster, name: str, records: int, scenario: Callable[[Led], Awaitable[None]]) -> None:
    """A topic with `count` records, one batch each, one microsecond apart."""

    async def main() -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create(name)
        leader = await asyncio.to_thread(cluster.wait_leader, name)
        async with Raw(cluster.address(leader)) as raw:
            for number in range(records):
                assert not (await raw.send(topic.topic_id, time_us=TIME_US + number)).HasField("error")
            await scenario(Led(raw, topic))

    asyncio.run(main())


def opening(channel: str = "c", start_us: int = -2, partition: int | None = None, **fields: int) -> pb.ChannelCommand:
    return pb.ChannelCommand(channel=channel, partition=partition, open=pb.ChannelOpen(start_us=start_us, **fields))


def commit(offset: int, channel: str = "c", **fields: int) -> pb.ChannelCommand:
    return pb.ChannelCommand(channel=channel, commit=pb.ChannelCommit(offset=offset, **fields))


def seek(to_us: int, offset: int = 0, request_id: bytes = ID, **fields: int) -> pb.ChannelCommand:
    return pb.ChannelCommand(
        channel="c", seek=pb.ChannelSeek(to_us=to_us, offset=offset, request_id=request_id, **fields)
    )


def consume(request_id: bytes = ID, channel: str = "c") -> pb.ChannelCommand:
    return pb.ChannelCommand(channel=channel, consume=pb.ChannelConsume(request_id=request_id))


def test_outcomes_come_in_the_order_of_the_commands(tinymq_cluster: Cluster) -> None:
    async def scenario(led: Led) -> None:
        (made,) = await led.change(opening())
        outcomes = await led.change(
            commit(3, generation=made.generation),
            commit(1, channel="absent"),
            consume(),
            consume(),
            commit(9, generation=made.generation),
            seek(BY_OFFSET, 1),
            commit(2, generation=made.generation),
            pb.ChannelCommand(channel="c", delete=pb.ChannelDelete()),
            pb.ChannelCommand(channel="c", delete=pb.ChannelDelete()),
        )
        codes = [outcome.error.code for outcome in outcomes]
        assert codes == ["", "UnknownChannel", "", "", "OffsetOutOfRange", "", "Fenced", "", "UnknownChannel"]
        assert [(o.taken, o.offset) for o in outcomes[2:4]] == [(True, 3), (True, 3)], "one request, one record"
        assert [outcomes[n].position for n in (0, 2, 5)] == [3, 4, 1]
        assert outcomes[5].generation != made.generation
        assert outcomes[0].high_watermark == 5

    run(tinymq_cluster, "in-order", 5, scenario)


def test_times_stand_for_offsets(tinymq_cluster: Cluster) -> None:
    async def scenario(led: Led) -> None:
        starts = {"earliest": -2, "end": -1, "newest": -3, "time": TIME_US + 4, "late": TIME_US + 1000}
        outcomes = await led.change(*(opening(name, time_us) for name, time_us in starts.items()))
        assert [outcome.position for outcome in outcomes] == [0, 10, 9, 4, 10]
        (by_offset,) = await led.change(opening("offset", BY_OFFSET, start_offset=7))
        assert by_offset.position == 7
        await led.change(opening())
        for number, (time_us, position) in enumerate([(TIME_US + 4, 4), (-1, 10), (-2, 0)]):
            (moved,) = await led.change(seek(time_us, request_id=b"%016d" % number))
            assert moved.position == position
        assert (await led.trim(TIME_US + 3)).log_start == 3
        assert (await led.trim(BY_OFFSET, 2)).log_start == 3, "it only rises"
        (low,) = await led.change(opening("low", TIME_US))
        assert low.position == 3
        beyond = (await led.trim(BY_OFFSET, 11)).error
        assert (beyond.code, dict(beyond.detail)) == ("OffsetOutOfRange", {"log_start": "3", "high_watermark": "10"})
        assert (await led.listed()).log_start == 3, "and nothing is gone"
        assert (await led.trim(-1)).log_start == 10
        assert (await led.trim(BY_OFFSET, 10)).log_start == 10
        assert (await led.codes(seek(BY_OFFSET, 5)))[0] == "OffsetOutOfRange"

    run(tinymq_cluster, "times", 10, scenario)


def test_a_new_consumer_fences_the_one_before(tinymq_cluster: Cluster) -> None:
    async def scenario(led: Led) -> None:
        async def assign(consumer: str, broker_id: int) -> int:
            async with Raw(tinymq_cluster.address(broker_id)) as raw:
                request = pb.SetConsumerRequest(topic="fencing", partition=0, channel="c", consumer=consumer)
                reply = await pb_grpc.ChannelsStub(raw.channel).SetConsumer(request, timeout=WAIT_S)
                assert not reply.HasField("error"), reply.error
                return int(reply.epoch)

        first, second = await assign("first", 2), await assign("second", 3)
        assert second > first
        (made,) = await led.change(opening(epoch=first))
        (taken_over,) = await led.change(opening(epoch=second))
        assert taken_over.epoch == second
        late = await led.codes(
            commit(2, epoch=first, generation=made.generation), seek(-1, epoch=first), opening(epoch=first)
        )
        assert late == ["Fenced"] * 3
        assert await led.codes(commit(2, epoch=second, generation=taken_over.generation)) == [""]
        found = await led.listed()
        (cursor,) = found.channels
        assert (cursor.channel, cursor.position, cursor.lag, cursor.epoch) == ("c", 2, 3, second)
        assert (cursor.consumer, found.log_start, found.high_watermark) == ("second", 0, 5)
        assert cursor.moved_us > TIME_US
        assert found.record_bytes > 100
        for epoch, consumer in ((first, "second"), (0, "")):  # an expired assignment does not end another
            unset = pb.UnsetConsumerRequest(topic="fencing", partition=0, channel="c", epoch=epoch)
            assert not (await led.stub.UnsetConsumer(unset, timeout=WAIT_S)).HasField("error")
            assert (await led.listed()).channels[0].consumer == consumer

    run(tinymq_cluster, "fencing", 5, scenario)


@pytest.mark.parametrize("light", [False, True])
def test_a_hold_keeps_a_trim_away_unless_it_is_light(tinymq_cluster: Cluster, light: bool) -> None:
    async def scenario(led: Led) -> None:
        held = await led.hold(4, 60_000, light=light)
        assert not held.HasField("error"), held.error
        assert held.until_us > TIME_US
        assert (await led.hold(4, 120_000, light=light)).until_us > held.until_us + 30_000_000
        assert [hold.offset for hold in (await led.listed()).holds] == [4]
        assert (await led.trim(BY_OFFSET, 4)).log_start == 4
        trimmed = await led.trim(BY_OFFSET, 5)
        assert (trimmed.error.code, trimmed.log_start) == (("", 5) if light else ("Held", 0))
        assert (await led.hold(2, 1000, b"j" * 16, light=light)).error.code == "OffsetOutOfRange"
        assert not (await led.hold(0, 0)).HasField("error")
        assert (await led.trim(BY_OFFSET, 6)).log_start == 6
        assert not (await led.listed()).holds

    run(tinymq_cluster, f"held-{light}", 8, scenario)


def test_each_wrong_command_gets_its_own_error(tinymq_cluster: Cluster) -> None:
    async def scenario(led: Led) -> None:
        await led.change(opening())
        codes = await led.codes(
            pb.ChannelCommand(channel="c"),
            opening(channel="a/b"),
            opening(channel="big", start_us=BY_OFFSET, start_offset=1 << 63),
            opening(channel="time", start_us=-5),
            commit(1 << 63),
            seek(-1, request_id=b"short"),
            consume(b""),
            pb.ChannelCommand(channel="c", partition=7, delete=pb.ChannelDelete()),
            commit(0),
        )
        wrong = {"InvalidRequest", "InvalidName"}
        assert set(codes[:7]) - {codes[3]} <= wrong
        assert codes[7] in ("UnknownPartition", "NotReady")
        assert codes[8] == "Fenced", "generation 0 matches no consumer"
        for topic_id, code in ((b"", "InvalidName"), (b"u" * 16, "NotReady")):
            request = pb.ChannelsRequest(topic_id=topic_id, commands=[opening(partition=0), opening("d", partition=0)])
            reply = await led.stub.Change(request, timeout=WAIT_S)
            assert [outcome.error.code for outcome in reply.outcomes] == [code] * 2
        none = pb.ChannelsRequest(topic_id=led.topic_id)
        assert not (await led.stub.Change(none, timeout=WAIT_S)).HasField("error")
        assert (await led.hold(0, 1000, b"short")).error.code == "InvalidRequest"
        assert (await led.trim(BY_OFFSET, 1 << 63)).error.code == "InvalidRequest"
        nobody = pb.SetConsumerRequest(topic="wrong", partition=0, channel="c")
        assert (await led.stub.SetConsumer(nobody, timeout=WAIT_S)).error.code == "InvalidName"
        nowhere = pb.UnsetConsumerRequest(topic="nowhere", partition=0, channel="c")
        assert (await led.stub.UnsetConsumer(nowhere, timeout=WAIT_S)).error.code == "UnknownTopic"

    run(tinymq_cluster, "wrong", 1, scenario)


def test_a_follower_names_the_leader_for_a_transfer(tinymq_cluster: Cluster) -> None:
    async def scenario(led: Led) -> None:
        leader = tinymq_cluster.leader_of("elsewhere")
        assert leader is not None
        async with Raw(tinymq_cluster.address(leader % 3 + 1)) as raw:
            other = Led(raw, pb.TopicInfo(topic_id=led.topic_id))
            (outcome,) = await other.change(opening())
            request = pb.ListChannelsRequest(topic_id=led.topic_id, partitions=[0])
            (listed,) = (await other.stub.List(request, timeout=WAIT_S)).partitions
            for error in (outcome.error, listed.error, (await other.hold(0, 1)).error, (await other.trim(-1)).error):
                assert error.code == "NotLeader"
                assert error.detail["leader_address"] == tinymq_cluster.address(leader)

    run(tinymq_cluster, "elsewhere", 1, scenario)


@pytest.mark.parametrize("channels", [1, 30])
def test_a_list_that_would_be_too_long_is_cut(channels: int) -> None:
    def partition(number: int) -> pb.PartitionChannels:
        some = [pb.ChannelInfo(channel=secrets.token_hex(50)) for _ in range(channels)]
        return pb.PartitionChannels(partition=number, channels=some)

    reply = pb.ListChannelsReply(partitions=[partition(n) for n in range(10)])
    size = reply.partitions[0].ByteSize()
    _cut_to(reply, int(3.5 * size))
    assert [each.error.code for each in reply.partitions] == [""] * 3 + ["QuotaExceeded"] * 7
    assert [each.partition for each in reply.partitions] == list(range(10))
    _cut_to(reply, 1)
    assert reply.partitions[0].channels, "the first channel is always listed"
