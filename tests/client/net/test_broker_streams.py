"""A produce stream joins small batches into one message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

from tests.fakes.raw_client import until
from tinymq.base.clock import SystemClock
from tinymq.base.errors import TinymqError
from tinymq.client.net.broker_streams import BrokerProduceStream, StreamState
from tinymq.client.net.ports import PackedBatch
from tinymq.proto.bounds import BATCHES_MAX


class Written:
    """A broker that accepts everything and never answers. It is also its own link and observer."""

    address = "h:1"

    def __init__(self) -> None:
        self.messages: list[Sequence[PackedBatch]] = []

    async def open_produce(self, timeout_s: float) -> Any:
        return self

    async def write(self, batches: Sequence[PackedBatch]) -> None:
        self.messages.append(batches)

    async def read(self) -> Any:
        return await asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        pass

    def opened(self, address: str) -> None:
        pass

    def answered(self, address: str, latency_s: float) -> None:
        pass

    def broke(self, address: str, error: TinymqError) -> None:
        pass


def test_small_batches_travel_together_as_many_as_a_request_may_have() -> None:
    async def main() -> None:
        broker: Any = Written()
        stream = BrokerProduceStream(broker, SystemClock(), broker, 1.0, [])
        stream.open()
        await until(lambda: stream.state is StreamState.OPEN)
        batches = [PackedBatch(b"%d" % number, b"", b"") for number in range(2 * BATCHES_MAX + 1)]  # type: ignore[arg-type]
        for number, batch in enumerate(batches):
            stream.submit(number, batch, 1, None)
        await until(lambda: sum(map(len, broker.messages)) == len(batches))
        assert [len(message) for message in broker.messages] == [BATCHES_MAX, BATCHES_MAX, 1]
        assert list(chain.from_iterable(broker.messages)) == batches
        await stream.close()

    asyncio.run(main())
