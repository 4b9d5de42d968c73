"""Batches that are in a real partition because a transaction was committed, without a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.fakes.batches import checked
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.staged import StagedBatch, TransactionId
from tinymq.broker.transactions.rules import Standing


async def transact(partition: Partition, payloads: Sequence[bytes], number: int) -> None:
    """Publish batches in the leader's partition, as the transaction `number` of a producer."""

    async def is_open(transaction: TransactionId, coordinator: int) -> Standing:
        return Standing.OPEN

    transactions, name = partition.transactions, TransactionId(producer_id=7, epoch=0, number=number)
    transactions._leading()._ask = is_open
    batches = [
        transactions.stage(StagedBatch(name, 0, place), 0, *checked(payload)) for place, payload in enumerate(payloads)
    ]
    await asyncio.gather(*batches)
    await transactions.end(name, publish=True)
