"""What the leases of one queue group propose, until it is applied. Pure."""

from __future__ import annotations

from tinymq.broker.groups.lease_values import Era, Proposal
from tinymq.broker.state.queue_group import Charge


class LeaseProposals:
    """Proposals in their order. A record that one of them is about is not granted until that is applied."""

    def __init__(self) -> None:
        self.pending: set[int] = set()  # offsets that a proposal under way settles, charges or gives back
        self._proposals: list[Proposal] = []  # before the next two
        self._acks: list[int] = []
        self._charges: list[Charge] = []

    def add(self, proposal: Proposal) -> None:
        """Propose it after all others."""
        self.pending.update(proposal.blocked)
        if proposal.opens or proposal.ends or proposal.granted_below:
            self.join(proposal.era)
            self._proposals.append(proposal)
        else:
            self._acks += proposal.acks
            self._charges += proposal.charges

    def ack(self, offset: int) -> None:
        """Propose to settle a record. Many come in a turn of the loop, so this makes no value of each."""
        self.pending.add(offset)
        self._acks.append(offset)

    def join(self, era: Era) -> None:
        """Make one proposal of all settlements of this era that are not in one yet."""
        if self._acks or self._charges:
            self._proposals.append(Proposal(era, acks=tuple(self._acks), charges=tuple(self._charges)))
            self._acks, self._charges = [], []

    def take(self, era: Era) -> list[Proposal]:
        """The proposals to append now; neighbours that only settle are one."""
        self.join(era)
        proposals, self._proposals = self._proposals, []
        return proposals

    def applied(self, proposal: Proposal) -> None:
        self.pending.difference_update(proposal.blocked)
