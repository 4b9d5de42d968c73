"""tinymq: a replicated, partitioned message log in Python.

from tinymq import Client

with Client("localhost:7070") as mq:
    mq.send("orders", b"...")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinymq.client import (
        AsyncClient as AsyncClient,
    )
    from tinymq.client import (
        AsyncProducer as AsyncProducer,
    )
    from tinymq.client import (
        AsyncReader as AsyncReader,
    )
    from tinymq.client import (
        BatchDelivery as BatchDelivery,
    )
    from tinymq.client import (
        BatchMetadata as BatchMetadata,
    )
    from tinymq.client import (
        Broker as Broker,
    )
    from tinymq.client import (
        BrokerStatus as BrokerStatus,
    )
    from tinymq.client import (
        Client as Client,
    )
    from tinymq.client import (
        ClientConfig as ClientConfig,
    )
    from tinymq.client import (
        ClusterStatus as ClusterStatus,
    )
    from tinymq.client import (
        Delivery as Delivery,
    )
    from tinymq.client import (
        Message as Message,
    )
    from tinymq.client import (
        NotDelivered as NotDelivered,
        Offset as Offset,
    )
    from tinymq.client import (
        PartitionOffsets as PartitionOffsets,
    )
    from tinymq.client import (
        Producer as Producer,
    )
    from tinymq.client import (
        ProducerConfig as ProducerConfig,
    )
    from tinymq.client import (
        Reader as Reader,
    )
    from tinymq.client import (
        ReaderConfig as ReaderConfig,
    )
    from tinymq.client import (
        RecordMetadata as RecordMetadata,
    )
    from tinymq.client import (
        ReplicaStatus as ReplicaStatus,
    )
    from tinymq.client import (
        TinymqError as TinymqError,
    )
    from tinymq.client import (
        TopicDescription as TopicDescription,
    )
    from tinymq.client import (
        Unsent as Unsent,
    )

__all__ = [
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "BatchDelivery",
    "BatchMetadata",
    "Broker",
    "BrokerStatus",
    "Client",
    "ClientConfig",
    "ClusterStatus",
    "Delivery",
    "Message",
    "NotDelivered",
    "Offset",
    "PartitionOffsets",
    "Producer",
    "ProducerConfig",
    "Reader",
    "ReaderConfig",
    "RecordMetadata",
    "ReplicaStatus",
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
