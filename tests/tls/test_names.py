"""The broker or the user that a certificate names."""

from __future__ import annotations

from typing import Any

import pytest

from tinymq.net.tls_names import broker_of, hosts_of, tinymq_uri, uris_of
from tinymq.net.tls_ports import is_tls, may_be_tls


def certificate(*names: tuple[str, str]) -> dict[str, Any]:
    return {"subjectAltName": names}


def test_names_are_told_apart_by_their_kind() -> None:
    both = certificate(("DNS", "db1"), ("URI", "tinymq://broker/1"), ("IP Address", "10.0.0.1"))
    assert uris_of(both) == ("tinymq://broker/1",)
    assert hosts_of(both) == ("db1", "10.0.0.1")
    assert uris_of({}) == hosts_of({}) == ()


def test_a_certificate_is_for_one_only() -> None:
    assert tinymq_uri(("https://x", "tinymq://user/alice")) == "tinymq://user/alice"
    assert tinymq_uri(("tinymq://user/alice", "tinymq://user/alice")) == "tinymq://user/alice"
    assert tinymq_uri(("tinymq://user/alice", "tinymq://user/bob")) == ""
    assert tinymq_uri(()) == ""


@pytest.mark.parametrize(
    ("uri", "number"),
    [
        ("tinymq://broker/3", 3),
        ("tinymq://broker/4294967295", 4294967295),
        ("tinymq://broker/4294967296", 0),
        ("tinymq://broker/0", 0),
        ("tinymq://broker/03", 0),
        ("tinymq://broker/٣", 0),
        ("tinymq://broker/", 0),
        ("tinymq://broker/99999999999999999999", 0),
        ("tinymq://user/3", 0),
        ("3", 0),
    ],
)
def test_only_a_whole_number_is_a_broker(uri: str, number: int) -> None:
    assert broker_of(uri) == number


@pytest.mark.parametrize(
    ("first", "tls", "maybe"),
    [
        (b"\x16\x03\x01\x02", True, True),
        (b"\x16\x03\x03", True, True),
        (b"\x16\x03", False, True),
        (b"\x16", False, True),
        (b"\x16\x03\x02", False, False),
        (b"\x16\x00\x00\x00", False, False),  # the length of a plain hello
        (b"PRI * HTTP/2.0", False, False),
        (b"GET", False, False),
    ],
)
def test_the_first_bytes_tell_tls_from_everything_else(first: bytes, tls: bool, maybe: bool) -> None:
    assert is_tls(first) is tls
    assert may_be_tls(first[:3]) is maybe
