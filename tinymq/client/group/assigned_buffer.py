"""The fetched records of a consumer's partitions, which come and go while another thread takes records.

Asking for more says that what was handed out before is done: `positions` are what may be committed. A partition whose
records are in the taker's hand, or in the batch that it takes from, is given up only when the taker asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from threading import Lock

from tinymq.client.consume.records import Chunk, Message
from tinymq.client.group.fetched_records import TopicPartition


class AssignedBuffer:
    """One thread takes; the client's loop does everything else. Fields change under the lock, with one exception: the
    taker pops from `_messages`, and sets `_last`, without it."""

    def __init__(self, freed: Callable[[int], None]) -> None:
        """`freed` gets the bytes of records that left, in either thread."""
        self.leaving: set[TopicPartition] = set()  # to be given up when the taker asks again
        self._slow = False  # the next call of the taker has more to do than to pop
        self._freed = freed
        self._lock = Lock()
        self._ready: deque[tuple[TopicPartition, Chunk]] = deque()
        self._held: list[tuple[TopicPartition, Chunk]] = []  # fetched records of paused partitions
        self._paused: set[TopicPartition] = set()
        self._next: dict[TopicPartition, int] = {}  # by partition that is read: behind the last row that left
        self._place: TopicPartition | None = None  # of `_messages`
        self._messages: deque[Message] = deque()
        self._last: Message | None = None  # handed out by `next_message`, and not done
        self._hand: dict[TopicPartition, int] = {}  # the first offsets of `next_messages` that are not done

    # ---- the taker --------------------------------------------------------------------------------------------

    def next_message(self) -> Message | None:
        """Take a message. None: none waits, or a partition is leaving. What was taken before is done."""
        if not self._slow:
            try:
                self._last = message = self._messages.popleft()
            except IndexError:
                pass
            else:
                return message
        found = self._take(1)
        if not found:
            return None
        self._hand.clear()
        self._last = found[0]
        self._slow = bool(self.leaving)
        return found[0]

    def next_messages(self, count: int) -> list[Message]:
        """Take up to `count` messages. What was taken before is done."""
        return self._take(count)

    def _take(self, count: int) -> list[Message]:
        found: list[Message] = []
        with self._lock:
            self._last = None
            self._hand.clear()
            if self.leaving:  # the loop gives them up first
                return found
            while len(found) < count and (self._messages or self._refill()):
                some = [self._messages.popleft() for _ in range(min(count - len(found), len(self._messages)))]
                assert self._place is not None, "messages have a partition"
                self._hand.setdefault(self._place, some[0].offset)
                found += some
            self._slow = bool(found)
        return found

    def _refill(self) -> bool:
        if not self._ready:
            return False
        place, chunk = self._ready.popleft()
        self._freed(chunk.bytes)
        self._next[place], self._place = chunk.next_offset, place
        self._messages = deque(chunk.messages(place.topic))
        return True

    # ---- the loop ---------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        return not self._ready and not self._messages

    def done(self) -> None:
        """What the taker has is done: it asks for more, or it ended cleanly."""
        with self._lock:
            self._last = None
            self._hand.clear()

    def begin(self, place: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on."""
        with self._lock:
            self._drop(place)
            self._next[place] = offset

    def offer(self, place: TopicPartition, chunk: Chunk) -> None:
        """Add fetched records of a partition that is read."""
        with self._lock:
            (self._held if place in self._paused else self._ready).append((place, chunk))

    def in_hand(self, place: TopicPartition) -> bool:
        """Whether the taker has records of a partition, or takes from a batch of it."""
        with self._lock:
            return self._in_hand(place)

    def release(self, place: TopicPartition) -> int | None:
        """Give a partition up, and return the offset behind what is done. None: it is in the taker's hand, and leaves
        when the taker asks again."""
        with self._lock:
            if self._in_hand(place):
                self.leaving.add(place)
                self._slow = True
                return None
            position = self._position(place)
            self._drop(place)
            del self._next[place]
            return position

    def drop(self, places: Collection[TopicPartition]) -> None:
        """Give partitions up that belong to another member by now. The taker gets no further record of them."""
        with self._lock:
            for place in places:
                self._drop(place)
                self._next.pop(place, None)
                self.leaving.discard(place)
                self._hand.pop(place, None)

    def positions(self) -> dict[TopicPartition, int]:
        """The offset behind the last record that is done, by partition."""
        with self._lock:
            return {place: self._position(place) for place in self._next}

    def pause(self, places: Collection[TopicPartition], *, resume: bool = False) -> None:
        """Hand out no records of these partitions, or hand them out again."""
        with self._lock:
            (self._paused.difference_update if resume else self._paused.update)(places)
            every = [*self._ready, *self._held]
            self._ready = deque(item for item in every if item[0] not in self._paused)
            self._held = [item for item in every if item[0] in self._paused]

    def _in_hand(self, place: TopicPartition) -> bool:
        last = self._last
        held = last is not None and (last.topic, last.partition) == place
        return held or place in self._hand or (place == self._place and bool(self._messages))

    def _position(self, place: TopicPartition) -> int:
        position = self._next[place]
        if place == self._place and self._messages:
            position = self._messages[0].offset
        last = self._last
        if last is not None and (last.topic, last.partition) == place:
            position = min(position, last.offset)
        return min(position, self._hand.get(place, position))

    def _drop(self, place: TopicPartition) -> None:
        for queue in (self._ready, self._held):
            for item in [item for item in queue if item[0] == place]:
                queue.remove(item)
                self._freed(item[1].bytes)
        if place == self._place:
            self._messages.clear()

    def leave(self, place: TopicPartition) -> int:
        """Give up a partition that was leaving, because the taker has asked again. Returns as `release`."""
        with self._lock:
            position = self._position(place)
            self._drop(place)
            self._next.pop(place, None)
            self.leaving.discard(place)
            self._slow = bool(self.leaving) or bool(self._hand)
            return position
