"""The source of records for handlers. Members of stream groups and workers of queue groups implement it."""

from __future__ import annotations

from typing import Any, Protocol

Record = Any
"""What a handler is called with: a Message of a stream group, a Job of a queue group. Both have topic, partition,
offset, key, value and headers."""


class Source(Protocol):
    """The records of one subscription. All calls on the client's loop, except `alive`."""

    @property
    def alive(self) -> bool:
        """Whether it can hand out records now. Callable from any thread."""
        ...

    async def open(self) -> None:
        """Join the group. Raises the error if that fails."""
        ...

    async def take(self) -> Record | None:
        """Wait for a record whose handler may start now. None: `stop` was called. Raises the error that ended the
        source."""
        ...

    def done(self, record: Record) -> None:
        """The handler returned."""
        ...

    def failed(self, record: Record, error: BaseException) -> str:
        """The handler raised. Returns what happens to the record, for the log. Raises `error` if serving should end."""
        ...

    def stop(self) -> None:
        """Hand out nothing more. Records that were handed out can still be done, or fail."""
        ...

    async def close(self) -> None:
        """Save what is done, release the rest, and leave the group."""
        ...
