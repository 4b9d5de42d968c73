"""Records for handlers that run at the same time: in order within a partition, and no position moves too far."""

from __future__ import annotations

from tests.client.consume.chunks import chunk
from tinymq.client.consume.records import Message
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.parallel_buffer import ParallelBuffer

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Filled:
    """Two partitions with three records each."""

    def __init__(self) -> None:
        self.freed = 0
        self.buffer = ParallelBuffer(self._free)
        for place in (P0, P1):
            self.buffer.begin(place, 5)
            self.buffer.offer(place, chunk(place.partition, 5, 3))

    def _free(self, size: int) -> None:
        self.freed += size

    def take(self) -> Message:
        message = self.buffer.take()
        assert message is not None
        return message


def test_each_partition_has_one_record_in_hand() -> None:
    filled = Filled()
    first, second = filled.take(), filled.take()
    assert {first.partition, second.partition} == {0, 1}
    assert filled.buffer.take() is None
    filled.buffer.done(first)
    assert (filled.take().offset, filled.freed) == (6, 200)


def test_a_position_moves_only_behind_what_is_done() -> None:
    filled = Filled()
    message = filled.take()
    assert filled.buffer.positions() == {P0: 5, P1: 5}
    filled.buffer.done(message)
    assert filled.buffer.positions() == {P0: 6, P1: 5}


def test_a_failed_record_comes_again_before_its_followers_after_a_pause() -> None:
    filled = Filled()
    filled.buffer.drop([P1])
    message = filled.take()
    assert filled.buffer.failed(message) == 1
    assert filled.buffer.take() is None
    filled.buffer.resume(message)
    assert filled.take() is message
    assert filled.buffer.failed(message) == 2, "failures in a row are counted"


def test_a_partition_in_hand_is_given_up_when_its_record_is_done() -> None:
    filled = Filled()
    message = filled.take()
    place = TopicPartition("t", message.partition)
    assert filled.buffer.release(place) is None
    assert filled.buffer.done(message) == place
    assert filled.buffer.leave(place) == 6
    assert place not in filled.buffer.positions()


def test_a_partition_with_nothing_in_hand_is_given_up_at_once() -> None:
    filled = Filled()
    assert filled.buffer.release(P0) == 5
    assert filled.freed == 100
    assert filled.take().partition == 1


def test_what_comes_back_from_before_a_seek_or_a_loss_changes_nothing() -> None:
    filled = Filled()
    message = filled.take()
    place = TopicPartition("t", message.partition)
    filled.buffer.begin(place, 2)
    filled.buffer.done(message)
    assert filled.buffer.positions()[place] == 2
    assert filled.buffer.failed(message) == 0
    filled.buffer.drop([place])
    assert filled.buffer.done(message) is None
    filled.buffer.offer(place, chunk(place.partition, 2, 1))
    assert filled.freed == 100 + 100, "the answer to a fetch of a partition that is gone is freed"
