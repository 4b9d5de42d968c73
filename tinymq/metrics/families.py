"""The metrics that are read from a broker's state for each page: their names, help texts and labels. docs/metrics.md
explains them to operators; a test compares the page with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

SLICE = 500  # samples per slice, which take some milliseconds

Sample = tuple[tuple[str, ...], float]
"""(the labels' values, the number)"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `of` renders its samples in slices of the same name, and reads each sample in its turn."""

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
        """Render a family with a single sample."""
        return self.of([((), value)])


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of at most SLICE samples, at least one list: a family without samples has one as well."""
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


BROKER = Family(
    "tinymq_broker_info", "The identity of this broker, as labels; always 1.", ("broker", "cluster", "rack", "version")
)
STATE = Family("tinymq_broker_state", "1 for the present state of the broker.", ("state",))
STARTED = Family("tinymq_start_time_seconds", "Start time of the process, in seconds since 1970.")
METADATA_LEADER = Family(
    "tinymq_metadata_leader", "The leader of the metadata group as this broker knows it; 0: unknown."
)
REGISTERED = Family("tinymq_registered_brokers", "Brokers with a live registration, by this broker's registry.")
TOPICS = Family("tinymq_topics", "Topics in this broker's registry.")

CONNECTIONS = Family("tinymq_connections", "Open connections, by port.", ("port",))
CONNECTIONS_MAX = Family("tinymq_connections_max", "Maximum number of open connections of a port.", ("port",))
CONNECTIONS_REFUSED = Family(
    "tinymq_connections_refused",
    "Connections that a port refused or ended, by reason.",
    ("port", "reason"),
    CounterMetricFamily,
)
TAIL_BYTES = Family("tinymq_tail_cache_bytes", "Memory of cached log entries on this broker, in bytes.")
MEMORY_BYTES = Family("tinymq_memory_storage_bytes", "Memory of the logs of topics in memory on this broker, in bytes.")
DELAYED = Family("tinymq_delayed_batches", "Delayed batches that wait in the replicas of this broker.")
DELAYED_BYTES = Family("tinymq_delayed_bytes", "Bytes of the delayed batches that wait in the replicas of this broker.")
STAGED = Family("tinymq_staged_batches", "Batches of transactions without an end, in the replicas of this broker.")
STAGED_BYTES = Family("tinymq_staged_bytes", "Bytes of these batches.")
TRANSACTIONS = Family(
    "tinymq_transactions", "Transactions that are not over, at the broker that coordinates them, by state.", ("state",)
)
TRANSACTION_OLDEST = Family(
    "tinymq_transaction_oldest_seconds",
    "Age of the oldest open transaction, and time since the oldest decision that is not confirmed, by state.",
    ("state",),
)
TRANSACTIONS_HUNG = Family(
    "tinymq_transactions_hung",
    "Transactions that partitions led here hold, and that their coordinators do not decide, by reason.",
    ("reason",),
)
HALF_MESSAGES = Family(
    "tinymq_half_messages",
    "Half messages that are not over, at the broker that coordinates them, by state.",
    ("state",),
)
HALF_MESSAGES_UNANSWERED = Family(
    "tinymq_half_messages_unanswered",
    "Open half messages whose check is due for more than a minute, and that no checker has answered.",
)
HALF_MESSAGE_OLDEST = Family("tinymq_half_message_oldest_seconds", "Age of the oldest open half message.")
REVIVED = Family(
    "tinymq_partitions_revived", "Automatic quorum recoveries that this broker led.", (), CounterMetricFamily
)
LOST = Family("tinymq_partitions_lost", "Automatic quorum recoveries that had no entry left.", (), CounterMetricFamily)

PEER_ALIVE = Family("tinymq_peer_alive", "1 while this broker hears the other broker.", ("peer",))
PEER_SILENCE = Family(
    "tinymq_peer_silence_seconds", "Seconds since the other broker was last heard; infinite: never.", ("peer",)
)

BATCHES = _by_topic("tinymq_produced_batches", "Acknowledged batches (with acks=none: accepted batches).")
RECORDS = _by_topic("tinymq_produced_records", "Records in the acknowledged batches.")
BYTES_IN = _by_topic("tinymq_produced_bytes", "Stored bytes of the acknowledged batches.")
DUPLICATES = _by_topic("tinymq_duplicate_batches", "Repeated batches, which were stored before.")
BYTES_OUT = _by_topic("tinymq_fetched_bytes", "Stored bytes sent in answers to fetches.")

REPLICAS = Family("tinymq_replicas", "Replicas on this broker by role, including the metadata group's.", ("role",))
REPLICAS_NOT_SHOWN = Family("tinymq_replicas_not_shown", "Replicas that the metrics of replicas leave out.")
LEADING = _of_replica("tinymq_replica_leading", "1 if this broker leads the partition.")
LOG_BYTES = _of_replica("tinymq_replica_log_bytes", "Bytes of the replica's log on disk.")
KEPT_BYTES = _of_replica("tinymq_replica_kept_bytes", "Bytes of the replica's records from the log start on.")
LOG_START = _of_replica("tinymq_replica_log_start", "The first offset that readers can read.")
HIGH_WATERMARK = _of_replica(
    "tinymq_replica_high_watermark", "The offset after the last record that this replica knows to be committed."
)
UNCOMMITTED = _of_replica(
    "tinymq_replica_uncommitted_bytes", "Bytes that this leader has appended and not yet committed."
)
FOLLOWER_LAG = _of_replica(
    "tinymq_follower_lag_entries", "Entries of this leader's log that a follower has not synced.", "follower"
)
CHANNEL_LAG = _of_replica(
    "tinymq_channel_lag_records", "Unread records of a channel, where this broker leads.", "channel"
)
CHANNELS_NOT_SHOWN = Family("tinymq_channels_not_shown", "Channels that the metric of channels leaves out.")


def _of_group(name: str, documentation: str, *labels: str) -> Family:
    return _of_replica(name, documentation, "group", *labels)


def _by_group(name: str, documentation: str) -> Family:
    return Family(name, documentation, ("group",), CounterMetricFamily)


GROUP_LAG = _of_group("tinymq_group_lag_records", "Records that a group has not settled, where this broker leads.")
GROUP_OLDEST = _of_group("tinymq_group_oldest_seconds", "Age of the oldest record that a group has not settled.")
GROUP_LEASED = _of_group("tinymq_group_leased_records", "Records that workers of a queue group have.")
GROUP_STAGED = _of_group(
    "tinymq_group_staged_records", "Records of a queue group whose acks wait for the end of a transaction."
)
GROUP_WAITING = _of_group("tinymq_group_waiting_records", "Records that failed and wait for another delivery.")
GROUP_BURYING = _of_group("tinymq_group_burying_records", "Records on their way to the dead letters.")
GROUP_WORKERS = _of_group("tinymq_group_workers", "Workers of a queue group that are attached to this leader.")
GROUP_BLOCKED = _of_group("tinymq_group_blocked", "1 while something keeps a queue group from going on.", "by")
GROUPS_NOT_SHOWN = Family("tinymq_groups_not_shown", "Rows that the metrics of groups leave out.")
GROUP_MEMBERS = Family("tinymq_group_members", "Members of a stream group that is coordinated here.", ("group",))
REDELIVERED = _by_group("tinymq_group_redelivered_records", "Records granted again after a delivery that failed.")
EXPIRED = _by_group("tinymq_group_expired_records", "Records settled unseen: older than the group's message_ttl_ms.")
BURIED = _by_group("tinymq_group_buried_records", "Records that have become dead letters.")
REBALANCES = _by_group("tinymq_group_rebalances", "Committed steps between two assignments of a stream group.")
