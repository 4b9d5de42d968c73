"""Ports of clusters on one machine: free, all different, and reserved for one cluster at a time."""

from __future__ import annotations

import socket

import pytest

from tinymq.base.errors import PortInUse
from tinymq.net import loopback_ports
from tinymq.net.loopback_ports import HOST, PortReservation, free_ports


def test_free_ports_are_free_and_all_different() -> None:
    ports = free_ports(10)
    assert len(set(ports)) == 10
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as brokers do: former connections may linger
            probe.bind((HOST, port))


def test_a_port_on_which_a_process_listens_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(loopback_ports, "PORTS", range(port, port + 1))
        with pytest.raises(PortInUse, match="fewer than 1 free ports"):
            free_ports(1)


def test_no_other_cluster_takes_a_reserved_port(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = PortReservation(), PortReservation()
    try:
        taken = first.take(40)
        assert len(set(taken)) == 40
        monkeypatch.setattr(loopback_ports, "PORTS", range(taken[0], taken[0] + 1))
        with pytest.raises(PortInUse):  # though no process listens there
            second.take(1)
        with pytest.raises(PortInUse):
            free_ports(1)
        first.release()
        assert second.take(1) == taken[:1]
    finally:
        first.release()
        second.release()
