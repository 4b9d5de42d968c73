"""Makes certificates: an authority of your own, and what it signs for brokers and users.

    certificates/ca/        ca.crt, ca.key      the authority; its key signs, and belongs on no broker
    certificates/broker-1/  ca.crt, tls.crt, tls.key
    certificates/alice/     ca.crt, tls.crt, tls.key

For clusters without an authority of their own. Certificates of any other authority work as well, if they have the same
names in them (tinymq/net/tls_names.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

from tinymq.base import extras
from tinymq.base.errors import AlreadyExists, InvalidConfig, NotFound
from tinymq.base.private_files import make_private_directory, open_private
from tinymq.net.tls_files import CA, CERTIFICATE, KEY
from tinymq.net.tls_names import BROKER_URI, USER_URI

with extras.required("tinymq cert"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_KEY = "ca.key"
CA_DAYS, DAYS = 3650, 365
SKEW = timedelta(minutes=10)  # a clock that is behind accepts a new certificate, too
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
HOSTS = ("localhost", "127.0.0.1", "::1")


class Now(Protocol):
    """Returns the time that certificates begin at."""

    def __call__(self) -> datetime: ...


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate with its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority that signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def make(cls, name: str = "tinymq", days: int = CA_DAYS, now: Now = utc_now) -> Authority:
        """Make a new authority with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key.public_key(), days, now)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def pem(self) -> bytes:
        """Its certificate, which everybody needs."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def broker(self, broker_id: int, hosts: tuple[str, ...] = HOSTS, days: int = DAYS, now: Now = utc_now) -> Issued:
        """Sign a certificate for a broker, which accepts and dials connections. `hosts`: names and addresses at which
        clients and other brokers reach it. Raises InvalidConfig."""
        names = [x509.UniformResourceIdentifier(f"{BROKER_URI}{broker_id}"), *map(_host, hosts)]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(f"tinymq broker {broker_id}", names, both, days, now)

    def user(self, name: str, days: int = DAYS, now: Now = utc_now) -> Issued:
        """Sign a certificate for a user."""
        names = [x509.UniformResourceIdentifier(f"{USER_URI}{name}")]
        return self._issue(name[:64], names, [ExtendedKeyUsageOID.CLIENT_AUTH], days, now)

    def _issue(
        self, common_name: str, names: Sequence[x509.GeneralName], purposes: Sequence[x509.ObjectIdentifier],
        days: int, now: Now,
    ) -> Issued:  # fmt: skip
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = _builder(subject, self.certificate.subject, key.public_key(), days, now)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        return Issued(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _packed(key))

    def write(self, directory: Path) -> None:
        """Write ca.crt and ca.key. Raises AlreadyExists: a new authority would make all certificates worthless."""
        if (directory / CA_KEY).exists():
            hint = "choose another --dir, or move the old authority away"
            raise AlreadyExists(f"there is an authority in {directory}", hint=hint)
        make_private_directory(directory)
        write_private(directory / CA_KEY, _packed(self.key))
        write_private(directory / CA, self.pem)

    @classmethod
    def read(cls, directory: Path) -> Authority:
        """Read what `write` wrote. Raises NotFound, InvalidConfig."""
        try:
            certificate = x509.load_pem_x509_certificate((directory / CA).read_bytes())
            key = serialization.load_pem_private_key((directory / CA_KEY).read_bytes(), password=None)
        except FileNotFoundError:
            hint = f"make one: tinymq cert ca --dir {directory.parent}"
            raise NotFound(f"there is no authority in {directory}", hint=hint) from None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidConfig(f"cannot read the authority in {directory}: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise InvalidConfig(f"the key and the certificate in {directory} do not belong together")
        return cls(certificate, key)

    def signed(self, certificate: bytes) -> bool:
        """Is this PEM certificate one of this authority's?"""
        try:
            x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(self.certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


def write_issued(directory: Path, authority: bytes, issued: Issued) -> None:
    """Write ca.crt, tls.crt and tls.key, or replace them: each file is complete at each moment. A process that reads
    them in between keeps what it had."""
    make_private_directory(directory)
    write_private(directory / KEY, issued.key)
    write_private(directory / CERTIFICATE, issued.certificate)
    write_private(directory / CA, authority)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by a new one that only this user may read."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)
    new.replace(path)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, now: Now
) -> x509.CertificateBuilder:
    if not 0 < days <= 36_500:
        raise InvalidConfig(f"a certificate for {days} days", hint="1 to 36500")
    begins = now() - SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + SKEW + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text.strip("[]")))
    except ValueError:
        pass
    try:
        name = text.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not _HOST_NAME.fullmatch(name):
        raise InvalidConfig(f"{text!r:.100} is neither a host name nor an address")
    return x509.DNSName(name)


def _packed(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
