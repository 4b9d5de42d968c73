"""The context that gRPC gives to a call: the client, and its host."""

from __future__ import annotations

from typing import Any

import grpc

from tinymq.rpc.common.relayed import real_host

CLIENT_ID = "tinymq-client-id"  # metadata key

Context = grpc.aio.ServicerContext[Any, Any]


def client_of(context: Context) -> str:
    """Return the client whose quota a call counts to: the client id in its metadata, or else its host."""
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    return str(metadata.get(CLIENT_ID) or "") or host_of(context.peer())


def host_of(peer: str) -> str:
    """Return the host of gRPC's "ipv4:127.0.0.1:4242", "ipv6:%5B::1%5D:4242" or "unix:..."."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    host, _, port = rest.rpartition(":")
    return real_host(host, port)
