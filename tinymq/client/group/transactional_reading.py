"""A member as a transaction uses it: the offsets that it has handed out, and the way back if they are not committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tinymq.base.errors import InvalidRequest, TransactionAborted
from tinymq.client.group.assigned_buffer import AssignedBuffer
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.group_reading import GroupReading, MemberCursor


@dataclass(frozen=True, slots=True)
class HandedOut:
    """Records of a partition that were handed out, and are not committed."""

    place: TopicPartition
    cursor: MemberCursor
    offset: int  # behind the last one


class TransactionalReading:
    """A member whose offsets are committed by transactions, one after the other."""

    def __init__(self, reading: GroupReading, buffer: AssignedBuffer, timeout_s: float) -> None:
        self.rolled_back = False  # uncommitted messages have to be handed out again before any others
        self._reading = reading
        self._buffer = buffer
        self._timeout_s = timeout_s
        self._claimed = False  # an open transaction will commit its offsets

    def claim(self) -> None:
        """Let a transaction commit the offsets of this member. Raises InvalidRequest while another one does."""
        if self._claimed:
            raise InvalidRequest(
                "another transaction commits the offsets of this consumer", hint="commit or roll it back first"
            )
        self._claimed = True

    def handed_out(self) -> list[HandedOut]:
        """The offsets that were handed out and are not committed, including the newest messages.

        Raises InvalidRequest (the consumer is closed), TransactionAborted: another member has got a partition and will
        handle its messages again; or nothing was handed out since a rollback.
        """
        reading = self._reading
        if reading.ended:
            raise InvalidRequest("the consumer was closed before the transaction was committed", hint="close it later")
        if self.rolled_back:
            raise TransactionAborted(
                "the consumer has handed out nothing since another transaction was rolled back",
                hint="take the messages from the consumer again, which hands out the same ones",
            )
        for place in reading.given_up:
            raise TransactionAborted(f"{place.topic}/{place.partition} went to another member of its group")
        self._buffer.done()
        positions = self._buffer.positions()
        return [
            HandedOut(place, cursor, positions[place])
            for place, cursor in reading.cursors.items()
            if positions.get(place, 0) > cursor.committed
        ]

    def committed(self, handed_out: Sequence[HandedOut]) -> None:
        """The transaction is committed, with these offsets."""
        self._claimed = False
        given_up = self._reading.given_up
        for each in handed_out:
            each.cursor.committed = max(each.cursor.committed, each.offset)
            if each.place in given_up and given_up[each.place] <= each.offset:
                del given_up[each.place]

    def roll_back(self) -> None:
        """The transaction is rolled back, or of unknown outcome: `go_back` before anything else is handed out."""
        self._claimed, self.rolled_back = False, True
        self._buffer.interrupt()

    async def go_back(self) -> None:
        """After `roll_back`, read on from the group's offsets, which depend on no open transaction any more.

        Raises the first error, after which it has to be called again.
        """
        if not self.rolled_back:
            return
        reading = self._reading
        known = list(reading.cursors.items())
        for error in await asyncio.gather(*(reading.reopen(*each, self._timeout_s) for each in known)):
            if error is not None:
                raise error
        self.rolled_back = False
        reading.given_up.clear()
