"""Admin: the synchronous facade of AsyncAdmin. It has the same names, and every method is thin."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.client.admin.admin import PartitionOffsets
from tinymq.client.admin.cluster_status import ClusterStatus, TopicDescription
from tinymq.client.admin.feature_level import FeatureLevel
from tinymq.client.admin.scans import ScanDescription, ScanSummary
from tinymq.client.cluster.routing import Broker, Partition
from tinymq.client.common.start_positions import Place
from tinymq.client.facade.queue import ChannelAdmin


class Admin(ChannelAdmin):
    """The synchronous `client.admin`: see AsyncAdmin."""

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> TopicDescription:
        """As AsyncAdmin.create_topic."""
        made = self._core.create_topic(name, partitions, replication_factor, settings=settings, timeout=timeout)
        return self._engine.run(made)

    def alter_topic(
        self, name: str, settings: Mapping[str, object], *, timeout: float | None = None
    ) -> TopicDescription:
        """As AsyncAdmin.alter_topic."""
        return self._engine.run(self._core.alter_topic(name, settings, timeout=timeout))

    def add_partition(self, topic: str, *, timeout: float | None = None) -> Partition:
        """As AsyncAdmin.add_partition."""
        return self._engine.run(self._core.add_partition(topic, timeout=timeout))

    def delete_partition(self, topic: str, partition: int, *, timeout: float | None = None) -> None:
        """As AsyncAdmin.delete_partition."""
        self._engine.run(self._core.delete_partition(topic, partition, timeout=timeout))

    def transfer_leader(
        self, topic: str, partition: int, to: int | None = None, *, timeout: float | None = None
    ) -> int:
        """As AsyncAdmin.transfer_leader."""
        return self._engine.run(self._core.transfer_leader(topic, partition, to, timeout=timeout))

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """As AsyncAdmin.delete_topic."""
        self._engine.run(self._core.delete_topic(name, timeout=timeout))

    def list_topics(self, *, timeout: float | None = None) -> list[TopicDescription]:
        """As AsyncAdmin.list_topics."""
        return self._engine.run(self._core.list_topics(timeout=timeout))

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """As AsyncAdmin.describe_topic."""
        return self._engine.run(self._core.describe_topic(name, timeout=timeout))

    def brokers(self, *, timeout: float | None = None) -> list[Broker]:
        """As AsyncAdmin.brokers."""
        return self._engine.run(self._core.brokers(timeout=timeout))

    def offsets(self, name: str, *, partial: bool = False, timeout: float | None = None) -> dict[int, PartitionOffsets]:
        """As AsyncAdmin.offsets."""
        return self._engine.run(self._core.offsets(name, partial=partial, timeout=timeout))

    def find_offsets(self, name: str, place: Place, *, timeout: float | None = None) -> dict[int, int]:
        """As AsyncAdmin.find_offsets."""
        return self._engine.run(self._core.find_offsets(name, place, timeout=timeout))

    def feature_level(self, *, timeout: float | None = None) -> FeatureLevel:
        """As AsyncAdmin.feature_level."""
        return self._engine.run(self._core.feature_level(timeout=timeout))

    def hold_feature_level(self, level: int = 0, *, timeout: float | None = None) -> FeatureLevel:
        """As AsyncAdmin.hold_feature_level."""
        return self._engine.run(self._core.hold_feature_level(level, timeout=timeout))

    def release_feature_level(self, *, timeout: float | None = None) -> FeatureLevel:
        """As AsyncAdmin.release_feature_level."""
        return self._engine.run(self._core.release_feature_level(timeout=timeout))

    def describe_scan(self, scan_id: str, *, timeout: float | None = None) -> ScanDescription:
        """As AsyncAdmin.describe_scan."""
        return self._engine.run(self._core.describe_scan(scan_id, timeout=timeout))

    def list_scans(self, *, timeout: float | None = None) -> list[ScanSummary]:
        """As AsyncAdmin.list_scans."""
        return self._engine.run(self._core.list_scans(timeout=timeout))

    def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """As AsyncAdmin.cluster_status."""
        return self._engine.run(self._core.cluster_status(timeout=timeout))
