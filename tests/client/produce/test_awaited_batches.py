"""Many tasks await the records of one batch, on one event loop or several: the batch's end wakes each of them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.client.produce.test_batcher import Bench
from tinymq import Delivery, RecordMetadata
from tinymq.base.errors import Closed, DeadlineExceeded


class Sent(Bench):
    """Three records of one batch."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        found = [self.batcher.append("t", b"%d" % n, None, None, None, None) for n in range(3)]
        self.deliveries = [delivery for delivery in found if delivery is not None]
        self.batch = self.deliveries[0]._batch


async def result(delivery: Delivery) -> RecordMetadata:
    return await delivery


@pytest.mark.parametrize("elsewhere", [False, True], ids=["on the loop", "in another thread"])
def test_the_end_wakes_every_task_and_a_cancelled_one_disturbs_none(elsewhere: bool) -> None:
    sent = Sent()

    async def main() -> None:
        tasks = [asyncio.create_task(result(delivery)) for delivery in (*sent.deliveries, *sent.deliveries)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        if elsewhere:
            threading.Thread(target=sent.batch.succeed, args=(7, 1, False)).start()
        else:
            sent.batch.succeed(7, 1, False)
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert isinstance(found.pop(1), asyncio.CancelledError)
        assert [one.offset for one in found if isinstance(one, RecordMetadata)] == [7, 9, 7, 8, 9]
        assert (await sent.deliveries[1]).offset == 8, "after the end"

    asyncio.run(main())


def test_loops_of_several_threads_await_one_batch() -> None:
    sent = Sent()
    waiting = threading.Semaphore(0)
    offsets: list[int] = []

    async def main() -> None:
        tasks = [asyncio.create_task(result(delivery)) for delivery in sent.deliveries]
        await asyncio.sleep(0)
        waiting.release()
        offsets.extend([(await task).offset for task in tasks])

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=30)
    sent.batch.succeed(7, 1, False)
    for thread in threads:
        thread.join(30)
    assert sorted(offsets) == [7, 7, 7, 8, 8, 8, 9, 9, 9]


def test_a_failed_batch_raises_in_each_task() -> None:
    sent = Sent()

    async def main() -> None:
        tasks = [asyncio.create_task(result(delivery)) for delivery in sent.deliveries]
        await asyncio.sleep(0)
        sent.batch.fail(DeadlineExceeded("late"))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found] == [DeadlineExceeded] * 3
        assert sent.batch.seen == {0, 1, 2}, "flush does not report them again"

    asyncio.run(main())


def test_what_no_loop_can_end_any_more_is_not_awaited() -> None:
    sent = Sent()

    async def main() -> None:
        task = asyncio.create_task(result(sent.deliveries[0]))
        await asyncio.sleep(0)
        sent.batch.queue.loop_ended = lambda: True
        with pytest.raises(Closed):
            await asyncio.wait_for(result(sent.deliveries[1]), 30)
        sent.batch.succeed(7, 1, False)
        assert (await task).offset == 7

    asyncio.run(main())
