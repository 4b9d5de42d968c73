"""A batch as it is sent: its fields, the head of its payload, and the Arrow message."""

from __future__ import annotations

from tinymq.client.net.ports import PackedBatch
from tinymq.client.net.wire import batch_head, produce_batch
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue
from tinymq.client.produce.staging import Staging


def pack(
    queue: SendQueue, batch: ProducerBatch, producer_id: int, acks: int, staging: Staging | None = None
) -> tuple[PackedBatch, int]:
    """Pack the next attempt of a batch. Returns (the batch, its bytes)."""
    assert batch.message is not None, "taken before it was encoded"
    # A batch of a transaction is numbered by its place in that, and not by its producer.
    head = batch_head(
        codec=batch.codec,
        record_count=batch.count,
        producer_id=producer_id,
        producer_epoch=batch.epoch,
        first_sequence=batch.first_sequence if staging is None else -1,
    )
    left_s = batch.deadline_s - batch.attempt_s
    return produce_batch(
        request_id=batch.request_id,
        topic_id=queue.topic_id,
        partition=queue.partition,
        head=head,
        message=batch.message,
        acks=acks,
        timeout_ms=max(1, int(left_s * 1000)),
        message_id=batch.message_id,
        due=batch.due,
        transaction=b"" if staging is None else staging.place_of(batch),
    )
