"""What a broker's services tell of their work as they do it. Nothing here counts or measures: tinymq/metrics/ does.

One call per batch, fetch, call or sync batch, never per record; all of them on the broker's loop. Times are seconds
of the broker's own monotonic clock, so a replay in virtual time is told the same.
"""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Must not raise, and takes a few microseconds at most: it runs on the way of every batch.

    `call` names a method as `<service>.<method>`; `code` is an error's.
    """

    def now(self) -> float:
        """The time that the calls below are given; 0 where nobody measures."""
        ...

    def produced(
        self, topic_id: bytes, batch_bytes: int, records: int, arrived_s: float, appended_s: float | None
    ) -> None:
        """A batch is acknowledged now. `appended_s`: when it was appended, if a majority was waited for."""
        ...

    def appended(self, topic_id: bytes, batch_bytes: int, records: int) -> None:
        """A batch was taken that nobody waits for."""
        ...

    def duplicated(self, topic_id: bytes, arrived_s: float) -> None:
        """A batch is answered with where it was before."""
        ...

    def fetched(self, topic_id: bytes, frame_bytes: int, asked_s: float, ready_s: float) -> None:
        """A fetch is answered now; at `ready_s` there was something to say, or its wait was over."""
        ...

    def called(self, call: str, began_s: float) -> None:
        """A unary call is answered now, with or without an error."""
        ...

    def refused(self, call: str, code: str) -> None:
        """An error is answered."""
        ...

    def throttled(self, direction: str, wait_s: float) -> None:
        """A client has to wait for its quota; `direction` is produce or fetch."""
        ...

    def synced(self, took_s: float, logs: int) -> None:
        """A sync batch of so many logs ended, well or not."""
        ...


class Unmetered:
    """The Meter of who wants to know nothing."""

    def now(self) -> float:
        return 0.0

    def produced(
        self, topic_id: bytes, batch_bytes: int, records: int, arrived_s: float, appended_s: float | None
    ) -> None:
        pass

    def appended(self, topic_id: bytes, batch_bytes: int, records: int) -> None:
        pass

    def duplicated(self, topic_id: bytes, arrived_s: float) -> None:
        pass

    def fetched(self, topic_id: bytes, frame_bytes: int, asked_s: float, ready_s: float) -> None:
        pass

    def called(self, call: str, began_s: float) -> None:
        pass

    def refused(self, call: str, code: str) -> None:
        pass

    def throttled(self, direction: str, wait_s: float) -> None:
        pass

    def synced(self, took_s: float, logs: int) -> None:
        pass
