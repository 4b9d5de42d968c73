"""Mutants of channels, and of what partitions keep: cursors, who may move them, what goes by age and for room."""

from __future__ import annotations

from typing import Any

from tinymq.broker import capacity, channels, retention
from tinymq.broker import partition as partitions
from tinymq.broker.channels import Channels
from tinymq.broker.holds import Holds
from tinymq.broker.state import PartitionState
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant

LOST_ANSWERS = ("client_reset", "kill", "isolate_one", "slow_link")
RUSH = Focus(faults=LOST_ANSWERS, workloads=("rush",), pace=0.5)
TAKERS = Focus(faults=LOST_ANSWERS, workloads=("takers",), pace=0.3)
RESTARTS = Focus(
    faults=("kill_of_all", "kill"), workloads=("cursors", "takers", "rush"), segment_bytes=2 << 10, pace=0.3
)
KEEPS = Focus(faults=("kill", "isolate_one"), workloads=("retained",), seconds=18.0, pace=0.5)
BEGUN = Focus(
    faults=("kill_of_all", "kill"), workloads=("room", "retained"), segment_bytes=2 << 10, seconds=18.0, pace=0.3
)
ROOM = Focus(faults=("kill", "slow_disk"), workloads=("room",), pace=0.3)


@mutant("a commit moves a cursor forward only", RUSH)
def commits_move_back(p: Patches) -> None:
    def committed(cursor: Any, said: Any, at: Any) -> Any:
        real(cursor, said, at)
        return cursor._replace(epoch=max(cursor.epoch, said.epoch), position=said.offset, moved_us=at.now_us)

    real = channels.committed
    p.set(channels, "committed", committed)


@mutant("a consumer that was replaced moves no cursor", RUSH)
def consumers_are_not_fenced(p: Patches) -> None:
    p.set(channels, "_check_epoch", lambda cursor, channel, epoch: None)


@mutant("a commit from before a seek is refused", RUSH)
def commits_outlive_seeks(p: Patches) -> None:
    real = channels.committed

    def committed(cursor: Any, said: Any, at: Any) -> Any:
        told = type(said)(
            channel=said.channel, epoch=said.epoch, offset=said.offset, generation=cursor.generation
        )  # fmt: skip
        return real(cursor, told, at)

    p.set(channels, "committed", committed)


@mutant("a seek that is sent again changes nothing", RUSH)
def seeks_are_done_again(p: Patches) -> None:
    real = channels.sought

    def sought(cursor: Any, said: Any, at: Any, number: int) -> Any:
        return real(cursor._replace(last_seek=b""), said, at, number)

    p.set(channels, "sought", sought)


@mutant("a cursor is put nowhere behind the end", RUSH)
def cursors_go_anywhere(p: Patches) -> None:
    p.set(channels, "_check_within", lambda offset, least, at: None)


@mutant("a request that is sent again gets the record that it got", TAKERS)
def requests_take_again(p: Patches) -> None:
    p.set(channels, "TAKEN_MAX", 0)


@mutant("the applied state restores the cursors", RESTARTS)
def cursors_are_forgotten(p: Patches) -> None:
    real = Channels.load.__func__  # type: ignore[attr-defined]

    def load(cls: Any, state: Any, end: int) -> Any:
        made = real(cls, state, end)
        made._cursors = {name: cursor._replace(position=0) for name, cursor in made._cursors.items()}
        return made

    p.set(Channels, "load", classmethod(load))


@mutant("the applied state restores what was taken", RESTARTS)
def requests_are_forgotten(p: Patches) -> None:
    real = Channels.load.__func__  # type: ignore[attr-defined]

    def load(cls: Any, state: Any, end: int) -> Any:
        made = real(cls, state, end)
        made._taken.clear()
        return made

    p.set(Channels, "load", classmethod(load))


@mutant("retention: what is younger than retention_ms stays", KEEPS)
def the_young_are_removed(p: Patches) -> None:
    real = retention.due_start
    p.set(partitions, "due_start", lambda config, kept, now_us: real(config, kept, now_us + 3_000_000))


@mutant("retention: what is older than retention_ms goes", KEEPS)
def the_old_are_kept(p: Patches) -> None:
    p.set(partitions, "due_start", lambda config, kept, now_us: kept.log_start)


@mutant("what is held stays", Focus(faults=("kill",), workloads=("room", "retained"), seconds=18.0, pace=0.3))
def holds_hold_nothing(p: Patches) -> None:
    p.set(Holds, "lowest", lambda self, now_us: None)


@mutant("room: what is appended and not committed counts, too", ROOM)
def the_uncommitted_take_no_room(p: Patches) -> None:
    p.set(capacity.Uncommitted, "ends", lambda self, applied: applied)


@mutant("room: no more goes than has to", ROOM)
def everything_makes_room(p: Patches) -> None:
    def room(config: Any, applied: Any, uncommitted: Any, *args: Any) -> Any:
        found = real(config, applied, uncommitted, *args)
        ends = uncommitted.ends(applied)
        return None if found is None else (ends.end, ends.end_bytes)

    real = capacity.room
    p.set(partitions, "room", room)


@mutant("the applied state restores where the log starts", BEGUN)
def the_start_is_forgotten(p: Patches) -> None:
    real = PartitionState.load

    def load(self: PartitionState, data: bytes) -> None:
        real(self, data)
        self.log_start = 0

    p.set(PartitionState, "load", load)
