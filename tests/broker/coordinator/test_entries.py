"""The bytes of a coordinator: its commands and its state, as they were written down, and bytes that do not parse."""

from __future__ import annotations

import random

import pytest

from tinymq.base.errors import CorruptData
from tinymq.base.types import PartitionId
from tinymq.broker.members.coordinator_replica import CoordinatorReplica, pack_change
from tinymq.broker.members.group_members import Member, Members, MembersDelta, Owned
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry

PLACE, OTHER = PartitionId(b"t" * 16, 3), PartitionId(b"u" * 16, 0)
EPOCH = (7 << 32) + 1
JOINED = MembersDelta(
    members={"a": Member(b"s" * 16, "client", static=True, replaced=(b"r" * 16,), rack="r1")},
    owned={PLACE: Owned("a", EPOCH, revoking=True), OTHER: None},
    counter=1,
)
GOLDEN = (
    "0a01671007280132350a01611210737373737373737373737373737373731a06636c69656e7420012a1072727272727272727272727272"
    "72727232027231421f0a107474747474747474747474747474747410031a016120818080807028014a120a107575757575757575757575"
    "7575757575"
)
GOLDEN_STATE = (
    "0a610a01671007180120012a350a01611210737373737373737373737373737373731a06636c69656e7420012a10727272727272727272"
    "7272727272727232027231321f0a107474747474747474747474747474747410031a01612081808080702801"
)


def entry(index: int, payload: bytes) -> Entry:
    new = NewEntry(Kind.COMMAND, payload, version=2)
    return make_entry(new, index=index, term=1, prev_crc=0, base_offset=0, append_time_us=1)


def replica() -> CoordinatorReplica:
    return CoordinatorReplica("__coordinator/0", lambda broker: None)


def applied() -> CoordinatorReplica:
    made = replica()
    made.apply(entry(1, pack_change("g", Members(7), JOINED, remove=False)))
    return made


def test_commands_and_states_have_the_bytes_that_were_written_down() -> None:
    assert pack_change("g", Members(7), JOINED, remove=False).hex() == GOLDEN
    assert applied().dump().hex() == GOLDEN_STATE


def test_a_state_comes_back_from_its_bytes() -> None:
    before, after = applied(), replica()
    after.load(before.dump())
    assert after.groups == before.groups
    assert after.groups["g"].members["a"] == JOINED.members["a"]
    assert after.dump() == before.dump()


def test_a_change_counts_at_the_revision_that_it_names() -> None:
    made = applied()
    before = made.dump()
    made.apply(entry(2, pack_change("g", Members(7), MembersDelta(members={"a": None}), remove=False)))
    made.apply(entry(3, pack_change("g", Members(6, 1), MembersDelta(members={"a": None}), remove=False)))
    assert made.dump() == before
    made.apply(entry(4, pack_change("g", made.groups["g"], MembersDelta(), remove=True)))
    assert made.groups == {}


@pytest.mark.parametrize("seed", range(30))
def test_damaged_bytes_change_every_replica_alike(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(pack_change("g", Members(7), JOINED, remove=False))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    replicas = [replica(), replica()]
    for each in replicas:
        each.apply(entry(1, bytes(data)))
    assert replicas[0].dump() == replicas[1].dump(), f"seed {seed}"


def test_a_damaged_state_is_an_error() -> None:
    with pytest.raises(CorruptData):
        replica().load(b"\xff\xff")
