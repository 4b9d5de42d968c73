"""The hosts behind connections that this process relays to its own gRPC server, by the relay's port on loopback.

gRPC sees the relay as the other end of such a connection. A port of loopback belongs to one connection at a time, also
where several brokers share a process, because the relay binds it.
"""

from __future__ import annotations

LOOPBACK = "127.0.0.1"

_hosts: dict[int, str] = {}


def note(port: int, host: str) -> None:
    """Note that the connection from this port of loopback is a host's."""
    _hosts[port] = host


def forget(port: int) -> None:
    """Forget a connection that has ended."""
    _hosts.pop(port, None)


def real_host(host: str, port: str) -> str:
    """Return the host of a connection that gRPC sees as one from `host` and `port`."""
    if host != LOOPBACK or not port.isdigit():
        return host
    return _hosts.get(int(port), host)
