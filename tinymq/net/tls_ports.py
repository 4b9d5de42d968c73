"""TLS on a port that accepts connections, and the first byte by which one port takes TLS and plain connections.

A plain connection begins with a frame's length, whose low byte may well be TLS's first byte. But the three bytes with
which TLS begins would be a hello of 66,326 or 197,398 bytes, and no hello is so long.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from tinymq.net.tls_files import HANDSHAKE_S

HANDSHAKES_MAX = 64  # of one port at one time; one more, and the oldest ends: each takes some 300 KiB
TLS_BEGINS = (b"\x16\x03\x01", b"\x16\x03\x03")  # a handshake record, of the versions that clients put there
TLS_BEGINS_BYTES = 3


@dataclass(frozen=True, slots=True)
class PortTls:
    """How one port speaks TLS."""

    context: Callable[[], ssl.SSLContext]  # asked for each connection, because files change
    plain: bool = False  # takes connections without TLS, too
    handshake_s: float = HANDSHAKE_S
    age_s_max: float = math.inf  # of a connection with TLS: then its two ends make another one


def is_tls(first: bytes) -> bool:
    """Does a connection that begins with these bytes speak TLS?"""
    return first[:TLS_BEGINS_BYTES] in TLS_BEGINS


def may_be_tls(first: bytes) -> bool:
    """May a connection speak TLS of which these are the first one or two bytes?"""
    return any(begin.startswith(first) for begin in TLS_BEGINS)


async def speaks_tls(sock: socket.socket) -> bool:
    """Wait for the first bytes of an accepted connection, and say whether they are TLS's. They stay unread. Raises
    OSError at the connection's end."""
    loop = asyncio.get_running_loop()
    # The system wakes us once all three are there, or at the end. So a stranger who sends fewer costs nothing.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, TLS_BEGINS_BYTES)
    readable = loop.create_future()
    loop.add_reader(sock, _wake, readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock)
    first = sock.recv(TLS_BEGINS_BYTES, socket.MSG_PEEK)
    if len(first) < TLS_BEGINS_BYTES:
        raise ConnectionResetError("the connection ended before its first bytes")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return is_tls(first)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
