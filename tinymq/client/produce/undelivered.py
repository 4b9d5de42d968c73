"""The records that a producer could not deliver, kept within a bound until `flush` or `close` reports them."""

from __future__ import annotations

from tinymq.base.errors import NotDelivered
from tinymq.base.quantity import quantity
from tinymq.client.produce.producer_batch import ProducerBatch


class Undelivered:
    """The batches that failed since the last report. Beyond the bound, only their records are counted."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: list[ProducerBatch] = []
        self._left_out = 0

    @property
    def count(self) -> int:
        """The number of failed records that were not reported."""
        return self._left_out + sum(batch.count - len(batch.seen or ()) for batch in self._batches)

    def add(self, batch: ProducerBatch) -> None:
        """Keep the records of a batch that has just failed."""
        if self._bytes + batch.bytes <= self._bytes_max:
            self._batches.append(batch)
            self._bytes += batch.bytes
        else:
            self._left_out += batch.count

    def report(self) -> None:
        """Raise NotDelivered with the failed records whose Delivery nobody asked, if there are any."""
        batches, self._batches = self._batches, []
        left_out, self._left_out = self._left_out, 0
        self._bytes = 0
        records = [record for batch in batches for record in batch.unsent()]
        if records or left_out:
            first = f": {records[0].error.message}" if records else ""
            count = len(records) + left_out
            raise NotDelivered(f"{quantity(count, 'record')} not delivered{first}", records=records, left_out=left_out)
