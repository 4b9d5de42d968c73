"""The TLS of the gRPC port: credentials that follow the files of certificates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import grpc

from tinymq.net.tls_files import TlsFiles


@dataclass(frozen=True, slots=True)
class GrpcTls:
    """How the gRPC port speaks TLS."""

    files: TlsFiles
    plain: bool = False  # takes connections without TLS, too
    client_certificates: bool = False  # a client has to show a certificate; gRPC cannot ask for one and do without it
    age_s_max: float = math.inf  # of a connection

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that look for new files at each handshake. gRPC does so in threads of its own."""
        seen = [self.files.current().pem]

        def newer() -> Any:
            """Returns None to keep the present credentials, which gRPC's own types do not allow for."""
            pem = self.files.current().pem
            if pem == seen[0]:
                return None
            seen[0] = pem
            return self._configuration()

        return grpc.dynamic_ssl_server_credentials(self._configuration(), newer, self.client_certificates)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pem = self.files.current().pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
