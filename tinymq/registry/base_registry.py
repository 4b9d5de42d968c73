"""A registry whose changes are commands on a RegistryState. It leaves open only how a command gets applied."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from tinymq.base.clock import Clock, within
from tinymq.base.config import Timing
from tinymq.base.errors import DeadlineExceeded, InvalidRequest, OutcomeUnknown, UnknownTopic, VersionConflict
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import GroupId, TopicId
from tinymq.format.feature_level import FIRST_LEVEL, KNOWN_LEVEL, check, check_member
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.service import DEFAULT_CONFIG
from tinymq.registry.state import commands
from tinymq.registry.state.commands import COMMAND_ID_BYTES
from tinymq.registry.state.effects import Effect, RecordChanged, Reloaded
from tinymq.registry.state.state import RegistryState, reply_error
from tinymq.registry.state.values import BrokerRecord, MetadataRecord, QueueConsumer, QueueRecord, TopicRecord
from tinymq.registry.state.wire import broker_to_wire


class BaseRegistry(ABC):
    """RegistryService over `_submit`."""

    def __init__(self, state: RegistryState, clock: Clock, rng: random.Random, timing: Timing) -> None:
        self._state = state
        self._clock = clock
        self._rng = rng
        self._timing = timing
        self._watchers: list[Callable[[Sequence[Effect]], None]] = []
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []  # (version, resolved once it is reached)

    # ---- reads ------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def feature_level(self) -> int:
        return self._state.feature_level

    def announced_level(self, broker_id: int) -> int:
        return self._state.announced_level(broker_id)

    @property
    def reason(self) -> str:
        """Why reads may be out of date, for people; "": there is no known reason."""
        return ""

    def get_broker(self, broker_id: int) -> BrokerRecord | None:
        return self._state.brokers.get(broker_id)

    def get_all_brokers(self) -> list[BrokerRecord]:
        return [self._state.brokers[broker_id] for broker_id in sorted(self._state.brokers)]

    def get_topic(self, name: str) -> TopicRecord | None:
        return self._state.topics.get(name)

    def get_topic_by_id(self, topic_id: TopicId) -> TopicRecord | None:
        return self._state.topics_by_id.get(topic_id)

    def is_deleted(self, topic_id: TopicId) -> bool:
        return topic_id in self._state.deleted

    def get_all_topics(self) -> list[TopicRecord]:
        return [self._state.topics[name] for name in sorted(self._state.topics)]

    def is_queue_deleted(self, group: GroupId) -> bool:
        return self._state.is_queue_deleted(group)

    def get_queue(self, topic: str, partition: int) -> QueueRecord:
        return self._state.queue(topic, partition)

    def get_queues_by_topic(self, name: str) -> tuple[QueueRecord, ...]:
        return self._state.topic(name).queues

    def get_all_queues(self) -> list[QueueRecord]:
        return [queue for topic in self.get_all_topics() for queue in topic.queues]

    def get_queue_consumer(self, topic: str, partition: int, channel: str) -> QueueConsumer | None:
        return self._state.consumers.get(self._state.queue(topic, partition).group, channel)

    def get_record(self, kind: str, name: str) -> MetadataRecord | None:
        return self._state.records.get(kind, name)

    def get_all_records(self, kind: str) -> list[MetadataRecord]:
        return [record for record in self._state.records if record.kind == kind]

    # ---- changes ----------------------------------------------------------------------------------

    async def register_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: TopicConfig = DEFAULT_CONFIG,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> TopicRecord:
        command_id = self._command_id(command_id)
        command = commands.create_topic(name, partitions, replication_factor, config, command_id)
        reply = await self._change(command, timeout_s)
        topic = self._state.topics_by_id.get(commands.topic_id_of(command_id))
        if topic is None:
            raise UnknownTopic(f"topic {name!r} was deleted as soon as it was made", version=reply.version)
        return topic

    async def alter_topic(
        self, name: str, settings: Sequence[tuple[str, str]], timeout_s: float | None = None, command_id: bytes = b""
    ) -> TopicRecord:
        await self._change(commands.alter_topic(name, settings, self._command_id(command_id)), timeout_s)
        return self._state.topic(name)

    async def unregister_topic(self, name: str, timeout_s: float | None = None, command_id: bytes = b"") -> None:
        await self._change(commands.delete_topic(name, self._command_id(command_id)), timeout_s)

    async def register_queue(self, topic: str, timeout_s: float | None = None, command_id: bytes = b"") -> QueueRecord:
        reply = await self._change(commands.add_partition(topic, self._command_id(command_id)), timeout_s)
        return self._state.queue(topic, reply.partition)

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
        command = commands.delete_partition(topic, partition, self._command_id(command_id), with_topic, topic_id)
        await self._change(command, timeout_s)

    async def set_queue_consumer(
        self,
        topic: str,
        partition: int,
        channel: str,
        consumer: str,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> QueueConsumer:
        command = commands.set_consumer(topic, partition, channel, consumer, self._command_id(command_id))
        reply = await self._change(command, timeout_s)
        queue = self._state.queue(topic, partition)
        return QueueConsumer(topic, queue.topic_id, partition, channel, consumer, reply.epoch)

    async def unset_queue_consumer(
        self,
        topic: str,
        partition: int,
        channel: str,
        epoch: int = 0,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> None:
        command = commands.unset_consumer(topic, partition, channel, epoch, self._command_id(command_id))
        await self._change(command, timeout_s)

    async def unregister_broker(self, broker_id: int, session: int = 0) -> None:
        request = pb.UnregisterBroker(broker_id=broker_id, session=session)
        await self._change(pb.Command(unregister_broker=request))

    async def take_producer_ids(self, count: int) -> range:
        reply = await self._change(pb.Command(take_producer_ids=pb.TakeProducerIds(count=count)))
        return range(reply.first_producer_id, reply.first_producer_id + count)

    async def put_record(
        self,
        kind: str,
        name: str,
        value: bytes,
        version: int,
        timeout_s: float | None = None,
        command_id: bytes = b"",
    ) -> MetadataRecord:
        command = commands.put_record(kind, name, value, version, self._command_id(command_id))
        reply = await self._change(command, timeout_s)
        return MetadataRecord(kind, name, value, reply.version)

    async def remove_record(
        self, kind: str, name: str, version: int, timeout_s: float | None = None, command_id: bytes = b""
    ) -> None:
        if version == 0:
            raise VersionConflict(f"record {kind}/{name}: version 0 means that there is no record to remove")
        await self._change(commands.put_record(kind, name, None, version, self._command_id(command_id)), timeout_s)

    async def raise_feature_level(self, level: int, at_version: int) -> None:
        if not FIRST_LEVEL <= level <= KNOWN_LEVEL:
            raise InvalidRequest(f"feature level {level}", hint=f"this build knows {FIRST_LEVEL} to {KNOWN_LEVEL}")
        if level > self.feature_level:
            await self._raise(commands.raise_feature_level(level, at_version))

    async def _raise(self, command: pb.Command) -> None:
        await self._change(command)

    @abstractmethod
    async def start(self, on_disk: Collection[GroupId]) -> None: ...

    async def stop(self) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    async def register_broker(self, broker: BrokerRecord) -> float: ...

    @abstractmethod
    async def refresh(self, timeout_s: float) -> int: ...

    @abstractmethod
    async def _submit(self, command: pb.Command, timeout_s: float) -> pb.Reply:
        """Have `command` applied once, and return its reply."""

    async def _change(self, command: pb.Command, timeout_s: float | None = None) -> pb.Reply:
        timeout_s = min(timeout_s or self._timing.command_timeout_s, self._timing.command_timeout_s)
        deadline_s = self._clock.monotonic() + timeout_s
        self._stamp(command)
        if not command.HasField("raise_feature_level"):
            await self._check_level(command, timeout_s)
        reply = await self._submit(command, timeout_s)
        error = reply_error(reply)
        if error is not None:
            raise error
        # The command may have been applied by another broker. The caller expects local reads to show the change.
        try:
            await self.wait_version(reply.version, max(0.1, deadline_s - self._clock.monotonic()))
        except DeadlineExceeded:
            late = "the change is made, and has not reached this broker yet"
            raise OutcomeUnknown(late, version=reply.version) from None
        return reply

    async def _check_level(self, command: pb.Command, timeout_s: float) -> None:
        """Raises UnsupportedVersion for a command that some member may not know. The level read here may be out of
        date, so refresh it before refusing."""
        needed = commands.level_of(command)
        if needed > self.feature_level:
            await self.refresh(timeout_s)
        check(f"the command {command.WhichOneof('command')}", needed, self.feature_level)

    def _command_id(self, command_id: bytes) -> bytes:
        """The caller's id, or a new one. Raises InvalidRequest."""
        if command_id and len(command_id) != COMMAND_ID_BYTES:
            hint = f"{COMMAND_ID_BYTES} random ones, or none"
            raise InvalidRequest(f"a command id of {len(command_id)} bytes", hint=hint)
        return command_id or self._rng.randbytes(COMMAND_ID_BYTES)

    def _stamp(self, command: pb.Command) -> pb.Command:
        command.command_id = self._command_id(command.command_id)
        command.time_us = self._clock.wall_us()
        return command

    def _registration(self, broker: BrokerRecord) -> pb.Command:
        """Raises UnsupportedVersion for a broker that does not know the cluster's feature level."""
        check_member(broker.broker_id, broker.feature_level, self.feature_level)
        return self._stamp(pb.Command(register_broker=broker_to_wire(broker)))

    # ---- following --------------------------------------------------------------------------------

    def watch(self, changed: Callable[[Sequence[Effect]], None]) -> None:
        self._watchers.append(changed)

    def watch_records(self, kind: str, changed: Callable[[], None]) -> None:
        def look(effects: Sequence[Effect]) -> None:
            if any(
                isinstance(effect, Reloaded) or (isinstance(effect, RecordChanged) and effect.kind == kind)
                for effect in effects
            ):
                changed()

        self.watch(look)

    async def wait_version(self, version: int, timeout_s: float) -> None:
        if self._state.version >= version:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append((version, reached))
        late = DeadlineExceeded(f"the registry's version {version} did not arrive in {timeout_s:.1f} s")
        await within(self._clock, reached, timeout_s, late)

    def _advanced(self, effects: Sequence[Effect]) -> None:
        """Note that the state has changed: resolve `wait_version` calls, and call the watchers."""
        if self._awaited:
            later = []
            for version, reached in self._awaited:
                if version > self._state.version and not reached.done():
                    later.append((version, reached))
                elif not reached.done():
                    reached.set_result(None)
            self._awaited = later
        if effects:
            for changed in self._watchers:
                changed(effects)
