"""What was seen of a world's groups: names, leaders, what is applied, and which are judged by less, or not at all.

Told by those who watch (brokers.py, replicas.py); kept in the history and the ledger, which checkers judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tinymq.base.config import Limits
from tinymq.base.errors import CorruptData, TinymqError
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.format.entry import Entry, Kind
from tinymq.log.replica_log.log_config import DISK, LogConfig
from tinymq.proto import peer_pb2
from tinymq.simulation.memory_network import MemoryNetwork
from tinymq_chaos.checkers.cluster.ledger import Ledger
from tinymq_chaos.checkers.common.replica_reader import ReplicaReader
from tinymq_chaos.history import METADATA, FinalReplica, History, Log
from tinymq_chaos.sim.virtual.event_loop import ProcessKilled, SimProcess, running_process
from tinymq_chaos.sim.world.brokers import SimBroker


class Observations:
    """What was seen of the groups of these brokers, of which there may be more later."""

    def __init__(
        self, brokers: Mapping[int, SimBroker], network: MemoryNetwork, history: History, ledger: Ledger
    ) -> None:
        self._brokers = brokers
        self._network = network
        self._history = history
        self._ledger = ledger
        self._names: dict[GroupId, Log] = {METADATA_GROUP: METADATA}
        self._deleted: set[GroupId] = set()
        self._revived: set[GroupId] = set()
        self._weak: set[GroupId] = set()  # in memory, or synced at intervals

    def log_of(self, group: GroupId) -> Log:
        """A group as histories name it."""
        known = self._names.get(group)
        if known is None:
            for broker in self._brokers.values():
                serving = broker._app.serving.broker if broker._app is not None else None
                topic = serving.registry.get_topic_by_id(group.topic_id) if serving is not None else None
                if topic is not None:
                    known = self._names[group] = (f"{topic.name}#{group.topic_id.hex()}", group.partition)
                    return known
            return f"?#{group.topic_id.hex()}", group.partition
        return known

    def leads(self, broker_id: int, group: GroupId, term: int | None) -> None:
        """A replica's role is another: it leads in this term, or not (None)."""
        log = self.log_of(group)
        if term is None:
            self._history.leads_no_more(broker_id, log)
        elif group not in self._deleted:
            self._history.led(log, term, broker_id)
            self._ledger.led(log, broker_id, term)
            self._network.tell_again(broker_id, partial(_is_ack_of_earlier_term, group, term))

    def applied(self, group: GroupId, entry: Entry) -> None:
        """A replica, in whose process this is called, has applied an entry."""
        process = running_process()
        if process is not None and group not in self._deleted:
            log = self.log_of(group)
            self._ledger.applied(log, broker_of(process), entry.index, entry.term, entry.header.header_crc)
            self._history.committed(log, entry.header.next_offset)
            if entry.header.kind == Kind.DATA:
                self._history.weighed(log, entry.header.next_offset, entry.header.length)

    def is_deleted(self, group: GroupId) -> bool:
        """Some replica has deleted its data: the group is not judged any more."""
        return group in self._deleted

    def is_weak(self, group: GroupId) -> bool:
        """Its replicas vouch for what a power cut, or the end of their process, may take: they come back as others."""
        return group in self._weak

    def opened(self, group: GroupId, config: LogConfig = DISK) -> None:
        """A replica is opened, whose log is kept like this."""
        if config.takes_risks:
            self._weak.add(group)

    def revived(self, group: GroupId, end_offset: int) -> None:
        """It goes on with the log of who was left, if anybody was, without an operator: a log that ends there. What it
        applies, commits and shows is judged from then on anew; its elections, which it had one without, no more."""
        if self.is_weak(group):
            log = self.log_of(group)
            self._history.revived(log, end_offset)
            self._ledger.begins_again(log)
            self._revived.add(group)

    def is_revived(self, group: GroupId) -> bool:
        """It went on once without a majority."""
        return group in self._revived

    def deleted(self, group: GroupId) -> None:
        """A replica deletes its data: the registry has decided that nobody needs the group any more. One that restarts
        may make it anew, until it hears of that; what is in it then is not judged."""
        self._deleted.add(group)
        self.closed(group)

    def closed(self, group: GroupId) -> None:
        """A replica, in whose process this is called, takes part no more."""
        process = running_process()
        if process is not None:
            self.leads(broker_of(process), group, None)

    async def collect(self, limits: Limits) -> None:
        """Read every replica of every broker into the history."""
        collector = ReplicaReader(limits)
        # Before anything is read: a flipped bit that nobody has read yet makes a leader step down, and others stand.
        seen = [(broker, group, group.status()) for broker in self._brokers.values() for group in broker.groups()]
        for broker, group, status in seen:
            try:
                entries = await broker.process.run(collector.stored(group.log, status.commit_index))
            except (ProcessKilled, TinymqError) as error:
                if group in broker.groups() and not (broker.scarred and isinstance(error, CorruptData)):
                    raise
                continue  # its topic was deleted meanwhile; or flipped bits that nobody has read before
            log_start = group.log.log_start_offset  # as it is now: retention goes on while others are read
            self._history.replicas.append(
                FinalReplica(
                    self.log_of(group.id),
                    broker.id,
                    role=status.role.value,
                    high_watermark=status.high_watermark,
                    commit_index=status.commit_index,
                    log_start=log_start,
                    entries=entries,
                    shown_start=broker.shown_start(group.id),
                )
            )


def _is_ack_of_earlier_term(group: GroupId, term: int, message: peer_pb2.Peer) -> bool:
    ack = message.append_ack
    return 0 < ack.term < term and (ack.group.topic_id, ack.group.partition) == (group.topic_id, group.partition)


def broker_of(process: SimProcess) -> int:
    """Whose process it is."""
    return int(process.name.rsplit(" ", 1)[1])
