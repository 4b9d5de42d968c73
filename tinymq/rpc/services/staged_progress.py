"""Commands of cursors at a partition's leader, beside transactions: offsets and acks that wait for the end of one, and
openings that wait until none is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tinymq.base.errors import InvalidRequest, OutcomeUnknown, TinymqError
from tinymq.base.value import value
from tinymq.broker.groups.lease_values import Grant
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.messages import command
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.transactions.led_transactions import SentOffset
from tinymq.broker.work.transactional_jobs import AcksPlace
from tinymq.broker.work.workers import Workers
from tinymq.proto import partition_pb2 as part
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.services.staged_batches import place_of
from tinymq.rpc.services.work import read_grants


@value
class RequestedAcks:
    """Acks of a queue group's worker, and their place in a transaction."""

    group: str
    group_id: int
    session: bytes
    grants: Sequence[Grant]
    place: AcksPlace


Requested = part.Command | SentOffset | RequestedAcks


def parse_offset(said: pb.BatchTransaction, commit: part.Commit) -> SentOffset:
    """A commit with its place in a transaction. Raises InvalidRequest for a commit that no transaction can have."""
    if commit.kind != part.STREAM:
        raise InvalidRequest("a transaction commits offsets of stream groups only")
    return SentOffset(place_of(said), said.coordinator, said.number, commit)


def parse_acks(group: str, requested: pb.ChannelCommand) -> RequestedAcks:
    """Acks with their place in a transaction. Raises InvalidRequest for acks that no transaction can have."""
    said = requested.stage_acks
    if requested.kind != part.QUEUE:
        raise InvalidRequest("a transaction acks jobs of queue groups only")
    grants = read_grants([said.grants], started=True)
    offsets = {grant.offset for grant in grants}
    if not grants or len(offsets) != len(grants):
        raise InvalidRequest("acks of no job, or of one job twice", hint="name each job once")
    transaction = place_of(said.transaction)
    place = AcksPlace(transaction, said.transaction.coordinator, said.transaction.number)
    return RequestedAcks(group, requested.group_id, said.session, grants, place)


async def carry_out(
    partition: Partition, workers: Workers, requested: Sequence[Requested], timeout_s: float
) -> list[CommandOutcome]:
    """Run the commands of a partition as one call, and stage its offsets and acks. Returns the outcomes, in the same
    order.

    An error of the call is the outcome of each of its commands.
    """
    commands = [each for each in requested if isinstance(each, part.Command)]
    outcomes = iter(await _run(partition, commands, timeout_s) if commands else [])
    return [
        await _settled(partition, each, next(outcomes), timeout_s)
        if isinstance(each, part.Command)
        else await _stage(partition, workers, each, timeout_s)
        for each in requested
    ]


async def _run(partition: Partition, commands: Sequence[part.Command], timeout_s: float) -> list[CommandOutcome]:
    try:
        return await command(partition, commands, timeout_s)
    except TinymqError as error:
        return [CommandOutcome(error) for _ in commands]


async def _stage(
    partition: Partition, workers: Workers, staged: SentOffset | RequestedAcks, timeout_s: float
) -> CommandOutcome:
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(staged, SentOffset):
                await partition.transactions.stage_offset(staged)
            else:
                partition.check_leading()
                leader = workers.find(partition, staged.group, staged.group_id)
                await leader.jobs.stage(staged.session, staged.grants, staged.place)
    except TinymqError as error:
        return CommandOutcome(error)
    except TimeoutError:
        return CommandOutcome(OutcomeUnknown(f"{partition}: what was staged was not on a majority of disks in time"))
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
