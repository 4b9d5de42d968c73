"""The registry's state machine after a recovery that lost entries: no epoch and no producer id is given twice."""

from __future__ import annotations

from tests.broker.values import takes_over
from tests.fakes.raft_group import NOW_US
from tests.registry.records import broker
from tinymq.format.entry import Kind, NewEntry, make_entry
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.registry.state.wire import broker_to_wire

LOST = 5  # of each


class Metadata:
    """A state machine, and its applied entries."""

    def __init__(self) -> None:
        self.machine = RegistryMachine()
        self.told: list[int] = []  # the version, at each notification of a change
        self.machine.on_applied = lambda effects: self.told.append(self.machine.state.version)
        self._count = 0

    def run(self, **kind: object) -> pb.Reply:
        self._count += 1
        command = pb.Command(command_id=self._count.to_bytes(16, "big"), **kind)  # type: ignore[arg-type]
        self.machine.apply(
            make_entry(
                NewEntry(Kind.COMMAND, command.SerializeToString()),
                index=self._count,
                term=1,
                prev_crc=0,
                base_offset=0,
                append_time_us=NOW_US,
            )
        )
        return self.machine.state.apply(command)[0]  # the answers

    def epoch(self) -> int:
        """Of another consumer."""
        return self.run(set_consumer=pb.SetConsumer(topic="t", channel="c", consumer="me")).epoch

    def producer_id(self) -> int:
        return self.run(take_producer_ids=pb.TakeProducerIds(count=1000)).first_producer_id


def survivor_of(metadata: Metadata) -> tuple[Metadata, list[int], list[int]]:
    """The replica that lacks the last epochs and producer ids, and these."""
    metadata.run(register_broker=broker_to_wire(broker(1)))
    metadata.run(create_topic=pb.CreateTopic(name="t", topic_id=b"t" * 16, partitions=1, replication_factor=1))
    metadata.epoch()
    metadata.producer_id()
    kept = metadata.machine.dump()
    lost = [metadata.epoch() for _ in range(LOST)], [metadata.producer_id() for _ in range(LOST)]
    survivor = Metadata()
    survivor._count = 1000
    survivor.machine.load(kept)
    return survivor, *lost


def test_after_a_recovery_no_epoch_or_producer_id_is_reused() -> None:
    before = Metadata()
    survivor, epochs, producer_ids = survivor_of(before)
    survivor.machine.apply(takes_over(term=9, generation=1 << 32 | 3))
    assert survivor.told[-1] == survivor.machine.state.version > before.machine.state.version, "clients go by it"
    assert survivor.epoch() > max(epochs)
    assert survivor.producer_id() > max(producer_ids) + 1000
    version = survivor.machine.state.version
    survivor.machine.apply(takes_over(term=10, generation=1 << 32 | 3))
    assert survivor.machine.state.version == version, "another CONFIG of that recovery epoch changes nothing"
    # another recovery at the same time; later ones
    for generation in (1 << 32 | 4, 2 << 32 | 1, 3 << 32, (1 << 64) - 1):
        survivor.machine.apply(takes_over(term=11, generation=generation))
        assert survivor.machine.state.version >= version + (1 << 31)
        version = survivor.machine.state.version
    again = RegistryMachine()
    again.load(survivor.machine.dump())
    assert again.dump() == survivor.machine.dump()


def test_an_invalid_membership_changes_nothing() -> None:
    survivor, _, _ = survivor_of(Metadata())
    there = survivor.machine.dump()
    survivor.machine.apply(
        make_entry(NewEntry(Kind.CONFIG, b"\xff"), index=5, term=2, prev_crc=0, base_offset=0, append_time_us=NOW_US)
    )
    survivor.machine.apply(takes_over(term=2, generation=0))
    assert survivor.machine.dump() == there
