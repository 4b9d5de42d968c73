"""What every source of handlers has to do, the fake one of the tests included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tinymq.client.serve.source import Source


async def check_source(source: Source, fill: Callable[[int], Awaitable[None]]) -> None:
    """`fill` writes that many records to the source's only partition."""
    assert not source.alive
    await source.open()
    await fill(3)
    first = await source.take()
    assert first is not None
    assert source.alive
    source.done(first)
    second = await source.take()
    assert second is not None
    assert (second.offset, second.value) == (first.offset + 1, b"1")
    assert source.failed(second, ValueError("the handler failed")), "it says what becomes of the record"
    offsets = set()
    while second.offset not in offsets:  # it is tried again, at once or later
        again = await source.take()
        assert again is not None
        offsets.add(again.offset)
        source.done(again)
    taking = asyncio.create_task(source.take())
    source.stop()
    left = await taking
    if left is not None:  # it was handed out before the stop, and can still be done
        source.done(left)
    assert await source.take() is None
    await source.close()
    assert not source.alive
