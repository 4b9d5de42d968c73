"""The guarantees after a majority of disks was lost and an operator accepted it: one history, readers are told, ids are
unique. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Contents = Mapping[int, str]
"""The values of one partition, by offset."""


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledged record."""

    partition: int
    offset: int
    value: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Loss:
    """A majority lost its disks, from `at_s` until all groups had leaders again. `kept`: by partition, the offset up to
    which a broker that kept its disk had synced what was committed."""

    at_s: float
    over_s: float
    kept: Mapping[int, int]


@dataclass(slots=True)
class LossHistory:
    """The observations of clients, operators and disks. A reader that got an error goes on as another reader."""

    acks: list[Ack] = field(default_factory=list)
    reads: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)  # by reader: (partition, offset, value)
    losses: list[Loss] = field(default_factory=list)
    ids: list[tuple[str, str]] = field(default_factory=list)  # (of what, id) as given
    finals: dict[tuple[int, int], Contents] = field(default_factory=dict)  # by (broker, partition)
    sent: set[str] = field(default_factory=set)


def judge(history: LossHistory) -> list[str]:
    """Return what is wrong."""
    contents = {partition: dict(log) for (_, partition), log in history.finals.items()}
    return [
        *differing_replicas(history), *unsent_or_repeated(history, contents), *lost(history, contents),
        *unwarned_readers(history, contents),
        *given_twice(history),
    ]  # fmt: skip


def differing_replicas(history: LossHistory) -> Iterator[str]:
    """All replicas of a partition have the same records at the same offsets, without a gap."""
    by_partition: dict[int, dict[int, Contents]] = {}
    for (broker, partition), log in history.finals.items():
        by_partition.setdefault(partition, {})[broker] = log
    for partition, logs in by_partition.items():
        (first, expected), *others = logs.items()
        for broker, log in others:
            if log != expected:
                differ = sorted(o for o in {*log, *expected} if log.get(o) != expected.get(o))
                yield f"partition {partition}: brokers {first} and {broker} differ at offsets {differ[:5]}"
        if sorted(expected) != list(range(len(expected))):
            yield f"partition {partition}: the offsets have a gap"


def unsent_or_repeated(history: LossHistory, contents: Mapping[int, Contents]) -> Iterator[str]:
    """Every record was sent, and is there once."""
    for partition, log in contents.items():
        for value, count in Counter(log.values()).items():
            if value not in history.sent:
                yield f"partition {partition}: nobody sent {value}"
            elif count > 1:
                yield f"partition {partition}: {value} is there {count} times"


def lost(history: LossHistory, contents: Mapping[int, Contents]) -> Iterator[str]:
    """A record that was acknowledged after the last loss is there. One from before is lost only with everything behind
    it, and never if a disk that was kept had it."""
    for ack in history.acks:
        if contents[ack.partition].get(ack.offset) == ack.value:
            continue
        later = [loss for loss in history.losses if ack.at_s < loss.over_s]
        where = f"partition {ack.partition}: {ack.value}, acknowledged at offset {ack.offset} at {ack.at_s:.3f} s"
        if not later:
            yield f"{where}, is lost, and no disk was lost since"
        elif all(ack.offset < loss.kept.get(ack.partition, 0) for loss in later):
            yield f"{where}, is lost, and a disk that was kept had it"
    for loss in history.losses:
        yield from _holes(history, contents, loss)


def _holes(history: LossHistory, contents: Mapping[int, Contents], loss: Loss) -> Iterator[str]:
    others = [each for each in history.losses if each is not loss]
    for partition, log in contents.items():
        before = sorted(
            (ack.offset, ack.value)
            for ack in history.acks
            if ack.partition == partition and ack.at_s < loss.at_s and all(ack.at_s > each.over_s for each in others)
        )
        there = [log.get(offset) == value for offset, value in before]
        if True in there[there.index(False) :] if False in there else False:
            yield f"partition {partition}: the loss at {loss.at_s:.3f} s took a record and left a later one"


def unwarned_readers(history: LossHistory, contents: Mapping[int, Contents]) -> Iterator[str]:
    """A reader that has read a lost record gets an error before it reads a record of the history that goes on."""
    for reader, reads in history.reads.items():
        lost_at: dict[int, int] = {}
        due: dict[int, int] = {}
        for partition, offset, value in reads:
            if offset != due.get(partition, offset):
                yield f"{reader}: partition {partition}: offset {offset} follows {due[partition] - 1}"
            due[partition] = offset + 1
            if contents[partition].get(offset) != value:
                lost_at.setdefault(partition, offset)
            elif partition in lost_at:
                yield (
                    f"{reader}: partition {partition}: reads {value} at offset {offset}, was not told that offset"
                    f" {lost_at[partition]} is lost"
                )
                break


def given_twice(history: LossHistory) -> Iterator[str]:
    for (what, given), count in Counter(history.ids).items():
        if count > 1:
            yield f"{what} {given} was given {count} times"
