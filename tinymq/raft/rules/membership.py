"""The members of a group: CONFIG entries, incarnations, and the one quorum function.

Membership comes from the log alone (hazards 8, 20). A replica is a broker *and* its incarnation: the data directory's
random id, and a count per group. A replica that comes back with less than it had acknowledged has another incarnation.
An incarnation that CONFIG does not list neither votes, campaigns nor counts (hazard 22).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, InvalidRequest
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.rules.messages import group_from_wire, group_to_wire

RETIRED_MAX = 8  # replaced identities that a CONFIG remembers


@dataclass(frozen=True, slots=True)
class Replica:
    """One member, as CONFIG lists it."""

    broker_id: int
    incarnation: bytes  # 16 bytes: the data directory's
    count: int = 0  # it rises when that directory may have lost what it acknowledged in this group


@dataclass(frozen=True, slots=True)
class Membership:
    """A CONFIG entry, unpacked. The first replica is the preferred leader."""

    group: GroupId
    epoch: int
    replicas: tuple[Replica, ...]
    recovery_epoch: int = 0  # it rises when an operator accepts loss; a lower one is of an abandoned history
    retired: tuple[Replica, ...] = ()  # replaced identities, the newest last; their disks may turn up again

    def replica(self, broker_id: int) -> Replica | None:
        for replica in self.replicas:  # called for every answer: a generator costs three times as much
            if replica.broker_id == broker_id:
                return replica
        return None

    def lists(self, broker_id: int, incarnation: bytes | None, count: int) -> bool:
        """Is this very incarnation a member?"""
        replica = self.replica(broker_id)
        return replica is not None and replica.incarnation == incarnation and replica.count == count

    def has(self, replica: Replica) -> bool:
        return self.lists(replica.broker_id, replica.incarnation, replica.count)

    def replacing(self, present: Iterable[Replica]) -> Membership:
        """Return the next epoch: the same brokers in the same order, those of `present` under these identities."""
        identity = {r.broker_id: r for r in present}
        replicas = tuple(identity.get(r.broker_id, r) for r in self.replicas)
        gone = tuple(r for r in self.replicas if r not in replicas)
        retired = (*self.retired, *gone)[-RETIRED_MAX:]
        return Membership(self.group, self.epoch + 1, replicas, self.recovery_epoch, retired)

    def may_list(self, replica: Replica) -> bool:
        """Is this a member's broker under a new identity?

        A replaced identity is never listed again: its disk may turn up with what it held then, and its late acks may
        arrive. To list it would unlist the identity that is there now.
        """
        listed = self.replica(replica.broker_id)
        if listed is None or listed == replica or replica in self.retired:
            return False
        return listed.incarnation != replica.incarnation or listed.count < replica.count

    def rank(self, broker_id: int) -> int:
        """Return the broker's place in the order of preference for leadership; past the end for other brokers."""
        return next((i for i, r in enumerate(self.replicas) if r.broker_id == broker_id), len(self.replicas))

    @property
    def quorum(self) -> int:
        return len(self.replicas) // 2 + 1


def has_quorum(membership: Membership, brokers: Collection[int]) -> bool:
    """Are `brokers` a majority? The caller has checked that these are listed incarnations."""
    return sum(1 for r in membership.replicas if r.broker_id in brokers) >= membership.quorum


def quorum_index(membership: Membership, match: Mapping[int, int]) -> int:
    """Return the greatest index that a majority holds durably (0: none). `match`: durable index by listed broker."""
    held = sorted((match.get(r.broker_id, 0) for r in membership.replicas), reverse=True)
    return held[membership.quorum - 1]


def pack_membership(membership: Membership) -> bytes:
    config = pb.Config(
        group=group_to_wire(membership.group),
        epoch=membership.epoch,
        replicas=[_replica_to_wire(r) for r in membership.replicas],
        recovery_epoch=membership.recovery_epoch,
        retired=[_replica_to_wire(r) for r in membership.retired],
    )
    return config.SerializeToString(deterministic=True)


def _replica_to_wire(replica: Replica) -> pb.Replica:
    return pb.Replica(broker_id=replica.broker_id, incarnation=replica.incarnation, count=replica.count)


def parse_membership(payload: bytes) -> Membership:
    """Parse the payload of a CONFIG entry. Raises CorruptData."""
    try:
        config = pb.Config.FromString(payload)
        group = group_from_wire(config.group)
    except (DecodeError, InvalidRequest) as error:
        raise CorruptData(f"a CONFIG entry does not parse: {error}") from None
    replicas, retired = (
        tuple(Replica(r.broker_id, r.incarnation, r.count) for r in listed)
        for listed in (config.replicas, config.retired)
    )
    if not replicas or len({r.broker_id for r in replicas}) != len(replicas):
        raise CorruptData("a CONFIG entry lists no replicas, or one twice")
    if not all(r.broker_id and len(r.incarnation) == 16 for r in (*replicas, *retired)):
        raise CorruptData("a CONFIG entry lists a replica without a broker or an incarnation")
    return Membership(group, config.epoch, replicas, config.recovery_epoch, retired)


def make_first_entry(group: GroupId, replicas: Sequence[Replica], created_us: int) -> Entry:
    """Make entry 1 of a group. It is byte for byte the same on every replica, whichever broker makes it."""
    return make_entry(
        NewEntry(Kind.CONFIG, pack_membership(Membership(group, 1, tuple(replicas)))),
        index=1,
        term=0,
        prev_crc=0,
        base_offset=0,
        append_time_us=created_us,
    )
