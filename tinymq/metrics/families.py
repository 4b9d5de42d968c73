"""The metrics that are read from a broker's state when somebody looks: their names, what they say, their labels.

docs/metrics.md says what they mean to whoever watches; a test holds that page to this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

SLICE = 500  # samples at once: some milliseconds

Sample = tuple[tuple[str, ...], float]
"""(the labels' values, the number)"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `of` makes it of its samples, in slices of the same name, and reads each when it is its turn."""

    name: str
    documentation: str
    labels: tuple[str, ...] = ()
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily

    def of(self, samples: Iterable[Sample]) -> Iterator[Metric]:
        for some in slices(samples):
            family = self.kind(self.name, self.documentation, labels=self.labels)
            for values, value in some:
                family.add_metric(values, value)
            yield family

    def only(self, value: float) -> Iterator[Metric]:
        """Of the one sample that it has."""
        return self.of([((), value)])


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of at most SLICE, one at the least: a family without samples is one, too."""
    rest = iter(items)
    some = list(islice(rest, SLICE))
    while True:
        yield some
        some = list(islice(rest, SLICE))
        if not some:
            return


def _by_topic(name: str, documentation: str) -> Family:
    return Family(name, documentation, ("topic",), CounterMetricFamily)


def _of_replica(name: str, documentation: str, *labels: str) -> Family:
    return Family(name, documentation, ("topic", "partition", *labels))


BROKER = Family("tinymq_broker_info", "Who this broker is; always 1.", ("broker", "cluster", "rack", "version"))
STATE = Family("tinymq_broker_state", "1 for the state that the broker is in.", ("state",))
STARTED = Family("tinymq_start_time_seconds", "When it was started, in seconds since 1970.")
METADATA_LEADER = Family("tinymq_metadata_leader", "The broker that leads the metadata as known here; 0: none.")
REGISTERED = Family("tinymq_registered_brokers", "Brokers that the registry here counts among the living.")
TOPICS = Family("tinymq_topics", "Topics in the registry here.")

CONNECTIONS = Family("tinymq_connections", "Open connections, by port.", ("port",))
CONNECTIONS_MAX = Family("tinymq_connections_max", "Connections that a port may have open.", ("port",))
CONNECTIONS_REFUSED = Family(
    "tinymq_connections_refused",
    "Connections that a port refused or ended, by reason.",
    ("port", "reason"),
    CounterMetricFamily,
)
TAIL_BYTES = Family("tinymq_tail_cache_bytes", "Bytes that log entries in memory take on this broker.")
MEMORY_BYTES = Family("tinymq_memory_storage_bytes", "Taken here by the logs of topics in memory.")
REVIVED = Family("tinymq_partitions_revived", "That went on from here with what was left.", (), CounterMetricFamily)
LOST = Family("tinymq_partitions_lost", "Those of them that had nothing left.", (), CounterMetricFamily)

PEER_ALIVE = Family("tinymq_peer_alive", "1 while this broker hears the other one.", ("peer",))
PEER_SILENCE = Family("tinymq_peer_silence_seconds", "Since it was last heard; infinite: never.", ("peer",))

BATCHES = _by_topic("tinymq_produced_batches", "Batches that were acknowledged (of acks=none: taken).")
RECORDS = _by_topic("tinymq_produced_records", "Records in them.")
BYTES_IN = _by_topic("tinymq_produced_bytes", "Bytes of them as they are stored.")
DUPLICATES = _by_topic("tinymq_duplicate_batches", "Batches that were there before.")
BYTES_OUT = _by_topic("tinymq_fetched_bytes", "Bytes of stored batches that fetches were answered with.")

REPLICAS = Family("tinymq_replicas", "Replicas here by role, the metadata group's too.", ("role",))
REPLICAS_NOT_SHOWN = Family("tinymq_replicas_not_shown", "Replicas beyond those that the families of replicas show.")
LEADING = _of_replica("tinymq_replica_leading", "1 where this broker leads.")
LOG_BYTES = _of_replica("tinymq_replica_log_bytes", "Bytes of its log on disk.")
KEPT_BYTES = _of_replica("tinymq_replica_kept_bytes", "Bytes of its records from the log start on.")
LOG_START = _of_replica("tinymq_replica_log_start", "The first offset that readers are shown.")
HIGH_WATERMARK = _of_replica("tinymq_replica_high_watermark", "The offset after the last committed record known here.")
UNCOMMITTED = _of_replica("tinymq_replica_uncommitted_bytes", "Appended by the leader here and not yet committed.")
FOLLOWER_LAG = _of_replica(
    "tinymq_follower_lag_entries", "Of the leader's log here, what a follower has not synced.", "follower"
)
CHANNEL_LAG = _of_replica(
    "tinymq_channel_lag_records", "Records that a channel has still to read, where this broker leads.", "channel"
)
CHANNELS_NOT_SHOWN = Family("tinymq_channels_not_shown", "Channels beyond those that the family of channels shows.")
