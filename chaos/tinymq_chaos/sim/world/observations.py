"""Observations of a world's groups: names, leaders, applied entries, and the groups with weaker or no checks.

The observers (brokers.py, replicas.py) report them; the history and the ledger keep them for the checkers.
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
from tinymq.raft import Role
from tinymq.simulation.memory_network import MemoryNetwork
from tinymq_chaos.checkers.cluster.ledger import Ledger
from tinymq_chaos.checkers.common.replica_reader import ReplicaReader
from tinymq_chaos.history import METADATA, FinalReplica, History, Log
from tinymq_chaos.sim.virtual.event_loop import ProcessKilled, running_process
from tinymq_chaos.sim.world.brokers import SimBroker


class Observations:
    """Observations of the groups of these brokers. More brokers may join later."""

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
        self._filling: set[tuple[GroupId, int]] = set()  # replicas of weak groups that have not caught up yet
        self._weak: set[GroupId] = set()  # in memory, or synced at intervals
        self._weak_topics: set[bytes] = set()  # topics whose `sync` was altered, by id

    def log_of(self, group: GroupId) -> Log:
        """Return the name of a group in histories."""
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
        """The role of a replica has changed: it leads in this term, or does not lead (None)."""
        log = self.log_of(group)
        if term is None:
            self._history.leads_no_more(broker_id, log)
        elif group not in self._deleted:
            self._history.led(log, term, broker_id)
            self._ledger.led(log, broker_id, term)
            self._network.deliver_again(broker_id, partial(_is_ack_of_earlier_term, group, term))

    def applied(self, group: GroupId, entry: Entry) -> None:
        """A replica, in whose process this is called, has applied an entry."""
        process = running_process()
        if process is not None and group not in self._deleted:
            log = self.log_of(group)
            self._ledger.applied(log, process.broker_id, entry.index, entry.term, entry.header.header_crc)
            self._history.committed(log, entry.header.next_offset)
            self._fill(group, process.broker_id, entry)
            if entry.header.kind == Kind.DATA:
                self._history.weighed(log, entry.header.next_offset, entry.header.length)

    def _fill(self, group: GroupId, broker_id: int, entry: Entry) -> None:
        """Note when a replica of a weak group has applied all that is committed, and counts as a member again."""
        log, replica = self.log_of(group), (group, broker_id)
        if replica not in self._filling or entry.header.next_offset < self._history.commits[log][-1][1]:
            return
        machine = self._brokers.get(broker_id)  # None: of a second broker
        roles = {each.role for each in machine.groups() if each.id == group} if machine is not None else set()
        if roles & {Role.LEADER, Role.FOLLOWER}:
            self._filling.discard(replica)
            self._history.caught_up(log, broker_id)

    def is_deleted(self, group: GroupId) -> bool:
        """Return whether some replica has deleted the group's data: the group is not judged any more."""
        return group in self._deleted

    def is_weak(self, group: GroupId) -> bool:
        """Return whether a power cut or the end of a process may take what the replicas acknowledged.

        They return as other replicas.
        """
        return group in self._weak or group.topic_id in self._weak_topics

    def opened(self, group: GroupId, config: LogConfig = DISK) -> None:
        """A replica with this configuration was opened."""
        if config.takes_risks:
            self._weak.add(group)
            process = running_process()
            if process is not None:
                self._filling.add((group, process.broker_id))

    def weaken(self, topic_id: bytes) -> None:
        """The topic may be synced at intervals from now on: its `sync` is about to be altered."""
        self._weak_topics.add(topic_id)

    def topics(self) -> list[tuple[str, bytes, int]]:
        """Return the topics of which a broker holds a replica: (name in histories, id, number of replicas)."""
        held = {
            group.id: len(group.membership.replicas)
            for broker in self._brokers.values()
            for group in broker.groups()
            if group.id != METADATA_GROUP and group.id not in self._deleted
        }
        found = {self.log_of(group)[0]: (group.topic_id, replicas) for group, replicas in held.items()}
        return sorted((key, *at) for key, at in found.items() if not key.startswith("?"))

    def revived(self, group: GroupId, end_offset: int) -> None:
        """A group has recovered without a quorum and without an operator, from the remaining log, if there is one.

        The entries that the group applies, commits and shows are judged from that log's end on. Its elections are not
        judged any more, because one leader had no election.
        """
        if self.is_weak(group):
            log = self.log_of(group)
            self._history.revived(log, end_offset)
            self._ledger.begins_again(log)
            self._revived.add(group)

    def is_revived(self, group: GroupId) -> bool:
        """Return whether the group has recovered without a quorum."""
        return group in self._revived

    def deleted(self, group: GroupId) -> None:
        """A replica deletes its data, because the registry deleted the topic.

        A replica that restarts may create it again before it hears of the deletion. The content is not judged then.
        """
        self._deleted.add(group)
        self.closed(group)

    def closed(self, group: GroupId) -> None:
        """A replica, in whose process this is called, has closed."""
        process = running_process()
        if process is not None:
            self.leads(process.broker_id, group, None)

    async def collect(self, limits: Limits) -> None:
        """Read every replica of every broker into the history."""
        collector = ReplicaReader(limits)
        # Take the status before anything is read: a read that finds a flipped bit makes a leader step down.
        seen = [(broker, group, group.status()) for broker in self._brokers.values() for group in broker.groups()]
        for broker, group, status in seen:
            try:
                entries = await broker.process.run(collector.stored(group.log, status.commit_index))
            except (ProcessKilled, TinymqError) as error:
                if group in broker.groups() and not (broker.scarred and isinstance(error, CorruptData)):
                    raise
                continue  # the topic was deleted meanwhile, or a read found flipped bits
            log_start = group.log.log_start_offset  # as it is now: retention goes on during the reads
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
