"""Counts the connections of a port against its bounds, for all hosts and for one, and those that it refused. No I/O.

One host gets at most its share of a port, so that it cannot keep all others out. An IPv6 host counts as its /64
network, because a single machine usually has the whole network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from ipaddress import IPv6Address, ip_address


class ConnectionRefusal(Enum):
    """Why a connection is not taken."""

    FULL = "full"  # the port has as many connections as it may
    HOST = "host"  # the host has as many connections as one host may
    DESCRIPTORS = "descriptors"  # the process, or the system, has no file descriptor left
    PLAIN = "plain"  # it does not speak TLS, which the port requires
    TLS = "tls"  # TLS's handshake failed


class Place:
    """One connection's place, from its acceptance until `leave`."""

    __slots__ = ("_places", "host")

    def __init__(self, places: Places, host: str) -> None:
        self.host = host
        self._places: Places | None = places

    def leave(self) -> None:
        """Free the place, because the connection has ended. A second call does nothing."""
        places, self._places = self._places, None
        if places is not None:
            places.vacate(self.host)


class Places:
    """The places of one port."""

    def __init__(self, port: str, connections_max: int, host_connections_max: int | None = None) -> None:
        """`port` is its name in logs and metrics. Without `host_connections_max` one host may take all places."""
        assert connections_max >= 1
        self.port = port
        self.connections_max = connections_max
        self.host_connections_max = connections_max if host_connections_max is None else host_connections_max
        self.refused: Counter[ConnectionRefusal] = Counter()
        self._by_host: Counter[str] = Counter()
        self._open = 0

    @property
    def open(self) -> int:
        """Connections that have a place now."""
        return self._open

    def take(self, address: str) -> Place | ConnectionRefusal:
        """Return a place for a connection from an IP address, or the reason for refusing it. A refusal is counted."""
        host = host_of(address)
        if self._by_host[host] >= self.host_connections_max:
            return self.refuse(ConnectionRefusal.HOST)
        if self._open >= self.connections_max:
            return self.refuse(ConnectionRefusal.FULL)
        self._by_host[host] += 1
        self._open += 1
        return Place(self, host)

    def refuse(self, reason: ConnectionRefusal, count: int = 1) -> ConnectionRefusal:
        """Count connections that were refused elsewhere."""
        self.refused[reason] += count
        return reason

    def recount(self, hosts: Iterable[str]) -> None:
        """Replace the count of open connections by these hosts, one for each connection. For a port whose connections
        are accepted elsewhere."""
        self._by_host = Counter(hosts)
        self._open = self._by_host.total()

    def vacate(self, host: str) -> None:
        """See Place.leave."""
        self._open -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


def host_of(address: str) -> str:
    """Return the host that an IP address stands for. Any other text stands for itself."""
    try:
        host_address = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(host_address, IPv6Address):
        return str(host_address)
    if host_address.ipv4_mapped is not None:
        return str(host_address.ipv4_mapped)
    return str(IPv6Address(int(host_address) >> 64 << 64)) + "/64"
