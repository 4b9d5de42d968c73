"""Every event that can occur between the check of all members and the raise of the feature level, in every order.

A small model around the real `RegistryState`, `members_of` and `next_level`: two voters that are stopped, started as an
older or a newer build, and registered; a log in which commands wait to be applied; a leader that checks the members.
Docs: ADR 37.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.registry.records import broker
from tinymq.broker.cluster.feature_level import members_of, next_level
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state import commands
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.wire import broker_to_wire

BROKERS = (1, 2)
DEPTH = 8
PENDING_MAX = 2


@dataclass(frozen=True)
class Process:
    """One broker: the running build (0: none), its start, and whether its data directory has seen level 2."""

    build: int = 0
    session: int = 0
    noted: bool = False


@dataclass(frozen=True)
class World:
    state: bytes  # the applied state of the leader
    pending: tuple[bytes, ...] = ()  # appended, and not applied yet
    processes: tuple[Process, ...] = (Process(), Process())

    def loaded(self) -> RegistryState:
        state = RegistryState()
        state.load(self.state)
        return state

    def with_process(self, number: int, process: Process) -> World:
        processes = tuple(process if n == number else p for n, p in zip(BROKERS, self.processes, strict=True))
        return replace(self, processes=processes)

    def with_pending(self, command: pb.Command) -> World:
        return replace(self, pending=(*self.pending, command.SerializeToString()))


class View:
    """The part of a registry that `members_of` reads."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self.announced_level = state.announced_level

    def get_all_queues(self) -> list[Any]:
        return []

    def get_all_brokers(self) -> list[Any]:
        return list(self._state.brokers.values())


Raise = Callable[[RegistryState, int], pb.Command]


def raise_as_built(state: RegistryState, level: int) -> pb.Command:
    return commands.raise_feature_level(level, state.version)


def steps(world: World, raised: Raise) -> Iterator[World]:
    """Yield every possible next world."""
    state = world.loaded()
    for number, process in zip(BROKERS, world.processes, strict=True):
        if process.build:
            yield world.with_process(number, replace(process, build=0))
            if process.build == 2 and state.feature_level == 2 and not process.noted:
                yield world.with_process(number, replace(process, noted=True))
            record = replace(broker(number, process.session), feature_level=process.build)
            refused = process.build < state.feature_level
            if not refused and state.brokers.get(number) != record and len(world.pending) < PENDING_MAX:
                yield world.with_pending(pb.Command(register_broker=broker_to_wire(record)))
        else:
            for build in (1, 2):
                if build == 2 or not process.noted:  # otherwise its data directory is refused
                    yield world.with_process(number, replace(process, build=build, session=min(process.session + 1, 2)))
    if world.pending:
        state.apply_bytes(world.pending[0])
        yield replace(world, state=state.dump(), pending=world.pending[1:])
    yield from leader_steps(world, raised)


def leader_steps(world: World, raised: Raise) -> Iterator[World]:
    """The leader acts on its applied state, whichever commands follow in the log."""
    state = world.loaded()
    if len(world.pending) >= PENDING_MAX:
        return
    heard = {n: p.build for n, p in zip(BROKERS, world.processes, strict=True) if p.build}
    members = members_of(View(state), BROKERS)  # type: ignore[arg-type]
    level = next_level(state.feature_level, members, heard)
    if level > state.feature_level:
        yield world.with_pending(raised(state, level))
    for record in state.brokers.values():
        if record.feature_level < state.feature_level:
            gone = pb.UnregisterBroker(broker_id=record.broker_id, session=record.session)
            yield world.with_pending(pb.Command(unregister_broker=gone))


def wrong(before: World, after: World) -> str:
    """Assert the invariant after a step."""
    was, state = before.loaded(), after.loaded()
    if state.feature_level < was.feature_level:
        return "the level fell"
    old = [record.broker_id for record in state.brokers.values() if record.feature_level < state.feature_level]
    if state.feature_level > was.feature_level and old:
        return f"the level rose over registered brokers {old}"
    return ""


def upgraded() -> World:
    """Both brokers run the newer build and are registered with it; the leader has not checked yet."""
    state = RegistryState()
    for number in BROKERS:
        record = replace(broker(number), feature_level=2)
        state.apply(pb.Command(register_broker=broker_to_wire(record)))
    return World(state.dump(), processes=(Process(2, 1), Process(2, 1)))


def explore(first: World, raised: Raise, depth: int = DEPTH) -> tuple[int, int, str]:
    """(worlds, worlds at level 2, the first that is wrong)"""
    seen, edge, high = {first}, [first], 0
    for _ in range(depth):
        reached: list[World] = []
        for world in edge:
            for after in steps(world, raised):
                if problem := wrong(world, after):
                    return len(seen), high, problem
                if after not in seen:
                    seen.add(after)
                    reached.append(after)
                    high += after.loaded().feature_level == 2
        edge = reached
    return len(seen), high, ""


@pytest.mark.parametrize("first", [World(RegistryState().dump()), upgraded()], ids=["new", "upgraded"])
def test_no_order_of_events_raises_the_level_over_an_older_build(first: World) -> None:
    worlds, high, problem = explore(first, raise_as_built)
    assert problem == ""
    assert worlds > 1000
    assert high > 0, "the level rises in none: nothing was shown"


def test_mutant_without_the_rule_the_model_finds_a_violation() -> None:
    """A raise that does not name the state that its proposer examined."""

    def careless(state: RegistryState, level: int) -> pb.Command:
        return commands.raise_feature_level(level, state.version + 1)  # a command that is not applied yet is ignored

    assert "the level rose over registered brokers" in explore(upgraded(), careless)[2]


@pytest.mark.parametrize("build", [1, 2])
def test_a_folder_that_has_seen_the_level_is_refused_by_older_builds(build: int) -> None:
    noted = World(RegistryState().dump(), processes=(Process(noted=True), Process()))
    starts = [after for after in steps(noted, raise_as_built) if after.processes[0].build == build]
    assert len(starts) == build - 1
