"""The effects of a cut and of each of Toxiproxy's toxics on one direction, on present connections and on new ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.real.places import Line, Net
from tinymq_chaos.real.net.network import CLIENTS, TOXICS, Direction
from tinymq_chaos.real.net.toxiproxy import check

DIRECTIONS = [(1, 2), (2, 1), (CLIENTS, 1)]
SLOW_MS = 150


@pytest.fixture(scope="module")
def all_of_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    net = Net(tmp_path_factory.mktemp("net"), *DIRECTIONS)
    yield net
    restarts = net.proxies.restarts
    net.close()
    assert restarts == 0, "no test here makes a proxy hang"


@pytest.fixture
def net(all_of_it: Net) -> Iterator[Net]:
    yield all_of_it
    all_of_it.hang_up()
    all_of_it.proxies.mend_all()


def on_the_server(net: Net, direction: Direction) -> list[dict[str, Any]]:
    """Return the toxics of a proxy's first door, as its server reports them."""
    proxy = net.proxies._proxies[direction]
    told = proxy._api.get(f"/proxies/{proxy.name}.0/toxics", timeout=10.0)
    told.raise_for_status()
    return list(told.json())


def lines(net: Net, direction: Direction) -> list[tuple[Line, bool]]:
    """Return what carries from a to b: a connection that a opens, and one that b opens, on which a sends back."""
    a, b = direction
    return [(net.line(*each), each != direction) for each in ((a, b), (b, a)) if each in DIRECTIONS]


@pytest.mark.parametrize("direction", [(1, 2), (2, 1), (CLIENTS, 1), (1, CLIENTS)])
def test_a_cut_stops_one_direction_of_every_present_connection(net: Net, direction: Direction) -> None:
    there = lines(net, direction)
    assert all(line.passes(back=back) for line, back in there)
    net.proxies.cut("why", [direction])
    for line, back in there:
        assert line.is_read_by_the_proxy(b"into nowhere", back=back)
        assert line.passes(back=not back), "the other direction of the same line"
    net.proxies.mend("why")
    for line, back in there:
        assert line.arrives(1, line.dialled if back else line.accepted) == b"", "it ends, and nothing came before"


@pytest.mark.parametrize("direction", [(1, 2), (2, 1), (CLIENTS, 1), (1, CLIENTS)])
def test_a_cut_stops_new_connections_until_it_is_mended(net: Net, direction: Direction) -> None:
    net.proxies.cut("why", [direction])
    new = lines(net, direction)
    for line, back in new:
        assert line.is_read_by_the_proxy(b"into nowhere", back=back)
        assert line.passes(back=not back)
    net.proxies.mend("why")
    for line, back in new:
        assert line.arrives(1, line.dialled if back else line.accepted) == b""
    assert all(line.passes(back=back) for line, back in lines(net, direction))


def test_other_places_and_the_other_direction_do_not_notice(net: Net) -> None:
    others = [net.line(CLIENTS, 1), net.line(2, 1)]
    net.proxies.cut("why", [(1, 2)])
    assert all(line.passes() for line in others)
    net.proxies.mend("why")
    assert others[0].passes()


def test_a_direction_with_two_cuts_works_when_both_are_mended(net: Net) -> None:
    net.proxies.cut("one", [(1, 2), (1, 2)])
    net.proxies.cut("other", [(1, 2)])
    net.proxies.mend("one")
    line = net.line(1, 2)
    assert line.is_read_by_the_proxy(b"into nowhere")
    assert line.passes(back=True)
    net.proxies.mend("no such reason")
    net.proxies.mend("other")
    assert line.arrives(1, line.accepted) == b""
    assert net.line(1, 2).passes()


def test_mend_all_ends_every_fault(net: Net) -> None:
    net.proxies.cut("one", [(1, 2), (CLIENTS, 1)])
    net.proxies.toxic("two", [(2, 1)], "latency", latency=60_000)
    net.proxies.mend_all()
    assert all(net.line(*direction).passes() for direction in DIRECTIONS)
    assert net.line(1, 2).passes(back=True)


def took_s(line: Line, data: bytes = b"x") -> float:
    began = time.monotonic()
    assert line.passes(data)
    return time.monotonic() - began


def test_latency_is_added_to_present_and_new_connections(net: Net) -> None:
    there = net.line(1, 2)
    assert there.passes()
    net.proxies.toxic("why", [(1, 2)], "latency", latency=SLOW_MS, jitter=10)
    least_s = (SLOW_MS - 10) / 1000
    assert took_s(there) >= least_s
    new = net.line(1, 2)
    assert took_s(new) >= least_s
    net.proxies.mend("why")
    assert there.passes(), "it is whole, and was not closed"
    assert new.passes()


def test_bandwidth_is_bounded(net: Net) -> None:
    line = net.line(1, 2)
    net.proxies.toxic("why", [(1, 2)], "bandwidth", rate=200)
    assert took_s(line, bytes(60_000)) >= 0.2


def test_slices_are_small_and_lose_no_byte(net: Net) -> None:
    line = net.line(1, 2)
    net.proxies.toxic("why", [(1, 2)], "slicer", average_size=50, size_variation=10, delay=500)
    data = bytes(range(256)) * 4
    line.dialled.sendall(data)
    first = line.accepted.recv(len(data))
    assert len(first) < len(data)
    assert first + line.arrives(len(data) - len(first), line.accepted) == data


def test_a_connection_is_closed_after_so_many_bytes(net: Net) -> None:
    line = net.line(1, 2)
    net.proxies.toxic("why", [(1, 2)], "limit_data", bytes=7)
    line.dialled.sendall(b"0123456789")
    assert line.arrives(10, line.accepted) == b"0123456"


def test_a_connection_is_reset(net: Net) -> None:
    net.proxies.toxic("why", [(1, 2)], "reset_peer", timeout=0)
    line = net.line(1, 2)
    line.dialled.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        line.dialled.recv(1)


def test_a_connection_ends_after_a_while_without_a_byte(net: Net) -> None:
    line = net.line(1, 2)
    began = time.monotonic()
    net.proxies.toxic("why", [(1, 2)], "timeout", timeout=SLOW_MS)
    line.dialled.sendall(b"x")
    assert line.arrives(1, line.accepted) == b""
    assert time.monotonic() - began >= SLOW_MS / 1000


def test_the_end_of_a_connection_is_late(net: Net) -> None:
    line = net.line(1, 2)
    assert line.passes()
    net.proxies.toxic("why", [(1, 2)], "slow_close", delay=SLOW_MS)
    began = time.monotonic()
    line.dialled.close()
    assert line.arrives(1, line.accepted) == b""
    assert time.monotonic() - began >= SLOW_MS / 1000


def test_toxicity_is_the_share_of_connections(net: Net) -> None:
    net.proxies.toxic("why", [(1, 2)], "timeout", toxicity=0.0, timeout=0)
    assert all(net.line(1, 2).passes() for _ in range(10))


@pytest.mark.parametrize("kind", TOXICS)
def test_every_kind_is_known_to_toxiproxy_with_all_its_attributes(net: Net, kind: str) -> None:
    values = dict.fromkeys(TOXICS[kind], 2.0) | ({"average_size": 9.0} if kind == "slicer" else {})
    net.proxies.toxic("why", [(2, 1)], kind, toxicity=0.5, **values)
    # of the connections that each of them opens
    upstream, downstream = on_the_server(net, (2, 1)), on_the_server(net, (1, 2))
    assert [each["stream"] for each in (*upstream, *downstream)] == ["upstream", "downstream"]
    assert {(each["type"], each["toxicity"]) for each in (*upstream, *downstream)} == {(kind, 0.5)}
    assert [each["attributes"] for each in (*upstream, *downstream)] == [values, values]
    net.proxies.mend("why")
    assert on_the_server(net, (2, 1)) == on_the_server(net, (1, 2)) == []


@pytest.mark.parametrize(
    ("kind", "toxicity", "attributes", "message"),
    [
        ("latentcy", 1.0, {}, "'latentcy' is no toxic: latency,"),
        ("latency", 1.0, {"delay": 1}, "latency has no attribute 'delay': latency, jitter"),
        ("latency", 1.5, {}, "toxicity is from 0 to 1"),
        ("latency", 1.0, {"latency": -1}, "at least 0"),
        ("slicer", 1.0, {"average_size": 5, "size_variation": 5}, "average_size must be above size_variation"),
        ("slicer", 1.0, {}, "average_size must be above size_variation"),
    ],
)
def test_toxics_that_toxiproxy_would_ignore_or_crash_on_are_refused(
    kind: str, toxicity: float, attributes: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check(kind, toxicity, attributes)


@pytest.mark.parametrize("direction", [(1, 1), (2, CLIENTS), (1, 7)])
def test_unknown_directions_are_refused(net: Net, direction: Direction) -> None:
    with pytest.raises(ValueError, match="nothing goes from"):
        net.proxies.cut("why", [direction])
