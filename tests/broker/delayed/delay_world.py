"""A small world of one partition with delayed batches, as states and steps.

The rules are those that ship: `UncommittedDelays`, which decides, and `PartitionState`, which applies real entries.
Around them: leaders that are lost with any part of what they appended, a producer that sends each batch twice, cancels
at any moment, copies of batches in new segments, segments that go, and reads of payloads that end after anything else
happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tests.fakes.batches import payload
from tinymq.base.errors import TinymqError
from tinymq.base.types import Position
from tinymq.broker.delayed.uncommitted_delays import UncommittedDelays
from tinymq.broker.duplicates.uncommitted_producers import UncommittedProducers
from tinymq.broker.state.delayed import delayed_place
from tinymq.broker.state.producers import judge
from tinymq.broker.state.state import PartitionState
from tinymq.format.batch import parse_batch_header
from tinymq.format.delayed import (
    PUBLISHED_VERSION,
    StagedHead,
    pack_discarded,
    pack_published,
    pack_staged,
)
from tinymq.format.entry import Kind, NewEntry, make_entry

PRODUCER = 7


class Flaw(Enum):
    """Mistakes of a broker outside of the two classes."""

    NONE = "none"
    NO_SECOND_LOOK = "what was due before its payload was read is published without another look"
    EARLY_LEADER = "a new leader decides before it has applied the entries of earlier terms"
    HASTY_CANCEL = "a cancel is answered when its DISCARD is appended"
    DEPOSED_ANSWERS = "a leader that does not know that it was deposed says that there is no such batch"
    UNJUDGED = "batches of producers are not judged when they are staged"
    SEGMENTS_GO = "segments go although batches in them wait"
    TWO_ENTRIES = "a copy is a batch of its own, and the original is dropped by another entry"
    EARLY = "a batch is published a moment before it is due"


@dataclass(frozen=True)
class Scope:
    """How much may happen in one world."""

    batches: int = 1  # of the producer
    deliveries: int = 2  # of each
    cancels: int = 1  # of each
    carries: int = 1
    elections: int = 1
    flaw: Flaw = Flaw.NONE


class Item(NamedTuple):
    """An entry of the log."""

    kind: str  # "stage", "carry", "publish", "discard"
    number: int  # of the batch; of the others: its schedule id
    time: int


class State(NamedTuple):
    """One state of the world. Entries from `led` on are the leader's own; those up to `applied` are applied."""

    log: tuple[Item, ...] = ()
    applied: int = 0
    led: int = 0
    now: int = 0
    start: int = 1  # index of the first entry that is kept
    sent: tuple[int, ...] = ()  # deliveries of each batch that are left
    cancels: tuple[tuple[int, int], ...] = ()  # (schedule id, cancels that were sent)
    asked: frozenset[int] = frozenset()  # cancels that wait for the answer
    reading: frozenset[int] = frozenset()  # schedule ids that were due when the read of their payloads began
    staged: frozenset[int] = frozenset()  # schedule ids that the producer was told
    told: frozenset[int] = frozenset()  # those that a caller was told are canceled
    denied: frozenset[int] = frozenset()  # those that were denied while no end of them was committed
    deposed: tuple[tuple[Item, ...], ...] = ()  # what a deposed leader has applied
    carries: int = 0
    elections: int = 0
    stuck: bool = False  # a batch of the producer that was in order was refused


DUE = 1  # every batch is due then
END = 1


class World:
    """The steps that can happen in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def first(self) -> State:
        return State(sent=(self.scope.deliveries,) * self.scope.batches)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.now < END:
            yield "time passes", state._replace(now=state.now + 1)
        yield from self._stage(state)
        yield from self._commit(state)
        yield from self._publish(state)
        yield from self._cancel(state)
        yield from self._carry(state)
        yield from self._elect(state)
        lowest = applied(state.log[: state.applied]).delayed.lowest_index
        kept = state.applied + 1 if lowest is None or self.scope.flaw is Flaw.SEGMENTS_GO else lowest
        if kept > state.start and state.log[kept - 2 : kept - 1]:
            yield f"entries before {kept} go", state._replace(start=kept)

    def _stage(self, state: State) -> Iterator[tuple[str, State]]:
        """A batch of the producer arrives: the next one, or one that arrived before."""
        producers = _producers(state)
        for number, left in enumerate(state.sent):
            if not left or (number and state.sent[number - 1] == self.scope.deliveries):
                continue
            sent = (*state.sent[:number], left - 1, *state.sent[number + 1 :])
            after, header = state._replace(sent=sent), parse_batch_header(batch(number))
            known = producers.projected(applied(state.log[: state.applied]).producers, PRODUCER)
            try:
                duplicate = judge(known, header)
            except TinymqError as error:
                before = {state.log[schedule_id - 1].number for schedule_id in state.staged}
                acknowledged = before.issuperset(range(number))
                yield f"batch {number}: {error.code}", after._replace(stuck=acknowledged)
                continue
            if duplicate is None or self.scope.flaw is Flaw.UNJUDGED:
                yield f"batch {number} is staged", _append(after, Item("stage", number, state.now))
            else:
                yield f"batch {number} is a duplicate", after

    def _commit(self, state: State) -> Iterator[tuple[str, State]]:
        """The next entry is committed and applied, and who waited for it gets an answer."""
        if state.applied == len(state.log):
            return
        item, index = state.log[state.applied], state.applied + 1
        after = state._replace(applied=index)
        if item.kind == "stage":
            after = after._replace(staged=state.staged | {index})
        if item.kind == "discard" and item.number in state.asked and state.led < index:
            after = after._replace(told=state.told | {item.number}, asked=state.asked - {item.number})
        yield f"{item.kind} at {index} is applied", after

    def _publish(self, state: State) -> Iterator[tuple[str, State]]:
        here, delays = applied(state.log[: state.applied]).delayed, _delays(state)
        if state.now >= DUE - (self.scope.flaw is Flaw.EARLY):
            for waiting in here:
                if waiting.schedule_id not in state.reading and delays.open(here, waiting.schedule_id):
                    yield (
                        f"batch {waiting.schedule_id} is due, and is being read",
                        state._replace(reading=state.reading | {waiting.schedule_id}),
                    )
        for schedule_id in sorted(state.reading):
            after = state._replace(reading=state.reading - {schedule_id})
            if self.scope.flaw is Flaw.NO_SECOND_LOOK or delays.open(here, schedule_id):
                yield f"batch {schedule_id} is published", _append(after, Item("publish", schedule_id, state.now))
            else:
                yield f"batch {schedule_id} has ended", after

    def _cancel(self, state: State) -> Iterator[tuple[str, State]]:
        here, delays, flaw = applied(state.log[: state.applied]).delayed, _delays(state), self.scope.flaw
        used = dict(state.cancels)
        for schedule_id in sorted(state.staged):
            if used.get(schedule_id, 0) == self.scope.cancels or schedule_id in state.asked:
                continue
            cancels = tuple(sorted({**used, schedule_id: used.get(schedule_id, 0) + 1}.items()))
            after = state._replace(cancels=cancels)
            if delays.open(here, schedule_id):
                after = _append(after, Item("discard", schedule_id, state.now))
                after = after._replace(asked=after.asked | {schedule_id})
                if flaw is Flaw.HASTY_CANCEL:
                    after = after._replace(told=after.told | {schedule_id})
                yield f"{schedule_id} is to be canceled", after
            elif delays.end_index(schedule_id) is None:
                yield f"{schedule_id} is not there to be canceled", _deny(after, schedule_id)
            elif not delays.publishes(schedule_id):
                yield f"{schedule_id} is being canceled", after._replace(asked=after.asked | {schedule_id})
            if flaw is Flaw.DEPOSED_ANSWERS:
                for known in state.deposed:
                    if applied(known).delayed.get(schedule_id) is None:
                        yield f"a deposed leader does not know {schedule_id}", _deny(after, schedule_id)

    def _carry(self, state: State) -> Iterator[tuple[str, State]]:
        if state.carries == self.scope.carries:
            return
        here, delays = applied(state.log[: state.applied]).delayed, _delays(state)
        for waiting in here:
            if delays.movable(here, waiting.schedule_id):
                after = state._replace(carries=state.carries + 1)
                if self.scope.flaw is Flaw.TWO_ENTRIES:
                    number = number_of(state.log, waiting.schedule_id)
                    after = _append(after, Item("stage", number, state.now))
                    after = _append(after, Item("discard", waiting.schedule_id, state.now))
                else:
                    after = _append(after, Item("carry", waiting.schedule_id, state.now))
                yield f"batch {waiting.schedule_id} is copied", after

    def _elect(self, state: State) -> Iterator[tuple[str, State]]:
        """Another leader is elected, or the same one again, with any part of what is not committed."""
        if state.elections == self.scope.elections:
            return
        for end in range(state.applied, len(state.log) + 1):
            applied_to = state.applied if self.scope.flaw is Flaw.EARLY_LEADER else end
            yield (
                f"a leader is elected that has {end} entries",
                state._replace(
                    log=state.log[:end], applied=applied_to, led=end, asked=frozenset(), elections=state.elections + 1,
                    staged=state.staged | {i + 1 for i in range(applied_to) if state.log[i].kind == "stage"},
                    deposed=(*state.deposed, state.log[: state.applied]),
                ),
            )  # fmt: skip


def _append(state: State, item: Item) -> State:
    return state._replace(log=(*state.log, item))


def _deny(state: State, schedule_id: int) -> State:
    """A caller is told that the batch is not there to be canceled."""
    ended = any(
        item.kind in ("publish", "discard") and item.number == schedule_id for item in state.log[: state.applied]
    )
    return state if ended else state._replace(denied=state.denied | {schedule_id})


def _tail(state: State) -> Iterator[tuple[int, Item]]:
    """The entries that this leader has appended and not applied yet."""
    return ((i + 1, state.log[i]) for i in range(max(state.applied, state.led), len(state.log)))


def _delays(state: State) -> UncommittedDelays:
    """What the leader has appended about delayed batches."""
    delays, here = UncommittedDelays(), applied(state.log[: state.applied]).delayed
    for index, item in _tail(state):
        if item.kind == "stage":
            delays.staged(index, 1, 1)
        elif item.kind == "carry":
            delays.carried(index, item.number)
        elif (found := here.get(item.number)) is not None:
            delays.ended(index, [found], published=item.kind == "publish")
    return delays


def _producers(state: State) -> UncommittedProducers:
    """The batches of the producer that the leader has appended."""
    producers, here = UncommittedProducers(), applied(state.log[: state.applied]).producers
    for index, item in _tail(state):
        if item.kind == "stage":
            header = parse_batch_header(batch(item.number))
            position = Position(index, 1, delayed_place(index), item.time)
            producers.appended(header, producers.projected(here, PRODUCER), position)
    return producers


@lru_cache
def batch(number: int) -> bytes:
    return payload(1, producer=PRODUCER, sequence=number)


@lru_cache(maxsize=100_000)
def applied(log: tuple[Item, ...]) -> PartitionState:
    """The state after this log. Nobody changes it."""
    state = PartitionState()
    offset = 0
    for index, item in enumerate(log, 1):
        entry = make_entry(
            new_entry(log, item), index=index, term=1, prev_crc=0, base_offset=offset, append_time_us=item.time
        )
        state.apply(entry)
        offset = entry.header.next_offset
    return state


def new_entry(log: tuple[Item, ...], item: Item) -> NewEntry:
    """The real entry of an item."""
    if item.kind == "stage":
        return NewEntry(Kind.STAGED, pack_staged(StagedHead(0, DUE, 0, 0, 5), batch(item.number)))
    if item.kind == "discard":
        return NewEntry(Kind.DISCARD, pack_discarded([item.number]))
    data = batch(number_of(log, item.number))
    if item.kind == "carry":
        return NewEntry(Kind.STAGED, pack_staged(StagedHead(item.number, DUE, 0, 0, 5), data))
    return NewEntry(Kind.DATA, pack_published([item.number], data), 1, 5, version=PUBLISHED_VERSION)


def visible(log: tuple[Item, ...]) -> list[tuple[int, int]]:
    """(number of the batch, time of the entry) of all that readers of this log see."""
    return [(number_of(log, item.number), item.time) for item in log if item.kind == "publish"]


def number_of(log: tuple[Item, ...], schedule_id: int) -> int:
    """The number of the batch that the entry at this index has."""
    item = log[schedule_id - 1]
    return item.number if item.kind == "stage" else number_of(log, item.number)
