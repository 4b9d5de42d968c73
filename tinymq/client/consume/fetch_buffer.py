"""What was fetched and waits for the application: chunks, and the messages of the one being taken. No I/O.

The loop appends to `ready`; one application thread or task takes. A deque's append and popleft are atomic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tinymq.client.consume.partition_fetcher import Cursor
from tinymq.client.consume.records import Chunk, Message


class FetchBuffer:
    """The application's end of a reader. `freed` is told how many bytes were taken, from the taking thread."""

    def __init__(self, topic: str, freed: Callable[[int], None]) -> None:
        self.ready: deque[Chunk] = deque()
        self.cursors: dict[int, Cursor] = {}
        self._topic = topic
        self._freed = freed
        self._current: Chunk | None = None
        self._messages: deque[Message] = deque()  # what is left of _current, message by message
        self._next: dict[int, int] = {}

    def begin(self, cursors: dict[int, Cursor]) -> None:
        """The reader is open: it starts where the cursors are."""
        self.cursors = cursors
        self._next = {p: cursor.offset for p, cursor in cursors.items()}

    def take_chunk(self) -> Chunk | None:
        """The next rows, if there are any at hand."""
        self._settle()
        while self.ready:
            chunk = self.ready.popleft()
            self._freed(chunk.bytes)
            wanted = chunk.cut(self._next[chunk.partition], self.cursors[chunk.partition].end)
            if wanted is not None:
                self._next[chunk.partition] = wanted.next_offset
                return wanted
        return None

    def give_back(self, chunk: Chunk, offset: int) -> None:
        """The rows from `offset` on are not wanted yet: they come first, next time."""
        rest = chunk.cut(offset, None)
        if rest is not None:
            self._next[chunk.partition] = offset
            self._freed(-rest.bytes)
            self.ready.appendleft(rest)

    def next_messages(self, count: int) -> list[Message]:
        """Up to `count` messages that are at hand."""
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
        """The next message, if one is at hand."""
        if self._messages:
            return self._messages.popleft()
        found = self.next_messages(1)
        return found[0] if found else None

    def peek(self) -> Message | None:
        """The message that `next_message` would give."""
        if not self._messages:
            self._current = self.take_chunk()
            if self._current is None:
                return None
            self._messages.extend(self._current.messages(self._topic))
        return self._messages[0]

    def _settle(self) -> None:
        """Messages not taken become rows again."""
        if self._messages:
            assert self._current is not None, "messages come from a chunk"
            first = self._messages[0].offset
            self._messages.clear()
            self.give_back(self._current, first)

    @property
    def empty(self) -> bool:
        """Nothing is at hand."""
        return not self.ready and not self._messages

    @property
    def complete(self) -> bool:
        """Everything up to every end was taken, or was gone before it could be."""
        return (
            bool(self.cursors)
            and not self._messages
            and all(
                cursor.end is not None and (self._next[p] >= cursor.end or (cursor.done and not self.ready))
                for p, cursor in self.cursors.items()
            )
        )

    def position(self) -> dict[int, int]:
        """The offset that comes next to the application, by partition."""
        position = dict(self._next)
        if self._messages:
            position[self._messages[0].partition] = self._messages[0].offset
        return position

    def clear(self) -> None:
        self.ready.clear()
        self._messages.clear()
