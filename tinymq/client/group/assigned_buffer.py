"""The fetched records of a consumer's partitions, which come and go while another thread takes records.

Asking for more says that what was handed out before is done: `positions` are what may be committed. A partition whose
records are in the taker's hand, or in the batch that it takes from, is given up only when the taker asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import islice
from threading import Lock

from tinymq.client.common.gil import GIL
from tinymq.client.consume.records import Chunk, ChunkMessages, Message
from tinymq.client.group.fetched_records import TopicPartition

NOTHING: Iterator[Message] = iter(())


class AssignedBuffer:
    """One thread takes; the client's loop does everything else. Fields change under the lock, with one exception: the
    taker draws from `at_hand` without it, which is one step for all other threads."""

    def __init__(self, freed: Callable[[int], None]) -> None:
        """`freed` gets the bytes of records that left, in either thread."""
        self.leaving: set[TopicPartition] = set()  # to be given up when the taker asks again
        # The messages to take one by one; drawing one says that those before are done. Empty: the taker calls `more`.
        self.at_hand: Iterator[Message] = NOTHING
        self._freed = freed
        self._lock = Lock()
        self._ready: deque[tuple[TopicPartition, Chunk]] = deque()
        self._held: list[tuple[TopicPartition, Chunk]] = []  # fetched records of paused partitions
        self._paused: set[TopicPartition] = set()
        self._next: dict[TopicPartition, int] = {}  # by partition that is read: behind the last row that left
        self._messages: ChunkMessages | None = None  # the batch that the taker takes from
        self._place: TopicPartition | None = None  # of `_messages`; None: it was given up
        # The messages of this batch below this offset are done, and so are all but the last one that was drawn, because
        # drawing says so. `next_messages` draws many at once: those are in `_hand`, too.
        self._done = 0
        self._hand: dict[TopicPartition, int] = {}  # the first offsets of `next_messages` that are not done

    # ---- the taker --------------------------------------------------------------------------------------------

    def more(self) -> bool:
        """Fill `at_hand`. False: no message waits, or a partition is leaving. Messages taken before count as done."""
        with self._lock:
            self._all_done()
            if self.leaving or not self._refill():  # the loop gives them up first
                return False
            assert self._messages is not None, "refilled"
            at_hand = self._messages.at_hand
            self.at_hand = at_hand if GIL else _Guarded(at_hand, self._lock)
            return True

    def next_messages(self, count: int) -> list[Message]:
        """Take up to `count` messages. Messages taken before count as done."""
        found: list[Message] = []
        with self._lock:
            self._all_done()
            self.at_hand = NOTHING
            while not self.leaving and len(found) < count and self._refill():
                assert self._messages is not None, "refilled"
                assert self._place is not None, "a batch to take from has a partition"
                self._hand.setdefault(self._place, self._messages.next_offset)
                found += islice(self._messages.at_hand, count - len(found))
        return found

    def _all_done(self) -> None:
        self._hand.clear()
        if self._messages is not None:
            self._done = self._messages.next_offset

    def _refill(self) -> bool:
        if self._messages is not None and not self._messages.empty:
            return True
        if not self._ready:
            return False
        place, chunk = self._ready[0]
        messages, after, first = chunk.messages(place.topic), chunk.next_offset, chunk.base_offset
        # From here on only the next two statements are calls, so that an interrupt leaves all of it or nothing.
        self._messages, self._place, self._done, self._next[place] = messages, place, first, after
        self._ready.popleft()
        self._freed(chunk.bytes)
        return True

    # ---- the loop ---------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        return not self._ready and (self._messages is None or self._messages.empty)

    def done(self) -> None:
        """Note that the messages in the taker's hand are done: it asks for more, or it ended cleanly."""
        with self._lock:
            self._all_done()

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
            if place == self._place:
                self._put_back()
            if self._in_hand(place):
                self.leaving.add(place)
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

    def interrupt(self) -> None:
        """Make the taker ask for more before it draws again, in the middle of a batch, too."""
        with self._lock:
            self._put_back()

    def pause(self, places: Collection[TopicPartition], *, resume: bool = False) -> None:
        """Hand out no records of these partitions, or hand them out again."""
        with self._lock:
            if self._place in places and not resume:
                self._put_back()
            (self._paused.difference_update if resume else self._paused.update)(places)
            every = [*self._ready, *self._held]
            self._ready = deque(item for item in every if item[0] not in self._paused)
            self._held = [item for item in every if item[0] in self._paused]

    def _in_hand(self, place: TopicPartition) -> bool:
        messages = self._messages
        if place in self._hand or messages is None or place != self._place:
            return place in self._hand
        return not messages.empty or messages.next_offset > self._done

    def _position(self, place: TopicPartition) -> int:
        position = self._next[place]
        if place == self._place and self._messages is not None:
            position = max(self._done, self._messages.next_offset - 1)
        return min(position, self._hand.get(place, position))

    def _put_back(self) -> None:
        """Take the rest of a batch from the taker, and make it the next batch.

        An iteration that draws from the batch ends there, and asks for more. The messages that it drew stay in its
        hand. For the loop: an interrupt in the middle of this would lose the rest.
        """
        self.at_hand = NOTHING
        if self._messages is None or self._place is None:
            return
        chunk, first = self._messages.chunk, self._messages.stop()
        rest = chunk.cut(first, None)
        if rest is not None:
            # Its bytes left the buffer when the taker got the batch.
            self._ready.appendleft((self._place, replace(rest, bytes=0)))
        self._next[self._place] = first

    def _drop(self, place: TopicPartition) -> None:
        for queue in (self._ready, self._held):
            for item in [item for item in queue if item[0] == place]:
                queue.remove(item)
                self._freed(item[1].bytes)
        if place == self._place and self._messages is not None:
            self._messages.stop()
            self._place = None

    def leave(self, place: TopicPartition) -> int:
        """Give up a partition that was leaving, because the taker has asked again. Returns as `release`."""
        with self._lock:
            position = self._position(place)
            self._drop(place)
            self._next.pop(place, None)
            self.leaving.discard(place)
            return position


class _Guarded:
    """Draws under a lock: for interpreters without a global one."""

    def __init__(self, messages: Iterator[Message], lock: Lock) -> None:
        self._messages = messages
        self._lock = lock

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        with self._lock:
            return next(self._messages)
