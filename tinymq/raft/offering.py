"""A leader's side of a state transfer, purely: what goes next to a follower that is behind our first entry.

    offer out   ──StateAck of this state──▶   piece out, from where the follower is   ──StateAck──▶   the next piece …
        ▲                                          │
        └── another state's StateAck, or no answer for too long: the offer again, which asks where it is

One message is out at a time. That it has all of it, or needs none, the follower says by an AppendAck.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.entry import crc32c
from tinymq.log.states import AppliedState
from tinymq.raft.messages import STATE_PIECE_BYTES, StateAck, StateOffer, StatePiece


@dataclass(frozen=True, slots=True)
class Offered:
    """An applied state in memory, with its checksum: made once for all followers that need it."""

    applied: AppliedState
    crc: int

    def offer(self, term: int) -> StateOffer:
        a = self.applied
        return StateOffer(
            term, a.index, a.entry_term, a.entry_crc, a.next_offset, a.append_time_us, len(a.data), self.crc
        )

    def piece(self, term: int, position: int) -> StatePiece:
        return StatePiece(
            term, self.applied.index, self.crc, position, self.applied.data[position : position + STATE_PIECE_BYTES]
        )


def offered(applied: AppliedState) -> Offered:
    return Offered(applied, crc32c(applied.data))


@dataclass(slots=True)
class Sending:
    """What one follower has of a state, as far as we know."""

    state: Offered
    position: int | None = None  # a piece from there is out; None: the offer is

    def message(self, term: int) -> StateOffer | StatePiece:
        """To be sent now, or again."""
        return self.state.offer(term) if self.position is None else self.state.piece(term, self.position)

    def acknowledged(self, ack: StateAck) -> bool:
        """True when the next message may go; False for an answer that came twice."""
        if (ack.index, ack.crc) != (self.state.applied.index, self.state.crc):
            again, self.position = self.position is not None, None
            return again
        if ack.received == self.position or not 0 <= ack.received < len(self.state.applied.data):
            return False
        self.position = ack.received
        return True

    def ask_again(self) -> None:
        """No answer came: the offer asks how far it is."""
        self.position = None
