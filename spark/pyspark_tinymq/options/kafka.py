"""The options of Spark's Kafka connector that have another name here, or no counterpart. Pure."""

from __future__ import annotations

RENAMED = {
    "kafka.bootstrap.servers": "servers",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
    "kafkaconsumer.polltimeoutms": "unreachableMs",
    "fetchoffset.numretries": "requestTimeoutMs",
    "fetchoffset.retryintervalms": "requestTimeoutMs",
    "kafka.request.timeout.ms": "requestTimeoutMs",
    "kafka.client.rack": "rack",
    "kafka.client.id": "scanId",
    "kafka.fetch.max.bytes": "fetchBytes",
    "kafka.max.partition.fetch.bytes": "fetchBytes",
    "kafka.max.poll.records": "maxRecordsPerPartition",
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.acks": "acks",
    "kafka.compression.type": "compression",
    "kafka.batch.size": "batchBytes",
    "kafka.max.request.size": "batchBytes",
    "kafka.buffer.memory": "bufferBytes",
    "kafka.delivery.timeout.ms": "deliveryTimeoutMs",
    "kafka.max.block.ms": "deliveryTimeoutMs",
    "kafka.partitioner.class": "partitioner",
    "kafka.transactional.id": "txnAppId",
}
"""The connector's options that have another name here, in lower case."""

_LOGIN = "give token, and tlsCa with servers that begin with tinymq+tls://; docs/security.md says how to make both"
_BINARY = "leave it out: key and value are binary; CAST(value AS STRING), or valueFormat=json with valueSchema"
_WITHOUT = (  # (how the option's name begins, what to do instead)
    ("kafka.sasl.", _LOGIN),
    ("kafka.ssl.", _LOGIN),
    ("kafka.security.", _LOGIN),
    ("kafka.key.", _BINARY),
    ("kafka.value.", _BINARY),
    ("kafka.enable.auto.commit", "leave it out: the checkpoint keeps a stream's position, and groupId publishes it"),
    ("kafka.auto.commit.", "leave it out: the checkpoint keeps a stream's position, and groupId publishes it"),
    ("kafka.isolation.level", "leave it out: all readers see committed records only"),
    ("kafka.enable.idempotence", "leave it out: each task is an idempotent producer"),
    (
        "kafka.",
        "leave it out: no option of Kafka's clients has a meaning here; docs/spark-options.md lists the options",
    ),
)


def advice_for(name: str) -> str:
    """The advice for a Kafka option that has no counterpart; "" for an option that is not Kafka's."""
    return next((advice for start, advice in _WITHOUT if name.lower().startswith(start)), "")
