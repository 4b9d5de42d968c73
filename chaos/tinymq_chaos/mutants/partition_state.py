"""Mutants of a partition's state: cursors and who may move them, retention, holds, and capacity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinymq.base.topic_config import OnFull, TopicConfig
from tinymq.broker.duplicates.message_ids import UncommittedIds
from tinymq.broker.partition import capacity
from tinymq.broker.partition.partition import Partition
from tinymq.broker.partition.soft_leases import SoftLeases
from tinymq.broker.state import cursor, cursors, message_ids, retention
from tinymq.broker.state.cursors import Cursors
from tinymq.broker.state.holds import Hold, Holds
from tinymq.broker.state.message_ids import MessageIds
from tinymq.broker.state.outcome import CommandOutcome, OffsetBounds
from tinymq.broker.state.retention_index import RetentionIndex
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.peers import cluster_time
from tinymq.raft.roles.leader_log import LeaderLog
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

LOST_ANSWERS = ("client_reset", "kill", "isolate", "latency")
RUSH = Focus(faults=LOST_ANSWERS, workloads=("rush",), pace=0.5)
TAKERS = Focus(faults=LOST_ANSWERS, workloads=("takers",), pace=0.3)
RESTARTS = Focus(faults=("kill_all", "kill"), workloads=("cursors", "takers", "rush"), segment_bytes=2 << 10, pace=0.3)
KEEPS = Focus(faults=("kill", "isolate"), workloads=("retained",), seconds=18.0, pace=0.5)
ALONE = Focus(faults=("wrong_start",), workloads=("unreplicated",), seconds=20.0, pace=0.5)
BEGUN = Focus(
    faults=("kill_all", "kill"), workloads=("room", "retained"), segment_bytes=2 << 10, seconds=18.0, pace=0.3
)
TRIMMED = Focus(faults=("client_reset", "kill"), workloads=("trimmed",), pace=0.3)
SIZED = Focus(faults=("kill",), workloads=("sized",), pace=0.15)
HELD = "tests/broker/state/test_holds.py::test_"
PROMISED = "tests/broker/partition/test_soft_leases.py::test_"
READ = "tests/broker/state/test_remove_acknowledged.py::test_"
IDS = "tests/broker/duplicates/test_message_ids.py::test_"
MOVES = frozenset(("commit", "seek", "consume"))
ROOM = Focus(faults=("kill", "slow_disk"), workloads=("room",), pace=0.3)


@mutant("a commit moves a cursor forward only", RUSH)
@replaces(cursor.committed)
def commits_move_back(real: Any, cursor: Any, command: Any, bounds: Any) -> Any:
    real(cursor, command, bounds)
    return cursor._replace(epoch=max(cursor.epoch, command.epoch), position=command.offset, moved_us=bounds.now_us)


@mutant("a replaced consumer moves no cursor", RUSH)
def consumers_are_not_fenced(p: Patches) -> None:
    p.replace(cursor.check_epoch, lambda cursor, channel, epoch: None)


@mutant("a commit from before a seek is refused", RUSH)
@replaces(cursor.committed)
def commits_outlive_seeks(real: Any, cursor: Any, command: Any, bounds: Any) -> Any:
    current = type(command)()
    current.CopyFrom(command)
    current.generation = cursor.generation
    return real(cursor, current, bounds)


@mutant("a seek that is sent again changes nothing", RUSH)
@replaces(cursor.sought)
def seeks_are_done_again(real: Any, cursor: Any, command: Any, bounds: Any, number: int) -> Any:
    return real(cursor._replace(last_seek=b""), command, bounds, number)


@mutant("no cursor is put behind the end", RUSH)
def cursors_go_anywhere(p: Patches) -> None:
    p.replace(cursor.check_within, lambda offset, least, at: None)


@mutant("a request that is sent again gets the record that it got", TAKERS)
def requests_take_again(p: Patches) -> None:
    p.set(cursors, "TAKEN_MAX", 0)


@mutant("the snapshot restores the cursors", RESTARTS)
@replaces(Cursors.load)
def cursors_are_forgotten(real: Any, state: Any, end: int) -> Any:
    made = real(state, end)
    made._cursors = {name: cursor._replace(position=0) for name, cursor in made._cursors.items()}
    return made


@mutant("the snapshot restores the taken records", RESTARTS)
@replaces(Cursors.load)
def requests_are_forgotten(real: Any, state: Any, end: int) -> Any:
    made = real(state, end)
    made._taken.clear()
    return made


@mutant("a cursor's move is an entry of the log", Focus(faults=LOST_ANSWERS, workloads=("cursors",), pace=0.3))
@replaces(Partition.command)
def cursors_are_not_replicated(real: Any, self: Partition, commands: Any, timeout_s: float, done: Any) -> None:
    """The leader moves the cursor and tells no other broker."""
    names = [each.WhichOneof("command") for each in commands]
    if not MOVES.issuperset(names):
        real(self, commands, timeout_s, done)
        return
    self.check_leading()
    at = self.state.offset_bounds(self.group.append_time_now_us())
    cursors = self.state._cursors
    done([cursors.apply(name, getattr(each, name), at) for name, each in zip(names, commands, strict=True)])


@mutant("retention: records younger than retention_ms stay", KEEPS)
@replaces(retention.due_start)
def the_young_are_removed(
    real: Callable[..., int], config: TopicConfig, kept: Any, now_us: int, expiry_us: int | None
) -> int:
    return real(config, kept, now_us, None if expiry_us is None else expiry_us + 3_000_000)


@mutant("time: a majority of the brokers that hold any replica determines it", ALONE)
def a_minority_tells_the_time(p: Patches) -> None:
    """Take the lower median of the clocks that are heard, as before the rule."""
    p.replace(cluster_time.agreed_us, lambda clocks_us, brokers: sorted(clocks_us)[(len(clocks_us) - 1) // 2])


@mutant("time: records appended while it was unknown get their age from when it is known", ALONE)
def records_without_a_time_look_old(p: Patches) -> None:
    p.replace(RetentionIndex.lose_time, lambda self, end, end_bytes: None)


@mutant(
    "time: it is unknown if the clocks of a bare majority contradict each other",
    test="tests/raft/peers/test_cluster_time.py::test_no_minority_of_wrong_clocks_moves_it",
)
def clocks_may_contradict(p: Patches) -> None:
    p.set(cluster_time, "APART_US_MAX", 1 << 62)


@mutant(
    "retention: no record is removed for its age while the time is unknown",
    test="tests/broker/test_wrong_clocks.py::test_a_leader_that_stops_hearing_the_others_removes_by_size_alone",
)
def ages_count_without_the_time(p: Patches) -> None:
    p.replace(LeaderLog.expiry_now_us, LeaderLog.append_time_now_us)


@mutant(
    "time: leases last as long in spite of a jump of the append clock",
    test="tests/broker/test_wrong_clocks.py::test_a_hold_taken_in_isolation_ends_on_time",
)
def leases_end_with_a_jump(p: Patches) -> None:
    p.replace(Holds.extend, lambda self, now_us, jump_us: None)


@mutant("retention: records older than retention_ms go", KEEPS)
def the_old_are_kept(p: Patches) -> None:
    p.replace(retention.due_start, lambda config, kept, *now_us: kept.log_start)


@mutant("retention: retention_bytes of records stay", SIZED)
@replaces(retention.due_start)
def the_last_bytes_are_removed(real: Callable[..., int], config: TopicConfig, *rest: Any, **named: Any) -> int:
    size = config.retention_bytes
    return real(config if size is None else replace(config, retention_bytes=size // 2), *rest, **named)


@mutant(
    "retention: records beyond retention_bytes go",
    test="tests/broker/state/test_retention.py::test_retention_by_bytes_keeps_at_least_the_limit",
)
@replaces(retention.due_start)
def bytes_are_kept(real: Callable[..., int], config: TopicConfig, *rest: Any, **named: Any) -> int:
    return real(replace(config, retention_bytes=None), *rest, **named)


@mutant(
    "altered settings apply to open partitions",
    Focus(faults=("kill",), workloads=("altered",), pace=0.3),
)
@replaces(Partition.configure)
def alterations_are_not_heard(real: Any, self: Partition, config: TopicConfig) -> None:
    if self.config == TopicConfig():  # the settings with which the topic was created
        real(self, config)


@mutant("held records stay", Focus(faults=("kill",), workloads=("room", "retained"), seconds=18.0, pace=0.3))
def holds_hold_nothing(p: Patches) -> None:
    p.replace(Holds.lowest, lambda self, now_us: None)


@mutant("the snapshot restores the holds", BEGUN)
@replaces(Holds.load)
def holds_are_forgotten(real: Any, state: Any, end: int) -> Any:
    real(state, end)
    return Holds()


@mutant("a hold ends with its lease", test=f"{HELD}held_records_stay_until_the_lease_ends")
def holds_never_end(p: Patches) -> None:
    def lowest(self: Holds, now_us: int) -> Hold | None:
        return min(self._holds.values(), default=None)

    p.replace(Holds.lowest, lowest)
    p.replace(Holds.drop_expired, lambda self, now_us: None)


@mutant("a trim of held records is refused", TRIMMED)
@replaces(retention.new_start)
def trims_take_what_is_held(
    real: Callable[..., int], move: pb.MoveStart, bounds: OffsetBounds, lowest: Hold | None
) -> int:
    return real(move, bounds, None if move.reason == pb.MoveStart.TRIM else lowest)


@mutant(
    "a light hold delays retention",
    test=f"{PROMISED}a_soft_lease_writes_nothing_and_delays_retention",
)
def soft_leases_keep_nothing(p: Patches) -> None:
    p.replace(SoftLeases.lowest, lambda self, now_us: None)


@mutant("a light hold refuses no producer and no trim", test=f"{PROMISED}a_soft_hold_refuses_no_producer")
@replaces(Partition.grant_soft_lease)
def light_holds_bind(real: Callable[..., Hold], self: Partition, request: pb.Hold) -> Hold:
    self._propose_commands([pb.Command(hold=request)])
    return real(self, request)


@mutant(
    "a light hold of records that are about to be removed is refused",
    test=f"{PROMISED}no_soft_hold_covers_records_about_to_be_removed",
)
@replaces(Partition.grant_soft_lease)
def light_holds_come_too_late(_: Any, self: Partition, request: pb.Hold) -> Hold:
    return self.soft_leases.grant(request, self.state.holds, self.state.offset_bounds(self.group.append_time_now_us()))


@mutant(
    "retention=acknowledged keeps what a channel has not read",
    test=f"{READ}a_record_is_removed_when_every_channel_has_read_it",
)
def the_unread_are_removed(p: Patches) -> None:
    p.replace(retention.acknowledged_start, lambda kept, now_us: kept.high_watermark)


@mutant(
    "retention=acknowledged counts the cursors as of the command's entry",
    test=f"{READ}a_channel_that_seeks_back_before_the_command_keeps_its_records",
)
def cursors_count_when_the_leader_looked(p: Patches) -> None:
    def remove(self: PartitionState, said: pb.RemoveAcknowledged, at: OffsetBounds) -> CommandOutcome:
        return self.move_start(pb.MoveStart(offset=said.upto, reason=pb.MoveStart.RETENTION), at)

    p.replace(PartitionState.remove_acknowledged, remove)


@mutant(
    "a message id counts only with its record", test=f"{IDS}another_record_in_the_place_of_the_noted_one_has_not_its_id"
)
def ids_count_without_their_records(p: Patches) -> None:
    p.replace(message_ids.is_record_of, lambda awaited, header: header.record_count == 1)


@mutant("an uncommitted record counts for the next one of its id", test=f"{IDS}no_id_is_stored_twice_in_random_lives")
def uncommitted_ids_do_not_count(p: Patches) -> None:
    p.replace(UncommittedIds.appended, lambda self, message_id, position: None)


@mutant("the snapshot restores the message ids", test=f"{IDS}no_id_is_stored_twice_in_random_lives")
def ids_are_forgotten(p: Patches) -> None:
    real = MessageIds.load.__func__  # type: ignore[attr-defined]

    def load(cls: Any, *stored: Any) -> Any:
        real(cls, *stored)
        return cls()

    p.replace(MessageIds.load, classmethod(load))


@mutant("the log start never moves back", TRIMMED)
@replaces(PartitionState.move_start)
def starts_move_back(_: Any, self: PartitionState, move: pb.MoveStart, bounds: OffsetBounds) -> CommandOutcome:
    self.log_start = min(move.offset, bounds.end)
    return CommandOutcome(log_start=self.log_start, high_watermark=bounds.end)


@mutant(
    "the commands of channels in a topic in memory have a bound",
    test="tests/broker/partition/test_capacity.py::test_a_partition_in_memory_counts_the_size_of_its_log",
)
def commands_have_no_bound(p: Patches) -> None:
    p.replace(capacity.check_commands, lambda config, log_bytes, said: None)


@mutant("capacity: appended and uncommitted records count, too", ROOM)
def the_uncommitted_take_no_room(p: Patches) -> None:
    p.replace(capacity.Uncommitted.ends, lambda self, applied: applied)


@mutant(
    "capacity: a full partition refuses writes, unless its topic drops records",
    Focus(faults=("kill",), workloads=("full",), pace=0.2),
)
@replaces(capacity.room)
def full_partitions_take_more(real: Any, config: TopicConfig, *rest: Any, **named: Any) -> Any:
    return None if config.on_full is OnFull.REJECT else real(config, *rest, **named)


@mutant("capacity: no more records go than necessary", ROOM)
@replaces(capacity.room)
def everything_makes_room(real: Any, config: Any, applied: Any, uncommitted: Any, *rest: Any, **named: Any) -> Any:
    found = real(config, applied, uncommitted, *rest, **named)
    ends = uncommitted.ends(applied)
    return None if found is None else (ends.end, ends.end_bytes)


@mutant("the snapshot restores the log start", BEGUN)
@replaces(PartitionState.load)
def the_start_is_forgotten(real: Any, self: PartitionState, data: bytes) -> None:
    real(self, data)
    self.log_start = 0
