"""The settings as keyword arguments, for type checkers. They have the names of the dataclasses' fields in config.py."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from tinymq.base.config import Limits
from tinymq.base.identity.token import SecretText
from tinymq.client.common.config import Acks, Compression, OnTrimmed, Partitioner, Partitioning, Processing, Replica


class ClientOptions(TypedDict, total=False):
    """See ClientConfig."""

    request_timeout_ms: float
    connect_timeout_ms: float
    attempt_timeout_ms: float
    metadata_max_age_ms: float
    rack: str
    client_id: str
    limits: Limits
    switch_interval_ms: float | None
    token: str | SecretText
    token_file: str
    token_without_tls: bool
    tls: bool
    tls_dir: str | Path
    tls_ca: str | Path
    tls_server_name: str


class ProducerOptions(TypedDict, total=False):
    """See ProducerConfig."""

    linger_ms: float
    batch_bytes_max: int
    compression: Compression
    buffer_bytes_max: int
    block_ms_max: float
    acks: Acks
    idempotent: bool
    delivery_timeout_ms: float
    inflight_batches_max: int
    partitioner: Partitioning | Partitioner


class TransactionOptions(TypedDict, total=False):
    """See TransactionConfig."""

    transaction_timeout_ms: float
    linger_ms: float
    batch_bytes_max: int
    compression: Compression
    buffer_bytes_max: int
    block_ms_max: float
    delivery_timeout_ms: float
    inflight_batches_max: int
    partitioner: Partitioning | Partitioner


class ReaderOptions(TypedDict, total=False):
    """See ReaderConfig."""

    replica: Replica
    fetch_bytes_max: int
    fetch_min_bytes: int
    fetch_wait_ms: float
    buffer_bytes_max: int
    unreachable_ms_max: float
    stale_ms_max: float
    on_trimmed: OnTrimmed


class ConsumerOptions(TypedDict, total=False):
    """See ConsumerConfig."""

    processing: Processing
    auto_commit: bool
    commit_interval_ms: float
    commit_records_max: int
    on_trimmed: OnTrimmed
    replica: Replica
    fetch_bytes_max: int
    fetch_wait_ms: float
    buffer_bytes_max: int
    unreachable_ms_max: float


class WorkerOptions(TypedDict, total=False):
    """See WorkerConfig."""

    prefetch_records: int
    prefetch_bytes: int
    max_handler_ms: float


class HandlerOptions(ConsumerOptions, WorkerOptions, total=False):
    """Those of the kind of the handler's group."""


class QueueOptions(TypedDict, total=False):
    """See QueueConfig."""

    auto_commit: bool
    commit_interval_ms: float
    on_trimmed: OnTrimmed
    replica: Replica
    fetch_bytes_max: int
    fetch_wait_ms: float
    buffer_bytes_max: int
