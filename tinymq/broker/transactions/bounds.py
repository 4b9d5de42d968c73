"""Which batches a partition takes into transactions, and how many of them may wait for their end. Pure.

The bounds of one transaction keep its PUBLISH entry within the bounds that every entry has. Its append comes after the
decision, and must not fail.
"""

from __future__ import annotations

from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, InvalidRequest, QuotaExceeded
from tinymq.base.topic_config import Storage, TopicConfig
from tinymq.base.types import PAYLOAD_BYTES_MAX
from tinymq.broker.state.staged import Totals, Waiting
from tinymq.format.batch import BatchHeader
from tinymq.format.transactional import END_SIZE, ITEM_SIZE, ITEMS_MAX, STAGED_HEAD_SIZE

RECORDS_MAX = (1 << 32) - 1  # of one entry
SHOWN_BYTES_MAX = 1024 * 1024  # of the batch of a half message, which the coordinator sends to checkers
RETRY_MS = 1000  # the pause that a refusal suggests to the client when too much is staged


def check_transactional(config: TopicConfig, header: BatchHeader, size: int) -> None:
    """Raises InvalidRequest and BatchTooLarge for a batch that no transaction of this partition can have."""
    check_durable(config)
    if header.producer_id:
        raise InvalidRequest("a batch of a transaction has a producer id", hint="the transaction numbers its batches")
    if size + STAGED_HEAD_SIZE > PAYLOAD_BYTES_MAX:
        raise BatchTooLarge(f"a batch of {size} bytes in a transaction", hint="send fewer records in one batch")


def check_durable(config: TopicConfig) -> None:
    """Raises InvalidRequest for a partition that may lose in a power cut what it has acknowledged."""
    if config.storage is Storage.MEMORY or config.sync_interval_ms:
        hint = "transactions need topics with storage=disk and sync=always"
        raise InvalidRequest("a power cut could tear the transaction", hint=hint)


def check_transaction(limits: Limits, staged: Waiting, records: int) -> None:
    """Raises BatchTooLarge if the transaction takes no batch of so many records beside what is `staged` of it."""
    batches_max = min(ITEMS_MAX, (limits.uncommitted_bytes_max - END_SIZE) // ITEM_SIZE)
    if staged.batches >= batches_max or staged.records + records > RECORDS_MAX:
        message = f"the transaction has {staged.batches} batches of {staged.records} records in the partition"
        raise BatchTooLarge(message, hint=f"commit at most {batches_max} batches and {RECORDS_MAX} records at once")


def check_staged(limits: Limits, staged: Waiting, totals: Totals, size: int) -> None:
    """Raises QuotaExceeded if one more batch of `size` bytes is too much for the partition or the broker."""
    if staged.batches >= limits.staged_batches_max or staged.bytes + size > limits.staged_bytes_max:
        message = f"{staged.batches} batches of {staged.bytes} bytes are staged in the partition"
        raise QuotaExceeded(message, hint="end transactions that are open", retry_after_ms=RETRY_MS)
    if totals.batches >= limits.broker_staged_batches_max or totals.bytes + size > limits.broker_staged_bytes_max:
        message = f"{totals.batches} batches of {totals.bytes} bytes are staged on this broker"
        raise QuotaExceeded(message, hint="end transactions that are open", retry_after_ms=RETRY_MS)
