"""One slice of one large request in each turn of the loop."""

from __future__ import annotations

import asyncio

from tinymq.broker.serve.slices import Slice, Slices


def test_large_requests_take_turns() -> None:
    turns: list[tuple[int, str]] = []

    async def main() -> None:
        slices, over = Slices(), asyncio.Event()
        turn = 0

        async def count_turns() -> None:
            nonlocal turn
            while not over.is_set():
                turn += 1
                await asyncio.sleep(0)

        async def large(name: str) -> None:
            work = Slice(slices, 10)
            for _ in range(30):
                turns.append((turn, name))
                if work.spend(1):
                    await work.rest()

        counting = asyncio.ensure_future(count_turns())
        await asyncio.gather(large("a"), large("b"), large("c"))
        over.set()
        await counting

    asyncio.run(main())
    later = [each for each in turns if each[0] > turns[0][0]]
    by_turn = {turn: [name for at, name in later if at == turn] for turn, _ in later}
    assert all(len(set(names)) == 1 and len(names) == 10 for names in by_turn.values()), by_turn
    assert [names[0] for names in by_turn.values()] == ["a", "b", "c"] * 2


def test_a_cancelled_request_delays_no_other() -> None:
    async def main() -> None:
        slices = Slices()
        gone, stays = (asyncio.ensure_future(slices.next()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        async with asyncio.timeout(5):
            await stays
            await slices.next()

    asyncio.run(main())
