"""A broker that announces how long it delays its answers does not count as silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tinymq.base.errors import BrokerUnreachable
from tinymq.client.net.fetch_streams import BrokerFetchStream
from tinymq.client.net.ports import Fetched
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually

TIMEOUT_S = 0.2


class Slow:
    """A link to a broker that answers each fetch `pause_s` after the one before. It announces this if it `says` so."""

    address = "slow:1"
    received_bytes = 0

    def __init__(self, clock: VirtualClock, pause_s: float, says: bool) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._says = says
        self._asked: asyncio.Queue[int] = asyncio.Queue()

    async def open_fetch(self, timeout_s: float) -> Slow:
        return self

    async def write(self, request: pb.FetchRequest) -> None:
        if not request.cancel:
            self._asked.put_nowait(request.request_id)

    async def read(self) -> Fetched:
        number = await self._asked.get()
        if number > 1:
            await self._clock.sleep(self._pause_s)
        throttled_ms = int(self._pause_s * 1000) if self._says else 0
        return Fetched(
            request_id=number,
            high_watermark=0,
            log_start=0,
            leader_epoch=0,
            leader=0,
            next_offset=0,
            frames=memoryview(b""),
            error=None,
            throttled_ms=throttled_ms,
        )

    def cancel(self) -> None:
        pass


class Watch:
    def broke(self, address: str, error: Exception) -> None:
        pass


def fetches(together: bool, says: bool) -> list[object]:
    async def main(loop: VirtualLoop) -> list[object]:
        clock = VirtualClock(loop)
        link: Any = Slow(clock, 1.0, says)
        stream = BrokerFetchStream(link, clock, Watch(), 1.0)  # type: ignore[arg-type]
        await stream.fetch(pb.FetchRequest(), TIMEOUT_S)
        if together:
            return await asyncio.gather(
                *(stream.fetch(pb.FetchRequest(), TIMEOUT_S) for _ in range(4)), return_exceptions=True
            )
        return [await stream.fetch(pb.FetchRequest(), TIMEOUT_S) for _ in range(4)]

    return run_virtually(main)


@pytest.mark.parametrize("together", [False, True])
def test_what_is_told_is_waited_for(together: bool) -> None:
    got = fetches(together, says=True)
    assert [type(each) for each in got] == [Fetched] * 4


def test_an_unannounced_silence_counts_as_silence() -> None:
    assert {type(each) for each in fetches(together=True, says=False)} == {BrokerUnreachable}
