"""The CONFIGs that one replica knows: they say which replicas vote and campaign, and whose acknowledgements count.

| question | which CONFIG answers |
|---|---|
| may this replica vote? | the applied one must list it: then this log has all that counted before (hazard 22) |
| may it campaign? | the applied one, the newest one in the log and the kept one must list it |
| is it a member, so that the next disk may be replaced? | the applied one and the kept one must list it |
| whose votes does a candidate count? | the newest one in its log: it may be committed, and no replica may know it |
| whose acks does a leader count? | the applied one and the newest one must both list the replica |

The *kept* CONFIG is the newest applied one that the disk here knows to be committed. It is what a replica knows about
itself after a crash or a power cut. The other replicas need not keep that knowledge (docs/adr/0022).

A CONFIG replaces the identity of replicas and never the brokers, so all CONFIGs need equally many votes. It commits
without the identity that it lists for the first time. So each majority with the old identity shares another replica
with the majority that committed the CONFIG, and that replica refuses a candidate whose log lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry, Kind
from tinymq.raft.rules.membership import Membership, Replica, parse_membership


@dataclass(frozen=True, slots=True)
class Config:
    """A CONFIG entry, and its place in the log."""

    index: int
    term: int
    membership: Membership


def parse_config(entry: Entry) -> Config:
    """Parse a CONFIG entry. Raises CorruptData."""
    assert entry.header.kind == Kind.CONFIG
    return Config(entry.index, entry.term, parse_membership(entry.payload))


class Configs:
    """The CONFIGs of one log. They follow what is appended to the log, cut from it, and applied."""

    __slots__ = ("_forced", "above", "applied", "kept")

    def __init__(self, applied: Config, above: Iterable[Config] = ()) -> None:
        self.applied = applied
        self.kept = applied  # invariant: at or below `applied`
        self.above = list(above)  # in the log above `applied`, oldest first; a leader appends one only if this is empty
        self._forced: Membership | None = None  # from a forced leadership until its CONFIG is applied

    @property
    def forced(self) -> Membership | None:
        """The membership of a forced leadership whose CONFIG is not applied yet."""
        return self._forced

    @property
    def membership(self) -> Membership:
        """The membership as applied."""
        return self._forced or self.applied.membership

    @property
    def newest(self) -> Membership:
        """The membership at the end of the log, committed or not."""
        if self._forced is not None:
            return self._forced
        return self.above[-1].membership if self.above else self.applied.membership

    @property
    def forced_at(self) -> int | None:
        """The index at which a forced leadership begins that is not known to be committed.

        The index is that of its NOOP, which comes before its CONFIG.
        """
        ours = self.applied.membership.recovery_epoch
        return next((c.index - 1 for c in self.above if c.membership.recovery_epoch > ours), None)

    def lists(self, replica: Replica) -> bool:
        """May this very replica vote? The applied CONFIG answers."""
        return self.membership.has(replica)

    def has_kept(self, replica: Replica) -> bool:
        """Is this replica listed, and has its disk stored that, so that it could vote right after a power cut?"""
        return self.lists(replica) and (self.kept is self.applied or self.kept.membership.has(replica))

    def counts(self, replica: Replica | None) -> bool:
        """Do the acknowledgements of this replica count for a commit? May it campaign?"""
        if replica is None:
            return False
        # While a CONFIG is uncommitted, either it or the applied one may turn out to decide, so both have to list it.
        applied, newest = self.membership, self.newest
        return applied.has(replica) and (newest is applied or newest.has(replica))

    def replacement(self, seen: Iterable[Replica]) -> Membership | None:
        """Return the CONFIG that a leader appends next, if any.

        It lists the first replica of `seen` that is a member's broker under another identity. `seen`: the replicas that
        the leader has heard. There is one such CONFIG at a time; the next is made when this one is applied.
        """
        if self.above or self._forced is not None:
            return None
        new = next((replica for replica in seen if self.membership.may_list(replica)), None)
        return None if new is None else self.membership.replacing([new])

    # ---- what happens to the log -------------------------------------------------------------------------

    def after(self, cut_from: int | None, entries: Sequence[Entry]) -> list[Config]:
        """Return what would lie above the applied CONFIG after a cut and an append. Changes nothing.

        Raises CorruptData for a CONFIG that does not follow from the one before.
        """
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
        """Apply a committed CONFIG entry."""
        self.applied = parse_config(entry)
        self.above = [c for c in self.above if c.index > entry.index]
        if self._forced is not None and self.applied.membership.epoch >= self._forced.epoch:
            self._forced = None

    def keep(self, commit: int) -> bool:
        """Note that the disk has stored the commit index `commit`.

        True when this stores the commit of the applied CONFIG for the first time.
        """
        if self.kept is self.applied or self.applied.index > commit:
            return False
        self.kept = self.applied
        return True

    def force(self, membership: Membership) -> None:
        """An operator accepts loss: `membership` counts at once, until a CONFIG is applied or `release` is called."""
        self._forced = membership

    def release(self) -> None:
        """End a forced leadership whose CONFIG was not applied."""
        self._forced = None


def follows(before: Membership, after: Membership) -> bool:
    """May a CONFIG with `after` come right after one with `before`? The brokers stay; their identities may change."""
    if (before.group, before.epoch + 1) != (after.group, after.epoch) or before.recovery_epoch > after.recovery_epoch:
        return False
    return [r.broker_id for r in before.replicas] == [r.broker_id for r in after.replicas]
