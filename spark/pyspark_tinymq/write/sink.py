"""The options of a write, checked together: one frozen value. Pure, but for what Spark tells a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext

from pyspark_tinymq.options import settings
from pyspark_tinymq.session.login import Login
from pyspark_tinymq.write.place import TaskPlace
from tinymq.base.errors import InvalidConfig, InvalidName
from tinymq.base.types import check_transactional_id

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties, in the tasks of a stream and in those of a write within foreachBatch."""

SETS_MS = 24 * 3600 * 1000  # how long staged rows of a task are kept if nobody commits them


@dataclass(frozen=True, slots=True)
class Sink:
    """All options of a write. Picklable."""

    servers: tuple[str, ...]
    login: Login
    request_timeout_ms: int
    topic: str  # "": each row names its own
    places: bool
    application: str  # "": the query's id
    version: int | None  # None: the micro-batch
    producer: Mapping[str, Any] = field(default_factory=dict)  # ProducerConfig's settings
    rack: str = ""
    exactly_once: bool = False
    sets_ms: int = SETS_MS  # of exactly_once: staged rows are dropped so long after the last sign of life of their job

    @property
    def delivery_s(self) -> float:
        """How long a task tries, and a commit."""
        return float(self.producer["delivery_timeout_ms"]) / 1000

    def task_place(self, context: TaskContext, name: str) -> TaskPlace:
        """Return the place of the task that runs here. `name` identifies a query that has no id and no txnAppId."""
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        version = self.version if self.version is not None else int(batch or 0)
        return TaskPlace(self.application or query or name, version, context.partitionId())


def read_sink(texts: Mapping[str, str]) -> Sink:
    """Return the options of a write. Raises InvalidConfig."""
    values = settings.read_sink(texts)
    producer = {
        "acks": values.get("acks", "quorum"),
        "compression": values.get("compression", "none"),
        "batch_bytes_max": values.get("batchBytes", 1 << 20),
        "buffer_bytes_max": values.get("bufferBytes", 64 << 20),
        "delivery_timeout_ms": values.get("deliveryTimeoutMs", 60_000),
        "block_ms_max": values.get("deliveryTimeoutMs", 60_000),
        "partitioner": values.get("partitioner", "keyed"),
    }
    exactly_once = values.get("exactlyOnce", False)
    places = values.get("includePlace", not exactly_once)
    _check_exactly_once(values, exactly_once)
    for name in ("txnAppId", "txnVersion"):
        if name in values and not places and not exactly_once:
            raise InvalidConfig(f"{name} has no meaning with includePlace=false", hint="leave one of them out")
    application = values.get("txnAppId", "")
    if "/" in application:
        raise InvalidConfig(f"txnAppId={application!r} has a '/'", hint="a name without '/', such as nightly-delays")
    return Sink(
        servers=values["servers"],
        login=values["login"],
        request_timeout_ms=values.get("requestTimeoutMs", 30_000),
        topic=values.get("topic", ""),
        places=places,
        application=application,
        version=values.get("txnVersion"),
        producer=producer,
        exactly_once=exactly_once,
        sets_ms=values.get("sinkTimeoutMs", SETS_MS),
    )


def _check_exactly_once(values: Mapping[str, Any], exactly_once: bool) -> None:
    if not exactly_once:
        if "sinkTimeoutMs" in values:
            raise InvalidConfig(
                "sinkTimeoutMs has no meaning without exactlyOnce=true", hint="add it, or leave both out"
            )
        return
    if values.get("acks", "quorum") != "quorum":
        raise InvalidConfig("exactlyOnce needs acks=quorum", hint="leave acks out")
    if "txnAppId" in values:
        try:
            check_transactional_id(values["txnAppId"])
        except InvalidName as error:
            hint = "use 1 to 249 of A-Z a-z 0-9 . _ -"
            raise InvalidConfig(f"txnAppId={values['txnAppId']!r:.300}: not a valid name", hint=hint) from error
