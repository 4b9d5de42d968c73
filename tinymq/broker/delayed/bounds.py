"""The bounds of delayed batches: of their due times, and of how many wait. Pure."""

from __future__ import annotations

from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, InvalidRequest, QuotaExceeded
from tinymq.base.topic_config import Storage, TopicConfig
from tinymq.base.types import PAYLOAD_BYTES_MAX
from tinymq.base.value import value
from tinymq.broker.state.staged import Totals, Waiting
from tinymq.format.delayed import STAGED_HEAD_SIZE

DELAY_US_MIN = 1_000_000
DELAY_US_MAX = 30 * 24 * 3600 * 1_000_000
RETRY_MS = 1000  # the pause that a refusal suggests when too many batches wait; the next due time may be days away


@value
class Due:
    """When a delayed batch is due: at a time, or after a delay that begins with its append."""

    deliver_at_us: int = 0  # by the append clock; 0: see `delay_us`
    delay_us: int = 0

    def at_us(self, append_time_us: int) -> int:
        """The time, for a batch with this append time."""
        return self.deliver_at_us or append_time_us + self.delay_us


def check_due(due: Due, now_us: int) -> None:
    """Raises InvalidRequest for a time that is too far away, or a delay that is too short or too long.

    A time that has passed is permitted: a batch that is sent again may be late, and is due at once.
    """
    if due.deliver_at_us:
        if due.deliver_at_us - now_us > DELAY_US_MAX:
            raise InvalidRequest("the batch is due in more than 30 days", hint="send it later")
    elif not DELAY_US_MIN <= due.delay_us <= DELAY_US_MAX:
        raise InvalidRequest(f"a delay of {due.delay_us} us", hint="delays are from 1 s to 30 days")


def check_delayed(config: TopicConfig, size: int, *, quorum: bool) -> None:
    """Raises InvalidRequest and BatchTooLarge for a batch that cannot be delayed."""
    if config.storage is Storage.MEMORY:
        raise InvalidRequest("the topic is in memory", hint="delayed batches need storage=disk")
    if not quorum:
        raise InvalidRequest("a delayed batch is acknowledged by a quorum", hint="send it with acks=quorum")
    if size + STAGED_HEAD_SIZE > PAYLOAD_BYTES_MAX:
        raise BatchTooLarge(f"a delayed batch of {size} bytes", hint="send fewer records in one batch")


def check_waiting(limits: Limits, waiting: Waiting, totals: Totals, size: int) -> None:
    """Raises QuotaExceeded if one more batch of `size` bytes is too much for the partition or the broker."""
    if waiting.batches >= limits.delayed_batches_max or waiting.bytes + size > limits.delayed_bytes_max:
        message = f"{waiting.batches} delayed batches of {waiting.bytes} bytes wait in the partition"
        raise QuotaExceeded(message, hint="send to other partitions, or later", retry_after_ms=RETRY_MS)
    if totals.batches >= limits.broker_delayed_batches_max or totals.bytes + size > limits.broker_delayed_bytes_max:
        message = f"{totals.batches} delayed batches of {totals.bytes} bytes wait on this broker"
        raise QuotaExceeded(message, hint="send them later", retry_after_ms=RETRY_MS)
