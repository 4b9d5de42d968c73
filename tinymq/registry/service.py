"""RegistryService: what the cluster knows of its brokers, topics and queues, whoever keeps it.

Implementations: `ReplicatedRegistry` (a Raft group over the brokers, the default) and `MemoryRegistry`. One
contract suite, tests/registry/test_service_contract.py, holds for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinymq.registry.state import Effect
from tinymq.registry.values import BrokerRecord, QueueRecord, TopicRecord
from tinymq.types import TopicId


class RegistryService(Protocol):
    """Reads are local, never block, and are as of `version`; they may lag behind the cluster until `refresh`.

    Changes are awaited: they end by the service's own deadline as done, as refused (a typed error, nothing
    changed), as DeadlineExceeded (nothing was done) or as OutcomeUnknown. Once a change has returned, the reads
    of this same service show it. All calls are made on the broker's loop.
    """

    @property
    def version(self) -> int:
        """Counts changes; the same number means the same state on every broker."""
        ...

    @property
    def feature_level(self) -> int:
        """Up to which kinds and versions of entries leaders may propose."""
        ...

    async def wait_version(self, version: int, timeout_s: float) -> None:
        """Return once reads are at least as new as `version`. Raises DeadlineExceeded."""
        ...

    async def refresh(self, timeout_s: float) -> int:
        """Bring reads up to all that was acknowledged anywhere before this call; the version reached.

        Raises Unavailable errors when the keeper cannot be asked in time.
        """
        ...

    def watch(self, changed: Callable[[Sequence[Effect]], None]) -> None:
        """Call `changed` after each change, in order, for good. It must return at once and not raise."""
        ...

    async def register_broker(self, broker: BrokerRecord) -> float:
        """Register, or renew the registration's lease; call again within the seconds returned (the lease).

        A broker that does not is unregistered by itself.
        """
        ...

    async def unregister_broker(self, broker_id: int, session: int = 0) -> None:
        """End a registration now. With `session`, only that one. Nothing happens to one that is not there."""
        ...

    def get_broker(self, broker_id: int) -> BrokerRecord | None:
        """The broker's registration while its lease holds."""
        ...

    def get_all_brokers(self) -> list[BrokerRecord]:
        """Registered brokers, by id."""
        ...

    async def register_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> TopicRecord:
        """Make a topic whole: named, placed, led evenly; or nothing. `timeout_s` may shorten the deadline.

        `command_id`: 16 random bytes. The same ones again, on any broker, have the same outcome and no other effect.
        Raises InvalidName, InvalidRequest (numbers out of range, more replicas than live brokers), TopicExists;
        UnknownTopic when it was made and is deleted already.
        """
        ...

    async def unregister_topic(self, name: str, timeout_s: float | None = None, command_id: bytes = b"") -> None:
        """Delete a topic; its id is never used again. `command_id` as above. Raises UnknownTopic."""
        ...

    def get_topic(self, name: str) -> TopicRecord | None: ...

    def get_topic_by_id(self, topic_id: TopicId) -> TopicRecord | None: ...

    def is_deleted(self, topic_id: TopicId) -> bool:
        """Was there such a topic, deleted since? (Remembered for the last 10,000 of them.)"""
        ...

    def get_all_topics(self) -> list[TopicRecord]:
        """By name."""
        ...

    def get_queues_by_topic(self, name: str) -> tuple[QueueRecord, ...]:
        """A topic's partitions, by number. Raises UnknownTopic."""
        ...

    async def take_producer_ids(self, count: int) -> range:
        """`count` numbers, from 1 up, that nobody gets again."""
        ...
