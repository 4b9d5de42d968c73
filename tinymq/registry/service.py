"""RegistryService: the brokers, topics, queues and records of a cluster, wherever they are stored.

There are three implementations: `ReplicatedRegistry` (a Raft group over the brokers, the default), `ZookeeperRegistry`
and `MemoryRegistry`. Others plug in by the scheme of their URL (factory.py). All of them pass one contract suite,
tinymq/testing/registry_contract. docs/registry.md says how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import GroupId, TopicId
from tinymq.registry.state.effects import Effect
from tinymq.registry.state.values import BrokerRecord, MetadataRecord, QueueConsumer, QueueRecord, TopicRecord

DEFAULT_CONFIG = TopicConfig()


class RegistryService(Protocol):
    """The metadata of a cluster, as one broker reads and changes it. All calls are made on the broker's loop.

    Reads are local, never block, and are as of `version`; they may lag behind the cluster until `refresh`. Changes are
    awaited. By the service's own deadline each one is done, refused (a typed error, nothing changed),
    DeadlineExceeded (nothing was done) or OutcomeUnknown. Once a change has returned, the reads of this service show
    it.
    """

    @property
    def version(self) -> int:
        """Counts changes. The same number means the same state on every broker."""
        ...

    @property
    def feature_level(self) -> int:
        """The cluster's feature level. Nothing above it is proposed (tinymq/format/feature_level.py), and it never
        falls."""
        ...

    def announced_level(self, broker_id: int) -> int:
        """The feature level that a broker announced when it last registered, even if it is not registered now. 1 for a
        broker that announced none."""
        ...

    async def raise_feature_level(self, level: int, at_version: int) -> None:
        """Raise `feature_level`. In the state of `at_version` the caller has checked that every member announces
        `level`. In any other state the call raises nothing. A level below the present one changes nothing.

        Raises VersionConflict, InvalidRequest (this build does not know the level); NotLeader where another broker has
        to make the call.
        """
        ...

    async def wait_version(self, version: int, timeout_s: float) -> None:
        """Return once reads are at least as new as `version`. Raises DeadlineExceeded."""
        ...

    async def refresh(self, timeout_s: float) -> int:
        """Bring reads up to date with every change acknowledged before this call, and return the version reached.

        Raises Unavailable errors if the registry's storage cannot be asked in time.
        """
        ...

    def watch(self, changed: Callable[[Sequence[Effect]], None]) -> None:
        """Call `changed` after each change, in order, from now on. It must return at once and must not raise."""
        ...

    async def register_broker(self, broker: BrokerRecord) -> float:
        """Register, or renew the registration's lease; call again within the seconds returned (the lease).

        A broker that does not is unregistered automatically. Raises UnsupportedVersion for a broker that announces a
        level below `feature_level`.
        """
        ...

    async def unregister_broker(self, broker_id: int, session: int = 0) -> None:
        """End a registration now. With `session`, only that session's. Does nothing if there is none."""
        ...

    def get_broker(self, broker_id: int) -> BrokerRecord | None:
        """The broker's registration; None if there is none, or its lease has ended."""
        ...

    def get_all_brokers(self) -> list[BrokerRecord]:
        """Registered brokers, by id."""
        ...

    async def register_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: TopicConfig = DEFAULT_CONFIG,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> TopicRecord:
        """Create a topic with all its partitions placed, or nothing. `timeout_s` may shorten the deadline.

        `command_id` is 16 random bytes. A repeat with the same bytes, on any broker, has the same outcome and no other
        effect. Raises InvalidName, InvalidRequest (numbers out of range, more replicas than live brokers), TopicExists;
        UnknownTopic if the topic was created and is deleted already.
        """
        ...

    async def alter_topic(
        self, name: str, settings: Sequence[tuple[str, str]], timeout_s: float | None = None, command_id: bytes = b""
    ) -> TopicRecord:
        """Change settings by name and text, as tinymq/base/topic_config.py parses them: all of them or none.

        Other settings stay. Raises UnknownTopic, InvalidConfig, InvalidRequest (too many settings).
        """
        ...

    async def unregister_topic(self, name: str, timeout_s: float | None = None, command_id: bytes = b"") -> None:
        """Delete a topic. Its id is never used again. `command_id` as in `register_topic`. Raises UnknownTopic."""
        ...

    def get_topic(self, name: str) -> TopicRecord | None: ...

    def get_topic_by_id(self, topic_id: TopicId) -> TopicRecord | None: ...

    def is_deleted(self, topic_id: TopicId) -> bool:
        """Whether the topic existed and is deleted. Known for the last 10,000 deleted topics."""
        ...

    def get_all_topics(self) -> list[TopicRecord]:
        """All topics, by name."""
        ...

    async def register_queue(self, topic: str, timeout_s: float | None = None, command_id: bytes = b"") -> QueueRecord:
        """Add a partition to a topic, placed as one of a new topic, with a number that the topic never had.

        Raises UnknownTopic, InvalidRequest (a bound is reached, too few live brokers); UnknownPartition if the
        partition was added and is deleted already.
        """
        ...

    async def unregister_queue(
        self,
        topic: str,
        partition: int,
        timeout_s: float | None = None,
        command_id: bytes = b"",
        *,
        with_topic: bool = False,
        topic_id: bytes = b"",
    ) -> None:
        """Delete a partition. Its number is never used again.

        The last partition of a topic is refused, or deleted together with the topic if `with_topic` is set; whether it
        is the last one is decided with the deletion. `topic_id`, if given, has to be that of the topic. Raises
        UnknownTopic, UnknownPartition, InvalidRequest (the last partition).
        """
        ...

    def is_queue_deleted(self, group: GroupId) -> bool:
        """Whether the partition existed and is deleted, alone or with its topic (known as `is_deleted` says)."""
        ...

    def get_queue(self, topic: str, partition: int) -> QueueRecord:
        """A partition's record. Raises UnknownTopic, UnknownPartition."""
        ...

    def get_queues_by_topic(self, name: str) -> tuple[QueueRecord, ...]:
        """A topic's partitions, by number, which may have gaps. Raises UnknownTopic."""
        ...

    def get_all_queues(self) -> list[QueueRecord]:
        """All partitions, by topic name and number."""
        ...

    async def set_queue_consumer(
        self,
        topic: str,
        partition: int,
        channel: str,
        consumer: str,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> QueueConsumer:
        """Assign a partition's channel to `consumer`, in place of the consumer before it.

        The new epoch is above that of every earlier assignment in the cluster, so that the partition can fence those.

        Raises UnknownTopic, UnknownPartition, InvalidName, QuotaExceeded (1000 to a partition, 100,000 in all).
        """
        ...

    async def unset_queue_consumer(
        self,
        topic: str,
        partition: int,
        channel: str,
        epoch: int = 0,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> None:
        """End the assignment of a channel. With `epoch`, only the assignment of that epoch.

        Does nothing if there is no such assignment. Raises UnknownTopic, UnknownPartition, InvalidName.
        """
        ...

    def get_queue_consumer(self, topic: str, partition: int, channel: str) -> QueueConsumer | None:
        """The present assignment of a channel, if any. Raises UnknownTopic, UnknownPartition."""
        ...

    async def take_producer_ids(self, count: int) -> range:
        """Take `count` numbers of 1 or more. No other call gets the same ones."""
        ...

    async def put_record(
        self,
        kind: str,
        name: str,
        value: bytes,
        version: int,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> MetadataRecord:
        """Write a record if it is at `version` (0: if there is no record). Of two writers that saw the same version,
        the second gets VersionConflict. A record that is removed and written again never gets an earlier version.

        Kinds: 1 to 63 of a-z 0-9 _ -; names: 1 to 249 of A-Z a-z 0-9 . _ : @ = + -; values of up to 64 KiB, and 10,000
        records of 8 MiB in all. Raises VersionConflict, InvalidName, InvalidRequest (a value over its bound),
        QuotaExceeded; UnsupportedVersion while the cluster is below feature level 2.
        """
        ...

    async def remove_record(
        self, kind: str, name: str, version: int, timeout_s: float | None = None, command_id: bytes = b""
    ) -> None:
        """Remove a record if it is at `version`. Raises as `put_record`, and VersionConflict if there is no record."""
        ...

    def get_record(self, kind: str, name: str) -> MetadataRecord | None:
        """Return the record as it was last written."""
        ...

    def get_all_records(self, kind: str) -> list[MetadataRecord]:
        """Return all records of one kind, by name."""
        ...

    def watch_records(self, kind: str, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of a record of that kind, and whenever changes may have been missed.
        `changed` must return at once and must not raise."""
        ...
