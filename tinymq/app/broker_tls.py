"""The TLS of one broker: how each of its ports speaks it, by the setting `security`.

    off        no port speaks TLS
    accept     each port takes connections with and without TLS; the broker dials others with TLS, or without
    required   every connection is one with TLS

A cluster moves from off to accept and on to required broker by broker, and serves all the time.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from tinymq.base.config import BrokerConfig
from tinymq.base.errors import InvalidConfig
from tinymq.net.client_tls import ClientTls
from tinymq.net.tls_files import Paths, TlsFiles
from tinymq.net.tls_ports import PortTls
from tinymq.raft.net.tcp import PeerTls
from tinymq.rpc.server.grpc_tls import GrpcTls

logger = structlog.get_logger("tinymq.app.tls")


class BrokerTls:
    """The TLS of one broker with a `security` other than off."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the certificates. Raises InvalidConfig."""
        assert config.security != "off", "there is no TLS"
        self.files = TlsFiles(Paths.of(Path(config.tls_dir)), _report)
        self.plain = config.security == "accept"
        self.client_certificates = config.client_certificates
        self.age_s_max = config.timing.connection_age_s_max

    @property
    def peers(self) -> PeerTls:
        """Of the peer port, in both directions."""
        return PeerTls(
            lambda: self.files.current().serves_certified, lambda: self.files.current().dials_brokers, self.plain,
            self.age_s_max,
        )  # fmt: skip

    @property
    def clients(self) -> PortTls:
        """Of the ports for clients."""
        certified = self.client_certificates
        return PortTls(
            lambda: self.files.current().serves_certified if certified else self.files.current().serves, self.plain,
            age_s_max=self.age_s_max,
        )  # fmt: skip

    @property
    def grpc(self) -> GrpcTls:
        """Of the gRPC port."""
        return GrpcTls(self.files, self.plain, self.client_certificates, self.age_s_max)

    @property
    def forwarding(self) -> ClientTls:
        """Of calls that this broker forwards to another one's gRPC port."""
        return ClientTls(self.files, optional=self.plain)


def make_tls(config: BrokerConfig) -> BrokerTls | None:
    """Return the TLS of this configuration; None if `security` is off. Raises InvalidConfig."""
    return BrokerTls(config) if config.security != "off" else None


def _report(place: str, error: InvalidConfig | None) -> None:
    if error is None:
        logger.info("certificates_read_again", directory=place)
    else:
        logger.error("certificates_damaged", directory=place, reason=error.message, hint="the old ones stay in use")
