"""Authorities and certificates for tests. Keys cost milliseconds, so an authority is made once per name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from tinymq.dev.certificates import HOSTS, Authority, write_issued
from tinymq.net.tls_files import Paths, TlsFiles


def authority(name: str = "ours") -> Authority:
    return _made(name)


@cache
def _made(name: str) -> Authority:
    return Authority.make(name)


def of_broker(
    place: Path, broker_id: int, *, by: str = "ours", trusts: str = "ours", hosts: tuple[str, ...] = HOSTS
) -> TlsFiles:
    """Write the certificate of a broker, signed `by` an authority, and read it."""
    write_issued(place, authority(trusts).pem, authority(by).broker(broker_id, hosts))
    return TlsFiles(Paths.of(place))


def of_user(place: Path, name: str, *, by: str = "ours") -> TlsFiles:
    write_issued(place, authority().pem, authority(by).user(name))
    return TlsFiles(Paths.of(place))


def long_ago() -> datetime:
    """The time of a certificate that has expired: it was made for a day."""
    return datetime.now(UTC) - timedelta(days=40)
