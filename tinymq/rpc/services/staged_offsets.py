"""Commands of cursors at a partition's leader, beside transactions: offsets that wait for the end of one, and openings
that wait until none is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tinymq.base.errors import InvalidRequest, OutcomeUnknown, TinymqError
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.messages import command
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.transactions.led_transactions import SentOffset
from tinymq.proto import partition_pb2 as part
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.services.staged_batches import place_of


def parse_offset(said: pb.BatchTransaction, commit: part.Commit) -> SentOffset:
    """A commit with its place in a transaction. Raises InvalidRequest for one that cannot be in any."""
    if commit.kind != part.STREAM:
        raise InvalidRequest("a transaction commits offsets of stream groups only")
    return SentOffset(place_of(said), said.coordinator, said.number, commit)


async def carry_out(
    partition: Partition, requested: Sequence[part.Command | SentOffset], timeout_s: float
) -> list[CommandOutcome]:
    """Run the commands of a partition as one call, and stage its offsets. Returns the outcomes, in the same order.

    An error of the call is the outcome of each of its commands.
    """
    commands = [each for each in requested if isinstance(each, part.Command)]
    outcomes = iter(await _run(partition, commands, timeout_s) if commands else [])
    return [
        await _stage(partition, each, timeout_s)
        if isinstance(each, SentOffset)
        else await _settled(partition, each, next(outcomes), timeout_s)
        for each in requested
    ]


async def _run(partition: Partition, commands: Sequence[part.Command], timeout_s: float) -> list[CommandOutcome]:
    try:
        return await command(partition, commands, timeout_s)
    except TinymqError as error:
        return [CommandOutcome(error) for _ in commands]


async def _stage(partition: Partition, sent: SentOffset, timeout_s: float) -> CommandOutcome:
    try:
        async with asyncio.timeout(timeout_s):
            await partition.transactions.stage_offset(sent)
    except TinymqError as error:
        return CommandOutcome(error)
    except TimeoutError:
        return CommandOutcome(OutcomeUnknown(f"{partition}: the offset was not on a majority of disks in time"))
    return CommandOutcome()


async def _settled(
    partition: Partition, single: part.Command, outcome: CommandOutcome, timeout_s: float
) -> CommandOutcome:
    """The outcome of a command. A member that has opened the cursor of its group gets the position that is left when
    no transaction can move it any more: otherwise it would read records whose results are about to be published."""
    if not single.HasField("open") or single.open.kind != part.STREAM or outcome.error is not None:
        return outcome
    try:
        if not await partition.transactions.settle_offsets(single.open.channel):
            return outcome
    except TinymqError as error:
        return CommandOutcome(error)
    return (await _run(partition, [single], timeout_s))[0]
