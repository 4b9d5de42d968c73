"""The broker or the user that a certificate names, in a URI among its alternative names. Pure.

    tinymq://broker/3      a broker, by its number
    tinymq://user/alice    a user

A certificate of a broker also has the host names and addresses at which clients reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BROKER_URI = "tinymq://broker/"
USER_URI = "tinymq://user/"
DIGITS_MAX = 10

Certificate = Mapping[str, Any]
"""A certificate as `SSLSocket.getpeercert` returns it."""


def uris_of(certificate: Certificate) -> tuple[str, ...]:
    """Return the URIs that a certificate is for."""
    return tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI")


def hosts_of(certificate: Certificate) -> tuple[str, ...]:
    """Return the host names and addresses that a certificate is for."""
    return tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))


def tinymq_uri(uris: tuple[str, ...]) -> str:
    """Return the URI that names a broker or a user. "" if there is no such URI, or more than one."""
    ours = {uri for uri in uris if uri.startswith("tinymq://")}
    return ours.pop() if len(ours) == 1 else ""


def broker_of(uri: str) -> int:
    """Return the broker id in the name of a broker. 0: it is not one."""
    digits = uri.removeprefix(BROKER_URI)
    if digits == uri or not digits.isascii() or not digits.isdigit() or len(digits) > DIGITS_MAX:
        return 0
    number = int(digits)
    return number if digits == str(number) and number < 1 << 32 else 0
