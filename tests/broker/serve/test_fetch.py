"""What a fetch returns, when it waits, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.partition.test_partition import Bench
from tests.broker.values import moves, takes_over
from tests.fakes.batches import TIME_US, checked
from tinymq.base.errors import (
    CorruptData,
    NotLeader,
    NotReady,
    OffsetNotAvailable,
    OffsetOutOfRange,
    TinymqError,
    UnknownTopic,
)
from tinymq.broker.partition.partition import Acks
from tinymq.broker.serve.fetch import Fetch, FetchQuery, FetchResult
from tinymq.broker.serve.offsets import EARLIEST, END, OF_MAX_TIMESTAMP, FoundOffset, find_offset
from tinymq.format.batch import encode, pack_batch
from tinymq.format.entry import Kind, NewEntry, iter_entries
from tinymq.log.files.runner import InlineRunner


class Reader:
    def __init__(self, bench: Bench, offset: int, **ask: object) -> None:
        settings = {"bytes_max": 1 << 20, "bytes_min": 1, "wait_s": 0.0} | ask
        self.ready = 0
        self.fetch = Fetch(bench.partition, FetchQuery(offset, **settings), bench.deadlines, self._ready)  # type: ignore[arg-type]
        self.fetch.begin()

    def _ready(self, fetch: Fetch) -> None:
        assert fetch is self.fetch
        self.ready += 1

    @property
    def answer(self) -> FetchResult:
        assert self.ready == 1
        answer = self.fetch.read_now()
        assert answer is not None
        return answer

    @property
    def error(self) -> TinymqError | None:
        return self.answer.error


def offsets(answer: FetchResult) -> list[int]:
    return [e.header.base_offset for e in iter_entries(answer.frames)]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    for _ in range(3):
        bench.send(10)
    bench.group.commit()
    return bench


def test_whole_frames_below_the_high_watermark(bench: Bench) -> None:
    bench.send(10)
    answer = Reader(bench, 15).answer
    assert offsets(answer) == [10, 20], "the frame with the offset, and no uncommitted frame"
    assert (answer.high_watermark, answer.log_start, answer.leader, answer.leader_epoch) == (30, 0, 1, 1)


@pytest.mark.parametrize(
    ("end", "found"), [(0, [0, 10, 20]), (10, [0]), (11, [0, 10]), (30, [0, 10, 20]), (99, [0, 10, 20])]
)
def test_nothing_behind_the_end_is_read(bench: Bench, end: int, found: list[int]) -> None:
    assert offsets(Reader(bench, 0, end=end).answer) == found
    reader = Reader(bench, 0, end=end, bytes_min=1 << 19, wait_s=5.0)
    assert reader.ready == (0 < end < 30), "no request asks for more than that"


def test_a_batch_over_max_bytes_alone_is_still_answered(bench: Bench) -> None:
    assert offsets(Reader(bench, 0, bytes_max=1).answer) == [0]


def test_a_fetch_waits_for_a_commit(bench: Bench) -> None:
    reader = Reader(bench, 30, wait_s=5.0)
    bench.send(1)
    assert reader.ready == 0
    bench.group.commit()
    assert offsets(reader.answer) == [30]
    assert len(bench.deadlines) == 0


def test_a_fetch_waits_for_min_bytes_or_its_time(bench: Bench) -> None:
    bench.group.commit()
    reader = Reader(bench, 30, wait_s=5.0, bytes_min=2000)
    patient = Reader(bench, 30, wait_s=5.0, bytes_min=1 << 19)
    for _ in range(6):
        bench.send(10)
        bench.group.commit()
    assert len(reader.answer.frames) >= 2000
    assert patient.ready == 0
    bench.clock.advance(5.1)
    assert len(offsets(patient.answer)) == 6


def test_an_empty_answer_names_the_next_offset(bench: Bench) -> None:
    reader = Reader(bench, 30, wait_s=1.0)
    bench.clock.advance(1.1)
    assert (reader.answer.frames, reader.answer.next_offset, reader.error) == (b"", 30, None)


def test_a_cancelled_fetch_gives_no_answer(bench: Bench) -> None:
    reader = Reader(bench, 30, wait_s=1.0)
    reader.fetch.cancel()
    bench.send()
    bench.group.commit()
    bench.clock.advance(2)
    assert reader.ready == 0


def test_beyond_the_end_on_the_leader(bench: Bench) -> None:
    error = Reader(bench, 31, wait_s=5.0).error
    assert isinstance(error, OffsetOutOfRange)
    assert error.detail == {"log_start": "0", "high_watermark": "30"}
    assert not error.retriable


def test_a_fetch_beyond_the_end_of_a_follower_waits_and_may_be_retried(bench: Bench) -> None:
    bench.group.lose_leadership()
    reader = Reader(bench, 31, wait_s=1.0)
    assert reader.ready == 0
    bench.clock.advance(1.1)
    assert isinstance(reader.error, OffsetNotAvailable)
    assert reader.error.retriable
    assert reader.error.detail == {"high_watermark": "30"}


def test_below_the_log_start(bench: Bench) -> None:
    bench.group.log.log_start_offset = 10
    error = Reader(bench, 9).error
    assert isinstance(error, OffsetOutOfRange)
    assert error.detail["log_start"] == "10"


def test_a_replica_behind_the_readers_epoch_refuses(bench: Bench) -> None:
    error = Reader(bench, 0, leader_epoch=5).error
    assert isinstance(error, NotReady)
    assert Reader(bench, 0, leader_epoch=1).error is None


def take_over(bench: Bench, term: int) -> None:
    bench.group.term = term
    bench.group.propose(NewEntry(Kind.CONFIG, takes_over(term, term).payload))
    bench.group.commit()


@pytest.mark.parametrize("leads", [True, False])
def test_every_replica_refuses_a_lost_offset(bench: Bench, leads: bool) -> None:
    take_over(bench, 7)
    bench.send(10)
    bench.group.commit()
    bench.group.log.log_start_offset = 35
    if not leads:
        bench.group.lose_leadership()
    for offset in (31, 36, 41):
        error = Reader(bench, offset, recovery_term=0).error
        assert isinstance(error, OffsetOutOfRange)
        assert error.detail == {"log_start": "35", "high_watermark": "40", "history_start": "30"}
    assert Reader(bench, 36, recovery_term=7).answer.recovery_term == 7
    assert Reader(bench, 36).error is None, "a fetch without frames yet takes the first one"
    assert isinstance(Reader(bench, 36, recovery_term=8).error, NotReady)
    assert look_up_end(bench).recovery_term == 7


def test_offsets_read_before_the_loss_stay_valid(bench: Bench) -> None:
    waiting, beyond = (
        Reader(bench, 30, wait_s=5.0, recovery_term=0),
        Reader(bench, 30, wait_s=5.0, recovery_term=0, bytes_min=1 << 20),
    )
    take_over(bench, 7)
    bench.send(10)
    bench.group.commit()
    assert (offsets(waiting.answer), waiting.answer.recovery_term) == ([30], 7)
    assert beyond.ready == 0
    assert offsets(Reader(bench, 15, recovery_term=0).answer) == [10, 20, 30]


def test_frames_from_disk_belong_to_the_history_at_the_start_of_the_read(bench: Bench) -> None:
    bench.group.log.cold = True
    read = bench.group.log.reader.read_from_offset

    async def slow(offset: int, end_offset: int, bytes_max: int) -> bytes:
        frames = await read(offset, end_offset, bytes_max)
        take_over(bench, 7)
        return frames

    bench.group.log.reader.read_from_offset = slow  # type: ignore[method-assign]
    assert asyncio.run(Reader(bench, 0).fetch.read()).recovery_term == 0


def test_leader_only(bench: Bench) -> None:
    assert Reader(bench, 0, leader_only=True).error is None
    waiting = Reader(bench, 30, leader_only=True, wait_s=5.0)
    bench.group.lose_leadership()
    assert isinstance(waiting.error, NotLeader)
    assert isinstance(Reader(bench, 0, leader_only=True).error, NotLeader)


def test_the_topic_is_deleted_meanwhile(bench: Bench) -> None:
    reader = Reader(bench, 30, wait_s=5.0)
    bench.partition.close(UnknownTopic("deleted"))
    assert isinstance(reader.error, UnknownTopic)


def test_a_stopped_replica_returns_nothing(bench: Bench) -> None:
    waiting = Reader(bench, 30, wait_s=5.0)
    bench.group.failure = CorruptData("a flipped bit")
    bench.partition.look()
    assert isinstance(waiting.error, NotReady)
    assert isinstance(Reader(bench, 0).error, NotReady)


def test_cold_reads_come_from_disk(bench: Bench) -> None:
    bench.group.log.cold = True
    reader = Reader(bench, 0)
    assert reader.fetch.read_now() is None
    assert offsets(asyncio.run(reader.fetch.read())) == [0, 10, 20]


# ---- a log start that moves -------------------------------------------------------------------------------------


def trim(bench: Bench, offset: int) -> None:
    bench.partition.command([moves(offset)], 1.0, lambda outcomes: None)
    bench.group.commit()


def test_stored_records_below_the_log_start_are_not_returned(bench: Bench) -> None:
    trim(bench, 15)
    assert bench.group.log.log_start_offset == 0
    error = Reader(bench, 14).error
    assert isinstance(error, OffsetOutOfRange)
    assert error.detail == {"log_start": "15", "high_watermark": "30"}
    answer = Reader(bench, 15).answer
    assert (answer.log_start, offsets(answer)) == (15, [10, 20]), "whole batches: the reader skips the first half"


def test_a_state_behind_its_log_does_not_decide_the_log_start(bench: Bench) -> None:
    """A follower that installed a snapshot at the head of its log has not applied the entry that moved the start beyond
    it.
    """
    trim(bench, 5)
    bench.group.log.log_start_offset = 20
    assert bench.partition.log_start == 20
    assert isinstance(Reader(bench, 19).error, OffsetOutOfRange)
    assert Reader(bench, 20).answer.log_start == 20


def test_a_waiting_fetch_ends_when_the_log_start_passes_it(bench: Bench) -> None:
    reader = Reader(bench, 25, wait_s=5.0, bytes_min=1 << 20)
    assert reader.ready == 0
    trim(bench, 26)
    assert isinstance(reader.error, OffsetOutOfRange)
    assert len(bench.deadlines) == 0


def test_a_fetch_from_disk_ends_when_the_log_start_passes_it(bench: Bench) -> None:
    bench.group.log.cold = True
    for fails in (False, True):

        async def read(offset: int, end_offset: int, bytes_max: int, fails: bool = fails) -> bytes:
            trim(bench, offset + 1)
            if fails:
                raise CorruptData("the segment is gone")
            return b"frames"

        bench.group.log.reader.read_from_offset = read  # type: ignore[method-assign]
        start = bench.partition.log_start
        reader = Reader(bench, start)
        answer = asyncio.run(reader.fetch.read())
        assert isinstance(answer.error, OffsetOutOfRange)
        assert (answer.frames, answer.error.detail["log_start"]) == (b"", str(start + 1))


def look_up_end(bench: Bench) -> FoundOffset:
    return asyncio.run(find_offset(bench.partition, END, False, InlineRunner()))


def look_up(bench: Bench, timestamp_us: int) -> tuple[int, int, int]:
    found = asyncio.run(find_offset(bench.partition, timestamp_us, False, InlineRunner()))
    return found.offset, found.timestamp_us - TIME_US, found.log_start


def test_times_are_looked_up_from_the_log_start_on() -> None:
    """Batches of 3 records with overlapping times. The start lies inside a batch whose latest time is below it."""
    bench = Bench()
    for time in (100, 0, 50):
        bench.send(3, time_us=TIME_US + time)
    bench.group.commit()
    assert look_up(bench, EARLIEST)[0] == 0
    assert look_up(bench, TIME_US + 1) == (0, 100, 0)
    assert look_up(bench, OF_MAX_TIMESTAMP) == (2, 102, 0)
    trim(bench, 1)
    assert look_up(bench, TIME_US + 1) == (1, 101, 1)
    trim(bench, 3)
    assert look_up(bench, EARLIEST)[0] == 3
    assert look_up(bench, TIME_US + 1) == (4, 1, 3)
    assert look_up(bench, OF_MAX_TIMESTAMP) == (8, 52, 3)
    trim(bench, 5)
    assert look_up(bench, TIME_US) == (5, 2, 5)
    assert look_up(bench, TIME_US + 200)[0] == 9


def test_the_latest_time_below_the_log_start_does_not_count() -> None:
    """One batch with descending times."""
    bench = Bench()
    message = encode(None, [b"v"] * 3, None, [TIME_US + 9, TIME_US + 5, TIME_US + 4])
    bench.partition.produce(*checked(pack_batch(message, record_count=3)), Acks.LEADER, 1.0, bench.answers.append)
    bench.send(2, time_us=TIME_US + 3)
    bench.group.commit()
    trim(bench, 1)
    assert look_up(bench, OF_MAX_TIMESTAMP) == (1, 5, 1)
    assert look_up(bench, TIME_US + 6)[0] == 5, "the end: it is below the start"
    trim(bench, 2)
    assert look_up(bench, OF_MAX_TIMESTAMP) == (2, 4, 2), "the first record with the same time"
    bench.send(1, time_us=TIME_US + 8)
    bench.group.commit()
    assert look_up(bench, OF_MAX_TIMESTAMP) == (5, 8, 2)
