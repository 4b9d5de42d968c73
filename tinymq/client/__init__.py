"""The client: producers, readers, admin; an async core and a synchronous facade.

Its public names are here, and in `tinymq` itself. They are loaded when they are used, so that `import tinymq`
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinymq.base.errors import NotDelivered, TinymqError, Unsent
    from tinymq.base.types import Offset, RecordMetadata
    from tinymq.client.admin import PartitionOffsets
    from tinymq.client.aio import AsyncClient
    from tinymq.client.cluster_status import BrokerStatus, ClusterStatus, ReplicaStatus, TopicDescription
    from tinymq.client.config import ClientConfig, ProducerConfig, QueueConfig, ReaderConfig
    from tinymq.client.cursors import ChannelDescription, ConsumerDescription
    from tinymq.client.delivery import BatchDelivery, BatchMetadata, Delivery
    from tinymq.client.holds import AsyncHold, HoldDescription
    from tinymq.client.producer import AsyncProducer
    from tinymq.client.queue import AsyncQueue
    from tinymq.client.reader import AsyncReader
    from tinymq.client.records import Message
    from tinymq.client.routing import Broker
    from tinymq.client.scan import AsyncScan
    from tinymq.client.scans import ScanDescription, ScanSummary, ServedBy
    from tinymq.client.sync import Client, Reader
    from tinymq.client.sync_producer import Producer
    from tinymq.client.sync_queue import Hold, Queue
    from tinymq.client.sync_scan import Scan

_HOMES = {
    "AsyncClient": "tinymq.client.aio",
    "AsyncHold": "tinymq.client.holds",
    "AsyncProducer": "tinymq.client.producer",
    "AsyncQueue": "tinymq.client.queue",
    "AsyncReader": "tinymq.client.reader",
    "AsyncScan": "tinymq.client.scan",
    "BatchDelivery": "tinymq.client.delivery",
    "BatchMetadata": "tinymq.client.delivery",
    "Broker": "tinymq.client.routing",
    "BrokerStatus": "tinymq.client.cluster_status",
    "ChannelDescription": "tinymq.client.cursors",
    "Client": "tinymq.client.sync",
    "ClientConfig": "tinymq.client.config",
    "ClusterStatus": "tinymq.client.cluster_status",
    "ConsumerDescription": "tinymq.client.cursors",
    "Delivery": "tinymq.client.delivery",
    "Hold": "tinymq.client.sync_queue",
    "HoldDescription": "tinymq.client.holds",
    "Message": "tinymq.client.records",
    "NotDelivered": "tinymq.base.errors",
    "Offset": "tinymq.base.types",
    "PartitionOffsets": "tinymq.client.admin",
    "Producer": "tinymq.client.sync_producer",
    "ProducerConfig": "tinymq.client.config",
    "Queue": "tinymq.client.sync_queue",
    "QueueConfig": "tinymq.client.config",
    "Reader": "tinymq.client.sync",
    "ReaderConfig": "tinymq.client.config",
    "RecordMetadata": "tinymq.base.types",
    "ReplicaStatus": "tinymq.client.cluster_status",
    "Scan": "tinymq.client.sync_scan",
    "ScanDescription": "tinymq.client.scans",
    "ScanSummary": "tinymq.client.scans",
    "ServedBy": "tinymq.client.scans",
    "TinymqError": "tinymq.base.errors",
    "TopicDescription": "tinymq.client.cluster_status",
    "Unsent": "tinymq.base.errors",
}

__all__ = [
    "AsyncClient",
    "AsyncHold",
    "AsyncProducer",
    "AsyncQueue",
    "AsyncReader",
    "AsyncScan",
    "BatchDelivery",
    "BatchMetadata",
    "Broker",
    "BrokerStatus",
    "ChannelDescription",
    "Client",
    "ClientConfig",
    "ClusterStatus",
    "ConsumerDescription",
    "Delivery",
    "Hold",
    "HoldDescription",
    "Message",
    "NotDelivered",
    "Offset",
    "PartitionOffsets",
    "Producer",
    "ProducerConfig",
    "Queue",
    "QueueConfig",
    "Reader",
    "ReaderConfig",
    "RecordMetadata",
    "ReplicaStatus",
    "Scan",
    "ScanDescription",
    "ScanSummary",
    "ServedBy",
    "TinymqError",
    "TopicDescription",
    "Unsent",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tinymq.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
