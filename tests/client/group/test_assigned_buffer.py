"""What a member of a group has in hand is known exactly while another thread takes: no position moves too far."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.client.consume.chunks import chunk
from tests.client.interrupts import Interrupts
from tinymq import Message
from tinymq.client.consume import records
from tinymq.client.group import assigned_buffer
from tinymq.client.group.assigned_buffer import AssignedBuffer
from tinymq.client.group.fetched_records import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(params=[True, False], ids=["with a global lock", "without one"])
def gil(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigned_buffer, "GIL", request.param)


class Filled:
    """Three records of one partition from offset 5 on, then two of another one."""

    def __init__(self) -> None:
        self.freed = 0
        self.buffer = AssignedBuffer(self._free)
        for place in (P0, P1):
            self.buffer.begin(place, 5)
        self.buffer.offer(P0, chunk(0, 5, 3))
        self.buffer.offer(P1, chunk(1, 5, 2))

    def _free(self, size: int) -> None:
        self.freed += size

    def take(self) -> tuple[int, int] | None:
        """Take one message, as a consumer does."""
        while True:
            for message in self.buffer.at_hand:
                return message.partition, message.offset
            if not self.buffer.more():
                return None


@pytest.mark.usefixtures("gil")
def test_the_message_before_is_done_when_the_next_one_is_taken() -> None:
    filled = Filled()
    assert filled.buffer.positions() == {P0: 5, P1: 5}
    assert [filled.take(), filled.buffer.positions()] == [(0, 5), {P0: 5, P1: 5}]
    assert [filled.take(), filled.buffer.positions()] == [(0, 6), {P0: 6, P1: 5}]
    filled.buffer.done()
    assert filled.buffer.positions() == {P0: 7, P1: 5}, "it was committed by hand"
    assert [filled.take(), filled.buffer.positions()] == [(0, 7), {P0: 7, P1: 5}]
    assert [filled.take(), filled.buffer.positions()] == [(1, 5), {P0: 8, P1: 5}], "of another batch"
    assert [filled.take(), filled.take(), filled.buffer.positions()] == [(1, 6), None, {P0: 8, P1: 7}]
    assert filled.freed == 200


@pytest.mark.usefixtures("gil")
def test_the_messages_of_a_poll_are_done_when_more_are_asked_for() -> None:
    filled = Filled()
    assert filled.take() == (0, 5)
    assert [m.offset for m in filled.buffer.next_messages(3)] == [6, 7, 5]
    assert filled.buffer.positions() == {P0: 6, P1: 5}
    assert filled.take() == (1, 6)
    assert filled.buffer.positions() == {P0: 8, P1: 6}
    assert filled.buffer.next_messages(3) == []
    assert filled.buffer.positions() == {P0: 8, P1: 7}


@pytest.mark.usefixtures("gil")
@pytest.mark.parametrize("polls", [False, True])
def test_a_partition_in_hand_leaves_when_the_taker_asks_again(polls: bool) -> None:
    filled = Filled()
    assert filled.buffer.next_messages(1) if polls else filled.take()
    assert filled.buffer.release(P0) is None
    assert filled.buffer.in_hand(P0)
    assert filled.buffer.positions()[P0] == 5
    assert filled.take() is None, "nothing else is handed out before"
    assert filled.buffer.leave(P0) == 6
    assert (filled.take(), filled.buffer.positions()) == ((1, 5), {P1: 5})


@pytest.mark.usefixtures("gil")
def test_the_last_message_of_a_batch_keeps_its_partition_until_it_is_done() -> None:
    filled = Filled()
    assert [filled.take() for _ in range(3)][-1] == (0, 7)
    assert filled.buffer.release(P0) is None
    filled.buffer.done()
    assert filled.buffer.release(P0) == 8


@pytest.mark.usefixtures("gil")
def test_a_partition_with_nothing_in_hand_is_given_up_at_once() -> None:
    filled = Filled()
    assert filled.take() == (0, 5)
    assert filled.buffer.release(P1) == 5
    assert filled.freed == 200
    assert [filled.take(), filled.take(), filled.take()] == [(0, 6), (0, 7), None]


@pytest.mark.usefixtures("gil")
def test_nothing_more_of_a_partition_that_was_lost_is_handed_out() -> None:
    filled = Filled()
    messages = filled.buffer.at_hand
    assert filled.take() == (0, 5)
    messages = filled.buffer.at_hand
    filled.buffer.drop([P0])
    assert list(messages) == [], "the taker had it at hand already"
    assert [filled.take(), filled.take()] == [(1, 5), (1, 6)]
    filled.buffer.begin(P0, 3)
    assert filled.buffer.positions() == {P0: 3, P1: 6}


@pytest.mark.usefixtures("gil")
def test_a_seek_moves_the_position_and_what_comes_next() -> None:
    filled = Filled()
    assert filled.take() == (0, 5)
    filled.buffer.done()
    filled.buffer.begin(P0, 7)
    assert filled.buffer.positions() == {P0: 7, P1: 5}
    filled.buffer.offer(P0, chunk(0, 7, 1))
    assert [filled.take(), filled.take(), filled.take()] == [(1, 5), (1, 6), (0, 7)]


@pytest.mark.usefixtures("gil")
def test_a_partition_that_moves_while_another_thread_takes_loses_no_message() -> None:
    """The position when it leaves lies at or before the first message that the taker did not get."""
    for _ in range(200):
        filled = Filled()
        filled.buffer.offer(P0, chunk(0, 8, 500))
        taken: list[Message] = []
        begun = threading.Event()

        def take(filled: Filled = filled, taken: list[Message] = taken, begun: threading.Event = begun) -> None:
            while filled.buffer.more():
                for message in filled.buffer.at_hand:
                    taken.append(message)
                    begun.set()

        taker = threading.Thread(target=take)
        taker.start()
        assert begun.wait(30)
        position = filled.buffer.release(P0)
        taker.join()
        left = position if position is not None else filled.buffer.leave(P0)
        offsets = [message.offset for message in taken if message.partition == 0]
        assert offsets == list(range(5, 5 + len(offsets)))
        assert left == offsets[-1] + 1, "the taker has asked again, so all that it got is done"


@pytest.mark.parametrize("polls", [0, 2])
def test_an_interrupt_anywhere_moves_no_position_beyond_what_was_handed_out(polls: int) -> None:
    for number in itertools.count(1):
        filled, found = Filled(), list[tuple[int, int]]()
        interrupts, known = Interrupts(number, assigned_buffer, records), sys.gettrace()
        sys.settrace(interrupts.trace)
        try:
            while True:
                if polls:
                    some = [(m.partition, m.offset) for m in filled.buffer.next_messages(polls)]
                else:
                    some = [one] if (one := filled.take()) else []
                if not some:
                    break
                found += some
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(known)
        positions = filled.buffer.positions()
        for place in (P0, P1):
            handed = [offset for partition, offset in found if partition == place.partition]
            assert positions[place] <= (handed[-1] + 1 if handed else 5), interrupts.where
        if interrupts.where is None:
            break
    assert number > 20, "it went through all of it"


@pytest.mark.usefixtures("gil")
def test_an_iteration_ends_where_its_partition_begins_to_leave() -> None:
    """It holds the batch itself, and does not look at `at_hand` before each message."""
    filled = Filled()
    assert filled.buffer.more()
    batch = iter(filled.buffer.at_hand)
    assert next(batch).offset == 5
    assert filled.buffer.release(P0) is None, "a message is in hand"
    assert list(batch) == []
    assert filled.buffer.positions()[P0] == 5, "it is not done"
    assert not filled.buffer.more(), "the taker asks for more: what is leaving goes first"
    assert filled.buffer.leave(P0) == 6
    assert filled.take() == (1, 5)


@pytest.mark.usefixtures("gil")
def test_a_batch_of_which_nothing_was_drawn_is_given_up_at_once() -> None:
    filled = Filled()
    assert filled.buffer.more()
    assert filled.buffer.release(P0) == 5
    assert filled.take() == (1, 5)


@pytest.mark.usefixtures("gil")
def test_a_message_that_an_iteration_draws_after_a_poll_is_not_done() -> None:
    filled = Filled()
    batch = _batch(filled)
    assert next(batch).offset == 5
    assert [m.offset for m in filled.buffer.next_messages(1)] == [6]
    filled.buffer.done()
    assert filled.buffer.positions()[P0] == 7
    assert next(batch).offset == 7
    assert filled.buffer.positions()[P0] == 7, "a crash now delivers it again"


@pytest.mark.usefixtures("gil")
def test_a_pause_in_the_middle_of_a_batch_holds_its_rest() -> None:
    filled = Filled()
    batch = _batch(filled)
    assert next(batch).offset == 5
    filled.buffer.pause([P0])
    assert list(batch) == []
    assert filled.buffer.positions()[P0] == 5, "the message is in hand"
    assert [filled.take(), filled.take(), filled.take()] == [(1, 5), (1, 6), None]
    assert filled.buffer.positions() == {P0: 6, P1: 7}
    filled.buffer.offer(P0, chunk(0, 8, 1))
    filled.buffer.pause([P0], resume=True)
    assert [filled.take(), filled.take(), filled.take(), filled.take()] == [(0, 6), (0, 7), (0, 8), None]
    assert filled.freed == 300, "each batch once"


@pytest.mark.usefixtures("gil")
def test_an_iteration_that_is_interrupted_goes_on_where_it_was() -> None:
    filled = Filled()
    batch = _batch(filled)
    assert next(batch).offset == 5
    filled.buffer.interrupt()
    assert list(batch) == []
    assert filled.buffer.positions()[P0] == 5
    assert [filled.take(), filled.take(), filled.take()] == [(0, 6), (0, 7), (1, 5)]


def _batch(filled: Filled) -> Iterator[Message]:
    """Return the messages at hand, as an iteration has them that does not look at `at_hand` before each."""
    assert filled.buffer.more()
    return filled.buffer.at_hand
