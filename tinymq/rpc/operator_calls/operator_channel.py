"""Channels from an operator's commands to one broker each, without the client's way of finding leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from tinymq.net.client_tls import ClientTls

# Brokers are dialled directly, even if the environment names a web proxy.
_OPTIONS = (("grpc.enable_http_proxy", 0),)


def operator_channel(address: str, tls: ClientTls | None, more: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    """Return a channel to the broker at `address`. `more`: further options of gRPC's."""
    options = [*_OPTIONS, *more]
    if tls is None:
        return grpc.aio.insecure_channel(address, options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    pem = tls.pem
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key or None, pem.certificate or None)
    return grpc.aio.secure_channel(address, credentials, options)
