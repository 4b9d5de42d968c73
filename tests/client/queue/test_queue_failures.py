"""Queues while leaders die, answers get lost and all brokers restart: no message is skipped, every failure raises."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.client.losing import Losing
from tests.client.running import run
from tinymq import Client, Offset
from tinymq.base.errors import (
    DeadlineExceeded,
    Fenced,
    Held,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    Unavailable,
    UnknownChannel,
)
from tinymq.broker.state import cursors
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.registry.state import bounds
from tinymq.testing.cluster import Cluster

LOST = [pytest.param(1, marks=pytest.mark.long), 3]  # the case of three lost answers contains that of one


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def mq(cluster: Cluster) -> Iterator[Client]:
    with topic_client(cluster) as client:
        yield client
        client.admin.delete_topic("t")


@pytest.fixture
def own() -> Iterator[Cluster]:
    """A cluster for one test that kills its brokers or changes their bounds."""
    with Cluster(nodes=3) as running:
        yield running


def topic_client(cluster: Cluster) -> Client:
    client = cluster.client(attempt_timeout_ms=1000)
    client.admin.create_topic("t", partitions=1, replication_factor=3)
    return client


def filled(mq: Client, count: int) -> None:
    """Write one batch. A fetch brings all of it at once."""
    with mq.producer() as producer:
        producer.send_batch("t", pa.table({"value": [b"%d" % i for i in range(count)]}))


def test_the_leader_dies_between_poll_and_commit(own: Cluster) -> None:
    mq = topic_client(own)
    filled(mq, 100)
    seen: list[int] = []
    with mq.queue("t", channel="c") as queue:
        for _ in range(3):
            seen += [m.offset for m in queue.poll(10)]
            leader = own.wait_leader("t")
            own.kill(leader)
            queue.commit()
            assert mq.admin.list_channels("t")[0].position == len(seen)
            own.start(leader)
        seen += [m.offset for m in queue.poll(5)]
    with mq.queue("t", channel="c") as heir:
        while found := heir.poll(7):
            seen += [m.offset for m in found]
    assert seen == list(range(100)), (
        "each once and in order: the first consumer committed its messages before the second one read"
    )


def test_a_consumer_that_dies_has_its_last_messages_delivered_again(cluster: Cluster, mq: Client) -> None:
    filled(mq, 20)
    lost = cluster.client()
    first = lost.queue("t", channel="c")
    first.poll(5)
    first.commit()
    first.poll(5)
    with mq.queue("t", channel="c") as second:
        assert [m.offset for m in second.poll(100)] == list(range(5, 20))
        with pytest.raises(Fenced):
            first.commit()


def test_all_brokers_restart_and_channels_go_on(own: Cluster) -> None:
    mq = topic_client(own)
    filled(mq, 30)
    queues = {name: mq.queue("t", channel=name) for name in ("a", "b")}
    queues["a"].poll(10)
    queues["b"].poll(20)
    for queue in queues.values():
        queue.commit()
    for broker in (1, 2, 3):
        own.kill(broker)
    for broker in (1, 2, 3):
        own.run(own._start(broker))
    own.wait_leader("t")
    assert [(c.channel, c.position, c.lag) for c in mq.admin.list_channels("t")] == [("a", 10, 20), ("b", 20, 10)]
    assert [m.offset for m in queues["a"].poll(100)] == list(range(10, 30))
    queues["a"].commit()
    queues["b"].close()
    queues["a"].close()
    assert [c.position for c in mq.admin.list_channels("t")] == [30, 20]


def test_a_poll_without_a_quorum_raises_instead_of_returning_nothing(own: Cluster) -> None:
    mq = topic_client(own)
    filled(mq, 10)
    hasty = own.client(attempt_timeout_ms=200, request_timeout_ms=1000)
    queue = hasty.queue("t", channel="c")
    assert len(queue.poll(10)) == 10
    leader = own.wait_leader("t")
    for broker in {1, 2, 3} - {leader}:
        own.kill(broker)
    own.kill(leader)
    with ThreadPoolExecutor() as side_by_side:  # each call takes its whole timeout
        committing = side_by_side.submit(queue.commit)
        looking = [side_by_side.submit(call) for call in (queue.poll, queue.size, queue.peek)]
    assert isinstance(committing.exception(), Unavailable | OutcomeUnknown)
    assert all(isinstance(call.exception(), Unavailable) for call in looking)
    for broker in (1, 2, 3):
        own.run(own._start(broker))
    own.wait_leader("t")
    mq.send("t", b"10")
    assert [m.offset for m in queue.poll(10)] == [10], "the queue goes on without another call"


@pytest.mark.parametrize("lost", LOST)
def test_requests_with_a_lost_answer_are_repeated_and_take_effect_once(cluster: Cluster, mq: Client, lost: int) -> None:
    filled(mq, 20)

    async def scenario() -> None:
        losing = Losing()
        async with ClientCore(cluster.servers, connector=losing) as client:
            losing.left.update({pb.SetConsumerRequest: lost, pb.ChannelsRequest: lost})
            queue = client.queue("t", channel="c", auto_commit=False)
            assert [m.offset for m in await queue.poll(5)] == list(range(5))
            (opened,) = await client.admin.list_channels("t")
            losing.left[pb.ChannelsRequest] = lost
            await queue.commit()
            losing.left[pb.ChannelsRequest] = lost
            assert await queue.seek(Offset(7)) == 7
            (moved,) = await client.admin.list_channels("t")
            assert (moved.position, moved.generation) == (7, opened.generation + 1), "moved once"
            assert [m.offset for m in await queue.poll(2)] == [7, 8]
            await queue.commit()
            losing.left.update({pb.ListChannelsRequest: lost, pb.ChannelsRequest: lost})
            assert await client.admin.seek_channel("t", 0, "c", "earliest") == 0
            (moved,) = await client.admin.list_channels("t")
            assert moved.generation == opened.generation + 2
            losing.left.update({pb.ChannelsRequest: lost, pb.UnsetConsumerRequest: lost, pb.TrimRequest: lost})
            await client.admin.delete_channel("t", 0, "c")
            with pytest.raises(UnknownChannel):
                await client.admin.delete_channel("t", 0, "c")
            assert await client.admin.trim("t", 0, Offset(4)) == 4
            losing.left[pb.HoldRequest] = lost
            async with client.admin.hold("t", 0, Offset(6)) as hold:
                hold.check()
            assert not +losing.left, "every planned answer was lost"

    run(scenario())


def test_a_commit_without_an_answer_ends_as_outcome_unknown(cluster: Cluster, mq: Client) -> None:
    filled(mq, 5)

    async def scenario() -> None:
        losing = Losing()
        async with ClientCore(cluster.servers, connector=losing, request_timeout_ms=400) as client:
            queue = client.queue("t", channel="c", auto_commit=False)
            await queue.poll(5)
            losing.left[pb.ChannelsRequest] = 10_000
            with pytest.raises(OutcomeUnknown):
                await queue.commit()
            with pytest.raises(OutcomeUnknown):
                await queue.seek(Offset(1))
            losing.left.clear()
            assert await queue.seek(Offset(2)) == 2, "another seek tells the position"
            assert [m.offset for m in await queue.poll(5)] == [2, 3, 4]
            await queue.commit()

    run(scenario())


def test_no_commit_follows_a_seek_of_unknown_outcome(cluster: Cluster, mq: Client) -> None:
    filled(mq, 10)

    async def scenario() -> None:
        losing = Losing()
        client = ClientCore(cluster.servers, connector=losing, request_timeout_ms=400, attempt_timeout_ms=100)
        async with client, client.queue("t", channel="c", commit_interval_ms=5) as queue:
            await queue.poll(4)
            losing.left[pb.ChannelsRequest] = 10_000
            await queue.poll(1)
            with pytest.raises(OutcomeUnknown):
                await queue.seek(Offset(1))
            losing.left.clear()
            for _ in range(20):  # time in which a commit of the earlier messages could come
                await client.admin.list_channels("t")
            assert await queue.seek(Offset(2)) == 2
            assert [m.offset for m in await queue.poll(100)] == list(range(2, 10))

    run(scenario())


def test_a_consumer_whose_assignment_got_no_answer_is_removed_again(cluster: Cluster, mq: Client) -> None:
    async def scenario() -> None:
        losing = Losing()
        client = ClientCore(cluster.servers, connector=losing, request_timeout_ms=2000, attempt_timeout_ms=5000)
        async with client:
            await client.admin.list_channels("t")
            losing.left[pb.SetConsumerRequest] = 1
            losing.patient = {pb.SetConsumerRequest}  # no time is left to ask another broker
            with pytest.raises(OutcomeUnknown):
                await client.queue("t", channel="c").poll()
            assert losing.answered[pb.SetConsumerRequest] == 2
            assert await client.admin.get_consumer("t", 0, "c") is None

    run(scenario())


def test_open_ends_by_its_deadline_when_no_answer_comes(cluster: Cluster, mq: Client) -> None:
    """The removal of the assignment keeps the deadline, too (found on real brokers, a majority of them killed)."""

    async def scenario() -> None:
        losing = Losing()
        client = ClientCore(cluster.servers, connector=losing, request_timeout_ms=1000, attempt_timeout_ms=60_000)
        async with client:
            await client.admin.list_channels("t")
            losing.left[pb.SetConsumerRequest] = 1000
            losing.patient = {pb.SetConsumerRequest}
            began_s = time.monotonic()
            with pytest.raises(OutcomeUnknown):
                await client.queue("t", channel="c").open()
            assert time.monotonic() - began_s < 60.0, "the removal may not take a whole attempt"

    run(scenario())


def test_a_refused_channel_raises_at_once_and_leaves_no_consumer_on_record(
    own: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq = topic_client(own)
    monkeypatch.setattr(cursors, "CURSORS_MAX", 2)
    for channel in ("a", "b"):
        with mq.queue("t", channel=channel) as queue:
            queue.poll()

    async def scenario() -> None:
        losing = Losing()
        async with ClientCore(own.servers, connector=losing, request_timeout_ms=60_000) as client:
            with pytest.raises(QuotaExceeded):
                await client.queue("t", channel="c").poll()
            assert losing.answered[pb.ChannelsRequest] == 1, (
                "the request is not repeated, because a full partition stays full"
            )
            assert losing.answered[pb.UnsetConsumerRequest] == 1

    run(scenario())
    registry = own.registry(1)
    own.run(registry.refresh(5.0))
    assert registry.get_queue_consumer("t", 0, "c") is None
    own.run(registry.set_queue_consumer("t", 0, "never", "me"))
    with pytest.raises(UnknownChannel):
        mq.admin.delete_channel("t", 0, "never")
    own.run(registry.refresh(5.0))
    assert registry.get_queue_consumer("t", 0, "never") is None
    monkeypatch.setattr(bounds, "CONSUMERS_PER_QUEUE_MAX", 0)
    with pytest.raises(QuotaExceeded):
        own.client(request_timeout_ms=600_000).queue("t", channel="a").poll()


@pytest.mark.parametrize("later", [DeadlineExceeded("no majority"), Held("still held")], ids=["too late", "again"])
def test_a_refusal_is_not_replaced_by_the_error_of_a_late_last_attempt(
    cluster: Cluster, mq: Client, later: TinymqError
) -> None:
    async def scenario() -> None:
        losing = Losing()
        async with ClientCore(cluster.servers, connector=losing, request_timeout_ms=400) as client:
            await client.admin.describe_topic("t")
            losing.instead[pb.TrimRequest] = [
                pb.TrimReply(error=to_wire(error)) for error in (Held("held"), *[later] * 1000)
            ]
            with pytest.raises(Held):
                await client.admin.trim("t", 0, Offset(0))
            assert len(losing.given_s) > 1, "the request is repeated,"
            assert min(losing.given_s) > 0.1, "but not when there is too little time for an answer"

    run(scenario())


def test_a_hold_keeps_its_records_and_is_renewed(own: Cluster) -> None:
    mq = topic_client(own)
    filled(mq, 20)
    patient, hasty = mq.admin, own.client(request_timeout_ms=1500).admin

    async def scenario() -> None:
        losing = Losing()
        client = ClientCore(own.servers, connector=losing)
        async with client, client.admin.hold("t", 0, Offset(5), lease=1.0) as hold:
            while losing.answered[pb.HoldRequest] < 5:  # until the hold is older than its lease
                await client.admin.brokers()
            hold.check()
            assert await client.admin.trim("t", 0, Offset(5)) == 5, "records before the hold may be removed"

    run(scenario())
    assert patient.trim("t", 0, Offset(6)) == 6, "released"
    with patient.hold("t", 0, 7, lease=60.0) as hold:
        assert (hold.log_start, hold.offset) == (6, 7)
        with pytest.raises(Held):
            hasty.trim("t", 0, Offset(8))
        leader = own.wait_leader("t")
        own.kill(leader)
        own.wait_leader("t", other_than=leader)
        with pytest.raises(Held):
            hasty.trim("t", 0, Offset(8))
    assert patient.trim("t", 0, Offset(8)) == 8, "the hold was released; its lease of 60 s has not ended"
