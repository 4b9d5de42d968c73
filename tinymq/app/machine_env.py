"""Everything that a broker uses of its machine. Tests and the simulator put something else in its place."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tinymq.base.clock import Clock, SystemClock
from tinymq.base.config import Limits
from tinymq.client.net.grpc_transport import GrpcConnector
from tinymq.gateway.links import PeerConnector
from tinymq.log.engine.store import Store
from tinymq.log.files.files import Files
from tinymq.log.files.runner import Runner
from tinymq.net.acceptor import Acceptor
from tinymq.net.client_tls import ClientTls
from tinymq.raft.net.transport import Transport
from tinymq.rpc.server.ports import MakeServer
from tinymq.rpc.server.server import RpcServer
from tinymq.rpc.server.stream_server import MakeAcceptor

MakeTransport = Callable[[Store, int], Transport]
"""Makes one broker's end of a network from its data directory and its session."""
MakeConnector = Callable[[Limits, ClientTls | None], PeerConnector]
"""Makes the connections of the gateway's client to other brokers."""


def _grpc_connector(limits: Limits, tls: ClientTls | None) -> PeerConnector:
    return GrpcConnector(limits, tls=tls)


@dataclass(frozen=True, slots=True)
class MachineEnv:
    """Everything that a broker uses of its machine; None: the real one."""

    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)
    files: Files | None = None
    runner: Runner | None = None
    transport: MakeTransport | None = None
    server: MakeServer = RpcServer
    acceptor: MakeAcceptor = Acceptor  # of the stream port
    connector: MakeConnector = _grpc_connector
