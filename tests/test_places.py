"""Places on a port: bounded in all and per host, and each returned once."""

from __future__ import annotations

import pytest

from tinymq.net.connection_limits import ConnectionRefusal, Place, Places, host_of


def taken(places: Places, address: str) -> Place:
    place = places.take(address)
    assert isinstance(place, Place)
    return place


def test_a_port_takes_so_many_connections_and_one_host_its_share_of_them() -> None:
    places = Places("streams", 5, 3)
    first = [taken(places, "10.0.0.1") for _ in range(3)]
    assert places.take("10.0.0.1") is ConnectionRefusal.HOST
    others = [taken(places, f"10.0.0.{n}") for n in (2, 3)]
    assert places.take("10.0.0.4") is ConnectionRefusal.FULL
    assert (places.open, places.refused[ConnectionRefusal.HOST], places.refused[ConnectionRefusal.FULL]) == (5, 1, 1)
    first[0].leave()
    first[0].leave()
    assert places.open == 4
    taken(places, "10.0.0.1")
    for place in (*first, *others):
        place.leave()
    assert places.open == 1


def test_without_a_share_one_host_may_have_all() -> None:
    places = Places("peers", 2)
    assert taken(places, "10.0.0.1").host == taken(places, "10.0.0.1").host
    assert places.take("10.0.0.1") is ConnectionRefusal.HOST


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("?", "?"),
    ],
)
def test_a_host_is_its_address_or_its_network(address: str, host: str) -> None:
    assert host_of(address) == host


def test_what_is_accepted_elsewhere_is_counted_anew_each_time() -> None:
    places = Places("clients", 10, 2)
    places.recount(["a", "a", "b"])
    assert places.open == 3
    assert places.take("a") is ConnectionRefusal.HOST
    places.recount([])
    assert places.open == 0
