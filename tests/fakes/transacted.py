"""Batches that are in a real partition because a transaction was committed, without a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.fakes.batches import checked
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.staged import StagedBatch, TransactionId
from tinymq.broker.transactions.rules import Standing


def name_of(number: int) -> TransactionId:
    return TransactionId(producer_id=7, epoch=0, number=number)


async def transact(partition: Partition, payloads: Sequence[bytes], number: int) -> None:
    """Publish batches in the leader's partition, as the transaction `number` of a producer."""
    await stage(partition, payloads, number)
    await partition.transactions.end(name_of(number), publish=True)


async def stage(partition: Partition, payloads: Sequence[bytes], number: int) -> list[int]:
    """Store the first batches of a transaction. Returns the indexes of their entries."""

    async def is_open(transaction: TransactionId, coordinator: int) -> Standing:
        return Standing.OPEN

    transactions = partition.transactions
    transactions._leading()._ask = is_open
    batches = [
        transactions.stage(StagedBatch(name_of(number), 0, place), 0, *checked(payload))
        for place, payload in enumerate(payloads)
    ]
    return await asyncio.gather(*batches)
