"""Socket options of a connection: between machines, the kernel chooses the congestion control."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tinymq.net.socket_options import prepare


class Between:
    """A socket that claims to connect two machines."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.told: set[int] = set()

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.1", 1000

    def getpeername(self) -> tuple[str, int]:
        return "10.0.0.2", 7070

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        self.told.add(option)


def test_between_machines_the_kernel_chooses_the_congestion_control() -> None:
    sock = Between()
    prepare(sock)  # type: ignore[arg-type]
    assert socket.SO_KEEPALIVE in sock.told
    assert socket.TCP_CONGESTION not in sock.told


@pytest.mark.parametrize(("asked_s", "milliseconds"), [(None, 0), (3.0, 3000)])
def test_a_connection_ends_without_acknowledgments_only_if_that_is_asked_for(
    asked_s: float | None, milliseconds: int
) -> None:
    """0: the system's own patience, for ends that may take nothing for a while, as clients do."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        prepare(sock, asked_s)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds


def test_closed_sockets_and_other_descriptors_are_left_alone() -> None:
    prepare(None)
    for end in socket.socketpair():
        with end:
            prepare(end)
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    with socket.socket() as never_connected:
        prepare(never_connected)
