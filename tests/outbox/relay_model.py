"""An explicit-state model of the outbox: applications, the database, two relays, the coordinator, and the log.

Every step of one relay can be followed by any step of anybody else. A relay can end at any step (it loses what it had
in memory) and start again; one that merely takes no step for long is a paused one, which wakes up as a zombie. A lost
answer is a step that took effect, followed by the end of the relay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from tinymq.outbox.rules import Decision, RowFate, TransactionMark, fate_of, is_older

PRODUCER_ID = 7


class Broken(Exception):
    """The relay has stopped for good although nothing was lost."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the relay. The model without one of them has to find a violation."""

    register_first: bool = True  # the old owner is fenced before the newest decision is read
    compare_in_database: bool = True  # a relay that another has replaced changes nothing
    remove_before_begin: bool = True  # no transaction begins while rows of a committed one are marked
    mark_before_send: bool = True
    by_mark: bool = True  # what is sent is removed by its mark; else all rows up to the greatest id are


class At(Enum):
    """Where a relay is."""

    DOWN = 0
    READ = 1
    REGISTERED = 2
    DESCRIBED = 3
    READY = 4
    BEGUN = 5
    MARKED = 6
    SENT = 7
    COMMITTED = 8


@dataclass(frozen=True, slots=True)
class Relay:
    at: At = At.DOWN
    seen: int = -1  # the turn, as read from the database
    epoch: int = -1
    newest: Decision | None = None
    mark: TransactionMark | None = None
    rows: tuple[int, ...] = ()
    committed: TransactionMark | None = None  # whose rows are still to be removed: without `remove_before_begin` only


@dataclass(frozen=True, slots=True)
class World:
    unwritten: tuple[int, ...]  # ids that applications have drawn, and not committed yet
    rows: tuple[tuple[int, TransactionMark | None], ...] = ()
    turn: int = 0  # counts the relays that took over
    owner: int = -1  # the epoch of the relay that took over last
    newest_mark: TransactionMark | None = None
    epoch: int = -1  # at the coordinator, as the rest
    number: int = 0
    open: TransactionMark | None = None
    newest: Decision | None = None
    staged: tuple[int, ...] = ()  # of the open transaction
    log: tuple[int, ...] = ()
    written: frozenset[int] = frozenset()
    ends: int = 0  # of relays
    relays: tuple[Relay, ...] = field(default=(Relay(), Relay()))


class Model:
    """The steps of a small world."""

    def __init__(self, rules: Rules, *, rows: int = 2, ends_max: int = 1, begins_max: int = 2, batch: int = 2) -> None:
        self.rules = rules
        self.first = World(tuple(range(1, rows + 1)))
        self._ends_max = ends_max
        self._begins_max = begins_max
        self._batch = batch

    def steps(self, world: World) -> Iterator[World]:
        """Every world that may follow."""
        for row in world.unwritten:  # in any order; or the application rolls back, which leaves a gap
            left = tuple(each for each in world.unwritten if each != row)
            rows = tuple(sorted([*world.rows, (row, None)]))
            yield replace(world, unwritten=left, rows=rows, written=world.written | {row})
            yield replace(world, unwritten=left)
        for index, relay in enumerate(world.relays):
            yield from self._relay_steps(world, index, relay)
            if relay.at is not At.DOWN and world.ends < self._ends_max:
                yield self._put(replace(world, ends=world.ends + 1), index, Relay())

    def settled(self, world: World) -> World:
        """The world after one relay has started now, and worked alone until nothing is left to do."""
        world = replace(world, relays=(Relay(), Relay()))
        for _ in range(60):
            index = max((0, 1), key=lambda i: world.relays[i].at.value)
            after = next(self._relay_steps(world, index, world.relays[index], bounded=False), None)
            if after is None:
                return world
            world = after
        raise Broken("a relay that is alone does not come to an end")

    # ---- the relay --------------------------------------------------------------------------------------------

    def _relay_steps(self, world: World, index: int, relay: Relay, *, bounded: bool = True) -> Iterator[World]:
        match relay.at:
            case At.DOWN:
                yield self._put(world, index, Relay(At.READ, seen=world.turn))
            case At.READ if not self.rules.register_first:
                yield self._put(world, index, replace(relay, at=At.REGISTERED, newest=world.newest))
            case At.REGISTERED if not self.rules.register_first:
                if not bounded or world.epoch < self._ends_max + 1:
                    yield self._register(world, index, replace(relay, at=At.DESCRIBED))
            case At.READ:
                if not bounded or world.epoch < self._ends_max + 1:
                    yield self._register(world, index, replace(relay, at=At.REGISTERED))
            case At.REGISTERED:
                if world.epoch != relay.epoch:  # the coordinator names another owner
                    yield self._put(world, index, Relay())
                else:
                    yield self._put(world, index, replace(relay, at=At.DESCRIBED, newest=world.newest))
            case At.DESCRIBED:
                yield self._take(world, index, relay)
            case At.READY:
                if (world.rows and not bounded) or world.number < self._begins_max:
                    yield self._begin(world, index, relay)
            case At.BEGUN:
                yield self._mark(world, index, relay)
            case At.MARKED:
                yield self._send(world, index, relay)
            case At.SENT:
                yield self._commit(world, index, relay)
            case At.COMMITTED:
                yield self._remove(world, index, relay)

    def _register(self, world: World, index: int, relay: Relay) -> World:
        """Fences, and rolls back what is open."""
        epoch = world.epoch + 1
        return self._put(replace(self._abort_open(world), epoch=epoch), index, replace(relay, epoch=epoch))

    def _take(self, world: World, index: int, relay: Relay) -> World:
        """One transaction of the database: become its relay, and judge the rows that are marked."""
        if self.rules.compare_in_database and world.turn != relay.seen:
            return self._put(world, index, Relay())
        if self.rules == Rules() and is_older(world.newest_mark, relay.newest):
            raise Broken("the database seems older than the log")
        rows = []
        for row, mark in world.rows:
            fate = fate_of(mark, relay.newest) if mark is not None else RowFate.UNSENT
            if fate is RowFate.UNKNOWN:
                if self.rules == Rules():
                    raise Broken(f"the outcome of {mark} is unknown")
                fate = RowFate.UNSENT
            if fate is RowFate.UNSENT:
                rows.append((row, None))
        taken = replace(world, rows=tuple(rows), turn=world.turn + 1, owner=relay.epoch)
        return self._put(taken, index, replace(relay, at=At.READY))

    def _begin(self, world: World, index: int, relay: Relay) -> World:
        if world.epoch != relay.epoch:
            return self._put(world, index, Relay())  # Fenced
        world = self._abort_open(world)
        mark = TransactionMark(PRODUCER_ID, relay.epoch, world.number + 1)
        begun = replace(world, number=mark.number, open=mark)
        return self._put(begun, index, replace(relay, at=At.BEGUN, mark=mark))

    def _mark(self, world: World, index: int, relay: Relay) -> World:
        if self.rules.compare_in_database and world.owner != relay.epoch:
            return self._put(world, index, Relay())
        if relay.committed is not None:
            world = replace(world, rows=tuple(each for each in world.rows if each[1] != relay.committed))
        taken = tuple(row for row, mark in world.rows if mark is None)[: self._batch]
        after = replace(relay, at=At.MARKED, rows=taken, committed=None)
        if not self.rules.mark_before_send:
            return self._put(world, index, after)
        rows = tuple((row, relay.mark if row in taken else mark) for row, mark in world.rows)
        return self._put(replace(world, rows=rows, newest_mark=relay.mark), index, after)

    def _send(self, world: World, index: int, relay: Relay) -> World:
        if world.open != relay.mark or world.epoch != relay.epoch:
            return self._put(world, index, Relay())  # TransactionAborted, Fenced
        return self._put(replace(world, staged=relay.rows), index, replace(relay, at=At.SENT))

    def _commit(self, world: World, index: int, relay: Relay) -> World:
        if world.open != relay.mark or world.epoch != relay.epoch:
            return self._put(world, index, Relay())
        assert relay.mark is not None
        decision = Decision(PRODUCER_ID, relay.mark.number, True)
        world = replace(world, log=world.log + world.staged, newest=decision, open=None, staged=())
        if not self.rules.remove_before_begin:
            return self._put(world, index, replace(relay, at=At.READY, committed=relay.mark))
        return self._put(world, index, replace(relay, at=At.COMMITTED))

    def _remove(self, world: World, index: int, relay: Relay) -> World:
        if self.rules.compare_in_database and world.owner != relay.epoch:
            return self._put(world, index, Relay())
        if self.rules.by_mark and self.rules.mark_before_send:
            rows = tuple((row, mark) for row, mark in world.rows if mark != relay.mark)
        elif self.rules.by_mark:
            rows = tuple((row, mark) for row, mark in world.rows if row not in relay.rows)
        else:
            rows = tuple((row, mark) for row, mark in world.rows if row > max(relay.rows, default=0))
        after = replace(relay, at=At.READY, mark=None, rows=())
        return self._put(replace(world, rows=rows), index, after)

    @staticmethod
    def _abort_open(world: World) -> World:
        if world.open is None:
            return world
        return replace(world, open=None, staged=(), newest=Decision(PRODUCER_ID, world.open.number, False))

    @staticmethod
    def _put(world: World, index: int, relay: Relay) -> World:
        other = world.relays[1 - index]
        if (relay.at.value, relay.epoch, relay.seen) > (other.at.value, other.epoch, other.seen):
            relay, other = other, relay  # they are alike: which one is the first makes no other world
        return replace(world, relays=(relay, other))
