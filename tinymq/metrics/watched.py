"""The parts of a broker from which metrics and status are read, on the broker's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from tinymq.base.config import BrokerConfig
from tinymq.base.errors import TinymqError
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.broker.group_watch import GroupProgress
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.lag import lag_of
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.state import PartitionState
from tinymq.net.connection_limits import Places
from tinymq.raft import Group, Host
from tinymq.registry.state.values import QueueRecord
from tinymq.rpc.common.broker_state import Serving

METADATA = "(metadata)"  # no topic can have this name
CHANNELS_MAX = 5000  # that are shown
GROUPS_MAX = 5000  # rows of consumer groups, by group and partition


def channel_lags(state: PartitionState) -> Iterator[tuple[str, int]]:
    """Return pairs of (channel, unread records). A cursor below the log start counts from the log start."""
    for name, cursor in state.cursors.items():
        if cursor.kind == CursorKind.CHANNEL:
            yield name, lag_of(state, name, state.log_start)


class GroupRow(NamedTuple):
    """A consumer group in a partition that is led here."""

    topic: str
    partition: int
    group: str
    progress: Callable[[], GroupProgress]  # costs some microseconds, so it is called in the row's turn only


class Application(Protocol):
    """A broker process (tinymq.app.broker_app.BrokerApp)."""

    config: BrokerConfig
    serving: Serving

    @property
    def address(self) -> str: ...
    @property
    def peer_address(self) -> str: ...
    @property
    def reason(self) -> str: ...
    def metadata_leader(self) -> int: ...
    def ports(self) -> Iterable[Places]:
        """The places of the ports that the broker listens on."""
        ...

    def tail_bytes(self) -> int:
        """The bytes that log entries in memory take."""
        ...


@dataclass(slots=True)
class Watched:
    """A broker, from before its start to after its stop. `host` is set when it starts."""

    app: Application
    host: Host | None = None

    @property
    def broker(self) -> Broker | None:
        return self.app.serving.broker

    @property
    def groups(self) -> Mapping[GroupId, Group]:
        return self.host.groups if self.host is not None else {}

    def topic_of(self, group: GroupId) -> str:
        """Return the topic's name, or its id in hex if the registry here does not know it."""
        if group == METADATA_GROUP:
            return METADATA
        topic = self.broker.registry.get_topic_by_id(group.topic_id) if self.broker is not None else None
        return topic.name if topic is not None else group.topic_id.hex()

    def state_of(self, group: GroupId) -> PartitionState | None:
        """Return the applied state of a partition. None for the metadata, and for a partition that is not open."""
        partition = self.broker.replica_host.get(group.topic_id, group.partition) if self.broker is not None else None
        return partition.state if partition is not None else None

    def group_names(self) -> dict[str, None]:
        """The names of all consumer groups in order, as this broker's registry has them."""
        groups = self.app.serving.groups
        return {group.name: None for group in groups.known.all()} if groups is not None else {}

    def coordinated(self) -> list[tuple[str, int]]:
        """The stream groups that are coordinated here, and how many members each has."""
        watch = self.app.serving.group_watch
        return list(watch.coordinated()) if watch is not None else []

    def group_rows(self) -> Iterator[GroupRow]:
        """The consumer groups of all partitions that are led here."""
        watch, broker = self.app.serving.group_watch, self.broker
        if watch is None or broker is None:
            return
        for place in list(self.groups):
            partition = broker.replica_host.get(place.topic_id, place.partition)
            for name in list(partition.state.cursors) if partition is not None else ():
                assert partition is not None
                cursor = partition.state.cursors.get(name)  # some time may have passed since the row before
                if partition.leading and cursor is not None and cursor.kind != CursorKind.CHANNEL:
                    progress = partial(watch.progress, partition, name)
                    yield GroupRow(self.topic_of(place), place.partition, name, progress)

    def not_opened(self) -> Sequence[tuple[QueueRecord, TinymqError]]:
        """Return the replicas that should be here but could not be opened."""
        return self.broker.not_opened() if self.broker is not None else ()

    def others(self) -> list[int]:
        """Return the other brokers of the cluster, as far as this broker knows them."""
        known = {voter.broker_id for voter in self.app.config.voters}
        if self.broker is not None:
            known |= {record.broker_id for record in self.broker.registry.get_all_brokers()}
        return sorted(known - {self.app.config.broker_id})
