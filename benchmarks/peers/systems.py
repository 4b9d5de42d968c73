"""The measured systems by name. A client's module is imported in its own process only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.contract import Servers


@dataclass(frozen=True, slots=True)
class System:
    """Where its two halves are: `module:Class`."""

    servers_at: str
    client_at: str
    settings: Mapping[str, object] = field(default_factory=dict)  # of its servers

    def servers(self) -> Servers:
        made: Servers = _found(self.servers_at)(**self.settings)
        return made

    def client(self, servers: str) -> Any:
        """The object whose methods are the workloads."""
        return _found(self.client_at)(servers)

    def has(self, workload: str) -> bool:
        """Whether its client has this workload. Imports the client."""
        return hasattr(_found(self.client_at), workload)


def _found(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
    return found


SYSTEMS = {
    "bare": System("bare_peer:BareServers", "bare_peer:BarePeer"),
    "tinymq": System("tinymq_servers:TinymqServers", "tinymq_client:TinymqClient"),
    "nats": System("nats_servers:NatsServers", "nats_client:NatsClient"),
    "rabbitmq": System("rabbitmq_servers:RabbitServers", "rabbitmq_client:RabbitClient"),
    "kafka": System("kafka_servers:KafkaServers", "kafka_client:KafkaClient"),
    "kafka-synced": System("kafka_servers:KafkaServers", "kafka_client:KafkaClient", {"synced": True}),
}
