"""Two brokers whose packets are lost for a while, by the system's own TCP: in a network namespace of the test's own."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import subprocess
import sys

import pytest

from tests.fakes.networks import TcpNetwork, connected, started
from tinymq.raft.net.transport import UNACKNOWLEDGED_S, Channel

WITHIN_S = 60.0
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def switch_loopback(on: bool) -> None:
    """Let the loopback interface of this namespace carry packets, or lose them all. Connections stay."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        flags = flags | IFF_UP if on else flags & ~IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))


async def outage() -> None:
    """A connection without acknowledgments ends while the packets are lost, so that a new one is made at once after."""
    switch_loopback(True)
    network = TcpNetwork()
    a, b = await started(network, 1, 2)
    await connected(a, b)
    switch_loopback(False)
    assert a.send(2, 1), "the system takes it, and sends it in vain"
    await a.events.until(lambda: [(peer, channel) for peer, channel, _ in a.events.disconnected])
    assert b.events.sequences == []
    switch_loopback(True)
    await a.events.until(lambda: a.transport.connected(2, Channel.CONTROL))
    assert a.send(2, 2)
    await b.events.until(lambda: b.events.sequences == [2])
    await network.stop()


@pytest.mark.long
def test_a_connection_ends_within_seconds_when_its_packets_are_lost() -> None:
    """Otherwise TCP waits twice as long before each attempt: after 60 s without packets, for another minute."""
    assert UNACKNOWLEDGED_S < 5.0
    command = ["unshare", "--net", "--map-root-user", sys.executable, "-m", __name__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, f"needs user and network namespaces, as root has them:\n{done.stdout}{done.stderr}"


if __name__ == "__main__":
    asyncio.run(outage())
