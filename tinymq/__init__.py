"""tinymq: a replicated, partitioned message log in Python.

from tinymq import Client

with Client("localhost:7070") as mq:
    mq.send("orders", b"...")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinymq.client import (
        AsyncClient,
        AsyncHold,
        AsyncProducer,
        AsyncQueue,
        AsyncReader,
        AsyncScan,
        BatchDelivery,
        BatchMetadata,
        Broker,
        BrokerStatus,
        ChannelDescription,
        Client,
        ClientConfig,
        ClusterStatus,
        ConsumerDescription,
        Delivery,
        Hold,
        HoldDescription,
        Message,
        NotDelivered,
        Offset,
        PartitionOffsets,
        Producer,
        ProducerConfig,
        Queue,
        QueueConfig,
        Reader,
        ReaderConfig,
        RecordMetadata,
        ReplicaStatus,
        Scan,
        ScanDescription,
        ScanSummary,
        ServedBy,
        TinymqError,
        TopicDescription,
        Unsent,
    )

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
    if name not in __all__:
        raise AttributeError(f"module 'tinymq' has no attribute {name!r}")
    from tinymq import client

    value = globals()[name] = getattr(client, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
