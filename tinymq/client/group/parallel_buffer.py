"""Fetched records for handlers that run at the same time: of each partition one record at a time, in order.

Each partition hands out one record, and the next one when that is done or has failed. So a partition's position is
exact, and several partitions progress side by side. Everything happens on the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from tinymq.client.consume.records import Chunk, Message
from tinymq.client.group.fetched_records import TopicPartition


class AssignedPartition:
    """One partition that is read."""

    __slots__ = ("chunks", "failures", "in_hand", "messages", "pausing", "position")

    def __init__(self, position: int) -> None:
        self.position = position  # behind the last record that is done
        self.chunks: deque[Chunk] = deque()
        self.messages: deque[Message] = deque()  # of the chunk that was unpacked last
        self.in_hand: Message | None = None
        self.failures = 0  # in a row, of the record at `position`
        self.pausing = False  # after a failure


class ParallelBuffer:
    """Implements FetchedRecords (tinymq/client/group/fetched_records.py), whose methods are documented there."""

    def __init__(self, freed: Callable[[int], None]) -> None:
        """`freed` gets the bytes of fetched records that were unpacked or dropped."""
        self.leaving: set[TopicPartition] = set()
        self._freed = freed
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self._ready: dict[TopicPartition, None] = {}  # in the order of their turns; some may have nothing by now

    # ---- handing out ------------------------------------------------------------------------------------------

    def take(self) -> Message | None:
        """Take a record of the partition whose turn it is. None: there is no partition with a record to hand out."""
        while self._ready:
            place = next(iter(self._ready))
            del self._ready[place]
            partition = self._partitions.get(place)
            if partition is None or partition.in_hand is not None or partition.pausing or place in self.leaving:
                continue
            if not partition.messages and partition.chunks:
                chunk = partition.chunks.popleft()
                self._freed(chunk.bytes)
                partition.messages.extend(chunk.messages(place.topic))
            if partition.messages:
                partition.in_hand = message = partition.messages.popleft()
                return message
        return None

    def done(self, message: Message) -> TopicPartition | None:
        """Move the position behind a record that was handed out. Returns its partition if that is leaving now."""
        place = TopicPartition(message.topic, message.partition)
        partition = self._partitions.get(place)
        if partition is None or partition.in_hand is not message:
            return None  # the partition was given up, or read from elsewhere, meanwhile
        partition.in_hand = None
        partition.failures = 0
        partition.position = message.offset + 1
        return self._next_turn(place)

    def failed(self, message: Message) -> int:
        """Put a record back before its followers, and pause its partition until `resume`.

        Returns how often it failed; 0: its partition is no longer read here.
        """
        place = TopicPartition(message.topic, message.partition)
        partition = self._partitions.get(place)
        if partition is None or partition.in_hand is not message:
            return 0
        partition.in_hand = None
        partition.messages.appendleft(message)
        partition.failures += 1
        partition.pausing = True
        return partition.failures

    def resume(self, message: Message) -> None:
        """Let a failed record be handed out again."""
        place = TopicPartition(message.topic, message.partition)
        partition = self._partitions.get(place)
        if partition is not None and partition.pausing and partition.messages and partition.messages[0] is message:
            partition.pausing = False
            self._ready[place] = None

    def _next_turn(self, place: TopicPartition) -> TopicPartition | None:
        if place in self.leaving:
            return place
        self._ready[place] = None
        return None

    # ---- FetchedRecords ---------------------------------------------------------------------------------------

    def begin(self, place: TopicPartition, offset: int) -> None:
        self.drop([place])
        self._partitions[place] = AssignedPartition(offset)

    def offer(self, place: TopicPartition, chunk: Chunk) -> None:
        partition = self._partitions.get(place)
        if partition is None:  # it was given up while the answer arrived
            self._freed(chunk.bytes)
            return
        partition.chunks.append(chunk)
        self._ready[place] = None

    def release(self, place: TopicPartition) -> int | None:
        if self._partitions[place].in_hand is not None:
            self.leaving.add(place)
            return None
        return self.leave(place)

    def leave(self, place: TopicPartition) -> int:
        position = self._partitions[place].position
        self.drop([place])
        return position

    def drop(self, places: Collection[TopicPartition]) -> None:
        for place in places:
            self.leaving.discard(place)
            self._ready.pop(place, None)
            partition = self._partitions.pop(place, None)
            for chunk in partition.chunks if partition is not None else ():
                self._freed(chunk.bytes)

    def positions(self) -> dict[TopicPartition, int]:
        return {place: partition.position for place, partition in self._partitions.items()}
