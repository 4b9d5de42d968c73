"""What a broker is at the moment when somebody looks, as metrics: replicas, lags, offsets, neighbours, totals by topic.

Nothing here is kept up to date on anybody's way: each family is read from the broker's state when it is its turn, on
the loop. At most REPLICAS_MAX replicas are named, so a family is some milliseconds of work at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tinymq.broker.state import PartitionState
from tinymq.clock import Clock
from tinymq.metrics.measures import Measures, Tally
from tinymq.metrics.watched import CHANNELS_MAX, Watched, channel_lags, version
from tinymq.raft import Group, Role
from tinymq.rpc.serving import State

REPLICAS_MAX = 5000  # that have rows of their own
PARTITION = ("topic", "partition")
OTHER = "(other)"  # no topic can have this name

Sample = tuple[tuple[str, ...], float]


class Row(NamedTuple):
    """A replica that is shown."""

    topic: str
    partition: str
    group: Group
    state: PartitionState | None  # None: it has none, or is not open


class BrokerState(Collector):
    """`collect` yields one family at a time; the loop may go on between two."""

    def __init__(self, watched: Watched, measures: Measures, clock: Clock) -> None:
        self._watched = watched
        self._measures = measures
        self._clock = clock
        self._started_s = clock.wall_us() / 1e6

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_broker()
        yield from self._of_neighbours()
        yield from self._of_topics()
        yield from self._of_replicas()

    def _of_the_broker(self) -> Iterator[Metric]:
        watched, app = self._watched, self._watched.app
        broker = watched.broker
        cluster = broker.around.cluster_id.hex() if broker is not None else ""
        names = (str(app.config.broker_id), cluster, app.config.rack, version())
        yield _gauge("tinymq_broker_info", "Who this broker is; always 1.", ("broker", "cluster", "rack", "version"),
                     [(names, 1)])  # fmt: skip
        states = [((state.value,), float(state is app.serving.state)) for state in State]
        yield _gauge("tinymq_broker_state", "1 for the state that the broker is in.", ("state",), states)
        yield _gauge("tinymq_start_time_seconds", "When it was started, in seconds since 1970.", (),
                     [((), self._started_s)])  # fmt: skip
        yield _gauge("tinymq_metadata_leader", "The broker that leads the metadata group, as known here; 0: none.", (),
                     [((), app.metadata_leader())])  # fmt: skip
        registered = len(broker.registry.get_all_brokers()) if broker is not None else 0
        yield _gauge("tinymq_registered_brokers", "Brokers that the registry here counts among the living.", (),
                     [((), registered)])  # fmt: skip
        topics = len(broker.registry.get_all_topics()) if broker is not None else 0
        yield _gauge("tinymq_topics", "Topics in the registry here.", (), [((), topics)])

    def _of_neighbours(self) -> Iterator[Metric]:
        watched, now_s = self._watched, self._clock.monotonic()
        liveness = watched.host.liveness if watched.host is not None else None
        others = watched.others() if liveness is not None else []
        alive = [((str(peer),), float(liveness.alive(peer))) for peer in others] if liveness is not None else []
        silent = [((str(peer),), liveness.silence_s(peer, now_s)) for peer in others] if liveness is not None else []
        yield _gauge("tinymq_peer_alive", "1 while this broker hears the other one.", ("peer",), alive)
        yield _gauge("tinymq_peer_silence_seconds", "Since the other broker was last heard; infinite: never.",
                     ("peer",), silent)  # fmt: skip

    def _of_topics(self) -> Iterator[Metric]:
        broker, measures = self._watched.broker, self._measures
        topics = broker.registry.get_all_topics() if broker is not None else []
        measures.forget({topic.topic_id for topic in topics}, self._watched.groups)
        tallied = [(t.name, measures.tallies[t.topic_id]) for t in topics if t.topic_id in measures.tallies]
        tallied.append((OTHER, measures.others))

        def counter(name: str, documentation: str, read: Callable[[Tally], int]) -> Metric:
            family = CounterMetricFamily(name, documentation, labels=("topic",))
            for topic, tally in tallied:
                family.add_metric((topic,), read(tally))
            return family

        yield counter("tinymq_produced_batches", "Batches acknowledged (of acks=none: taken).", lambda t: t.batches)
        yield counter("tinymq_produced_records", "Records in them.", lambda t: t.records)
        yield counter("tinymq_produced_bytes", "Bytes of them as they are stored.", lambda t: t.bytes_in)
        yield counter("tinymq_duplicate_batches", "Batches that were there before.", lambda t: t.duplicates)
        yield counter("tinymq_fetched_bytes", "Bytes of stored batches answered to fetches.", lambda t: t.bytes_out)

    def _of_replicas(self) -> Iterator[Metric]:
        watched = self._watched
        groups = list(watched.groups.values())
        roles = Counter(group.role for group in groups)
        roles[Role.FAILED] += len(watched.not_opened())
        yield _gauge("tinymq_replicas", "Replicas here by role, the metadata group's too.", ("role",),
                     [((role.value,), roles[role]) for role in Role])  # fmt: skip
        rows = [
            Row(watched.topic_of(group.id), str(group.id.partition), group, watched.state_of(group.id))
            for group in groups[:REPLICAS_MAX]
        ]
        yield _gauge("tinymq_replicas_not_shown", "Replicas beyond those that the families below show.", (),
                     [((), len(groups) - len(rows))])  # fmt: skip
        yield _each("tinymq_replica_leading", "1 where this broker leads.", rows, lambda row: row.group.is_leader)
        yield _each("tinymq_replica_log_bytes", "Bytes of its log on disk.", rows, lambda row: row.group.log.size_bytes)
        held = [(row, row.state) for row in rows if row.state is not None]
        yield _gauge("tinymq_replica_kept_bytes", "Bytes of records from the log start on.", PARTITION,
                     [((r.topic, r.partition), state.kept_bytes) for r, state in held])  # fmt: skip
        yield _gauge("tinymq_replica_log_start", "The first offset that readers are shown.", PARTITION,
                     [((r.topic, r.partition), state.log_start) for r, state in held])  # fmt: skip
        yield _each("tinymq_replica_high_watermark", "The offset after the last committed record that it knows of.",
                    rows, lambda row: row.group.high_watermark)  # fmt: skip
        led = [row for row in rows if row.group.is_leader]
        yield _each("tinymq_replica_uncommitted_bytes", "Appended by the leader here and not yet committed.",
                    led, lambda row: row.group.uncommitted_bytes)  # fmt: skip
        yield _gauge("tinymq_follower_lag_entries", "Of the leader's log here, what a follower has not synced.",
                     (*PARTITION, "follower"), _lags(led))  # fmt: skip
        channels = sum(len(row.state.channels) for row in led if row.state is not None)
        yield _gauge("tinymq_channel_lag_records", "Records that a channel has still to read, where this broker leads.",
                     (*PARTITION, "channel"), islice(_channels(led), CHANNELS_MAX))  # fmt: skip
        yield _gauge("tinymq_channels_not_shown", "Channels beyond those that the family above shows.", (),
                     [((), max(0, channels - CHANNELS_MAX))])  # fmt: skip


def _gauge(name: str, documentation: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _each(name: str, documentation: str, rows: Iterable[Row], read: Callable[[Row], float]) -> Metric:
    """One number of every replica."""
    return _gauge(name, documentation, PARTITION, [((row.topic, row.partition), read(row)) for row in rows])


def _lags(led: Iterable[Row]) -> Iterator[Sample]:
    for row in led:
        for peer, lag in row.group.lags().items():
            yield (row.topic, row.partition, str(peer)), lag


def _channels(led: Iterable[Row]) -> Iterator[Sample]:
    for row in led:
        if row.state is not None:
            for name, lag in channel_lags(row.state):
                yield (row.topic, row.partition, name), lag
