"""Calls that wait at a coordinator are woken in the order in which they came, wherever their futures lie in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tinymq.base.clock import SystemClock
from tinymq.broker.coordinator.changes import Changes
from tinymq.broker.coordinator.sessions import GroupSessions
from tinymq.broker.half_messages.check_turns import CheckTurns

CALLS = 40
Woken = list[int]
Wait = Callable[[Woken], Awaitable[None]]


def scattered() -> list[asyncio.Future[None]]:
    """Futures in an order that is not that of their addresses."""
    loop = asyncio.get_running_loop()
    made = [loop.create_future() for _ in range(5 * CALLS)]
    return sorted(made[::5], key=lambda future: hash((id(future), "anywhere")))


async def of_a_group(woken: Woken) -> None:
    sessions = GroupSessions(0.0)
    for number, future in enumerate(scattered()):
        future.add_done_callback(lambda _, number=number: woken.append(number))
        sessions.waiting[future] = None
    sessions.wake()


async def of_a_name(woken: Woken) -> None:
    changes = Changes(SystemClock())

    async def wait(number: int) -> None:
        await changes.wait("billing-1", 10.0)
        woken.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(CALLS)]
    await asyncio.sleep(0)
    changes.wake_all()
    await asyncio.gather(*waiting)


async def of_a_producer_group(woken: Woken) -> None:
    turns = CheckTurns()
    kept = scattered()
    del kept[::2]  # so that the next futures lie between these
    for number in range(CALLS):
        turns.wait("checkout").add_done_callback(lambda _, number=number: woken.append(number))
    turns.wake("checkout")


@pytest.mark.parametrize("wait", [of_a_group, of_a_name, of_a_producer_group])
def test_calls_are_woken_in_the_order_in_which_they_came(wait: Wait) -> None:
    async def order() -> Woken:
        woken: Woken = []
        await wait(woken)
        await asyncio.sleep(0)
        return woken

    assert asyncio.run(order()) == list(range(CALLS))
