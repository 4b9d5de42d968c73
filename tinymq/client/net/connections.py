"""The connections of one client: per broker address one link and at most two streams, which everything shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from tinymq.base.clock import Clock
from tinymq.base.errors import Closed
from tinymq.client.net.broker_streams import BrokerObserver, BrokerProduceStream
from tinymq.client.net.fetch_streams import BrokerFetchStream
from tinymq.client.net.ports import Connector, Link

LOG = logging.getLogger("tinymq.client")

TIMEOUT_FACTOR_MAX = 4  # the time for an answer grows by attempt_s with each silence in a row, up to this many


def suspicious_s(attempt_s: float) -> float:
    """Return after how many seconds of silence other brokers are asked whether they lead."""
    return min(1.0, attempt_s / 2)


class Connections:
    """Links and streams by address. They connect when they are used. `changed` is called for each produce stream."""

    def __init__(
        self,
        connector: Connector,
        clock: Clock,
        observer: BrokerObserver,
        attempt_s: float,
        changed: Iterable[Callable[[], None]],
    ) -> None:
        self._connector = connector
        self._clock = clock
        self._observer = observer
        self._attempt_s = attempt_s
        self._changed = changed
        self._closed = False
        self._links: dict[str, Link] = {}
        self._produce: dict[str, BrokerProduceStream] = {}
        self._fetch: dict[str, BrokerFetchStream] = {}
        self._silences: dict[str, int] = {}  # by address: reconnections in a row without an answer

    def link(self, address: str) -> Link:
        """Return the link to an address. Raises Closed."""
        link = self._links.get(address)
        if link is None:
            if self._closed:
                raise Closed("the client is closed")
            link = self._links[address] = self._connector.link(address)
        return link

    def produce(self, address: str) -> BrokerProduceStream:
        stream = self._produce.get(address)
        if stream is None:
            stream = BrokerProduceStream(
                self.link(address), self._clock, self._observer, self._attempt_s, self._changed
            )
            self._produce[address] = stream
        return stream

    def fetch(self, address: str) -> BrokerFetchStream:
        stream = self._fetch.get(address)
        if stream is None:
            stream = self._fetch[address] = BrokerFetchStream(
                self.link(address), self._clock, self._observer, self._attempt_s
            )
        return stream

    async def written(self) -> None:
        """Wait until all submitted batches have left this process, or until their streams are broken."""
        for stream in list(self._produce.values()):
            await stream.written()

    def heard(self, address: str) -> None:
        """Note that a broker has answered."""
        self._silences.pop(address, None)

    def look_for_silence(self) -> Iterator[tuple[str, float]]:
        """Yield (address, seconds) of each broker that has been silent for suspiciously long while batches wait.

        The connection to a broker that has been silent for too long is broken, so that its batches are sent again.
        """
        now_s = self._clock.monotonic()
        for address, stream in list(self._produce.items()):
            silent_s = stream.silent_for(now_s)
            silences = self._silences.get(address, 0)
            if silent_s > self._attempt_s * min(TIMEOUT_FACTOR_MAX, 1 + silences):
                self._silences[address] = silences + 1
                LOG.info("broker at %s has been silent for %.1f s: reconnecting", address, silent_s)
                stream.reset()
            elif silent_s > suspicious_s(self._attempt_s):
                yield address, silent_s

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(p.close() for p in self._produce.values()), *(f.close() for f in self._fetch.values()))
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()
