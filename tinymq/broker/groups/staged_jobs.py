"""The jobs of one queue group whose acks are in transactions, as the leader of one term has them. Pure.

The applied state says which records have a staged ack. The leases know nothing of transactions: this object judges an
ack before it is staged, ends the leases of its records, and offers the records again that a transaction gives back.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.base.errors import LeaseLost, NotReady
from tinymq.broker.groups.lease_values import AppliedQueue, Grant, Proposal, SettlementResult
from tinymq.broker.groups.queue_leases import QueueLeases


class StagedJobs:
    """One object beside each QueueLeases."""

    def __init__(self, leases: QueueLeases, applied: AppliedQueue) -> None:
        self._leases = leases
        self._applied = applied
        self._seen = applied.group.staged  # by the last `follow`

    @property
    def taken(self) -> int:
        """How many records are leased, or have a staged ack: they count in `leased_max`."""
        return len(self._leases.leases) + len(self._applied.group.staged)

    def check(self, session: bytes, grants: Iterable[Grant]) -> None:
        """Raise LeaseLost unless a worker may ack all these records in a transaction, NotReady if that is not certain
        yet. As with any ack, an older grant counts while no newer one is leased."""
        self.follow()
        leases = self._leases
        if not leases.is_open(session) or session not in leases.sessions:
            if session in leases.absent or session in leases.sessions:
                raise NotReady("the worker has to attach first")
            raise LeaseLost("the session of the worker has ended")
        for grant in grants:
            verdict = leases.judge_ack(session, grant)
            if verdict is SettlementResult.LATER:
                raise NotReady(f"another settlement of the record at {grant.offset} is under way")
            if verdict is not None:
                raise LeaseLost(f"the worker does not hold the record at {grant.offset}")

    def stage(self, grants: Iterable[Grant]) -> Proposal:
        """Note that the command is appended which stages acks of these records: they are in no lease from now on.

        Once the command is applied, `QueueLeases.applied` takes the proposal.
        """
        proposal = Proposal(self._leases.era, staged=tuple(grant.offset for grant in grants))
        for offset in proposal.staged:
            self._leases.leases.pop(offset, None)
        self._leases.block(proposal)
        return proposal

    def follow(self) -> None:
        """Go on with the records whose transactions have ended since the last call."""
        staged = self._applied.group.staged
        if staged is not self._seen:
            ended, self._seen = tuple(sorted(self._seen.keys() - staged.keys())), staged
            self._leases.applied(Proposal(self._leases.era, staged=ended))
