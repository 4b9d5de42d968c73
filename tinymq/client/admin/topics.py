"""Topics and their partitions: changes that any broker makes, and questions to the metadata."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.base.errors import TopicExists
from tinymq.client.admin.broker_calls import BrokerCalls
from tinymq.client.admin.cluster_status import TopicDescription, describe_topic, describe_topics
from tinymq.client.cluster import routing
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Partition
from tinymq.client.common.argument_checks import check_count, check_topic
from tinymq.client.common.topic_settings import write_settings
from tinymq.proto import tinymq_pb2 as pb

REPLICAS_DEFAULT = 3


class Topics:
    """The part of the admin that changes topics. After each change the client's view has it, too."""

    def __init__(self, cluster: Cluster, brokers: BrokerCalls) -> None:
        self._cluster = cluster
        self._brokers = brokers

    async def create(
        self,
        name: str,
        partitions: int,
        replicas: int | None,
        settings: Mapping[str, object],
        timeout_s: float,
        exist_ok: bool = False,
    ) -> TopicDescription:
        """Create a topic with `replicas` of each partition, None for the default.

        `exist_ok`: if the topic exists, it is described and not changed, whatever the arguments are.
        """
        check_topic(name)
        written = write_settings(settings)
        check_count("partitions", partitions, 1)
        if replicas is not None:
            check_count("replication_factor", replicas, 1)
        left = self._cluster.countdown(timeout_s)
        by_default = replicas is None
        if replicas is None:
            # Brokers of earlier builds do not choose the default themselves.
            view = await self._cluster.refresh(timeout_s=left())
            replicas = min(REPLICAS_DEFAULT, max(1, sum(broker.alive for broker in view.brokers.values())))
        request = pb.CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=replicas,
            settings=written,
            default_factor=by_default,
        )
        try:
            reply = await self._brokers.change(request, left(), waits_for_leaders=True)
        except TopicExists:
            if not exist_ok:
                raise
            return await self.describe(name, left())
        return self._learn(reply.topic)

    async def delete(self, name: str, timeout_s: float) -> None:
        """Delete a topic."""
        await self._brokers.change(pb.DeleteTopicRequest(name=check_topic(name)), timeout_s)
        self._cluster.update(routing.without_topic(self._cluster.view, name))

    async def alter(self, name: str, settings: Mapping[str, object], timeout_s: float) -> TopicDescription:
        """Change settings of a topic."""
        request = pb.AlterTopicRequest(name=check_topic(name), settings=write_settings(settings))
        reply = await self._brokers.change(request, timeout_s)
        return self._learn(reply.topic)

    async def add_partition(self, topic: str, timeout_s: float) -> Partition:
        """Add a partition, and wait until it has a leader."""
        request = pb.AddPartitionRequest(topic=check_topic(topic))
        reply = await self._brokers.change(request, timeout_s, waits_for_leaders=True)
        added = routing.read_partition(reply.partition)
        self._cluster.update(routing.with_partition(self._cluster.view, topic, added))
        return added

    async def delete_partition(self, topic: str, partition: int, timeout_s: float) -> None:
        """Delete a partition."""
        check_count("partition", partition, 0)
        request = pb.DeletePartitionRequest(topic=check_topic(topic), partition=partition)
        await self._brokers.change(request, timeout_s)
        self._cluster.update(routing.without_partition(self._cluster.view, topic, partition))

    async def describe_all(self, timeout_s: float) -> list[TopicDescription]:
        """All topics, as of a moment during this call."""
        reply = await self._cluster.ask(pb.MetadataRequest(all=True, fresh=True), timeout_s=timeout_s)
        self._cluster.update(routing.merge(self._cluster.view, reply, ()))
        return list(describe_topics(reply))

    async def describe(self, name: str, timeout_s: float) -> TopicDescription:
        """One topic, as of a moment during this call. Raises UnknownTopic."""
        request = pb.MetadataRequest(topics=[check_topic(name)], fresh=True)
        reply = await self._cluster.ask(request, timeout_s=timeout_s)
        self._cluster.update(routing.merge(self._cluster.view, reply, [name]))
        for topic in describe_topics(reply):
            if topic.name == name:
                return topic
        raise await self._cluster.unknown_topic(name, timeout_s)

    def _learn(self, info: pb.TopicInfo) -> TopicDescription:
        """Take a topic off the wire into the client's view."""
        topic = routing.read_topic(info)
        self._cluster.update(routing.with_topic(self._cluster.view, topic))
        return describe_topic(topic)
