"""Versions of an application over the wire, on three brokers: sets of tasks, of which a driver commits some."""

from __future__ import annotations

import asyncio

from tests.fakes.transactional_programs import WAIT_S, Writer, made, pair, read, refused
from tinymq.base.errors import InvalidRequest, TransactionAborted, UnknownPartition, VersionReused
from tinymq.broker.groups.groups import COORDINATOR_TOPIC
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]


class Task(Writer):
    """One attempt at a task of an application."""

    async def open(self, version: int, run: str = "run", query: str = "q", timeout_ms: int = 0) -> pb.OpenSetReply:
        request = pb.OpenSetRequest(application=self.name, version=version, run=run, query=query, timeout_ms=timeout_ms)
        reply: pb.OpenSetReply = await self.ask("OpenSet", request)
        if not reply.committed:
            self.now, self.writer, self.owner.coordinator = reply.transaction, reply.writer, reply.coordinator
        return reply

    async def write(self, topic: str, topic_id: bytes, partition: int, value: bytes) -> None:
        await self.add(topic_id, partition)
        await self.send(topic, topic_id, partition, value)


async def commit(version: int, *tasks: Task, query: str = "q", visible: bool = True) -> bool:
    """As their driver. Raises the error of the answer."""
    counts: dict[tuple[bytes, int], int] = {}
    for place, count in (sent for task in tasks for sent in task.sent.items()):
        counts[place] = counts.get(place, 0) + count
    request = pb.CommitSetsRequest(
        application=tasks[0].name, version=version, query=query, transaction=tasks[0].now,
        writers=[task.writer for task in tasks], visible=visible, timeout_ms=10_000,
        partitions=[
            pb.TransactionPartition(topic_id=topic_id, partition=partition, batches=count)
            for (topic_id, partition), count in counts.items()
        ],
    )  # fmt: skip
    return bool((await tasks[0].ask("CommitSets", request)).visible)


def test_a_commit_shows_the_sets_that_it_names_and_no_others(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "chosen")
        first, again, other = (Task(tinymq_cluster, "nightly") for _ in range(3))
        for task, run in ((first, "one"), (again, "one"), (other, "two")):
            await task.open(1, run)
            await task.write("chosen", topic_id, 0, run.encode() + b"%d" % task.writer)
        await first.write("chosen", topic_id, 1, b"lost with its attempt")
        assert first.now == again.now != other.now
        assert await commit(1, again)
        assert await read(tinymq_cluster, "chosen", topic_id, 0, 2) == pair(b"one1")
        assert await read(tinymq_cluster, "chosen", topic_id, 1, 0) == []
        assert await commit(1, first), "again, with another choice: nothing changes"
        assert (await other.open(1, "two")).committed
        with refused(TransactionAborted):
            await Writer.send(other, "chosen", topic_id, 0, b"zombie")
        with refused(VersionReused):
            await other.open(0, "three", query="other")
        assert await read(tinymq_cluster, "chosen", topic_id, 0, 2) == pair(b"one1")

    asyncio.run(main())


def test_what_a_driver_discards_or_time_ends_is_open_again_as_a_version(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "dropped")
        task, late = Task(tinymq_cluster, "dropping"), Task(tinymq_cluster, "dropping")
        await task.open(1)
        await task.write("dropped", topic_id, 0, b"discarded")
        await task.ask("DiscardSets", pb.DiscardSetsRequest(application="dropping", transaction=task.now))
        with refused(TransactionAborted):
            await commit(1, task)
        await late.open(1, timeout_ms=1000)
        await late.write("dropped", topic_id, 0, b"too late")
        with refused(TransactionAborted):  # batches renew nothing
            async with asyncio.timeout(WAIT_S):
                while True:
                    await late.send("dropped", topic_id, 0, b"more")
        with refused(TransactionAborted):
            await commit(1, late)
        for version in (1, 2):
            new = Task(tinymq_cluster, "dropping")
            await new.open(version)
            await new.write("dropped", topic_id, 0, b"v%d" % version)
            assert await commit(version, new)
        await task.ask("DiscardSets", pb.DiscardSetsRequest(application="dropping", transaction=new.now))
        assert await read(tinymq_cluster, "dropped", topic_id, 0, 4) == pair(b"v1") + pair(b"v2")

    asyncio.run(main())


def test_a_version_goes_on_when_its_coordinator_and_a_leader_change(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "moved", 1)
        task = Task(tinymq_cluster, "moving")
        reply = await task.open(1)
        await task.write("moved", topic_id, 0, b"before")
        for topic, partition in ((COORDINATOR_TOPIC, reply.coordinator), ("moved", 0)):
            await asyncio.to_thread(move, tinymq_cluster, topic, partition)
        await task.write("moved", topic_id, 0, b"after")
        assert await commit(1, task)
        assert await read(tinymq_cluster, "moved", topic_id, 0, 4) == pair(b"before") + pair(b"after")

    asyncio.run(main())


def move(cluster: Cluster, topic: str, partition: int) -> None:
    leader = cluster.wait_leader(topic, partition)
    to = next(broker for broker in cluster.brokers if broker != leader)
    cluster.client().admin.transfer_leader(topic, partition, to)


def test_requests_that_contradict_themselves_are_refused(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "wrong", 1)
        task = Task(tinymq_cluster, "wrong")
        for request in (
            pb.OpenSetRequest(application="wrong", version=1),
            pb.OpenSetRequest(application="wrong", run="r"),
            pb.OpenSetRequest(application="wrong", version=1, run="r" * 65),
            pb.OpenSetRequest(application="wrong", version=1, run="r", query="q" * 65),
            pb.OpenSetRequest(application="wrong", version=1, run="r", timeout_ms=1),
        ):
            with refused(InvalidRequest):
                await task.ask("OpenSet", request)
        await task.open(1)
        with refused(UnknownPartition):
            await task.add(topic_id, 7)
        for commit_request in (
            pb.CommitSetsRequest(application="wrong", version=1, transaction=task.now),
            pb.CommitSetsRequest(application="wrong", version=1, writers=[0]),
        ):
            with refused(InvalidRequest):
                await task.ask("CommitSets", commit_request)
        with refused(TransactionAborted):
            await commit(2, task)
        await task.ask("CommitSets", pb.CommitSetsRequest(application="wrong", version=3, query="q"))
        assert (await task.open(3)).committed, "without a row, too"

    asyncio.run(main())
