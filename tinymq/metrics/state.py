"""The present state of a broker as metrics: replicas, lags, offsets, other brokers, totals by topic.

No hot path updates these metrics: a page reads the broker's state, on the loop. A page names at most REPLICAS_MAX
replicas, and large families come in slices, so that no step holds the loop for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from tinymq.base.clock import Clock
from tinymq.base.version import VERSION
from tinymq.broker.coordinator.unfinished import Unfinished
from tinymq.broker.group_watch import GroupProgress
from tinymq.broker.half_messages.half_counts import Halves
from tinymq.broker.serve.broker import LossCounts
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.state import PartitionState
from tinymq.broker.transactions.led_transactions import Hang
from tinymq.metrics import families
from tinymq.metrics.families import Sample, slices
from tinymq.metrics.measures import Measures, Tally
from tinymq.metrics.watched import CHANNELS_MAX, GROUPS_MAX, Watched, channel_lags
from tinymq.net.connection_limits import ConnectionRefusal
from tinymq.raft import Group, Role
from tinymq.rpc.common.broker_state import BrokerState

REPLICAS_MAX = 5000  # replicas with rows of their own
OTHER = "(other)"  # no topic can have this name


class ReplicaRow(NamedTuple):
    """A replica on the page."""

    topic: str
    partition: str
    group: Group
    state: PartitionState | None  # None: the metadata group has none, or the partition is not open


class StateCollector(Collector):
    """`collect` yields families, or slices of them. The loop may run other tasks between two."""

    def __init__(self, watched: Watched, measures: Measures, clock: Clock) -> None:
        self._watched = watched
        self._measures = measures
        self._clock = clock
        self._version = VERSION
        self._started_s = clock.wall_us() / 1e6

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_broker()
        yield from self._of_neighbours()
        yield from self._of_topics()
        yield from self._of_replicas()
        yield from self._of_groups()

    def _of_the_broker(self) -> Iterator[Metric]:
        app, broker = self._watched.app, self._watched.broker
        cluster = broker.env.cluster_id.hex() if broker is not None else ""
        names = (str(app.config.broker_id), cluster, app.config.rack, self._version)
        yield from families.BROKER.of([(names, 1)])
        yield from families.STATE.of(((state.value,), state is app.serving.state) for state in BrokerState)
        yield from families.STARTED.only(self._started_s)
        yield from families.METADATA_LEADER.only(app.metadata_leader())
        yield from families.REGISTERED.only(len(broker.registry.get_all_brokers()) if broker is not None else 0)
        yield from families.TOPICS.only(len(broker.registry.get_all_topics()) if broker is not None else 0)
        yield from self._of_connections()
        yield from families.TAIL_BYTES.only(app.tail_bytes())
        loss_counts = broker.env.loss_counts() if broker is not None else LossCounts(0, 0, 0)
        yield from families.MEMORY_BYTES.only(loss_counts.memory_bytes)
        yield from families.DELAYED.only(broker.delayed_totals.batches if broker is not None else 0)
        yield from families.DELAYED_BYTES.only(broker.delayed_totals.bytes if broker is not None else 0)
        yield from families.STAGED.only(broker.staged_totals.batches if broker is not None else 0)
        yield from families.STAGED_BYTES.only(broker.staged_totals.bytes if broker is not None else 0)
        transactions = app.serving.transactions
        unfinished = transactions.unfinished() if transactions is not None else Unfinished()
        states = (("open", unfinished.open, unfinished.open_s), ("decided", unfinished.decided, unfinished.decided_s))
        yield from families.TRANSACTIONS.of(((state,), count) for state, count, _ in states)
        yield from families.TRANSACTION_OLDEST.of(((state,), age_s) for state, _, age_s in states)
        yield from self._of_half_messages()
        partitions = broker.replica_host.partitions.values() if broker is not None else ()
        hung = Counter(each.hang for partition in partitions for each in partition.transactions.hung)
        yield from families.TRANSACTIONS_HUNG.of(((hang.value,), hung[hang]) for hang in Hang)
        yield from families.REVIVED.only(loss_counts.recovered)
        yield from families.LOST.only(loss_counts.lost)

    def _of_half_messages(self) -> Iterator[Metric]:
        coordinator = self._watched.app.serving.half_messages
        halves = coordinator.unfinished() if coordinator is not None else Halves()
        states = (("open", halves.open), ("decided", halves.decided))
        yield from families.HALF_MESSAGES.of(((state,), count) for state, count in states)
        yield from families.HALF_MESSAGES_UNANSWERED.only(halves.unanswered)
        yield from families.HALF_MESSAGE_OLDEST.only(halves.oldest_s)

    def _of_connections(self) -> Iterator[Metric]:
        ports = list(self._watched.app.ports())
        yield from families.CONNECTIONS.of(((port.port,), port.open) for port in ports)
        yield from families.CONNECTIONS_MAX.of(((port.port,), port.connections_max) for port in ports)
        refused = [((port.port, reason.value), port.refused[reason]) for port in ports for reason in ConnectionRefusal]
        yield from families.CONNECTIONS_REFUSED.of(refused)

    def _of_neighbours(self) -> Iterator[Metric]:
        host, now_s = self._watched.host, self._clock.monotonic()
        liveness = host.failure_detector if host is not None else None
        others = [(peer, liveness) for peer in self._watched.others() if liveness is not None]
        yield from families.PEER_ALIVE.of(((str(peer),), live.alive(peer)) for peer, live in others)
        yield from families.PEER_SILENCE.of(((str(peer),), live.silence_s(peer, now_s)) for peer, live in others)

    def _of_topics(self) -> Iterator[Metric]:
        broker, measures = self._watched.broker, self._measures
        topics = broker.registry.get_all_topics() if broker is not None else []
        measures.forget({topic.topic_id for topic in topics}, self._watched.groups)
        tallied = [(t.name, measures.tallies[t.topic_id]) for t in topics if t.topic_id in measures.tallies]
        tallied.append((OTHER, measures.others))

        def each(read: Callable[[Tally], int]) -> Iterator[Sample]:
            return (((topic,), read(tally)) for topic, tally in tallied)

        yield from families.BATCHES.of(each(lambda tally: tally.batches))
        yield from families.RECORDS.of(each(lambda tally: tally.records))
        yield from families.BYTES_IN.of(each(lambda tally: tally.bytes_in))
        yield from families.DUPLICATES.of(each(lambda tally: tally.duplicates))
        yield from families.BYTES_OUT.of(each(lambda tally: tally.bytes_out))

    def _of_replicas(self) -> Iterator[Metric]:
        groups = list(self._watched.groups.values())
        roles = Counter(group.role for group in groups)
        roles[Role.FAILED] += len(self._watched.not_opened())
        yield from families.REPLICAS.of(((role.value,), roles[role]) for role in Role)
        rows: list[ReplicaRow] = []
        for some in slices(groups[:REPLICAS_MAX]):
            named = [self._row(group) for group in some]
            yield from families.LEADING.of(_each(named, lambda group: group.is_leader))
            rows += named
        yield from families.REPLICAS_NOT_SHOWN.only(len(groups) - len(rows))
        yield from families.LOG_BYTES.of(_each(rows, lambda group: group.log.size_bytes))
        yield from families.HIGH_WATERMARK.of(_each(rows, lambda group: group.high_watermark))
        held = [(row.topic, row.partition, row.state) for row in rows if row.state is not None]
        yield from families.KEPT_BYTES.of(((topic, number), state.kept_bytes) for topic, number, state in held)
        yield from families.LOG_START.of(((topic, number), state.log_start) for topic, number, state in held)
        led = [row for row in rows if row.group.is_leader]
        yield from families.UNCOMMITTED.of(_each(led, lambda group: group.uncommitted_bytes))
        yield from families.FOLLOWER_LAG.of(_follower_lags(led))
        channels = sum(1 for _ in _channel_lags(led))
        yield from families.CHANNEL_LAG.of(islice(_channel_lags(led), CHANNELS_MAX))
        yield from families.CHANNELS_NOT_SHOWN.only(max(0, channels - CHANNELS_MAX))

    def _of_groups(self) -> Iterator[Metric]:
        measures = self._measures
        measures.know_groups(self._watched.group_names())
        tallied = [*measures.group_tallies.items(), (OTHER, measures.other_groups)]
        yield from families.REDELIVERED.of(((name,), tally.redelivered) for name, tally in tallied)
        yield from families.EXPIRED.of(((name,), tally.expired) for name, tally in tallied)
        yield from families.BURIED.of(((name,), tally.buried) for name, tally in tallied)
        yield from families.REBALANCES.of(((name,), tally.rebalances) for name, tally in tallied)
        yield from families.GROUP_MEMBERS.of(((name,), count) for name, count in self._watched.coordinated())
        led = self._watched.group_rows()
        rows: list[tuple[tuple[str, str, str], GroupProgress]] = []
        for some in slices(islice(led, GROUPS_MAX)):
            slice_ = [((row.topic, str(row.partition), row.group), row.progress()) for row in some]
            yield from families.GROUP_LAG.of((labels, progress.lag) for labels, progress in slice_)
            rows += slice_
        yield from families.GROUP_OLDEST.of((labels, progress.oldest_ms / 1000) for labels, progress in rows)
        queues = [(labels, progress) for labels, progress in rows if progress.kind is CursorKind.QUEUE]
        yield from families.GROUP_LEASED.of((labels, progress.leased) for labels, progress in queues)
        yield from families.GROUP_STAGED.of((labels, progress.staged) for labels, progress in queues)
        yield from families.GROUP_WAITING.of((labels, progress.waiting) for labels, progress in queues)
        yield from families.GROUP_BURYING.of((labels, progress.burying) for labels, progress in queues)
        yield from families.GROUP_WORKERS.of((labels, progress.workers) for labels, progress in queues)
        yield from families.GROUP_BLOCKED.of(
            ((*labels, blocked.by.value), 1) for labels, progress in queues for blocked in progress.blocked
        )
        yield from families.GROUPS_NOT_SHOWN.only(sum(1 for _ in led))

    def _row(self, group: Group) -> ReplicaRow:
        watched = self._watched
        return ReplicaRow(watched.topic_of(group.id), str(group.id.partition), group, watched.state_of(group.id))


def _each(rows: Iterable[ReplicaRow], read: Callable[[Group], float]) -> Iterator[Sample]:
    """Return a family with one number for each replica."""
    return (((row.topic, row.partition), read(row.group)) for row in rows)


def _follower_lags(led: Iterable[ReplicaRow]) -> Iterator[Sample]:
    for row in led:
        for peer, lag in row.group.lags().items():
            yield (row.topic, row.partition, str(peer)), lag


def _channel_lags(led: Iterable[ReplicaRow]) -> Iterator[Sample]:
    for row in led:
        if row.state is not None:
            for name, lag in channel_lags(row.state):
                yield (row.topic, row.partition, name), lag
