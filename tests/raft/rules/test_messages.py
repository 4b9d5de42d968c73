"""Messages survive the wire, and invalid bytes raise the peer's error: hazard 16."""

from __future__ import annotations

import pytest

from tests.raft.values import GROUP, chain
from tinymq.base.errors import CorruptData, InvalidRequest
from tinymq.base.types import METADATA_GROUP, GroupId, TopicId
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.peers.leader_hints import LeaderHints, announcement, read_announcement
from tinymq.raft.rules.messages import (
    SNAPSHOT_CHUNK_BYTES,
    Append,
    AppendAck,
    CommitNotice,
    InstallSnapshot,
    InstallSnapshotAck,
    Message,
    RequestVote,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    from_wire,
    to_wire,
)

MESSAGES: list[Message] = [
    RequestVote(7, 12, 6, True, False, 2),
    RequestVote(7, 12, 6, False, True, 0),
    Vote(7, True, True, 1),
    Vote(1 << 60, False, False, 0),
    Append(7, 0, 0, 0, []),
    Append(7, 2, 5, 1, chain([1, 1, 2, 3])[2:]),
    AppendAck(term=7, durable=9, received=11, conflict=False, next=0, next_term=0, commit=8, count=3),
    AppendAck(term=7, durable=0, received=0, conflict=True, next=5, next_term=4, commit=3, count=0),
    CommitNotice(7, 9, True),
    CommitNotice(7, 9, False),
    AppendAck(term=7, durable=9, received=11, conflict=False, next=0, next_term=0, commit=8, count=3, read_id=1 << 50),
    CommitNotice(7, 9, False, 41),
    TimeoutNow(7),
    InstallSnapshot(
        term=7,
        index=1000,
        entry_term=5,
        entry_crc=0xFFFFFFFF,
        next_offset=1 << 40,
        append_time_us=-3,
        size=300_000,
        crc=77,
    ),
    SnapshotChunk(7, 1000, 77, 262_144, b"bytes of a state"),
    InstallSnapshotAck(7, 1000, 77, 262_160, 2),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("group", [GROUP, METADATA_GROUP], ids=str)
def test_round_trip(group: GroupId, message: Message) -> None:
    head, body = to_wire(group, message)
    assert from_wire(pb.Peer.FromString(head.SerializeToString()), b"".join(body)) == (group, message)
    assert from_wire(head, memoryview(b"".join(body))) == (group, message)


def test_other_frames_are_no_raft_messages() -> None:
    assert from_wire(pb.Peer(heartbeat=pb.Heartbeat(sequence=1)), b"") is None
    assert from_wire(pb.Peer(), b"") is None


def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    head, body = to_wire(GROUP, Append(7, 0, 0, 0, chain([1], payload=b"payload")))
    whole = b"".join(body)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptData):
            from_wire(head, bytes(damaged))


@pytest.mark.parametrize("cut", [1, 63, 64, 70])
def test_a_body_cut_short_is_an_error(cut: int) -> None:
    head, body = to_wire(GROUP, Append(7, 0, 0, 0, chain([1], payload=b"payload")))
    with pytest.raises(CorruptData):
        from_wire(head, b"".join(body)[:-cut])


def test_a_wrong_count_and_a_wrong_group_are_errors() -> None:
    head, body = to_wire(GROUP, Append(7, 0, 0, 0, chain([1])))
    head.append.entries = 2
    with pytest.raises(InvalidRequest):
        from_wire(head, b"".join(body))
    with pytest.raises(InvalidRequest):
        from_wire(pb.Peer(timeout_now=pb.TimeoutNow(group=pb.GroupId(topic_id=b"short"), term=1)), b"")


def test_every_flipped_bit_of_a_chunk_is_noticed() -> None:
    head, (body,) = to_wire(GROUP, SnapshotChunk(7, 1000, 77, 0, b"bytes of a state"))
    for position in range(len(body)):
        damaged = bytearray(body)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptData):
            from_wire(head, bytes(damaged))


@pytest.mark.parametrize("size", [0, SNAPSHOT_CHUNK_BYTES + 1])
def test_a_chunk_has_bounds(size: int) -> None:
    head, body = to_wire(GROUP, SnapshotChunk(7, 1000, 77, 0, bytes(size)))
    with pytest.raises(InvalidRequest):
        from_wire(head, body[0])


GOLDEN = {  # exact bytes after the group: moving a field breaks brokers of another version
    InstallSnapshot(
        term=1, index=2, entry_term=3, entry_crc=4, next_offset=5, append_time_us=6, size=7, crc=8
    ): "5a2610011802200328043005380640074808",
    SnapshotChunk(1, 2, 3, 4, b"piece"): "6224100118022003280430e59ae4e604",
    InstallSnapshotAck(1, 2, 3, 4, 5): "6a2010011802200328043005",
    AppendAck(
        term=1, durable=2, received=3, conflict=True, next=4, next_term=5, commit=6, count=7, read_id=8
    ): "2a28100118022003280130043806400748055008",
    CommitNotice(1, 2, True, 3): "321e1001180220012803",
}


@pytest.mark.parametrize("message", GOLDEN, ids=lambda m: type(m).__name__)
def test_the_bytes_on_the_wire(message: Message) -> None:
    head, _ = to_wire(GroupId(TopicId(b"\x11" * 16), 1), message)
    group = "0a140a10" + "11" * 16 + "1001"
    assert head.SerializeToString(deterministic=True).hex().replace(group, "") == GOLDEN[message]


def test_the_leader_hint_of_the_newest_term_wins() -> None:
    board = LeaderHints()
    for group, term in read_announcement(announcement([(GROUP, 5), (METADATA_GROUP, 2)]).leaders):
        board.note(group, 1, term)
    board.note(GROUP, 2, 4)  # late
    assert board.leader_of(GROUP) == (1, 5)
    board.note(GROUP, 2, 6)
    board.gone(1)
    assert board.leader_of(GROUP) == (2, 6)
    assert board.leader_of(METADATA_GROUP) is None
    board.forget(GROUP)
    assert board.leader_of(GROUP) is None
