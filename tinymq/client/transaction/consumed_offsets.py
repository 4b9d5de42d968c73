"""The offsets of consumers that one transaction commits: staged in their partitions, and counted for the commit."""

from __future__ import annotations

import asyncio
from collections import Counter

from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.transactional_id_calls import Place, TransactionalIdCalls
from tinymq.client.consume import cursors
from tinymq.client.group.transactional_reading import HandedOut, TransactionalReading
from tinymq.client.transaction.owner import Begun
from tinymq.proto import tinymq_pb2 as pb


class ConsumedOffsets:
    """The offsets that members of groups have handed out by the time of the commit."""

    def __init__(self, cluster: Cluster, calls: TransactionalIdCalls, begun: Begun) -> None:
        self.counts: Counter[Place] = Counter()  # the number of staged offsets, by partition
        self._cluster = cluster
        self._calls = calls
        self._transaction, self._coordinator, _ = begun
        self._readings: dict[TransactionalReading, list[HandedOut]] = {}  # each with the offsets that are staged

    def add(self, reading: TransactionalReading) -> None:
        """Commit the offsets of this member. Raises InvalidRequest if another transaction commits them."""
        if reading not in self._readings:
            reading.claim()
            self._readings[reading] = []

    async def stage(self, timeout_s: float) -> None:
        """Stage the next offset of each member. Raises the error for which the transaction cannot be committed."""
        left = self._cluster.countdown(timeout_s)
        for reading in self._readings:  # one after the other, because two groups may read the same partition
            handed_out = reading.handed_out()
            if handed_out:
                places = [_place_of(each) for each in handed_out]
                await self._calls.add(self._transaction, [], left(), offsets=places)
                await asyncio.gather(*(self._stage(each, left()) for each in handed_out))
                self._readings[reading] = handed_out

    def ended(self, *, committed: bool) -> None:
        """The transaction is over. Unless it was committed, the members hand out the same records again."""
        readings, self._readings = self._readings, {}
        for reading, handed_out in readings.items():
            if committed:
                reading.committed(handed_out)
            else:
                reading.roll_back()

    async def _stage(self, handed_out: HandedOut, timeout_s: float) -> None:
        place, cursor = _place_of(handed_out), handed_out.cursor
        number, self.counts[place] = self.counts[place], self.counts[place] + 1
        commit = pb.ChannelCommit(epoch=cursor.epoch, generation=cursor.generation, offset=handed_out.offset)
        at = pb.BatchTransaction(transaction=self._transaction, coordinator=self._coordinator, number=number)
        stage = pb.ChannelCommand(stage=pb.ChannelStage(commit=commit, transaction=at))
        await cursors.change(self._cluster, cursor.id, stage, timeout_s)


def _place_of(handed_out: HandedOut) -> Place:
    at = handed_out.cursor.id
    return at.topic.topic_id, at.partition
