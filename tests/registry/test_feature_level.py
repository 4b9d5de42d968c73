"""The registry's feature level: raised only in the state that was examined, gated, and stored."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import FakeGroup
from tests.fakes.raft_host import FakeHosts
from tests.registry.records import broker
from tinymq.base.config import Timing
from tinymq.base.errors import CorruptData, InvalidRequest, NotLeader, UnsupportedVersion, VersionConflict
from tinymq.base.types import METADATA_GROUP
from tinymq.format.entry import Kind
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.raft_group.replicated import ReplicatedRegistry
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.registry.state import bounds, commands
from tinymq.registry.state.effects import BrokersChanged, FeatureLevelRaised
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import BrokerRecord
from tinymq.registry.state.wire import broker_to_wire
from tinymq.registry.zookeeper import tree


def register(state: RegistryState, number: int, level: int, session: int = 1) -> None:
    record = replace(broker(number, session), feature_level=level)
    assert not state.apply(pb.Command(register_broker=broker_to_wire(record)))[0].error_code


def raise_to(state: RegistryState, level: int, at_version: int) -> str:
    return state.apply(commands.raise_feature_level(level, at_version))[0].error_code


def test_the_level_rises_only_in_the_examined_state() -> None:
    state = RegistryState()
    register(state, 1, 2)
    seen = state.version
    register(state, 2, 1)
    assert raise_to(state, 2, seen) == "VersionConflict", "a broker with a lower level registered in between"
    assert state.feature_level == 1
    reply, effects = state.apply(commands.raise_feature_level(2, state.version))
    assert (reply.error_code, effects, state.feature_level) == ("", [FeatureLevelRaised(2)], 2)


def test_the_level_never_falls_and_rises_once() -> None:
    state = RegistryState()
    assert raise_to(state, 2, 0) == ""
    for level in (1, 2):
        reply, effects = state.apply(commands.raise_feature_level(level, 0))
        assert (reply.error_code, effects, state.feature_level) == ("", [], 2), "whoever was slower"


def test_the_announced_level_of_a_dead_broker_is_kept() -> None:
    state = RegistryState()
    assert state.announced_level(1) == 1
    register(state, 1, 2)
    state.apply(pb.Command(unregister_broker=pb.UnregisterBroker(broker_id=1)))
    assert state.announced_level(1) == 2
    loaded = RegistryState()
    loaded.load(state.dump())
    assert loaded.announced_level(1) == state.fork().announced_level(1) == 2
    register(state, 1, 1, session=2)
    state.apply(pb.Command(unregister_broker=pb.UnregisterBroker(broker_id=1)))
    assert state.announced_level(1) == 1, "it was started again as an older build"


def test_remembered_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ANNOUNCED_MAX", 2)
    state = RegistryState()
    for number in (1, 2, 3):
        register(state, number, 2)
    assert [state.announced_level(number) for number in (1, 2, 3)] == [2, 2, 2], "while they are registered"
    register(state, 1, 2, session=2)
    for number in (1, 2, 3):
        state.apply(pb.Command(unregister_broker=pb.UnregisterBroker(broker_id=number)))
    assert [state.announced_level(number) for number in (1, 2, 3)] == [2, 2, 1], (
        "the lowest level, where nothing is known"
    )


def test_an_older_build_skips_unknown_fields() -> None:
    """Announced levels do not influence `apply`: states that differ only in them decide alike."""
    knowing, passing = RegistryState(), RegistryState()
    for number in (1, 2):
        record = replace(broker(number), feature_level=2)
        knowing.apply(pb.Command(register_broker=broker_to_wire(record), command_id=b"%016d" % number))
        wire = broker_to_wire(record)
        wire.ClearField("feature_level")
        passing.apply(pb.Command(register_broker=wire, command_id=b"%016d" % number))
    command = commands.raise_feature_level(2, 2)
    assert knowing.apply(command) == passing.apply(command)
    assert knowing.feature_level == passing.feature_level == 2


class Bench:
    """The leader of the metadata, and a broker that follows."""

    def __init__(self) -> None:
        self.hosts = FakeHosts()
        self.machine, follower = RegistryMachine(), RegistryMachine()
        self.group = FakeGroup(self.machine, METADATA_GROUP, lambda: asyncio.get_running_loop().call_soon(self.commit))
        self.machine.attach(self.group)
        follower.attach(FakeGroup(follower, METADATA_GROUP, leads=False))
        clock = ManualClock()
        self.leader, self.other = (
            ReplicatedRegistry(n, machine, self.hosts.host(n), clock, random.Random(n), Timing())
            for n, machine in ((1, self.machine), (2, follower))
        )
        self.hosts.leaders[METADATA_GROUP] = (1, 1)

    def commit(self) -> None:
        self.group.commit()


def test_only_the_leader_raises_the_level_and_nothing_above_it_is_proposed() -> None:
    async def main() -> None:
        b = Bench()
        raises = commands.raise_feature_level(2, 0).SerializeToString()
        put = commands.put_record("k", "n", b"v", 0, b"i" * 16).SerializeToString()
        length = len(b.group.log.entries)
        for payload in (raises, put, b"", b"\xff", pb.Command(command_id=b"x" * 16).SerializeToString()):
            with pytest.raises(InvalidRequest):  # whichever broker asked for it
                b.machine.propose(payload)
        with pytest.raises(UnsupportedVersion):
            await b.leader.put_record("k", "n", b"v", 0)
        with pytest.raises(NotLeader):
            await b.other.raise_feature_level(2, 0)
        with pytest.raises(InvalidRequest, match=f"feature level {KNOWN_LEVEL + 1}"):
            await b.leader.raise_feature_level(KNOWN_LEVEL + 1, 0)
        assert len(b.group.log.entries) == length
        await b.leader.raise_feature_level(2, b.leader.version)
        assert b.leader.feature_level == 2
        assert (await b.leader.put_record("k", "n", b"v", 0)).version == b.leader.version
        versions = [e.header.version for e in b.group.log.entries if e.header.kind == Kind.COMMAND]
        assert versions == [2, 2], "a build that does not know them stops there"

    asyncio.run(main())


def test_a_broker_that_knows_less_is_not_registered() -> None:
    async def main() -> None:
        b = Bench()
        await b.leader.raise_feature_level(2, 0)
        for registry in (b.leader, b.other):
            with pytest.raises(UnsupportedVersion, match="broker 3 knows feature level 1, and this cluster is at 2"):
                await registry.register_broker(broker(3))
        assert b.leader.get_all_brokers() == []

    asyncio.run(main())


def test_a_stale_raise_is_refused() -> None:
    async def main() -> None:
        b = Bench()
        await b.leader.register_broker(broker(1))
        with pytest.raises(VersionConflict):
            await b.leader.raise_feature_level(2, b.leader.version - 1)
        assert b.leader.feature_level == 1

    asyncio.run(main())


def test_the_format_of_a_zookeeper_tree_keeps_older_builds_out() -> None:
    state = RegistryState()
    register(state, 1, 2)
    assert tree.unpack_version(tree.pack_version(state)).format == 1
    after = state.fork()
    command = commands.raise_feature_level(2, state.version)
    reply, effects = after.apply(command)
    ops = tree.change_ops(state, after, 7, tree.StoredChange(command, reply), effects, {})
    assert tree.CreateNode(tree.RECORDS) in ops
    version = tree.unpack_version(tree.pack_version(after))
    assert (version.format, version.feature_level) == (2, 2)
    assert [(each.broker_id, each.feature_level) for each in version.announced] == [(1, 2)]
    with pytest.raises(CorruptData):
        tree.unpack_version(b'{"format": 3, "version": "1"}')
    known = f"knows feature level {KNOWN_LEVEL}, and the registry in ZooKeeper is at 9"
    with pytest.raises(UnsupportedVersion, match=known):
        tree.unpack_version(b'{"format": 2, "version": "1", "feature_level": 9}')


def test_a_broker_of_the_first_level_is_stored_as_before_there_were_levels() -> None:
    record = BrokerRecord(1, b"i" * 16, 5, "a:1", "a:2", "r")
    wire = broker_to_wire(record)
    assert not wire.feature_level
    state = RegistryState()
    assert state.apply(pb.Command(register_broker=wire))[1] == [BrokersChanged()]
    assert b"\x3a" not in pb.Broker.FromString(wire.SerializeToString()).SerializeToString()[-2:]
    assert state.brokers[1] == record
