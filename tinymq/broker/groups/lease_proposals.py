"""The proposals of one queue group's leases that are not applied yet. Pure."""

from __future__ import annotations

from tinymq.broker.groups.lease_values import Era, Proposal
from tinymq.broker.state.queue_group import Charge


class LeaseProposals:
    """A queue of proposals. No record is granted while a proposal about it is pending."""

    def __init__(self) -> None:
        self.pending: set[int] = set()  # offsets that an unapplied proposal settles, charges or gives back
        self._proposals: list[Proposal] = []  # in order; `_acks` and `_charges` come after them
        self._acks: list[int] = []
        self._charges: list[Charge] = []

    def add(self, proposal: Proposal) -> None:
        """Add a proposal behind all others."""
        self.pending.update(proposal.blocked)
        if proposal.opens or proposal.ends or proposal.granted_below:
            self.join(proposal.era)
            self._proposals.append(proposal)
        else:
            self._acks += proposal.acks
            self._charges += proposal.charges

    def block(self, proposal: Proposal) -> None:
        """Grant none of the records of a proposal that is appended already."""
        self.pending.update(proposal.blocked)

    def ack(self, offset: int) -> None:
        """Propose to settle a record. A turn of the loop brings many acks, so this makes no Proposal for each."""
        self.pending.add(offset)
        self._acks.append(offset)

    def join(self, era: Era) -> None:
        """Combine all acks and charges that are not in a proposal yet into one of this era."""
        if self._acks or self._charges:
            self._proposals.append(Proposal(era, acks=tuple(self._acks), charges=tuple(self._charges)))
            self._acks, self._charges = [], []

    def take(self, era: Era) -> list[Proposal]:
        """Take all proposals, to append them now. Acks and charges that follow each other are one proposal."""
        self.join(era)
        proposals, self._proposals = self._proposals, []
        return proposals

    def applied(self, proposal: Proposal) -> None:
        self.pending.difference_update(proposal.blocked)
