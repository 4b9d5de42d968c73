"""Socket options of a connection: between machines, the kernel chooses the congestion control."""

from __future__ import annotations

import socket
from typing import Any

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


def test_closed_sockets_and_other_descriptors_are_left_alone() -> None:
    prepare(None)
    for end in socket.socketpair():
        with end:
            prepare(end)
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    with socket.socket() as never_connected:
        prepare(never_connected)
