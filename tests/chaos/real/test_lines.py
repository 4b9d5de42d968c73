"""A connection through a proxy, observed from both of its ends."""

from __future__ import annotations

import fcntl
import socket

import pytest

from tinymq_chaos.real.net.probe_connections import ProbeConnection

HIGH = 1_100  # beyond the descriptors that select accepts


def high(end: socket.socket) -> socket.socket:
    """Return the same end, as a process with many open files has it."""
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD, HIGH))


@pytest.mark.parametrize("many_files", [False, True])
def test_a_probe_observes_arriving_bytes_and_the_end(many_files: bool) -> None:
    sending, receiving = map(high, socket.socketpair()) if many_files else socket.socketpair()
    with receiving:
        assert max(sending.fileno(), receiving.fileno()) >= HIGH or not many_files
        line = ProbeConnection(sending, receiving)
        seen = line.send(300_000, within_s=10.0)
        assert (seen.arrived, seen.ended) == (300_000, False)
        assert line.hang_up(within_s=10.0).ended


def test_nothing_arrives_at_an_end_that_is_gone() -> None:
    sending, receiving = socket.socketpair()
    receiving.close()
    other, end = socket.socketpair()
    with other, end:
        seen = ProbeConnection(sending, end).send(1_000, within_s=10.0)
        assert (seen.arrived, seen.ended) == (0, True)
