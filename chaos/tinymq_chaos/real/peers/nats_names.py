"""tinymq's names in JetStream: one partition is one stream with one subject. Pure.

topic "orders", 2 partitions      streams orders-0, orders-1, with the subjects orders.0, orders.1
offset n                          stream sequence n + 1
a topic                           the metadata of its first stream: the number of partitions, and an id
"""

from __future__ import annotations

from typing import Any

PARTITIONS = "partitions"  # in a stream's metadata
TOPIC_ID = "topic_id"
DEDUPE_S = 120  # the default: far longer than any send is retried
REPLICAS = 3


def stream_of(topic: str, partition: int) -> str:
    """Return a partition's stream. Dots are for subjects."""
    assert not set(topic) & set(" *>/\\_"), f"{topic!r} cannot be a stream"
    return f"{topic.replace('.', '_')}-{partition}"


def subject_of(topic: str, partition: int) -> str:
    return f"{topic}.{partition}"


def sequence_of(offset: int) -> int:
    return offset + 1


def offset_of(sequence: int) -> int:
    return sequence - 1


def stream_config(topic: str, partition: int, partitions: int, topic_id: str) -> dict[str, Any]:
    """Return the arguments of STREAM.CREATE: three replicas in files, nothing removed, reads from any replica
    allowed."""
    return {
        "name": stream_of(topic, partition),
        "subjects": [subject_of(topic, partition)],
        "storage": "file",
        "num_replicas": REPLICAS,
        "retention": "limits",
        "discard": "new",
        "duplicate_window": DEDUPE_S * 1_000_000_000,
        "allow_direct": True,
        "metadata": {PARTITIONS: str(partitions), TOPIC_ID: topic_id},
    }
