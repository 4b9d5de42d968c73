"""The settings of one transaction. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tinymq.base.config import MIB
from tinymq.base.errors import InvalidConfig
from tinymq.client.common.config import (
    INFLIGHT_BATCHES_MAX,
    Compression,
    Partitioner,
    Partitioning,
    ProducerConfig,
)

TIMEOUT_MS_MIN = 1_000
TIMEOUT_MS_MAX = 15 * 60_000


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The settings of one transaction.

    transaction_timeout_ms: from the beginning of the transaction to its commit, 1 s to 15 min. When this time is up,
        the brokers roll it back.
    The others: see ProducerConfig. A batch of a transaction is always on a majority of disks before it counts, and is
    never written twice.

        with mq.transaction("billing-2", transaction_timeout_ms=10_000, compression="zstd") as tx:
            tx.send("orders", b"...")
    """

    transaction_timeout_ms: float = 60_000
    linger_ms: float = 5
    batch_bytes_max: int = MIB
    compression: Compression = "none"
    buffer_bytes_max: int = 64 * MIB
    block_ms_max: float = 60_000
    delivery_timeout_ms: float = 60_000
    inflight_batches_max: int = INFLIGHT_BATCHES_MAX
    partitioner: Partitioning | Partitioner = "keyed"

    def __post_init__(self) -> None:
        value = self.transaction_timeout_ms
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not TIMEOUT_MS_MIN <= value <= TIMEOUT_MS_MAX:  # NaN is not, either
            hint = f"a number of milliseconds, {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}"
            raise InvalidConfig(f"transaction_timeout_ms={value!r}", hint=hint)
        producer_config(self)


def producer_config(config: TransactionConfig) -> ProducerConfig:
    """The settings of the producer behind a transaction."""
    shared = {each.name for each in fields(ProducerConfig)} & {each.name for each in fields(config)}
    return ProducerConfig(**{name: getattr(config, name) for name in shared})
