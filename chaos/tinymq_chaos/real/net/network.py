"""The network between brokers and to their clients, with its faults by direction. A protocol.

Places are brokers, 1..N, and CLIENTS, which are one place. Bytes from a to b flow in the direction (a, b).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tinymq_chaos.real.net.probe_connections import ProbeConnection

CLIENTS = 0  # a place in the network, beside broker ids 1..N

Direction = tuple[int, int]  # (from, to)

TOXICS: dict[str, tuple[str, ...]] = {
    "latency": ("latency", "jitter"),  # ms
    "bandwidth": ("rate",),  # KB/s
    "slow_close": ("delay",),  # ms
    "timeout": ("timeout",),  # ms until the connection is closed; 0: never. Nothing passes meanwhile
    "reset_peer": ("timeout",),  # ms from the first byte to the reset
    "slicer": ("average_size", "size_variation", "delay"),  # bytes, bytes, µs between two slices
    "limit_data": ("bytes",),  # then the connection is closed
}
"""Toxiproxy's toxics and their attributes, all of them whole numbers."""


class Network(Protocol):
    """Any thread may call. Each call blocks until it is in effect.

    Every fault has a name, `why`. A direction may have several faults: ending one leaves the others.
    """

    @property
    def restarts(self) -> int:
        """Return how often a part of the network hung and was replaced, which closed its connections."""
        ...

    def cut(self, why: str, directions: Iterable[Direction]) -> None:
        """Lose everything that a sends to b, on present and new connections, until `mend`.

        The other direction continues on present connections. New ones need both directions, as on any network, so no
        new connection passes a cut. `mend` closes the connections of the cut, because their streams have gaps.
        """
        ...

    def toxic(
        self, why: str, directions: Iterable[Direction], kind: str, toxicity: float = 1.0, **attributes: float
    ) -> None:
        """Put one of Toxiproxy's toxics (`TOXICS`) with its attributes on what flows from a to b; see Toxiproxy's
        README.

        `toxicity` is the share of the connections with it, 0 to 1.
        """
        ...

    def mend(self, why: str) -> None:
        """End the fault with this name, if there is one."""
        ...

    def mend_all(self) -> None:
        """End all faults."""
        ...

    def line(self, direction: Direction) -> ProbeConnection:
        """Open a connection of the harness in the same direction, to observe a fault. Raises OSError."""
        ...
