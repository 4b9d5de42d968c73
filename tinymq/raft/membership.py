"""Who belongs to a group: CONFIG entries, incarnations, and the one quorum function.

Membership comes from the log alone (hazards 8, 20). A replica is a broker *and* its incarnation: the
data folder's random id and a count per group. Whoever comes back with less than it had acknowledged
has another incarnation, and one that CONFIG does not list neither votes, stands nor counts (hazard 22).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tinymq.entry import Entry, Kind, make_entry
from tinymq.errors import CorruptData
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.messages import group_from_wire, group_to_wire
from tinymq.types import GroupId


@dataclass(frozen=True, slots=True)
class Replica:
    """One member as CONFIG lists it."""

    broker_id: int
    incarnation: bytes  # 16 bytes: the data folder's
    count: int = 0  # raised when that folder may have lost what it acknowledged in this group


@dataclass(frozen=True, slots=True)
class Membership:
    """A CONFIG entry, unpacked. The first replica is the preferred leader."""

    group: GroupId
    epoch: int
    replicas: tuple[Replica, ...]

    def replica(self, broker_id: int) -> Replica | None:
        return next((r for r in self.replicas if r.broker_id == broker_id), None)

    def lists(self, broker_id: int, incarnation: bytes | None, count: int) -> bool:
        """Is this very incarnation a member?"""
        replica = self.replica(broker_id)
        return replica is not None and replica.incarnation == incarnation and replica.count == count

    def rank(self, broker_id: int) -> int:
        """Place in the order of preference for leadership; past the end for strangers."""
        return next((i for i, r in enumerate(self.replicas) if r.broker_id == broker_id), len(self.replicas))

    @property
    def quorum(self) -> int:
        return len(self.replicas) // 2 + 1


def has_quorum(membership: Membership, brokers: Collection[int]) -> bool:
    """Are `brokers` (listed incarnations only: the caller checks) a majority?"""
    return sum(1 for r in membership.replicas if r.broker_id in brokers) >= membership.quorum


def quorum_index(membership: Membership, match: Mapping[int, int]) -> int:
    """The greatest index that a majority holds durably (0: none). `match`: durable index per listed broker."""
    held = sorted((match.get(r.broker_id, 0) for r in membership.replicas), reverse=True)
    return held[membership.quorum - 1]


def pack_membership(membership: Membership) -> bytes:
    config = pb.Config(
        group=group_to_wire(membership.group),
        epoch=membership.epoch,
        replicas=[
            pb.Replica(broker_id=r.broker_id, incarnation=r.incarnation, count=r.count) for r in membership.replicas
        ],
    )
    return config.SerializeToString(deterministic=True)


def parse_membership(payload: bytes) -> Membership:
    """Raises CorruptData when `payload` is not a CONFIG."""
    try:
        config = pb.Config.FromString(payload)
    except DecodeError as error:
        raise CorruptData(f"a CONFIG entry does not parse: {error}") from None
    replicas = tuple(Replica(r.broker_id, r.incarnation, r.count) for r in config.replicas)
    if not replicas or len({r.broker_id for r in replicas}) != len(replicas):
        raise CorruptData("a CONFIG entry lists no replicas, or one twice")
    return Membership(group_from_wire(config.group), config.epoch, replicas)


def make_first_entry(group: GroupId, replicas: Sequence[Replica], created_us: int) -> Entry:
    """Entry 1 of a group: byte for byte the same on every replica, whoever makes it."""
    return make_entry(
        kind=Kind.CONFIG,
        index=1,
        term=0,
        prev_crc=0,
        base_offset=0,
        record_count=0,
        append_time_us=created_us,
        max_timestamp_us=created_us,
        payload=pack_membership(Membership(group, 1, tuple(replicas))),
    )
