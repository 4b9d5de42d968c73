"""The records that were fetched and wait for the application. No I/O.

The loop appends chunks to `ready`. One application thread, or task, takes them, as rows or as messages. Both need no
lock, because a deque's append and popleft are atomic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tinymq.client.consume.partition_fetcher import Cursor
from tinymq.client.consume.records import Chunk, Message


class FetchBuffer:
    """The chunks of one reader that wait, of which one may be half taken as messages."""

    def __init__(self, topic: str, freed: Callable[[int], None]) -> None:
        """`freed` is called with the bytes of each chunk that was taken, in the thread that takes."""
        self.ready: deque[Chunk] = deque()
        self.cursors: dict[int, Cursor] = {}  # by partition; empty until the reader is open
        self._topic = topic
        self._freed = freed
        self._current: Chunk | None = None  # the chunk that `_messages` came from
        self._messages: deque[Message] = deque()  # those of `_current` that are left
        self._next: dict[int, int] = {}  # by partition: the offset behind the last row that left `ready`

    def begin(self, cursors: dict[int, Cursor]) -> None:
        """Start where the cursors are: the reader is open."""
        self.cursors = cursors
        self._next = {p: cursor.offset for p, cursor in cursors.items()}

    def take_chunk(self) -> Chunk | None:
        """Take the next rows; None if none wait."""
        self._return_messages()
        while self.ready:
            chunk = self.ready.popleft()
            self._freed(chunk.bytes)
            # A fetch may begin before the next offset, or go beyond an end that `to_arrow` set later.
            rows = chunk.cut(self._next[chunk.partition], self.cursors[chunk.partition].end)
            if rows is not None:
                self._next[chunk.partition] = rows.next_offset
                return rows
        return None

    def give_back(self, chunk: Chunk, offset: int) -> None:
        """Return the rows of a taken chunk from `offset` on. They are the next ones to be taken."""
        rest = chunk.cut(offset, None)
        if rest is not None:
            self._next[chunk.partition] = offset
            self._freed(-rest.bytes)
            self.ready.appendleft(rest)

    def next_messages(self, count: int) -> list[Message]:
        """Take up to `count` messages that wait."""
        out: list[Message] = []
        messages = self._messages
        while len(out) < count:
            if not messages:
                self._current = self.take_chunk()
                if self._current is None:
                    break
                messages.extend(self._current.messages(self._topic))
            if len(messages) <= count - len(out):
                out.extend(messages)
                messages.clear()
            else:
                out += [messages.popleft() for _ in range(count - len(out))]
        return out

    def next_message(self) -> Message | None:
        """Take the next message; None if none waits."""
        if self._messages:
            return self._messages.popleft()
        messages = self.next_messages(1)
        return messages[0] if messages else None

    def peek(self) -> Message | None:
        """Return the message that `next_message` would take."""
        if not self._messages:
            self._current = self.take_chunk()
            if self._current is None:
                return None
            self._messages.extend(self._current.messages(self._topic))
        return self._messages[0]

    def _return_messages(self) -> None:
        """Turn messages that were not taken into rows again, so that a table continues where messages ended."""
        if self._messages:
            assert self._current is not None, "messages come from a chunk"
            first = self._messages[0].offset
            self._messages.clear()
            self.give_back(self._current, first)

    @property
    def empty(self) -> bool:
        """Does nothing wait?"""
        return not self.ready and not self._messages

    @property
    def complete(self) -> bool:
        """Was everything up to every end taken, or removed before it could be?"""
        return (
            bool(self.cursors)
            and not self._messages
            and all(
                cursor.end is not None and (self._next[p] >= cursor.end or (cursor.done and not self.ready))
                for p, cursor in self.cursors.items()
            )
        )

    def position(self) -> dict[int, int]:
        """Return the next offset for the application, by partition."""
        position = dict(self._next)
        if self._messages:
            position[self._messages[0].partition] = self._messages[0].offset
        return position

    def clear(self) -> None:
        """Drop everything that waits."""
        self.ready.clear()
        self._messages.clear()
