"""The topics of a transaction's partitions, as the registry has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tinymq.base.errors import InvalidRequest, TinymqError, UnknownPartition
from tinymq.base.topic_config import Storage, TopicConfig
from tinymq.base.types import PartitionId, TopicId
from tinymq.registry.service import RegistryService

REFRESH_S = 2.0


class TransactionTopics:
    """A coordinator's view of topics. The registry here may lag: only its leader says that a partition is not there."""

    def __init__(self, registry: RegistryService) -> None:
        self._registry = registry

    async def check(self, partitions: Collection[PartitionId]) -> None:
        """Raises UnknownPartition, NotReady, and InvalidRequest for a topic whose acknowledged records a power cut can
        take: it would tear a transaction."""
        if any(self._config_of(each) is None for each in partitions):
            await self._registry.refresh(REFRESH_S)
        for each in partitions:
            config = self._config_of(each)
            if config is None:
                raise UnknownPartition(f"no partition {each.partition} of the topic {each.topic_id.hex()}")
            if config.storage is Storage.MEMORY or config.sync_interval_ms:
                hint = "transactions need topics with storage=disk and sync=always"
                raise InvalidRequest("a power cut could tear the transaction", hint=hint)

    async def deleted(self, partitions: Iterable[PartitionId]) -> frozenset[PartitionId]:
        """The deleted ones among these partitions. Empty if the registry's leader does not answer."""
        gone = frozenset(each for each in partitions if self._config_of(each) is None)
        if not gone:
            return gone
        try:
            await self._registry.refresh(REFRESH_S)
        except TinymqError:
            return frozenset()
        return frozenset(each for each in gone if self._config_of(each) is None)

    def _config_of(self, partition: PartitionId) -> TopicConfig | None:
        """The settings of the topic; None: the local registry has no such partition."""
        topic = self._registry.get_topic_by_id(TopicId(partition.topic_id))
        if topic is None or not any(queue.partition == partition.partition for queue in topic.queues):
            return None
        return topic.config
