"""The certificates of a cluster in a test, made when they are first needed."""

from __future__ import annotations

from pathlib import Path

from tinymq.net.client_tls import ClientTls
from tinymq.net.tls_files import CA, Paths, TlsFiles


class ClusterCertificates:
    """An authority, and one directory per broker, as `tinymq cert` writes them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._brokers: set[int] = set()  # those that have a certificate

    @property
    def authority(self) -> Path:
        """The file by which clients know the brokers."""
        if not (self.place / "ca").exists():
            from tinymq.dev import certificates  # here: most clusters need no TLS

            certificates.Authority.make("tinymq test").write(self.place / "ca")
        return self.place / "ca" / CA

    def of_broker(self, broker_id: int) -> Path:
        """The directory of a broker's certificate."""
        place = self.place / f"broker-{broker_id}"
        if broker_id not in self._brokers:
            from tinymq.dev import certificates

            authority = certificates.Authority.read(self.authority.parent)
            certificates.write_issued(place, authority.pem, authority.broker(broker_id))
            self._brokers.add(broker_id)
        return place

    def client_tls(self, broker_id: int) -> ClientTls:
        """The TLS of a caller that shows the certificate of a broker."""
        return ClientTls(TlsFiles(Paths.of(self.of_broker(broker_id))))
