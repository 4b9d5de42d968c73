"""The client: producers, readers, queues and admin, for asyncio and for threads.

Its public names are here, and in `tinymq` itself. Each is loaded when it is first used, so that `import tinymq` takes
no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinymq.base.errors import NotDelivered, TinymqError, Unsent
    from tinymq.base.types import Offset, RecordMetadata
    from tinymq.client.admin.cluster_status import BrokerStatus, ClusterStatus, ReplicaStatus, TopicDescription
    from tinymq.client.admin.groups import GroupCursor, GroupDescription
    from tinymq.client.admin.holds import AsyncHold, HoldDescription
    from tinymq.client.admin.partition_offsets import PartitionOffsets
    from tinymq.client.admin.scans import ScanDescription, ScanSummary, ServedBy
    from tinymq.client.cluster.routing import Broker
    from tinymq.client.common.config import ClientConfig, ConsumerConfig, ProducerConfig, QueueConfig, ReaderConfig
    from tinymq.client.consume.cursors import ChannelDescription, ConsumerDescription
    from tinymq.client.consume.reader import AsyncReader
    from tinymq.client.consume.records import Message
    from tinymq.client.consume.scan import AsyncScan
    from tinymq.client.facade.async_client import AsyncClient
    from tinymq.client.facade.client import Client
    from tinymq.client.facade.consumer import Consumer
    from tinymq.client.facade.generated.hold import Hold
    from tinymq.client.facade.producer import Producer
    from tinymq.client.facade.queue import Queue
    from tinymq.client.facade.reader import Reader
    from tinymq.client.facade.scan import Scan
    from tinymq.client.group.assigned_buffer import TopicPartition
    from tinymq.client.group.consumer import AsyncConsumer
    from tinymq.client.produce.delivery import BatchDelivery, Delivery
    from tinymq.client.produce.producer import AsyncProducer
    from tinymq.client.produce.producer_batch import BatchMetadata
    from tinymq.client.queue.queue import AsyncQueue

_HOMES = {
    "AsyncClient": "tinymq.client.facade.async_client",
    "AsyncConsumer": "tinymq.client.group.consumer",
    "AsyncHold": "tinymq.client.admin.holds",
    "AsyncProducer": "tinymq.client.produce.producer",
    "AsyncQueue": "tinymq.client.queue.queue",
    "AsyncReader": "tinymq.client.consume.reader",
    "AsyncScan": "tinymq.client.consume.scan",
    "BatchDelivery": "tinymq.client.produce.delivery",
    "BatchMetadata": "tinymq.client.produce.producer_batch",
    "Broker": "tinymq.client.cluster.routing",
    "BrokerStatus": "tinymq.client.admin.cluster_status",
    "ChannelDescription": "tinymq.client.consume.cursors",
    "GroupCursor": "tinymq.client.admin.groups",
    "GroupDescription": "tinymq.client.admin.groups",
    "Client": "tinymq.client.facade.client",
    "ClientConfig": "tinymq.client.common.config",
    "ClusterStatus": "tinymq.client.admin.cluster_status",
    "Consumer": "tinymq.client.facade.consumer",
    "ConsumerConfig": "tinymq.client.common.config",
    "ConsumerDescription": "tinymq.client.consume.cursors",
    "Delivery": "tinymq.client.produce.delivery",
    "Hold": "tinymq.client.facade.generated.hold",
    "HoldDescription": "tinymq.client.admin.holds",
    "Message": "tinymq.client.consume.records",
    "NotDelivered": "tinymq.base.errors",
    "Offset": "tinymq.base.types",
    "PartitionOffsets": "tinymq.client.admin.partition_offsets",
    "Producer": "tinymq.client.facade.producer",
    "ProducerConfig": "tinymq.client.common.config",
    "Queue": "tinymq.client.facade.queue",
    "QueueConfig": "tinymq.client.common.config",
    "Reader": "tinymq.client.facade.reader",
    "ReaderConfig": "tinymq.client.common.config",
    "RecordMetadata": "tinymq.base.types",
    "ReplicaStatus": "tinymq.client.admin.cluster_status",
    "Scan": "tinymq.client.facade.scan",
    "ScanDescription": "tinymq.client.admin.scans",
    "ScanSummary": "tinymq.client.admin.scans",
    "ServedBy": "tinymq.client.admin.scans",
    "TinymqError": "tinymq.base.errors",
    "TopicDescription": "tinymq.client.admin.cluster_status",
    "TopicPartition": "tinymq.client.group.assigned_buffer",
    "Unsent": "tinymq.base.errors",
}

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
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
    "Consumer",
    "ConsumerConfig",
    "ConsumerDescription",
    "Delivery",
    "GroupCursor",
    "GroupDescription",
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
    "TopicPartition",
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
