"""The network between brokers and to their clients: which directions are cut or ill, and why. A protocol.

Places are brokers, 1..N, and CLIENTS, who are one. What flows from a to b is the direction (a, b).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tinymq_chaos.real.net.probe_connections import ProbeConnection

CLIENTS = 0  # as a place in the network, beside broker ids 1..N

Direction = tuple[int, int]  # (from, to)

TOXICS: dict[str, tuple[str, ...]] = {
    "latency": ("latency", "jitter"),  # ms
    "bandwidth": ("rate",),  # KB/s
    "slow_close": ("delay",),  # ms
    "timeout": ("timeout",),  # ms until the connection is closed; 0: never. Nothing gets through meanwhile
    "reset_peer": ("timeout",),  # ms from the first byte to the reset
    "slicer": ("average_size", "size_variation", "delay"),  # bytes, bytes, µs between two slices
    "limit_data": ("bytes",),  # then the connection is closed
}
"""Toxiproxy's kinds of trouble and their attributes, whole numbers all."""


class Network(Protocol):
    """May be called from any thread; blocks until it is in force.

    Every trouble has a reason, `why`. Several may lie on one direction: mending one leaves the others.
    """

    @property
    def begun_anew(self) -> int:
        """How often a part of it hung and was replaced, which closed the connections through it."""
        ...

    def cut(self, why: str, directions: Iterable[Direction]) -> None:
        """What a sends to b is lost without a word, on connections that are there and on new ones, until mended.

        What flows from b to a goes on, on connections that are there. New ones need both directions, as on any network:
        whoever is begun anew while a direction is cut gets none through. When it is mended, the connections that it
        was cut for are closed: what they carried has a gap.
        """
        ...

    def toxic(
        self, why: str, directions: Iterable[Direction], kind: str, toxicity: float = 1.0, **attributes: float
    ) -> None:
        """One of Toxiproxy's (`TOXICS`) with its own attributes, on what flows from a to b; see Toxiproxy's README.

        `toxicity`: the share of connections that it is for, 0 to 1.
        """
        ...

    def mend(self, why: str) -> None:
        """What was done for this reason is over; nothing, if there is none."""
        ...

    def mend_all(self) -> None:
        """All is well."""
        ...

    def line(self, direction: Direction) -> ProbeConnection:
        """A connection of the harness's own that goes the same way, to see what a trouble does. Raises OSError."""
        ...
