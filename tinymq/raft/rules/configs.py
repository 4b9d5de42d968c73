"""The CONFIG that is applied here, and those above it in the log: who stands, who votes, and whose word counts.

| question | which CONFIG answers |
|---|---|
| do I vote? | the applied one must list me: it is committed, so I hold all that counted before me (hazard 22) |
| do I stand? | the applied one, the newest one in the log and the kept one must list me |
| am I a member again, for who is to take the next disk away? | the applied one and the kept one must list me |
| whose votes does a candidate count? | the newest one in its log: it may be committed, with nobody left to say so |
| whose acks does a leader count? | the applied one and the newest one must both list the replica |

The kept one is the newest applied one of which the disk here knows that it is committed: what a replica knows of itself
after whatever ends it. Nobody else need know it for good (docs/adr/0022).

A CONFIG replaces the identity of replicas and never the brokers, so all of them ask for equally many. It commits
without the replica that it lists anew, so each majority that the old identity was part of meets the one that
committed it in somebody else, who refuses what lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry, Kind
from tinymq.raft.rules.membership import Membership, Replica, parse_membership


@dataclass(frozen=True, slots=True)
class Config:
    """A CONFIG entry, and where it lies in the log."""

    index: int
    term: int
    membership: Membership


def parse_config(entry: Entry) -> Config:
    """Raises CorruptData."""
    assert entry.header.kind == Kind.CONFIG
    return Config(entry.index, entry.term, parse_membership(entry.payload))


class Configs:
    """Follows one log: what is appended to it, cut from it, and applied."""

    __slots__ = ("_forced", "above", "applied", "kept")

    def __init__(self, applied: Config, above: Iterable[Config] = ()) -> None:
        self.applied = applied
        self.kept = applied
        self.above = list(above)  # oldest first; a leader adds one when there is none
        self._forced: Membership | None = None  # while a take-over waits for its CONFIG to be applied

    @property
    def forced(self) -> Membership | None:
        return self._forced

    @property
    def membership(self) -> Membership:
        """As applied."""
        return self._forced or self.applied.membership

    @property
    def newest(self) -> Membership:
        """As the log ends, committed or not."""
        if self._forced is not None:
            return self._forced
        return self.above[-1].membership if self.above else self.applied.membership

    @property
    def forced_at(self) -> int | None:
        """Where a take-over begins in the log (its NOOP, right before its CONFIG) that is not known to be committed."""
        ours = self.applied.membership.recovery_epoch
        return next((c.index - 1 for c in self.above if c.membership.recovery_epoch > ours), None)

    def lists(self, replica: Replica) -> bool:
        """May this very replica vote?"""
        return self.membership.has(replica)

    def has_kept(self, replica: Replica) -> bool:
        """May it vote, and would it after any end of its process, with nobody left to tell it?"""
        return self.lists(replica) and (self.kept is self.applied or self.kept.membership.has(replica))

    def counts(self, replica: Replica | None) -> bool:
        """Does what this replica acknowledged count for a commit? May it stand?"""
        if replica is None:
            return False
        applied, newest = self.membership, self.newest
        return applied.has(replica) and (newest is applied or newest.has(replica))

    def replacement(self, seen: Iterable[Replica]) -> Membership | None:
        """The CONFIG that a leader appends next, if any: with the first of `seen` (whom it heard) that is a member's
        broker under another identity. One at a time: the next is made when this one is applied."""
        if self.above or self._forced is not None:
            return None
        new = next((replica for replica in seen if self.membership.may_list(replica)), None)
        return None if new is None else self.membership.replacing([new])

    # ---- what happens to the log -------------------------------------------------------------------------

    def after(self, cut_from: int | None, entries: Sequence[Entry]) -> list[Config]:
        """What would lie above the applied CONFIG after cutting and appending; changes nothing. Raises CorruptData
        for a CONFIG that does not follow from the one before."""
        above = [c for c in self.above if cut_from is None or c.index < cut_from]
        for entry in entries:
            if entry.header.kind == Kind.CONFIG and entry.index > self.applied.index:
                config = parse_config(entry)
                before = above[-1].membership if above else self.applied.membership
                if not follows(before, config.membership):
                    raise CorruptData(f"CONFIG at entry {entry.index} does not follow from epoch {before.epoch}")
                above.append(config)
        return above

    def apply(self, entry: Entry) -> None:
        """A CONFIG is committed, and its turn has come."""
        self.applied = parse_config(entry)
        self.above = [c for c in self.above if c.index > entry.index]
        if self._forced is not None and self.applied.membership.epoch >= self._forced.epoch:
            self._forced = None

    def keep(self, commit: int) -> bool:
        """The disk knows that all up to `commit` is committed. True when that says more of the applied CONFIG."""
        if self.kept is self.applied or self.applied.index > commit:
            return False
        self.kept = self.applied
        return True

    def force(self, membership: Membership) -> None:
        """An operator accepts loss: this counts at once, until a CONFIG is applied or `release`."""
        self._forced = membership

    def release(self) -> None:
        self._forced = None


def follows(before: Membership, after: Membership) -> bool:
    """May a CONFIG with `after` come right behind one with `before`? Brokers stay; identities may change."""
    if (before.group, before.epoch + 1) != (after.group, after.epoch) or before.recovery_epoch > after.recovery_epoch:
        return False
    return [r.broker_id for r in before.replicas] == [r.broker_id for r in after.replicas]
