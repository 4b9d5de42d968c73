"""The broker or the user that a certificate names, in a URI among its alternative names, and until when. Pure.

    tinymq://broker/3      a broker, by its number
    tinymq://user/alice    a user

A certificate of a broker also has the host names and addresses at which clients reach it.

Python's `ssl` reads the dates of a certificate only where it has verified it itself. gRPC hands over the certificate of
a verified client as PEM, and a client's own certificate is a file. Both are read here, as far as the dates (RFC 5280,
section 4.1).

    Certificate ::= SEQUENCE { tbsCertificate, ... }
    TBSCertificate ::= SEQUENCE { [0] version, serialNumber, signature, issuer, validity, ... }
    Validity ::= SEQUENCE { notBefore Time, notAfter Time }
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

BROKER_URI = "tinymq://broker/"
USER_URI = "tinymq://user/"
DIGITS_MAX = 10
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

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


def ends_us(certificate: Certificate) -> int:
    """Return the wall time at which a certificate ends; 0 if it names none."""
    text = certificate.get("notAfter")
    return ssl.cert_time_to_seconds(text) * 1_000_000 if text else 0


def broker_of(uri: str) -> int:
    """Return the broker id in the name of a broker. 0: it is not one."""
    digits = uri.removeprefix(BROKER_URI)
    if digits == uri or not digits.isascii() or not digits.isdigit() or len(digits) > DIGITS_MAX:
        return 0
    number = int(digits)
    return number if digits == str(number) and number < 1 << 32 else 0


@lru_cache(1024)
def end_of(pem: bytes) -> datetime | None:
    """The last moment at which the first certificate of a PEM file is valid. None: there is no certificate in it."""
    text = pem.decode("ascii", "replace")
    begins = text.find(_BEGIN)
    ends = text.find(_END, begins)
    if begins < 0 or ends < 0:
        return None
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(text[begins : ends + len(_END)]))
    except (ValueError, IndexError):
        return None


def shown(moment: datetime) -> str:
    """A moment as errors show it."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _not_after(der: bytes) -> datetime:
    """Raises ValueError, IndexError for bytes that are no certificate."""
    body = _element(der, _element(der, 0, _SEQUENCE).begins, _SEQUENCE)
    at = body.begins
    if der[at] == _VERSION:
        at = _element(der, at).ends
    for _ in range(3):  # serialNumber, signature, issuer
        at = _element(der, at).ends
    validity = _element(der, at, _SEQUENCE)
    last = _element(der, _element(der, validity.begins).ends)
    digits = der[last.begins : last.ends].decode("ascii")
    if last.tag == _UTC_TIME:  # two digits of a year from 1950 to 2049
        return datetime.strptime(("19" if digits >= "50" else "20") + digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    if last.tag == _GENERALIZED_TIME:
        return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    raise ValueError("no time")


def _element(der: bytes, at: int, tag: int | None = None) -> _Element:
    """The DER element at a position. Raises ValueError if it has another tag, IndexError if it is cut short."""
    if tag is not None and der[at] != tag:
        raise ValueError(f"no element of tag {tag}")
    length, begins = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, begins = int.from_bytes(der[begins : begins + size], "big"), begins + size
    if begins + length > len(der):
        raise IndexError("an element that is cut short")
    return _Element(der[at], begins, begins + length)


class _Element(NamedTuple):
    tag: int
    begins: int  # of its contents
    ends: int
