"""Mutants of the broker above its logs: partitions, duplicates, staged batches, the registry, and reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinymq.base.errors import NotLeader, TinymqError
from tinymq.broker.delayed.due_times import DueTimes
from tinymq.broker.delayed.uncommitted_delays import UncommittedDelays
from tinymq.broker.duplicates.duplicates import Duplicates
from tinymq.broker.partition.partition import Acks, Partition
from tinymq.broker.partition.pending_acks import PendingAcks
from tinymq.broker.partition.staged.delays import Delays
from tinymq.broker.partition.staged.publisher import Publisher
from tinymq.broker.serve.broker import Broker
from tinymq.broker.state import producers
from tinymq.broker.state.delayed import DelayedBatch, DelayedBatches
from tinymq.broker.state.state import PartitionState
from tinymq.format.delayed import StagedHead
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.raft import Group
from tinymq.registry.base_registry import BaseRegistry
from tinymq.registry.raft_group.replicated import ReplicatedRegistry
from tinymq.registry.state.state import RegistryState
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

LOSES = ("isolate", "kill", "cut_link", "reset", "client_reset", "latency")
NUMBERED = ("idempotent", "lone", "batches")
RESTARTS = Focus(faults=("kill_all", "kill"), workloads=("lone", "idempotent"), segment_bytes=2 << 10, pace=0.2)
SLOWED = Focus(faults=("slow_disk", "isolate"), workloads=("hasty",))
OUT_OF_ORDER = Focus(faults=("client_reset",), workloads=("hasty",))
METADATA = Focus(faults=("isolate", "pause", "kill", "latency"), workloads=("metadata", "churn", "lone"))


@mutant("dedupe: a batch is appended only once", Focus(faults=LOSES, workloads=NUMBERED))
def duplicates_are_appended(p: Patches) -> None:
    p.replace(producers.judge, lambda known, header: None)


@mutant("dedupe: uncommitted batches count, too", Focus(faults=LOSES, workloads=NUMBERED))
def duplicates_in_flight_are_appended(p: Patches) -> None:
    def latest(self: Duplicates, producer_id: int) -> Any:
        return self._state.producers.get(producer_id)

    real: Any = producers.judge

    def judge(known: Any, header: Any) -> Any:
        try:
            return real(known, header)
        except TinymqError:
            # the sequence is ahead of the committed state: the uncommitted producer state would have the next one
            return None

    p.replace(Duplicates.latest_producer, latest)
    p.replace(producers.judge, judge)


@mutant("dedupe: the snapshot restores the producers", RESTARTS)
def producers_are_forgotten(p: Patches) -> None:
    real: Any = PartitionState.load

    def load(self: PartitionState, data: bytes) -> None:
        real(self, data)
        self.producers = producers.Producers()

    judge_before: Any = producers.judge

    def judge(known: Any, header: Any) -> Any:
        return None if known is None else judge_before(known, header)  # an unknown producer is a new one

    p.replace(PartitionState.load, load)
    p.replace(producers.judge, judge)


@mutant("dedupe: an idempotent producer skips no sequence", OUT_OF_ORDER)
@replaces(producers.judge)
def sequences_may_be_skipped(real: Any, producer: Any, header: Any) -> Any:
    if producer is None or (header.producer_epoch == producer.epoch and header.first_sequence > producer.next_sequence):
        return None
    return real(producer, header)


@mutant("a duplicate is answered when the first one is committed", SLOWED)
@replaces(Duplicates.find_batch)
def duplicates_are_answered_early(real: Any, self: Duplicates, producer: Any, header: Any) -> Any:
    found = real(self, producer, header)
    return None if found is None else found._replace(entry_index=0)


@mutant("a batch is answered when it is committed", Focus(faults=("isolate", "kill", "power_cut")))
@replaces(Partition.produce)
def answers_when_appended(real: Any, self: Partition, *args: Any, **named: Any) -> None:
    *rest, acks, timeout_s, done = args
    real(self, *rest, Acks.LEADER if acks is Acks.QUORUM else acks, timeout_s, done, **named)


@mutant("a batch is answered by the entry that was appended for it", Focus(faults=("isolate", "partition", "kill")))
def answers_for_another_entry(p: Patches) -> None:
    def applied(self: PendingAcks, entry: Entry) -> None:
        for waiter in self._by_index.pop(entry.index, ()):
            self.end(waiter, waiter.produced)

    p.replace(PendingAcks.applied, applied)
    p.replace(PendingAcks.lost, lambda self: None)


@mutant("19: a batch accepted in one term is not appended in another", Focus(faults=LOSES, workloads=NUMBERED))
def batches_wait_for_leadership(p: Patches) -> None:
    real_produce: Any = Partition.produce
    real_lead = Partition.lead
    queues: dict[int, list[Any]] = {}

    def produce(self: Partition, *args: Any) -> None:
        if not self.leading and self.closed is None:
            queues.setdefault(id(self), []).append(args)
        real_produce(self, *args)

    def lead(self: Partition, term: int) -> None:
        real_lead(self, term)
        for batch, payload, crc, *_ in queues.pop(id(self), []):
            self.group.propose(NewEntry(Kind.DATA, payload, batch.header.record_count, batch.max_timestamp_us, crc))

    p.replace(Partition.produce, produce)
    p.replace(Partition.lead, lead)


@mutant("the high watermark never passes the commit")
def high_watermark_beyond_the_commit(p: Patches) -> None:
    """Show everything in the log."""
    p.replace(Partition.high_watermark, property(lambda self: self.group.log.next_offset))


@mutant("followers show only what they know to be committed", Focus(faults=("isolate", "kill", "pause")))
@replaces(Partition.high_watermark)
def followers_show_their_whole_log(_: Any, self: Partition) -> int:
    return self.state.high_watermark if self.leading else int(self.group.log.next_offset)  # type: ignore[attr-defined]


@mutant("metadata reads: the registry's leader is asked", METADATA)
@replaces(Broker.refresh)
async def metadata_of_the_past(_: Any, self: Broker) -> None:
    return None


@mutant("13: a leader answers for the cluster once a majority has confirmed its leadership", METADATA)
@replaces(Group.read_index)
async def reads_without_confirmation(_: Any, self: Group, timeout_s: float) -> int:
    """Answer at once if this broker believes that it leads."""
    if not self.is_leader:
        raise NotLeader("this broker does not lead")
    return self.applied_index


@mutant("a change of topics that is sent again takes effect once", METADATA)
@replaces(RegistryState.apply)
def commands_apply_again(real: Any, self: RegistryState, command: Any) -> Any:
    self._answered.clear()
    return real(self, command)


@mutant("a change of topics returns when it is committed", METADATA)
def changes_are_answered_early(p: Patches) -> None:
    from tinymq.proto import registry_pb2 as pb

    real: Any = ReplicatedRegistry.answer_as_leader

    async def lead(self: ReplicatedRegistry, ask: Any, timeout_s: float) -> Any:
        if ask.WhichOneof("ask") == "command" and self._machine.leading:
            self._machine.append(ask.command)
            return pb.Reply(version=self.version)
        return await real(self, ask, timeout_s)

    p.replace(ReplicatedRegistry.answer_as_leader, lead)


@mutant("each producer id is given once", Focus(faults=("client_reset",), workloads=("lone", "idempotent")))
@replaces(BaseRegistry.take_producer_ids)
async def producer_ids_are_given_twice(_: Any, self: BaseRegistry, count: int) -> range:
    return range(1, count + 1)


# ---- delayed batches --------------------------------------------------------------------------------------------

DELAYS = "tests/broker/partition/test_delays.py::test_"
SCHEDULED = Focus(faults=("kill", "isolate", "pause"), workloads=("scheduled",), pace=0.2)


@mutant("a delayed batch ends once: the leader's uncommitted entries count", SCHEDULED)
@replaces(UncommittedDelays.open)
def delayed_batches_end_twice(
    _: Any, self: UncommittedDelays, applied: DelayedBatches, schedule_id: int
) -> DelayedBatch | None:
    return applied.get(schedule_id)


@mutant("a delayed batch ends when it is published, on every replica", SCHEDULED)
@replaces(DelayedBatches.end)
def published_batches_wait_on(real: Any, self: DelayedBatches, schedule_id: int) -> bool:
    return False if schedule_id % 2 else real(self, schedule_id)


@mutant("no delayed batch is early", SCHEDULED)
@replaces(StagedHead.due_us)
def delayed_batches_are_early(real: Any, self: StagedHead, append_time_us: int) -> int:
    return int(real(self, append_time_us)) - 300_000


@mutant("a cancel is answered when it is applied", test=f"{DELAYS}a_cancel_is_answered_when_it_is_applied")
@replaces(Delays.cancel)
def cancels_are_answered_early(real: Any, self: Delays, schedule_id: int, timeout_s: float, done: Any) -> None:
    ended = self.waiting([schedule_id]) == []
    real(self, schedule_id, timeout_s, done if ended else lambda outcome: None)
    if not ended:
        done(True)


@mutant("a new leader publishes what waits", SCHEDULED)
def new_leaders_publish_nothing(p: Patches) -> None:
    real = Publisher.lead

    def lead(self: Publisher, due: DueTimes) -> None:
        real(self, DueTimes(DelayedBatches(), 0))

    p.replace(Publisher.lead, lead)


@mutant("the snapshot restores the delayed batches", Focus(("kill_all", "kill"), ("scheduled",), segment_bytes=2 << 10))
def delayed_batches_are_forgotten(p: Patches) -> None:
    real: Any = PartitionState.load

    def load(self: PartitionState, data: bytes) -> None:
        real(self, data)
        self.delayed = DelayedBatches()

    p.replace(PartitionState.load, load)


@mutant(
    "what is due is decided again after its payload was read",
    test=f"{DELAYS}what_is_canceled_while_it_is_read_is_not_published",
)
def what_was_read_is_published(p: Patches) -> None:
    read: dict[int, DelayedBatch] = {}
    real: Any = Delays.waiting

    def waiting(self: Delays, schedule_ids: Sequence[int]) -> list[DelayedBatch]:
        read.update({batch.schedule_id: batch for batch in real(self, schedule_ids)})
        return [read[schedule_id] for schedule_id in schedule_ids if schedule_id in read]

    p.replace(Delays.waiting, waiting)


@mutant("segments stay while batches in them wait", test=f"{DELAYS}mostly_empty_segments_let_go_of_what_waits_in_them")
def segments_of_delayed_batches_go(p: Patches) -> None:
    p.replace(DelayedBatches.lowest_index, property(lambda self: None))
