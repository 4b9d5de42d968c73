"""The fetched records that wait for the application. No I/O.

The loop appends chunks to `ready`. One application thread, or task, takes them, as rows or as messages. Neither side
needs a lock, because a deque's append and popleft are atomic.

A signal may interrupt the taking thread wherever Python checks for signals: at the start of a function, after a call,
and at the end of a loop's pass. So a chunk leaves `ready` only after everything that can fail, and no such point lies
between two assignments that have to agree on a position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from tinymq.client.consume.partition_fetcher import FetchPosition
from tinymq.client.consume.records import Chunk, ChunkMessages, Message


class FetchBuffer:
    """The waiting chunks of one reader. The first one may be partly taken, as messages."""

    def __init__(self, topic: str, freed: Callable[[int], None]) -> None:
        """`freed` is called with the bytes of each chunk that was taken, in the thread that takes."""
        self.ready: deque[Chunk] = deque()
        self.cursors: dict[int, FetchPosition] = {}  # by partition; empty until the reader is open
        self.at_hand: Iterator[Message] = iter(())  # the messages to take now; drawing one takes it
        self._topic = topic
        self._freed = freed
        self._messages: ChunkMessages | None = None  # those of `at_hand`
        self._next: dict[int, int] = {}  # by partition: the offset behind the last row that left `ready`

    def begin(self, cursors: dict[int, FetchPosition]) -> None:
        """Start at the positions of the cursors, because the reader is open now."""
        self.cursors = cursors
        self._next = {p: cursor.offset for p, cursor in cursors.items()}

    def add(self, cursor: FetchPosition) -> None:
        """Read another partition, too. Called by the loop, while another thread may look at the cursors."""
        self._next[cursor.partition] = cursor.offset
        self.cursors = {**self.cursors, cursor.partition: cursor}

    def take_chunk(self) -> Chunk | None:
        """Take the next rows; None if no rows wait."""
        self._return_messages()
        rows = self._waiting()
        if rows is not None:
            self._leave(rows)
        return rows

    def give_back(self, chunk: Chunk, offset: int) -> None:
        """Put the rows of a taken chunk from `offset` on back, as the next ones to be taken."""
        rest = chunk.cut(offset, None)
        if rest is not None:
            partition = chunk.partition
            self._next[partition] = offset  # from here on only the next two statements are calls
            self.ready.appendleft(rest)
            self._freed(-rest.bytes)

    def more(self) -> bool:
        """Fill `at_hand`, unless it still has messages. Returns False if no messages wait."""
        if self._messages is not None and not self._messages.empty:
            return True
        rows = self._waiting()
        if rows is None:
            return False
        messages = rows.messages(self._topic)
        self._leave(rows, messages)
        return True

    def next_messages(self, count: int) -> list[Message]:
        """Take up to `count` messages that wait."""
        found = list(islice(self.at_hand, count))
        while len(found) < count and self.more():
            found += islice(self.at_hand, count - len(found))
        return found

    def peek(self) -> Message | None:
        """Return the message that is taken next."""
        if not self.more():
            return None
        assert self._messages is not None, "there are more"
        offset = self._messages.next_offset
        rows = self._messages.chunk.cut(offset, offset + 1)
        assert rows is not None, "one is left"
        return next(iter(rows.messages(self._topic)))

    def _waiting(self) -> Chunk | None:
        """Return the rows of the first chunk in `ready` that the application has not got; None if none wait."""
        while self.ready:
            chunk = self.ready[0]
            # A fetch may begin before the next offset, or go beyond an end that `to_arrow` set later.
            rows = chunk.cut(self._next[chunk.partition], self.cursors[chunk.partition].end)
            if rows is not None:
                return rows
            self.ready.popleft()
            self._freed(chunk.bytes)
        return None

    def _leave(self, rows: Chunk, messages: ChunkMessages | None = None) -> None:
        """Take the first chunk from `ready`, of which `rows` are used, and `messages` are made."""
        partition, after = rows.partition, rows.next_offset
        # From here on only the second last statement and the last one are calls.
        if messages is not None:
            self._messages, self.at_hand = messages, messages.at_hand
        self._next[partition] = after
        self.ready.popleft()
        self._freed(rows.bytes)

    def _return_messages(self) -> None:
        """Turn messages that were not taken into rows again, so that a table continues where messages ended."""
        messages = self._messages
        if messages is not None and not messages.empty:
            self.give_back(messages.chunk, messages.stop())

    @property
    def empty(self) -> bool:
        """Does nothing wait?"""
        return not self.ready and (self._messages is None or self._messages.empty)

    @property
    def complete(self) -> bool:
        """Was everything up to every end taken, or removed before it could be?"""
        return (
            bool(self.cursors)
            and (self._messages is None or self._messages.empty)
            and all(
                cursor.end is not None and (self._next[p] >= cursor.end or (cursor.done and not self.ready))
                for p, cursor in self.cursors.items()
            )
        )

    def position(self) -> dict[int, int]:
        """Return the next offset for the application, by partition."""
        position = dict(self._next)
        if self._messages is not None and not self._messages.empty:
            position[self._messages.chunk.partition] = self._messages.next_offset
        return position

    def clear(self) -> None:
        """Drop everything that waits."""
        self.ready.clear()
        if self._messages is not None:
            self._messages.stop()
