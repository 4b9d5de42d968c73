"""A partition as a queue of single messages, with a group that commits when the test says so: which calls wake, and
why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.broker.partition.test_partition import Bench
from tinymq.base.config import Limits
from tinymq.base.errors import InvalidBatch, NotLeader, OffsetOutOfRange
from tinymq.broker.partition.partition import Acks
from tinymq.broker.serve.messages import (
    PeekResult,
    StoredMessage,
    WaitingTakers,
    look,
    pack_record,
    put,
    read_record,
    size_of,
)
from tinymq.format.entry import Kind
from tinymq.log.files.runner import InlineRunner

ID = b"%016d"


class Queue:
    """A stand-in for a broker, its partition, and waiting calls."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.partition, self.group, self.clock = self.bench.partition, self.bench.group, self.bench.clock
        self.deadlines, self.limits, self.runner, self.env = self.bench.deadlines, Limits(), InlineRunner(), self
        self.takers = WaitingTakers()
        self._requests = 0

    def take(self, channel: str = "c", wait_s: float = 10.0) -> asyncio.Task[StoredMessage | None]:
        self._requests += 1
        broker: Any = self
        take = self.takers.take(
            broker,
            self.partition,
            channel,
            request_id=ID % self._requests,
            wait_s=wait_s,
            timeout_s=100.0,
            shape=lambda record: record,
        )
        return asyncio.ensure_future(take)

    async def push(self, records: int = 1) -> None:
        self.bench.send(records)
        await self.commit()

    async def commit(self) -> None:
        """Run everything that is under way to its end."""
        for _ in range(5):
            self.group.commit()
            await settle()

    def commands(self) -> int:
        return sum(entry.header.kind == Kind.COMMAND for entry in self.group.log.entries)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Callable[[Queue], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await scenario(Queue())

    asyncio.run(main())


def test_one_message_wakes_one_taker() -> None:
    async def scenario(q: Queue) -> None:
        await q.push()
        first = q.take()
        await q.commit()
        assert (await first) is not None
        waiting = [q.take() for _ in range(20)]
        await q.commit()
        before = q.commands()
        await q.push()
        done = [each for each in waiting if each.done()]
        assert len(done) == 1
        assert q.commands() == before + 1, "no other call was woken in vain"
        await q.push(19)
        got = [await each for each in waiting]
        assert sorted(record.offset for record in got if record) == list(range(1, 21))

    run(scenario)


def test_a_message_during_a_take_wakes_the_next_consumer() -> None:
    async def scenario(q: Queue) -> None:
        await q.push()
        await q.commit()
        waiting = [q.take(), q.take(), q.take()]
        await q.commit()
        assert [each.done() for each in waiting] == [True, False, False]
        q.bench.send()
        q.group.commit()  # wakes the second, whose command is now under way
        await settle()
        q.bench.send()
        await q.commit()
        assert all(each.done() for each in waiting)
        assert not q.takers._taking

    run(scenario)


def test_a_consumer_that_leaves_when_woken_leaves_the_message_to_the_next() -> None:
    async def scenario(q: Queue) -> None:
        await q.push()
        assert await asyncio.gather(q.take(), q.commit())
        waiting = [q.take(), q.take()]
        await q.commit()
        q.bench.send()
        q.group.commit()
        waiting[0].cancel()
        await q.commit()
        assert waiting[1].done()
        record = waiting[1].result()
        assert record is not None
        assert record.offset == 1
        assert not q.takers._taking

    run(scenario)


def test_channels_do_not_take_each_others_turns() -> None:
    async def scenario(q: Queue) -> None:
        await q.push()
        for channel in ("a", "b"):
            await asyncio.gather(q.take(channel), q.commit())
        waiting = [q.take("a"), q.take("b")]
        await q.commit()
        await q.push()
        got = [await each for each in waiting]
        assert [record.offset for record in got if record] == [1, 1]

    run(scenario)


def test_a_wait_ends_with_its_time_and_with_the_leadership() -> None:
    async def scenario(q: Queue) -> None:
        await q.push()
        await asyncio.gather(q.take(), q.commit())
        short, long = q.take(wait_s=1.0), q.take(wait_s=50.0)
        await q.commit()
        q.clock.advance(1.1)
        await q.commit()
        assert await short is None
        assert not long.done()
        q.group.lose_leadership(to=2)
        with pytest.raises(NotLeader):
            await long
        assert (len(q.deadlines), q.partition._commit_watchers._watchers) == (0, {})

    run(scenario)


def test_a_repeated_take_of_a_trimmed_record_is_out_of_range() -> None:
    async def scenario(q: Queue) -> None:
        await q.push(3)
        taking = q.take()
        await q.commit()
        q.partition.state.log_start = 2
        taken = await taking
        assert taken is not None
        assert taken.offset == 0, "it was read before a consumer took it"
        q._requests -= 1  # the same again
        with pytest.raises(OffsetOutOfRange):
            await q.take()
        assert size_of(q.partition, "c") == 1
        assert size_of(q.partition, "") == size_of(q.partition, "new") == 1

    run(scenario)


def test_a_put_wakes_a_peek() -> None:
    async def scenario(q: Queue) -> None:
        broker: Any = q
        payload = pack_record(b"k", None, [("h", b"1"), ("h", None)], 1_000_000)
        producing = asyncio.ensure_future(put(broker, q.partition, payload, Acks.QUORUM, 1.0))
        await settle()
        assert not producing.done()
        looking = asyncio.ensure_future(look(broker, q.partition, 0, 10.0))
        await q.commit()
        record = StoredMessage(0, b"k", None, (("h", b"1"), ("h", None)), 1_000_000)
        assert (await producing).base_offset == 0
        assert await looking == PeekResult(record, 0, 1)
        assert await look(broker, q.partition, 5, 0.0) == PeekResult(None, 0, 1)
        assert (await put(broker, q.partition, payload, Acks.LEADER, 1.0)).base_offset == 1
        await q.push(10)
        q.group.log.cold = True
        q.partition.state.log_start = 4
        found = (await look(broker, q.partition, 1, 0.0)).record
        assert found is not None
        assert (found.offset, found.value) == (4, b"v2"), "the first kept record, and its row in the batch"
        assert (await read_record(broker, q.partition, 11)).value == b"v9"
        with pytest.raises(InvalidBatch):
            pack_record(None, None, [], 1 << 62 << 10)
        q.group.lose_leadership()
        with pytest.raises(NotLeader):
            await look(broker, q.partition, 0, 0.0)

    run(scenario)
