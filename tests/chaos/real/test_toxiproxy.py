"""The proxies' servers hang, die and are missing; they return with their toxics."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.real.places import Net
from tinymq.base.config import parse_address
from tinymq.net.loopback_ports import is_free
from tinymq_chaos.real.net import toxiproxy
from tinymq_chaos.real.net.toxiproxy import Proxies, Proxy
from tinymq_chaos.real.processes import setup
from tinymq_chaos.real.processes.children import end

PIECE = bytes(1 << 16)
STUCK_S = 0.3


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    net = Net(tmp_path / "net", (1, 2))
    yield net
    net.close()


def only(net: Net) -> Proxy:
    (proxy,) = net.proxies._proxies.values()
    return proxy


def fill(sending: socket.socket) -> None:
    """Send to an end that does not read, until nothing more is taken."""
    sending.settimeout(STUCK_S)
    with contextlib.suppress(TimeoutError):
        while True:
            sending.sendall(PIECE)


def test_only_a_hung_proxy_restarts_and_keeps_its_toxics(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toxiproxy, "PATIENCE_S", 0.3)
    where = net.proxies.address(1, 2)
    fill(net.line(1, 2).dialled)
    net.proxies.toxic("slow", [(1, 2)], "latency", latency=1)
    assert net.proxies.restarts == 1, "the proxy hangs, because its client does not read"
    assert net.proxies.address(1, 2) == where
    fill(net.line(1, 2).dialled)
    net.proxies.cut("cut", [(1, 2)])
    assert net.proxies.restarts == 2
    line = net.line(1, 2)
    assert line.is_read_by_the_proxy(b"into nowhere")
    assert line.passes(back=True)
    net.proxies.mend("slow")
    net.proxies.mend("cut")
    assert line.arrives(1, line.accepted) == b"", "it was cut from its first byte on"
    assert net.line(1, 2).passes()


def test_a_dead_server_is_reported_and_restarts_on_demand(net: Net) -> None:
    assert net.proxies.unhealthy() == ""
    child = only(net)._child
    assert child is not None
    end(child)
    assert net.proxies.unhealthy() == "the proxies from 1 to 2 are gone"
    net.proxies.cut("why", [(1, 2)])
    assert net.proxies.unhealthy() == ""
    net.proxies.mend("why")
    assert net.line(1, 2).passes()


def test_a_refused_request_is_not_repeated(net: Net) -> None:
    bad = toxiproxy.Toxic("why", "no such kind", toxiproxy.UPSTREAM, 1.0, ())
    with pytest.raises(ValueError, match="refuses"):
        only(net).add(bad)
    end(*filter(None, [only(net)._child]))
    only(net).begin()
    assert net.line(1, 2).passes()


def test_the_error_of_a_server_that_does_not_come_up_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "toxiproxy", lambda: Path("/bin/false"))
    with pytest.raises(RuntimeError, match=r"1-2 does not come up: see .*proxy-1-2\.log"):
        Proxies(tmp_path, {(1, 2): "127.0.0.1:1"})


def test_a_server_that_is_missing_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "TOXIPROXY", "no-such-program")
    with pytest.raises(RuntimeError, match=r"run make test, or: .*tinymq_chaos\.real\.processes\.setup"):
        Proxies(tmp_path, {(1, 2): "127.0.0.1:1"})


def test_a_fault_of_a_direction_is_on_all_its_doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toxiproxy, "PATIENCE_S", 0.3)
    net = Net(tmp_path / "net", (1, 2), doors=2)
    try:
        assert net.proxies.address(1, 2, 0) != net.proxies.address(1, 2, 1)
        for restarted in (False, True):
            if restarted:  # during the request to the second of them
                fill(net.line(1, 2, 1).dialled)
            net.proxies.cut("why", [(1, 2)])
            assert bool(net.proxies.restarts) == restarted
            lines = [net.line(1, 2, which) for which in (0, 1)]
            for line in lines:
                assert line.is_read_by_the_proxy(b"into nowhere")
                assert line.passes(back=True)
            net.proxies.mend("why")
            assert [line.arrives(1, line.accepted) for line in lines] == [b"", b""]
            assert all(net.line(1, 2, which).passes() for which in (0, 1))
    finally:
        net.close()


def test_two_networks_of_one_process_have_nothing_in_common(net: Net, tmp_path: Path) -> None:
    other = Net(tmp_path / "other", (1, 2))
    try:
        net.proxies.cut("why", [(1, 2)])
        assert other.line(1, 2).passes()
        other.proxies.mend_all()
        line = net.line(1, 2)
        assert line.is_read_by_the_proxy(b"into nowhere")
        net.proxies.mend_all()
        assert line.arrives(1, line.accepted) == b""
    finally:
        other.close()


def test_close_leaves_nothing_behind_and_may_repeat(tmp_path: Path) -> None:
    net = Net(tmp_path, (1, 2), (2, 1))
    where = [parse_address(net.proxies.address(1, 2))[1], parse_address(net.proxies.address(2, 1))[1]]
    children = [proxy._child for proxy in net.proxies._proxies.values()]
    assert not any(map(is_free, where))
    net.close()
    net.proxies.close()
    for proxy in net.proxies._proxies.values():  # a fault that ends late
        proxy.add(toxiproxy.Toxic("why", "latency", toxiproxy.UPSTREAM, 1.0, ()))
        proxy.mend("why")
        children.append(proxy._child)
    assert not any(child.alive for child in children if child is not None)
    assert all(map(is_free, where))
