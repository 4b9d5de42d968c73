"""The calls by which a broker's services report their work. tinymq/metrics/ counts and measures; this module does not.

There is one call per batch, fetch, RPC or sync batch, never per record, and all of them are on the broker's loop. Times
are seconds of the broker's own monotonic clock, so a replay in virtual time reports the same.
"""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Receives the reports. No method may raise or take more than a few microseconds, because it runs for every batch.

    `call` names an RPC as `<service>.<method>`. `code` is the code of a TinymqError.
    """

    def now(self) -> float:
        """The present time, for the methods below; 0 for a meter that does nothing."""
        ...

    def produced(
        self, topic_id: bytes, batch_bytes: int, records: int, arrived_s: float, appended_s: float | None
    ) -> None:
        """A batch is acknowledged now. `appended_s`: when it was appended, if the broker waited for a majority."""
        ...

    def appended(self, topic_id: bytes, batch_bytes: int, records: int) -> None:
        """A batch was appended, and its producer does not wait for an acknowledgement."""
        ...

    def duplicated(self, topic_id: bytes, arrived_s: float) -> None:
        """A batch is a duplicate, and is answered with the offset of the original."""
        ...

    def fetched(self, topic_id: bytes, frame_bytes: int, asked_s: float, ready_s: float) -> None:
        """A fetch is answered now. At `ready_s` it had enough records, or its wait ended."""
        ...

    def called(self, call: str, began_s: float) -> None:
        """A unary RPC is answered now, with or without an error."""
        ...

    def refused(self, call: str, code: str) -> None:
        """An RPC is answered with an error."""
        ...

    def throttled(self, direction: str, wait_s: float) -> None:
        """A client has to wait for its quota; `direction` is produce or fetch."""
        ...

    def synced(self, took_s: float, logs: int) -> None:
        """A sync batch of `logs` logs has ended, with or without an error."""
        ...

    def published(self, late_s: float) -> None:
        """The leader has appended a delayed batch, so long after it was due."""
        ...

    def copied(self, batch_bytes: int) -> None:
        """The leader has appended a copy of a batch without offsets, so that an old segment can go."""
        ...

    def redelivered(self, group: str, records: int) -> None:
        """A queue group's leader granted `records` again, after a delivery that failed."""
        ...

    def expired(self, group: str, records: int) -> None:
        """A queue group's leader settled `records` unseen: they were older than the group's message_ttl_ms."""
        ...

    def buried(self, group: str) -> None:
        """A burial of a queue group has ended: the record's copy is in the dead letters."""
        ...

    def rebalanced(self, group: str) -> None:
        """A coordinator has committed a step from one assignment of a stream group to another."""
        ...

    def transaction_decided(self, how: str) -> None:
        """A coordinator has decided on a transaction: committed, rolled_back, timed_out, replaced or incomplete."""
        ...

    def half_decided(self, how: str) -> None:
        """A coordinator has decided on a half message: committed, rolled_back, given_up or unstaged."""
        ...

    def half_checked(self) -> None:
        """A checker has answered that it does not know the outcome of a half message."""
        ...


class Unmetered:
    """A no-op Meter."""

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

    def published(self, late_s: float) -> None:
        pass

    def copied(self, batch_bytes: int) -> None:
        pass

    def redelivered(self, group: str, records: int) -> None:
        pass

    def expired(self, group: str, records: int) -> None:
        pass

    def buried(self, group: str) -> None:
        pass

    def rebalanced(self, group: str) -> None:
        pass

    def transaction_decided(self, how: str) -> None:
        pass

    def half_decided(self, how: str) -> None:
        pass

    def half_checked(self) -> None:
        pass
