"""The Meter that counts and times events as they happen: durations, throughput, failures.

Latencies and errors are prometheus-client's own histograms and counters: 1.3 µs per observation, their lock included.
Counts per topic are plain numbers until a page is rendered, because several of them change with every batch. Belongs to
the broker's loop; other threads may read only the metrics that prometheus-client locks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from tinymq.base.clock import Clock
from tinymq.base.types import GroupId
from tinymq.raft import Group, Role

TOPICS_MAX = 1000  # topics with counts of their own; the others share one sum
GROUPS_MAX = 1000  # and groups
DECIDED = ("committed", "rolled_back", "timed_out", "replaced", "incomplete")  # transactions, by how; 0 is shown, too
HALF_DECIDED = ("committed", "rolled_back", "given_up", "unstaged")  # half messages; as above
LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SYNCS_S = (0.0001, 0.0002, *LATENCIES_S[:-1])


@dataclass(slots=True)
class Tally:
    """The throughput of one topic on this broker since its start."""

    batches: int = 0
    records: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class GroupTally:
    """The counters of one consumer group on this broker, since its start."""

    redelivered: int = 0
    expired: int = 0
    buried: int = 0
    rebalances: int = 0


class Measures:
    """A Meter (tinymq/base/meter.py) that also counts the changes of replicas."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self.tallies: dict[bytes, Tally] = {}  # by topic id; invariant: at most TOPICS_MAX
        self.others = Tally()
        self.group_tallies: dict[str, GroupTally] = {}  # by name; invariant: at most GROUPS_MAX
        self.other_groups = GroupTally()
        self.now = clock.monotonic
        self._seen: dict[GroupId, tuple[Role, int]] = {}  # role and term at the last report
        self._led: dict[GroupId, int] = {}  # the last known leader

        def histogram(name: str, documentation: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, documentation, labels, buckets=bounds, registry=registry)

        self._produce = histogram(
            "tinymq_produce_seconds", "From a batch's arrival at the broker to its acknowledgement.", LATENCIES_S
        )
        self._commit = histogram(
            "tinymq_commit_seconds", "From a batch's append at the leader until a majority has synced it.", LATENCIES_S
        )
        self._fetch_wait = histogram(
            "tinymq_fetch_wait_seconds", "From a fetch's arrival until its answer is ready.", LATENCIES_S
        )
        self._fetch = histogram(
            "tinymq_fetch_seconds",
            "From a fetch's ready answer until it is read and passed to the connection.",
            LATENCIES_S,
        )
        self._sync = histogram(
            "tinymq_sync_seconds", "One sync batch: the write and sync of all waiting appends.", SYNCS_S
        )
        self._late = histogram(
            "tinymq_delayed_late_seconds",
            "From a delayed batch's due time until its leader appended it with its offsets.",
            LATENCIES_S,
        )
        self._call = histogram(
            "tinymq_call_seconds", "From a unary call's arrival to its reply, by call.", LATENCIES_S, "call"
        )
        self._errors = Counter(
            "tinymq_errors", "Errors answered to clients, by call and code.", ("call", "code"), registry=registry
        )
        self._throttled = Counter(
            "tinymq_throttled_seconds",
            "Time for which clients were delayed by their quota.",
            ("direction",),
            registry=registry,
        )
        self._synced_logs = Counter(
            "tinymq_synced_logs",
            "Logs in sync batches, summed: divided by the batches, the logs per sync.",
            registry=registry,
        )
        self._copied, self._decided = _copy_counters(registry), _decided(registry)
        self._half_decided, self._half_checked = _half_counters(registry)
        self._stood = Counter(
            "tinymq_elections_started", "Elections that a replica of this broker started.", registry=registry
        )
        self._won = Counter("tinymq_elections_won", "Elections that a replica of this broker won.", registry=registry)
        self._changes = Counter(
            "tinymq_leader_changes", "Changes of the known leader of this broker's replicas.", registry=registry
        )

    # ---- Meter -----------------------------------------------------------------------------------------

    def produced(
        self, topic_id: bytes, batch_bytes: int, records: int, arrived_s: float, appended_s: float | None
    ) -> None:
        now_s = self.now()
        self.appended(topic_id, batch_bytes, records)
        self._produce.observe(now_s - arrived_s)
        if appended_s is not None:
            self._commit.observe(now_s - appended_s)

    def appended(self, topic_id: bytes, batch_bytes: int, records: int) -> None:
        tally = self.tallies.get(topic_id) or self._new_tally(topic_id)
        tally.batches += 1
        tally.records += records
        tally.bytes_in += batch_bytes

    def duplicated(self, topic_id: bytes, arrived_s: float) -> None:
        (self.tallies.get(topic_id) or self._new_tally(topic_id)).duplicates += 1
        self._produce.observe(self.now() - arrived_s)

    def fetched(self, topic_id: bytes, frame_bytes: int, asked_s: float, ready_s: float) -> None:
        (self.tallies.get(topic_id) or self._new_tally(topic_id)).bytes_out += frame_bytes
        self._fetch_wait.observe(ready_s - asked_s)
        self._fetch.observe(self.now() - ready_s)

    def called(self, call: str, began_s: float) -> None:
        self._call.labels(call).observe(self.now() - began_s)

    def refused(self, call: str, code: str) -> None:
        self._errors.labels(call, code).inc()

    def throttled(self, direction: str, wait_s: float) -> None:
        self._throttled.labels(direction).inc(wait_s)

    def synced(self, took_s: float, logs: int) -> None:
        self._sync.observe(took_s)
        self._synced_logs.inc(logs)

    def published(self, late_s: float) -> None:
        self._late.observe(late_s)

    def copied(self, batch_bytes: int) -> None:
        batches, size = self._copied
        batches.inc()
        size.inc(batch_bytes)

    def redelivered(self, group: str, records: int) -> None:
        if records:
            self._group_tally(group).redelivered += records

    def expired(self, group: str, records: int) -> None:
        self._group_tally(group).expired += records

    def buried(self, group: str) -> None:
        self._group_tally(group).buried += 1

    def rebalanced(self, group: str) -> None:
        self._group_tally(group).rebalances += 1

    def transaction_decided(self, how: str) -> None:
        self._decided.labels(how).inc()

    def half_decided(self, how: str) -> None:
        self._half_decided.labels(how).inc()

    def half_checked(self) -> None:
        self._half_checked.inc()

    def _group_tally(self, group: str) -> GroupTally:
        found = self.group_tallies.get(group)
        if found is not None:
            return found
        if len(self.group_tallies) >= GROUPS_MAX:
            return self.other_groups
        return self.group_tallies.setdefault(group, GroupTally())

    def _new_tally(self, topic_id: bytes) -> Tally:
        if len(self.tallies) >= TOPICS_MAX:
            return self.others
        return self.tallies.setdefault(topic_id, Tally())

    # ---- replicas --------------------------------------------------------------------------------------

    def group_changed(self, group: Group) -> None:
        """Note that the role, term or leader of one of this broker's replicas may have changed."""
        role, term, leader = group.role, group.term, group.leader
        before, before_term = self._seen.get(group.id, (None, 0))
        self._seen[group.id] = role, term
        anew = role is not before or term > before_term
        if role is Role.CANDIDATE and anew:
            self._stood.inc()
        elif role is Role.LEADER and anew:
            self._won.inc()
        if leader is not None:
            if self._led.setdefault(group.id, leader) != leader:
                self._changes.inc()
            self._led[group.id] = leader

    # ---- readers -------------------------------------------------------------------------------------

    def errors(self) -> dict[str, dict[str, int]]:
        """Return the number of errors, by call and code."""
        found: dict[str, dict[str, int]] = {}
        for sample in next(iter(self._errors.collect())).samples:
            if sample.name.endswith("_total"):
                found.setdefault(sample.labels["call"], {})[sample.labels["code"]] = int(sample.value)
        return found

    def forget(self, topics: Collection[bytes], groups: Mapping[GroupId, object]) -> None:
        """Forget all topics and replicas but these."""
        for topic_id in [topic_id for topic_id in self.tallies if topic_id not in topics]:
            del self.tallies[topic_id]
        for group_id in [group_id for group_id in self._seen if group_id not in groups]:
            del self._seen[group_id]
            self._led.pop(group_id, None)

    def know_groups(self, groups: Collection[str]) -> None:
        """Count from 0 for each of these consumer groups, so that its first event is a change. Forget all others."""
        for name in [name for name in self.group_tallies if name not in groups]:
            del self.group_tallies[name]
        for name in groups:
            self._group_tally(name)


def _decided(registry: CollectorRegistry) -> Counter:
    documentation = "Transactions that a coordinator here committed, or rolled back, by how it came to that."
    counter = Counter("tinymq_transactions_decided", documentation, ("how",), registry=registry)
    for how in DECIDED:
        counter.labels(how)
    return counter


def _half_counters(registry: CollectorRegistry) -> tuple[Counter, Counter]:
    """Return the counters of decisions, and of checks that were answered without an outcome."""
    documentation = "Half messages that a coordinator here committed, or rolled back, by how it came to that."
    decided = Counter("tinymq_half_messages_decided", documentation, ("how",), registry=registry)
    for how in HALF_DECIDED:
        decided.labels(how)
    documentation = "Checks of half messages that a checker answered without an outcome."
    return decided, Counter("tinymq_half_message_checks_unknown", documentation, registry=registry)


def _copy_counters(registry: CollectorRegistry) -> tuple[Counter, Counter]:
    """Return the counters of copied batches, and of their bytes."""
    documentation = "Batches without offsets that a leader here copied, so that old segments can go."
    copied = Counter("tinymq_copied_batches", documentation, registry=registry)
    return copied, Counter("tinymq_copied_bytes", "Bytes of these batches.", registry=registry)
