"""A client that asks all that an admin can ask, beside whatever else happens, and writes down the whole answers."""

from __future__ import annotations

import asyncio
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.base.types import METADATA_TOPIC, Offset
from tinymq.client import AsyncClient, TopicDescription
from tinymq.client.admin.cluster_status import ClusterStatus
from tinymq_chaos.history import topic_key
from tinymq_chaos.records import names_in_table
from tinymq_chaos.workloads.context import CALL_S, Context, key_of, pause, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.readers import drain

PARTITIONS = 2
HOLD_S = 8.0  # the lease of a hold
SCAN_S = 3 * CALL_S
SCANNED_MAX = 40  # records of one scan


async def observed(context: Context) -> None:
    """One topic, with a writer and holds, and all questions of an admin about it and about the cluster."""
    name = await context.topic(PARTITIONS, {"retention_ms": "none"})
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    sender = NumberedProducer(context, f"{context.name}.a", name, key, PARTITIONS)
    asking = Observer(context, client, name, key)
    await asyncio.gather(lone(context, sender, client), asking.ask(), asking.hold())
    await asking.ask_all()
    await drain(context, client, name, key, "leader")


class Observer:
    """The questions about one topic and about the cluster, each with its entry in the history."""

    def __init__(self, context: Context, client: AsyncClient, topic: str, key: str) -> None:
        self._context = context
        self._client = client
        self._topic = topic
        self._key = key
        self._process = f"{context.name} asks"
        self._scans = 0
        self._questions = (
            self._status, self._topics, self._describe, self._brokers,
            self._level, self._sizes, self._holds, self._scan,
        )  # fmt: skip

    async def ask(self) -> None:
        """Ask one question after another until the workload stops."""
        while not self._context.stop.is_set():
            await self._context.rng.choice(self._questions)()
            await pause(self._context, 0.0, 0.3)

    async def ask_all(self) -> None:
        for question in self._questions:
            await question()

    async def _status(self) -> None:
        with recording(self._context, self._process, "status") as call:
            call.ok(status_values(await self._client.admin.cluster_status(timeout=CALL_S)))

    async def _topics(self) -> None:
        with recording(self._context, self._process, "topics") as call:
            call.ok([topic_values(topic) for topic in await self._client.admin.list_topics(timeout=CALL_S)])

    async def _describe(self) -> None:
        with recording(self._context, self._process, "topics") as call:
            call.ok([topic_values(await self._client.admin.describe_topic(self._topic, timeout=CALL_S))])

    async def _brokers(self) -> None:
        with recording(self._context, self._process, "brokers") as call:
            call.ok([[b.broker_id, b.address] for b in await self._client.admin.brokers(timeout=CALL_S)])

    async def _level(self) -> None:
        with recording(self._context, self._process, "feature_level") as call:
            call.ok((await self._client.admin.feature_level(timeout=CALL_S)).level)

    async def _sizes(self) -> None:
        with recording(self._context, self._process, "kept", topic=self._key) as call:
            found = await self._client.admin.kept_sizes(self._topic, range(PARTITIONS), timeout=CALL_S)
            call.ok([[p, size.records, size.bytes] for p, size in found.items()])

    async def _holds(self) -> None:
        with recording(self._context, self._process, "holds", topic=self._key) as call:
            found = await self._client.admin.list_holds(self._topic, timeout=CALL_S)
            call.ok([[h.partition, h.hold_id.hex(), h.offset] for h in found])

    async def hold(self) -> None:
        """Make holds on the topic, each until its lease ends or a release."""
        context, rng = self._context, self._context.rng
        while not context.stop.is_set():
            hold_id, partition = rng.randbytes(16), rng.randrange(PARTITIONS)
            try:
                end = (await self._client.admin.offsets(self._topic, timeout=CALL_S))[partition].high_watermark
            except TinymqError:
                await pause(context, 0.2, 0.5)
                continue
            place: dict[str, Any] = {"topic": self._key, "partition": partition, "hold": hold_id.hex()}
            offset = rng.randint(0, end)
            with recording(context, self._process, "hold", **place, offset=offset, lease_s=HOLD_S) as call:
                await self._client.admin.make_hold(
                    self._topic, partition, Offset(offset), lease=HOLD_S, hold_id=hold_id, timeout=CALL_S
                )
                call.ok()
            await pause(context, 0.5, 3.0)
            if rng.random() < 0.7:
                with recording(context, self._process, "release", **place) as release:
                    await self._client.admin.release_hold(self._topic, partition, hold_id, timeout=CALL_S)
                    release.ok()

    async def _scan(self) -> None:
        """Scan the beginning of a partition, and ask how many bytes its brokers have sent."""
        context, partition = self._context, self._context.rng.randrange(PARTITIONS)
        try:
            end = (await self._client.admin.offsets(self._topic, timeout=CALL_S))[partition].high_watermark
        except TinymqError:
            return
        self._scans += 1
        scan_id = f"{context.name}-{self._scans}"
        upto = min(end, SCANNED_MAX)
        place: dict[str, Any] = {"topic": self._key, "partition": partition}
        with recording(context, self._process, "scan", SCAN_S, **place, end=upto) as call:
            names: list[str] = []
            async with self._client.scan(self._topic, partition, 0, upto, scan_id=scan_id) as scan:
                async for batch in scan:
                    names += names_in_table(batch)
            served = await self._client.admin.describe_scan(scan_id, timeout=CALL_S)
            listed = [s.records for s in await self._client.admin.list_scans(timeout=CALL_S) if s.scan_id == scan_id]
            call.ok([names, sum(each.records for each in served.served), sum(listed)])


def topic_values(topic: TopicDescription) -> dict[str, Any]:
    """Return a described topic as histories have it."""
    return {
        "topic": topic_key(topic.name, topic.topic_id),
        "replication": topic.replication_factor,
        "partitions": [[p.partition, p.leader, p.leader_epoch, list(p.replicas)] for p in topic.partitions],
        "settings": dict(topic.settings),
    }


def status_values(status: ClusterStatus) -> dict[str, Any]:
    """Return a cluster's status as histories have it: replicas of topics whose id is not told are left out."""
    keys = {topic.topic_id: topic_key(topic.name, topic.topic_id) for topic in status.topics or ()}
    keys[METADATA_TOPIC] = ""
    return {
        "metadata_leader": status.metadata_leader,
        "level": status.feature_level,
        "brokers": [[b.broker_id, b.address, b.state] for b in status.brokers],
        "replicas": [
            {
                "broker": broker.broker_id, "topic": keys[r.topic_id], "partition": r.partition, "role": r.role,
                "term": r.term, "leader": r.leader, "last": r.last_index, "durable": r.durable_index,
                "commit": r.commit_index, "high_watermark": r.high_watermark, "log_start": r.log_start,
                "chain_crc": r.chain_crc,
            }
            for broker in status.brokers for r in broker.replicas if r.topic_id in keys
        ],
    }  # fmt: skip
