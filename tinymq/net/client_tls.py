"""How a client speaks TLS: from the files of its configuration, which may change while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

from tinymq.net.tls_failures import explain
from tinymq.net.tls_files import CA, CERTIFICATE, KEY, Paths, Pem, TlsFiles


class ClientTls:
    """The TLS of one client. Usable from any thread."""

    def __init__(self, files: TlsFiles, server_name: str = "", *, optional: bool = False) -> None:
        """`server_name`: in every broker's certificate, instead of the host that is dialled. `optional`: where TLS
        finds no answer, connect without it. That is for brokers of a cluster that moves to TLS, and for nobody else."""
        self._files = files
        self.server_name = server_name
        self.optional = optional

    @property
    def generation(self) -> int:
        """Another one than before: the files have changed, and new connections use them."""
        self._files.current()
        return self._files.generation

    @property
    def pem(self) -> Pem:
        """The files' contents."""
        return self._files.current().pem

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        return self._files.current().dials

    def name_of(self, host: str) -> str:
        """The name that the certificate of the broker at this host has to have."""
        return self.server_name or host

    def explain(self, host: str, port: int) -> str:
        """Return why TLS with a broker fails; "" if it does not. Blocks for up to three seconds."""
        return explain(host, port, self._files.current(), self.server_name)


def paths_of(directory: str, ca: str) -> Paths:
    """The files of a client: those of its directory, of which the certificate is optional, or an authority alone."""
    if not directory:
        return Paths(Path(ca))
    place = Path(directory)
    authority = Path(ca) if ca else place / CA
    if (place / CERTIFICATE).exists() or (place / KEY).exists():
        return Paths(authority, place / CERTIFICATE, place / KEY)
    return Paths(authority)
