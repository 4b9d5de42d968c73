"""Snapshot transfers without brokers: the messages to a follower behind our first entry, and the retries."""

from __future__ import annotations

import google_crc32c
import pytest

from tests.raft.roles.test_replication import CONFIGS, TERM, FakeLink, ack
from tests.raft.values import ListLog, chain, incarnation
from tinymq.base.config import Limits, Timing
from tinymq.format import entry
from tinymq.format.entry import crc32c
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.replica.snapshot_receiver import IncomingSnapshot
from tinymq.raft.roles.replication import PROBE_RETRY_S, Replication
from tinymq.raft.rules.messages import (
    SNAPSHOT_CHUNK_BYTES,
    Append,
    AppendAck,
    InstallSnapshot,
    InstallSnapshotAck,
    SnapshotChunk,
)
from tinymq.raft.rules.progress import Mode
from tinymq.raft.rules.snapshot_transfer import SnapshotProgress

TRIMMED = 10  # entries 1 to 10 are gone: the log begins with 11
DATA = bytes(range(256)) * (5 * SNAPSHOT_CHUNK_BYTES // 512)
CRC = crc32c(DATA)
STATE = Snapshot(index=TRIMMED, entry_term=1, entry_crc=77, next_offset=10, append_time_us=1, data=DATA, data_crc=CRC)


def leading() -> tuple[Replication, FakeLink]:
    """A leader of entries 11 to 20. Follower 2 reports an empty log, follower 3 has all entries."""
    log, link = ListLog(chain([*[1] * 19, TERM]), trimmed=TRIMMED), FakeLink()
    leader = Replication(
        term=TERM, first_of_term=20, peers=[2, 3], log=log, link=link, limits=Limits(), timing=Timing()
    )
    leader.replicate(10)
    leader.acknowledged(3, ack(durable=20, commit=20))
    leader.acknowledged(
        2, AppendAck(term=TERM, durable=0, received=0, conflict=True, next=2, next_term=0, commit=1, count=0)
    )
    link.sent.clear()
    return leader, link


def install_snapshot_ack(received: int, crc: int = CRC, count: int = 0) -> InstallSnapshotAck:
    return InstallSnapshotAck(TERM, TRIMMED, crc, received, count)


def test_a_follower_behind_the_first_entry_gets_the_snapshot_then_the_entries() -> None:
    leader, link = leading()
    leader.replicate(10)
    leader.replicate(10)
    assert link.snapshot_reads == [2], "the snapshot is read once"
    assert link.take(2) == []
    leader.snapshots.read(STATE)
    leader.replicate(10)
    (offer,) = link.take(2)
    assert offer == InstallSnapshot(
        term=TERM, index=TRIMMED, entry_term=1, entry_crc=77, next_offset=10, append_time_us=1, size=len(DATA), crc=CRC
    )
    got = b""
    while len(got) < len(DATA):
        assert leader.snapshots.acknowledged(2, install_snapshot_ack(len(got)))
        leader.replicate(10)
        leader.replicate(10)
        (chunk,) = link.take(2)
        assert isinstance(chunk, SnapshotChunk)
        assert (chunk.position, chunk.index, chunk.crc) == (len(got), TRIMMED, CRC)
        assert len(chunk.body) <= SNAPSHOT_CHUNK_BYTES
        got += chunk.body
    assert got == DATA
    assert not leader.quiet(CONFIGS, 20)
    leader.acknowledged(2, ack(durable=TRIMMED, commit=TRIMMED))
    assert leader.progress[2].mode is Mode.REPLICATE
    leader.replicate(20)
    (append,) = link.take(2)
    assert isinstance(append, Append)
    assert (append.prev_index, len(append.entries)) == (TRIMMED, 10)
    leader.settle(20)
    assert leader.snapshots._snapshot is None, "no follower needs it any more"


def test_a_transfer_resumes_at_the_followers_position() -> None:
    """After a lost connection, or with chunks from another leader."""
    leader, link = leading()
    leader.replicate(10)
    leader.snapshots.read(STATE)
    leader.replicate(10)
    leader.snapshots.acknowledged(2, install_snapshot_ack(0))
    leader.lost(2)
    leader.replicate(10)
    (probe,) = [m for m in link.take(2) if isinstance(m, Append)]
    assert probe.prev_index == TRIMMED, "the follower may have it by now"
    leader.acknowledged(
        2, AppendAck(term=TERM, durable=0, received=0, conflict=True, next=2, next_term=0, commit=1, count=0)
    )
    leader.replicate(10)
    (offer,) = link.take(2)
    assert isinstance(offer, InstallSnapshot)
    leader.snapshots.acknowledged(2, install_snapshot_ack(SNAPSHOT_CHUNK_BYTES))
    leader.replicate(10)
    (chunk,) = link.take(2)
    assert isinstance(chunk, SnapshotChunk)
    assert chunk.position == SNAPSHOT_CHUNK_BYTES


def test_an_unanswered_snapshot_is_offered_again() -> None:
    leader, link = leading()
    leader.replicate(10)
    leader.snapshots.read(STATE)
    leader.replicate(10)
    link.take(2)
    link.time += 2 * PROBE_RETRY_S
    leader.settle(10)
    leader.replicate(10)
    assert isinstance(link.take(2)[0], InstallSnapshot)
    leader.snapshots.acknowledged(2, install_snapshot_ack(0))
    leader.replicate(10)
    link.take(2)
    link.time += 2 * PROBE_RETRY_S
    leader.settle(10)
    leader.replicate(10)
    assert link.take(2) == [], "a chunk has more time"
    link.time += 2 * Timing().bulk_stalled_s
    leader.settle(10)
    leader.replicate(10)
    assert isinstance(link.take(2)[0], InstallSnapshot), "the repeated offer asks how many bytes the follower has"


def test_a_failed_read_of_the_snapshot_is_retried_later() -> None:
    leader, link = leading()
    leader.replicate(10)
    leader.snapshots.read(None)
    leader.replicate(10)
    assert link.snapshot_reads == [2]
    link.time += 2 * PROBE_RETRY_S
    leader.settle(10)
    leader.replicate(10)
    assert link.snapshot_reads == [2, 2]


def test_another_incarnation_begins_with_a_probe() -> None:
    leader, link = leading()
    leader.replicate(10)
    leader.snapshots.read(STATE)
    leader.replicate(10)
    link.incarnations[2] = incarnation(9)
    leader.acknowledged(
        2, AppendAck(term=TERM, durable=0, received=0, conflict=True, next=2, next_term=0, commit=1, count=1)
    )
    assert leader.progress[2].mode is Mode.PROBE


@pytest.mark.parametrize(
    ("answers", "positions"),
    [
        ([0], [0]),
        ([100], [100]),  # resumed
        ([0, 0], [0]),  # twice: the chunk is out
        ([0, 5, 0], [0, 5, 0]),  # it dropped what did not match its checksum
        ([len(DATA)], []),  # all of it: an AppendAck follows
        ([len(DATA) + 1], []),
    ],
)
def test_each_answer_moves_one_message(answers: list[int], positions: list[int]) -> None:
    sending = SnapshotProgress(STATE)
    sent: list[int] = []
    for received in answers:
        if sending.acknowledged(install_snapshot_ack(received)):
            message = sending.message(TERM)
            assert isinstance(message, SnapshotChunk)
            sent.append(message.position)
    assert sent == positions


def test_an_ack_for_another_snapshot_repeats_the_offer_once() -> None:
    sending = SnapshotProgress(STATE)
    assert not sending.acknowledged(install_snapshot_ack(0, crc=CRC + 1)), "the offer that is in flight answers it"
    sending.acknowledged(install_snapshot_ack(0))
    assert sending.acknowledged(install_snapshot_ack(0, crc=CRC + 1))
    assert isinstance(sending.message(TERM), InstallSnapshot)


def test_the_loop_never_copies_a_whole_snapshot_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying 256 MiB at once would stop every group for 50 ms or more, on either side."""

    sizes: list[int] = []

    class Counting:
        @staticmethod
        def extend(seed: int, data: bytes) -> int:
            sizes.append(len(data))
            return int(google_crc32c.extend(seed, data))

    leader, link = leading()
    leader.replicate(10)
    monkeypatch.setattr(entry, "google_crc32c", Counting)
    leader.snapshots.read(STATE)
    leader.replicate(10)
    (offer,) = link.take(2)
    assert isinstance(offer, InstallSnapshot)
    incoming = IncomingSnapshot(offer)
    while (whole := incoming.whole()) is None:
        leader.snapshots.acknowledged(2, install_snapshot_ack(incoming.received))
        leader.replicate(10)
        (chunk,) = link.take(2)
        assert isinstance(chunk, SnapshotChunk)
        incoming.take(chunk)
    assert whole == STATE
    assert max(sizes) == SNAPSHOT_CHUNK_BYTES
