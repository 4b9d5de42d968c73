"""TCP links between the brokers of a test's cluster, which can be cut and slowed.

Each broker reaches each other one through a relay of its own, on the brokers' loop. A cut holds the bytes of both
directions, as a network does that drops packets: nobody is told, and TCP delivers what is held once the cut is healed.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from tinymq.net.loopback_ports import HOST

CHUNK_BYTES = 1 << 16


@dataclass
class RelayedLink:
    """The way from one broker to another: its relay, and how it treats bytes."""

    port: int  # where the dialling broker finds the relay
    target_port: int
    open: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    server: asyncio.Server | None = None
    pumps: set[asyncio.Task[None]] = field(default_factory=set)


class Links:
    """All links of a cluster, by (from, to). Every method is called on the brokers' loop."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], RelayedLink] = {}

    async def add(self, source: int, target: int, port: int, target_port: int) -> None:
        """Open the relay by which `source` reaches `target`."""
        link = self._links[source, target] = RelayedLink(port, target_port)
        link.open.set()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there = await asyncio.open_connection(HOST, link.target_port)
            except OSError:
                writer.close()  # the target is down: the dialling broker sees a refused connection
                return
            for one, other in ((reader, there[1]), (there[0], writer)):
                pump = asyncio.create_task(_pump(link, one, other))
                link.pumps.add(pump)
                pump.add_done_callback(link.pumps.discard)

        link.server = await asyncio.start_server(relay, HOST, port)

    def port(self, source: int, target: int) -> int | None:
        """Return the port at which `source` reaches `target` by a relay; None if it has none."""
        link = self._links.get((source, target))
        return link.port if link is not None else None

    def cut(self, one: set[int], other: set[int]) -> None:
        """Hold everything between the two sets of brokers."""
        for (source, target), link in self._links.items():
            if (source in one and target in other) or (source in other and target in one):
                link.open.clear()

    def slow(self, broker: int, delay_s: float) -> None:
        """Let everything from and to `broker` take `delay_s` more."""
        for ends, link in self._links.items():
            if broker in ends:
                link.delay_s = delay_s

    def heal(self) -> None:
        """End all cuts and delays."""
        for link in self._links.values():
            link.delay_s = 0.0
            link.open.set()

    async def close(self) -> None:
        """Close all relays."""
        for link in self._links.values():
            if link.server is not None:
                link.server.close()
            for pump in list(link.pumps):
                pump.cancel()
            await asyncio.gather(*link.pumps, return_exceptions=True)
        self._links.clear()


async def _pump(link: RelayedLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until either end closes."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            if link.delay_s:
                await asyncio.sleep(link.delay_s)
            await link.open.wait()
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one end is gone, and the other learns it from the close below
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            writer.close()
