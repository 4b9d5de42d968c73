"""TLS contexts from the files of one directory, made again when the files change.

    ca.crt     the certificates of the authorities whose signatures count
    tls.crt    this broker's or user's certificate, and the chain up to an authority
    tls.key    its private key, which nobody else may read

These are the names in which Kubernetes' secrets of kind tls, and cert-manager, keep certificates. New connections use
new files at once. While files do not fit together, such as in the middle of a change, the last good ones stay in use.
"""

from __future__ import annotations

import os
import ssl
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tinymq.base.errors import InvalidConfig

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
HANDSHAKE_S = 5.0  # from dialling or accepting to the end of TLS's handshake
FILE_BYTES_MAX = 1 << 20
RETRY_S = 1.0  # files that could not be used are read again after this time, at the next connection

Report = Callable[[str, InvalidConfig | None], None]
"""Called with the directory when its files were read again: with the reason if they cannot be used."""


class Pem(NamedTuple):
    """The contents of the files."""

    ca: bytes
    certificate: bytes = b""  # empty, like the key: a client without a certificate
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the files are."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def of(cls, directory: Path) -> Paths:
        """The three files of a directory."""
        return cls(directory / CA, directory / CERTIFICATE, directory / KEY)

    def all(self) -> list[Path]:
        return [path for path in (self.ca, self.certificate, self.key) if path is not None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The TLS contexts of one version of the files."""

    pem: Pem = field(repr=False)
    _serves: ssl.SSLContext | None
    _serves_certified: ssl.SSLContext | None
    dials: ssl.SSLContext  # checks the other end's certificate, and the host in it
    dials_brokers: ssl.SSLContext  # likewise, but not the host: the caller checks the broker's number in it

    @property
    def serves(self) -> ssl.SSLContext:
        """The context of a server that asks clients for no certificate. It needs a certificate of its own."""
        assert self._serves is not None, "a server without a certificate"
        return self._serves

    @property
    def serves_certified(self) -> ssl.SSLContext:
        """The context of a server that demands a certificate of the authorities. It needs one of its own."""
        assert self._serves_certified is not None, "a server without a certificate"
        return self._serves_certified


class TlsFiles:
    """The TLS of one process, by its files. Usable from any thread."""

    def __init__(self, paths: Paths, report: Report = lambda place, error: None) -> None:
        """Read the files. Raises InvalidConfig."""
        self.generation = 0  # rises when the files have changed
        self._paths = paths
        self._report = report
        self._lock = threading.Lock()  # gRPC asks in threads of its own: an older reading must not replace a newer one
        self._seen = self._look()
        self._failed_s: float | None = None  # when `_seen` could not be used; None: `_loaded` was made of it
        self._loaded = load(paths)

    @property
    def paths(self) -> Paths:
        return self._paths

    def current(self) -> Loaded:
        """Return what the files say now, or what they said before they were damaged."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._load_again(report=True)
            elif self._failed_s is not None and time.monotonic() - self._failed_s >= RETRY_S:
                # The files may be good: reading fails for other reasons, too, such as too many open files.
                self._load_again(report=False)
            return self._loaded

    def _load_again(self, *, report: bool) -> None:
        place = str(self._paths.ca.parent)
        try:
            self._loaded = load(self._paths)
        except InvalidConfig as error:
            self._failed_s = time.monotonic()
            if report:
                self._report(place, error)
        else:
            self._failed_s = None
            self.generation += 1
            self._report(place, None)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_version, self._paths.all()))


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino  # ctime: chmod may mend a key that was refused


def load(paths: Paths) -> Loaded:
    """Read the files, and make contexts of them. Raises InvalidConfig, which names the file."""
    pem = Pem(*(_read(path) for path in paths.all()))
    if paths.key is not None:
        _check_private(paths.key)
    dials, dials_brokers = (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2))
    dials_brokers.check_hostname = False
    serves = serves_certified = None
    if paths.certificate is not None:
        serves, serves_certified = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
        serves_certified.verify_mode = ssl.CERT_REQUIRED
    for context in filter(None, (dials, dials_brokers, serves, serves_certified)):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        _trust(context, paths.ca, pem.ca)
        if paths.certificate is not None and paths.key is not None:
            _identify(context, paths.certificate, paths.key)
    for context in filter(None, (serves, serves_certified)):
        # Nobody resumes a session, and a ticket would arrive at a client that expects nothing (frame_socket.py).
        context.num_tickets = 0
    return Loaded(pem, serves, serves_certified, dials, dials_brokers)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise InvalidConfig(f"{path} is too large for a certificate or a key")
        return path.read_bytes()
    except OSError as error:
        hint = "make certificates with: tinymq cert --help"
        raise InvalidConfig(f"cannot read {path}: {error.strerror}", hint=hint) from None


def _check_private(key: Path) -> None:
    """Refuse a key that other users may read. A group may: containers get their secrets so."""
    mode = os.stat(key).st_mode
    if mode & stat.S_IRWXO:
        raise InvalidConfig(f"every user may read the key {key}", hint=f"chmod 600 {key}")


def _trust(context: ssl.SSLContext, path: Path, pem: bytes) -> None:
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidConfig(f"{path} has no certificates: {error}") from None


def _identify(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def no_password() -> str:
        raise InvalidConfig(f"the key {key} is encrypted", hint="store it without a password, with mode 0600")

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidConfig(f"{certificate} and {key} are no certificate with its key: {error}") from None
