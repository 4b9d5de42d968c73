"""The hosts behind connections that this process relays to its own gRPC server, by the relay's port on loopback.

gRPC sees the relay as the other end of such a connection. A port of loopback belongs to one connection at a time, also
where several brokers share a process, because the relay binds it.
"""

from __future__ import annotations

from collections import OrderedDict

LOOPBACK = "127.0.0.1"
ENDED_MAX = 4096  # connections that are remembered after their end: gRPC may begin their last calls only then

_hosts: dict[int, str] = {}
_ended: OrderedDict[int, None] = OrderedDict()  # ports of `_hosts` whose connections have ended, the oldest first


def note(port: int, host: str) -> None:
    """Note that the connection from this port of loopback is a host's."""
    _ended.pop(port, None)
    _hosts[port] = host


def end(port: int) -> None:
    """Note that a connection has ended. Its calls that gRPC begins afterwards must not seem to come from loopback,
    whose callers are trusted with more."""
    _ended[port] = None
    _ended.move_to_end(port)
    if len(_ended) > ENDED_MAX:
        oldest, _ = _ended.popitem(last=False)
        _hosts.pop(oldest, None)


def real_host(host: str, port: str) -> str:
    """Return the host of a connection that gRPC sees as one from `host` and `port`."""
    if host != LOOPBACK or not port.isdigit():
        return host
    return _hosts.get(int(port), host)
