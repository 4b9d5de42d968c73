"""Messages are made as they are drawn: what was taken is known exactly, whatever interrupts the thread that takes."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections.abc import Iterator

import pytest

from tests.client.consume.chunks import chunk
from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tests.client.interrupts import Interrupts
from tinymq import Client, Message
from tinymq.base.errors import CorruptData
from tinymq.client.consume import fetch_buffer, message_iterator, records
from tinymq.client.consume.fetch_buffer import FetchBuffer
from tinymq.client.consume.partition_fetcher import FetchPosition
from tinymq.client.consume.records import Chunk
from tinymq.client.facade import reader

MODULES = (fetch_buffer, message_iterator, records, reader)


class Filled:
    """Two partitions from offset 5 on, with three and two records, in three chunks."""

    places = ((0, 5), (0, 6), (1, 5), (1, 6), (0, 7))

    def __init__(self) -> None:
        self.freed = 0
        self.buffer = FetchBuffer("t", self._free)
        self.buffer.begin({p: FetchPosition(p, 5, None, 0) for p in (0, 1)})
        self.buffer.ready.extend((chunk(0, 5, 2), chunk(1, 5, 2), chunk(0, 7, 1)))

    def _free(self, size: int) -> None:
        self.freed += size

    def iterator(self) -> Iterator[Message]:
        return message_iterator.message_iterator(lambda: self.buffer.at_hand if self.buffer.more() else None)


def place(message: Message) -> tuple[int, int]:
    return message.partition, message.offset


def test_a_position_follows_each_message_that_is_drawn() -> None:
    filled = Filled()
    for message in filled.iterator():
        assert filled.buffer.position()[message.partition] == message.offset + 1
    assert filled.buffer.empty
    assert filled.freed == 300


def test_an_iterator_goes_on_behind_what_other_calls_took() -> None:
    filled = Filled()
    messages = filled.iterator()
    assert place(next(messages)) == (0, 5)
    peeked = filled.buffer.peek()
    assert peeked is not None
    assert place(peeked) == (0, 6)
    assert [place(m) for m in filled.buffer.next_messages(2)] == [(0, 6), (1, 5)]
    rows = filled.buffer.take_chunk()
    assert rows is not None
    assert (rows.partition, rows.base_offset, rows.next_offset) == (1, 6, 7)
    assert [place(m) for m in messages] == [(0, 7)]
    assert next(messages, None) is None


def test_a_table_continues_where_messages_ended_and_messages_where_it_ended() -> None:
    filled = Filled()
    assert [place(m) for m in itertools.islice(filled.iterator(), 1)] == [(0, 5)]
    rows = filled.buffer.take_chunk()
    assert rows is not None
    assert (rows.base_offset, rows.next_offset) == (6, 7)
    filled.buffer.give_back(rows, 6)
    assert [place(m) for m in filled.iterator()] == [(0, 6), (1, 5), (1, 6), (0, 7)]
    assert filled.freed == 300


def test_a_batch_that_cannot_be_unpacked_stays_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    filled, messages_of = Filled(), Chunk.messages

    def fails(self: Chunk, topic: str) -> records.ChunkMessages:
        raise MemoryError

    messages = filled.iterator()
    assert [place(next(messages)) for _ in range(2)] == [(0, 5), (0, 6)]
    monkeypatch.setattr(Chunk, "messages", fails)
    with pytest.raises(MemoryError):
        next(messages)
    assert filled.buffer.position() == {0: 7, 1: 5}
    monkeypatch.setattr(Chunk, "messages", messages_of)
    assert [place(m) for m in messages] == [(1, 5), (1, 6), (0, 7)], "the same iterator goes on"


def test_an_error_leaves_the_iterator_where_it_was() -> None:
    one, two, three = (Message("t", 0, offset, None, None, (), 0, 0) for offset in range(3))
    outcomes: list[CorruptData | Iterator[Message] | None] = [
        CorruptData("once"), iter([one, two]), CorruptData("again"), iter([three]), None,
    ]  # fmt: skip

    def more() -> Iterator[Message] | None:
        outcome = outcomes.pop(0)
        if isinstance(outcome, CorruptData):
            raise outcome
        return outcome

    messages = message_iterator.message_iterator(more)
    with pytest.raises(CorruptData, match="once"):
        next(messages)
    assert [next(messages), next(messages)] == [one, two]
    with pytest.raises(CorruptData, match="again"):
        next(messages)
    assert list(messages) == [three]
    assert list(messages) == []


def test_an_iterator_that_nobody_uses_is_freed_at_once() -> None:
    class Reader:
        def more(self) -> Iterator[Message]:
            return iter([Message("t", 0, 0, None, None, (), 0, 0)])

    gc.disable()
    try:
        used = Reader()
        gone = weakref.ref(used)
        messages = message_iterator.message_iterator(used.more)
        next(messages)
        del used, messages
        assert gone() is None
    finally:
        gc.enable()


def test_an_interrupt_anywhere_loses_no_message_of_an_iteration() -> None:
    """The thread is interrupted at each place where Python checks for signals, and goes on with the same iterator."""
    for number in itertools.count(1):
        filled, found = Filled(), list[tuple[int, int]]()
        messages, interrupts, known = filled.iterator(), Interrupts(number, *MODULES), sys.gettrace()
        sys.settrace(interrupts.trace)
        try:
            for message in messages:
                found.append(place(message))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(known)
        positions = filled.buffer.position()
        for p in (0, 1):
            handed = [offset for partition, offset in found if partition == p]
            assert positions[p] == (handed[-1] + 1 if handed else 5), interrupts.where
        found += [place(message) for message in messages]
        assert tuple(found) == Filled.places, interrupts.where
        if interrupts.where is None:
            break
    assert number > 30, "it went through all of it"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # the interrupt struck before it was begun
@pytest.mark.parametrize("one_iterator", [True, False], ids=["iterating", "next"])
def test_an_interrupted_reader_hands_out_each_message_once(one_iterator: bool) -> None:
    cluster = FakeCluster()
    cluster.add_topic("t", 1)
    with GrpcBrokers(cluster) as brokers, Client(brokers.servers) as mq:
        for start in (0, 3):
            with mq.producer() as producer:
                for number in range(start, start + 3):
                    producer.send("t", b"%d" % number)
        for place_number in itertools.count(1):
            interrupts, known, found = Interrupts(place_number, *MODULES), sys.gettrace(), list[bytes | None]()
            with mq.reader("t", end="latest") as reader:
                messages = iter(reader) if one_iterator else reader
                sys.settrace(interrupts.trace)
                while True:
                    try:
                        for message in messages if one_iterator else iter(reader.__next__, None):
                            assert message is not None
                            found.append(message.value)
                        break
                    except KeyboardInterrupt:
                        sys.settrace(known)
                sys.settrace(known)
            assert found == [b"%d" % number for number in range(6)], interrupts.where
            if interrupts.where is None:
                break
        assert place_number > 10, "it went through all of it"
