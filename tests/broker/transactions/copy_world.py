"""A small world of one partition whose leader copies a transaction's batches, as states and steps.

The rules are those that ship: `Staging`, which decides, and `PartitionState`, which applies real entries. Around them:
a writer that sends each batch twice, a coordinator that decides once and sends the end twice, copies whose batches are
read first, other producers' records, leaders that are lost with any part of what they appended, entries that go, a log
start that moves, and a follower that was filled from a snapshot, applies late, and may lead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tests.broker.values import name_of
from tests.fakes.batches import payload
from tinymq.broker.state.staged import StagedBatch, StagedEntry, TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.transactions.staging import EndStep, Staging, Step
from tinymq.format.entry import Kind, NewEntry, crc32c, make_entry
from tinymq.format.transactional import (
    COPIED_VERSION,
    TRANSACTIONAL_VERSION,
    CopiedHead,
    TransactionalHead,
    items_of,
    pack_copied,
    pack_discard,
    pack_publish,
    pack_transactional,
    publish_version,
)
from tinymq.proto import partition_pb2 as pb

T = TransactionId(7, 0, 1)
ENDS = 2  # deliveries of the coordinator's decision


class Flaw(Enum):
    """Mistakes of a broker outside of the two classes."""

    NONE = "none"
    TWO_ENTRIES = "an entry drops the earlier one, and another has the copy"
    EARLY_LEADER = "a new leader decides before it has applied the entries of earlier terms"
    SEGMENTS_GO_EARLY = "an entry goes when its copy is appended, and not when it is applied"


@dataclass(frozen=True)
class Scope:
    """How much may happen in one world."""

    batches: int = 1
    deliveries: int = 1  # of each
    copies: int = 2
    elections: int = 1
    trims: int = 1
    others: int = 1  # records of other producers
    follower: bool = True
    flaw: Flaw = Flaw.NONE


class Item(NamedTuple):
    """An entry of the log."""

    kind: str  # "stage", "copy", "drop", "publish", "discard", "data", "trim"
    number: int = 0  # of the batch; of "trim": the new log start
    entries: tuple[StagedEntry, ...] = ()  # of "publish": what it names; of "copy" and "drop": what is replaced


class State(NamedTuple):
    """One state of the world. Entries from `led` on are the leader's own; those up to `applied` are committed, and
    applied by the leader."""

    log: tuple[Item, ...] = ()
    applied: int = 0
    led: int = 0
    start: int = 1  # index of the leader's first entry
    follower: tuple[int, int] | None = None  # its first entry, and the last one that it has applied
    sent: tuple[int, ...] = ()  # deliveries of each batch that are left
    reading: tuple[tuple[int, int], ...] = ()  # (batch, index of its entry): read, to be copied
    decided: str = ""  # "publish" or "discard"
    ends: int = 0  # deliveries of it that are left
    confirmed: bool = False
    copies: int = 0
    elections: int = 0
    trims: int = 0
    others: int = 0


class World:
    """The steps that can happen in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def first(self) -> State:
        return State(sent=(self.scope.deliveries,) * self.scope.batches)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._stage(state)
        if state.applied < len(state.log):
            item, index = state.log[state.applied], state.applied + 1
            yield f"{item.kind} at {index} is applied", state._replace(applied=index)
        yield from self._decide(state)
        yield from self._copy(state)
        yield from self._trim(state)
        yield from self._replicas(state)
        yield from self._elect(state)

    def _stage(self, state: State) -> Iterator[tuple[str, State]]:
        """A batch of the writer arrives: the next one, or one that arrived before."""
        for number, left in enumerate(state.sent):
            if not left or (number and state.sent[number - 1] == self.scope.deliveries):
                continue
            after = state._replace(sent=(*state.sent[:number], left - 1, *state.sent[number + 1 :]))
            staging = staging_of(state)
            question = staging.ask(T)
            step = staging.judge(StagedBatch(T, 0, number), question, is_open=not state.decided)
            if step is Step.APPEND:
                yield f"batch {number} is staged", _append(after, Item("stage", number))
            else:
                yield f"batch {number}: {step.value}", after

    def _decide(self, state: State) -> Iterator[tuple[str, State]]:
        """The coordinator decides, and its decision arrives."""
        if not state.decided:
            if staging_of(state).held(T) == self.scope.batches:
                yield "it is committed", state._replace(decided="publish", ends=ENDS)
            yield "it is aborted", state._replace(decided="discard", ends=ENDS)
            return
        if state.confirmed or not state.ends:
            return
        staging, after = staging_of(state), state._replace(ends=state.ends - 1)
        step = staging.judge_end(T)
        if step is EndStep.CONFIRM:
            yield "nothing is staged: confirmed", after._replace(confirmed=True)
        elif step is EndStep.WAIT:
            yield "the end is under way", after._replace(ends=state.ends)
        else:
            entries = tuple(staging.entries_of(T)) if state.decided == "publish" else ()
            # The coordinator tells it again until it is confirmed.
            yield f"the end is appended: {state.decided}", _append(state, Item(state.decided, entries=entries))

    def _copy(self, state: State) -> Iterator[tuple[str, State]]:
        staging = staging_of(state)
        if state.copies < self.scope.copies:
            for batch, entry in applied(state.log[: state.applied]).staged.between(1, state.applied):
                wanted = batch.number, entry.entry_index
                if staging.movable(batch) is not None and wanted not in state.reading:
                    reading = tuple(sorted((*state.reading, wanted)))
                    yield f"batch {batch.number} is read", state._replace(reading=reading, copies=state.copies + 1)
        for wanted in state.reading:
            number, index = wanted
            after = state._replace(reading=tuple(each for each in state.reading if each != wanted))
            entry = staging.movable(StagedBatch(T, 0, number))
            if entry is None or entry.entry_index != index:
                yield f"batch {number} is not copied", after
                continue
            if self.scope.flaw is Flaw.TWO_ENTRIES:
                after = _append(after, Item("drop", number, (entry,)))
            yield f"batch {number} is copied", _append(after, Item("copy", number, (entry,)))

    def _trim(self, state: State) -> Iterator[tuple[str, State]]:
        """Another producer sends a record, or the log start moves by one record."""
        if state.others < self.scope.others:
            yield "another record is appended", _append(state._replace(others=state.others + 1), Item("data"))
        here = applied(state.log[: state.applied])
        if state.trims < self.scope.trims and here.log_start < here.high_watermark:
            yield (
                "the log start moves",
                _append(state._replace(trims=state.trims + 1), Item("trim", here.log_start + 1)),
            )

    def _replicas(self, state: State) -> Iterator[tuple[str, State]]:
        """Entries go at the leader or at the follower; the follower is filled, or applies an entry."""
        first = _kept_from(self.scope, state, state.applied)
        if first > state.start:
            yield f"entries before {first} go", state._replace(start=first)
        if state.follower is None:
            if self.scope.follower and state.start > 1:
                yield "a follower is filled", state._replace(follower=(state.start, state.start - 1))
            return
        kept, known = state.follower
        if known < state.applied:
            yield f"the follower applies {known + 1}", state._replace(follower=(kept, known + 1))
        first = _kept_from(self.scope, state, known)
        if first > kept:
            yield f"the follower's entries before {first} go", state._replace(follower=(first, known))

    def _elect(self, state: State) -> Iterator[tuple[str, State]]:
        """Another leader is elected, or the same one again, with any part of what is not committed."""
        if state.elections == self.scope.elections:
            return
        after = state._replace(elections=state.elections + 1, reading=())
        for end in range(state.applied, len(state.log) + 1):
            early = self.scope.flaw is Flaw.EARLY_LEADER
            led = after._replace(log=state.log[:end], applied=state.applied if early else end, led=end)
            yield f"a leader is elected that has {end} entries", led
            if state.follower is not None:
                start = state.follower[0]
                yield f"the follower leads, with {end} entries", led._replace(start=start, follower=None)


def _kept_from(scope: Scope, state: State, applied_index: int) -> int:
    """The first entry that a replica keeps which has applied so much: as Partition.retain, with segments of one
    entry."""
    here = applied(state.log[:applied_index])
    lowest = here.lowest_kept_index
    if scope.flaw is Flaw.SEGMENTS_GO_EARLY and lowest is not None:
        replaced = {entry.entry_index for item in state.log if item.kind == "copy" for entry in item.entries}
        indexes = [entry.entry_index for _, entry in here.staged.between(1, applied_index)]
        lowest = min((index for index in indexes if index not in replaced), default=None)
    if scope.flaw is Flaw.TWO_ENTRIES and lowest is not None:
        dropped = {e.entry_index for item in state.log[:applied_index] if item.kind == "drop" for e in item.entries}
        lowest = lowest + 1 if lowest in dropped else lowest
    kept = applied_index if lowest is None else min(lowest, applied_index)  # the last segment stays
    bases = [
        index for index in range(1, applied_index + 1) if applied(state.log[:index]).high_watermark > here.log_start
    ]
    return max(1, min([kept, *bases]))


def _append(state: State, item: Item) -> State:
    return state._replace(log=(*state.log, item))


def staging_of(state: State) -> Staging:
    """The leader's decisions, as they are with this log: it has appended some entries and not applied them."""
    staging = Staging(applied(state.log[: state.applied]).staged)
    for index in range(max(state.applied, state.led) + 1, len(state.log) + 1):
        item = state.log[index - 1]
        if item.kind == "stage":
            staging.appended(StagedBatch(T, 0, item.number), entry_of(item.number, index))
        elif item.kind == "copy":
            staging.copied(StagedBatch(T, 0, item.number), item.entries[0].entry_index, index)
        elif item.kind in ("publish", "discard"):
            staging.end_appended(index, T)
    return staging


@lru_cache
def batch(number: int) -> bytes:
    return payload(1, value=b"%d" % number)


def entry_of(number: int, index: int) -> StagedEntry:
    data = batch(number)
    return StagedEntry(index, 1, len(data), 5, crc32c(data))


@lru_cache(maxsize=200_000)
def applied(log: tuple[Item, ...]) -> PartitionState:
    """The state after this log. Nobody changes it."""
    state = PartitionState()
    offset = 0
    for index, item in enumerate(log, 1):
        entry = make_entry(new_entry(item), index=index, term=1, prev_crc=0, base_offset=offset, append_time_us=1)
        state.apply(entry)
        offset = entry.header.next_offset
    return state


def new_entry(item: Item) -> NewEntry:
    """The real entry of an item."""
    name, data = name_of(T), batch(item.number)
    if item.kind == "stage":
        head = TransactionalHead(*name, 0, 0, item.number, 5)
        return NewEntry(Kind.STAGED, pack_transactional(head, data), version=TRANSACTIONAL_VERSION)
    if item.kind == "copy":
        copied = CopiedHead(*name, 0, 0, item.number, item.entries[0].entry_index)
        return NewEntry(Kind.STAGED, pack_copied(copied, data), version=COPIED_VERSION)
    if item.kind == "discard":
        return NewEntry(Kind.DISCARD, pack_discard(name), version=TRANSACTIONAL_VERSION)
    if item.kind == "publish":
        items = items_of(item.entries)
        return NewEntry(Kind.PUBLISH, pack_publish(name, items), len(items), 5, version=publish_version(items))
    if item.kind == "drop":
        return NewEntry(Kind.NOOP, b"")
    if item.kind == "data":
        return NewEntry(Kind.DATA, batch(9), 1, 5)
    commands = pb.Commands(commands=[pb.Command(move_start=pb.MoveStart(offset=item.number))])
    return NewEntry(Kind.COMMAND, commands.SerializeToString())


def visible(log: tuple[Item, ...], start: int = 0) -> list[StagedEntry]:
    """The published entries with records at or above an offset, in the order of their offsets."""
    found, offset = list[StagedEntry](), 0
    for item in log:
        entries = item.entries if item.kind == "publish" else ()
        found += [entry for number, entry in enumerate(entries, offset) if number >= start]
        offset += len(entries) + (item.kind == "data")
    return found
