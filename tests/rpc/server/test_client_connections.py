"""The gRPC port of a real broker bounds its connections, those of one host, and the time of a silent one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.client.running import run
from tests.fakes.raw_client import Raw, until
from tinymq.base.config import Limits
from tinymq.net.connection_limits import ConnectionRefusal
from tinymq.rpc.server import server
from tinymq.rpc.server.client_connections import ClientConnections, Seen, surplus
from tinymq.rpc.server.server import RpcServer
from tinymq.testing.cluster import Cluster

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
CONNECTIONS_MAX = 64  # on all ports: 28 of clients, 14 of one host
HOSTS = ("127.0.0.1", "127.0.0.2")


def test_of_each_host_the_newest_are_too_many() -> None:
    hosts = ["a", "b", "a", None, "a", "b", "c", "a"]
    seen = {fd: Seen(100 + fd, host) for fd, host in enumerate(hosts)}
    assert [fd for fd, _ in surplus(seen, 2)] == [4, 7]
    assert surplus(seen, 4) == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, limits=Limits(connections_max=CONNECTIONS_MAX)) as running:
        yield running


def rpc_of(cluster: Cluster) -> RpcServer:
    ports = cluster.brokers[1]._ports
    assert ports is not None
    assert isinstance(ports.server, RpcServer)
    return ports.server


def connections_of(cluster: Cluster) -> ClientConnections:
    return rpc_of(cluster)._connections


class Dialled:
    """Connections that send the HTTP/2 preface and make no call."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []

    async def dial(self, count: int, host: str) -> None:
        for _ in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            sock.bind((host, 0))
            await asyncio.get_running_loop().sock_connect(sock, (HOSTS[0], self._port))
            await asyncio.get_running_loop().sock_sendall(sock, PREFACE)
            self.sockets.append(sock)

    def open_of(self, host: str) -> int:
        return sum(sock.getsockname()[0] == host for sock in self.sockets if not ended(sock))

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def ended(sock: socket.socket) -> bool:
    """Read and drop the bytes so far."""
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_one_host_cannot_keep_the_others_out(cluster: Cluster) -> None:
    port, connections = cluster.brokers[1].address.rpartition(":")[2], connections_of(cluster)
    places = connections.places
    share = places.host_connections_max
    assert (places.connections_max, share) == (28, 14)

    async def main() -> None:
        with contextlib.closing(Dialled(int(port))) as dialled:
            await dialled.dial(60, HOSTS[0])
            await until(lambda: dialled.open_of(HOSTS[0]) <= share)
            await until(
                lambda: places.refused[ConnectionRefusal.HOST] >= share
            )  # counted after the connections have ended
            assert places.open <= share
            while dialled.open_of(HOSTS[1]) < 5:  # connections that gRPC has not closed yet count for a moment
                await dialled.dial(1, HOSTS[1])
                await asyncio.sleep(0.01)
            await until(lambda: places.open == sum(map(dialled.open_of, HOSTS)))
        await until(lambda: places.open == 0)
        async with Raw(cluster.address(1)) as raw:
            assert await raw.topic("nothing") is not None

    run(main())


@pytest.mark.parametrize(("setting", "said"), [("HANDSHAKE_S", b""), ("IDLE_S", PREFACE)])
def test_a_connection_without_a_handshake_or_a_call_ends(
    setting: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, setting, 0.1)

    async def main() -> None:
        with socket.create_connection((HOSTS[0], int(cluster.address(1).rpartition(":")[2]))) as sock:
            sock.sendall(said)
            sock.setblocking(False)
            await until(lambda: ended(sock))

    with Cluster(nodes=1) as cluster:
        run(main())
