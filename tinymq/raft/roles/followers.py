"""The followers of one leader in one term, by their answers: members, and observers, which never count.

An observer is a broker that gets the log although no CONFIG lists it: a broker beyond the voters of the metadata
group (docs/adr/0014). It has no vote and is no successor, and no commit waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.progress import Mode, Progress

OBSERVERS_MAX = 64  # per group; further brokers are sent nothing


class PeerStates(Protocol):
    """The failure detector's view of the brokers, and their incarnations."""

    def alive(self, peer: int) -> bool: ...
    def incarnation(self, peer: int) -> bytes | None: ...


class LogEnd(Protocol):
    """The part of a log that these decisions read."""

    @property
    def last_index(self) -> int: ...


class Followers:
    """The progress of all followers in one term."""

    def __init__(self, first_of_term: int, peers: Iterable[int], log: LogEnd, states: PeerStates) -> None:
        self.members = tuple(peers)  # brokers that CONFIG lists, except this one; constant in a term
        self.progress = {peer: Progress(next=first_of_term) for peer in self.members}  # by broker; observers, too
        self._first_of_term = first_of_term
        self._log = log
        self._states = states

    # ---- observers --------------------------------------------------------------------------------------

    def observe(self, peer: int) -> bool:
        """Replicate to a broker that no CONFIG lists. Returns False if there are too many observers."""
        if peer not in self.progress:
            if len(self.progress) >= len(self.members) + OBSERVERS_MAX:
                return False
            self.progress[peer] = Progress(next=self._first_of_term)
        return True

    def forget(self, peer: int) -> None:
        """Stop replicating to an observer that is gone. Members stay: the group waits for them."""
        if peer not in self.members:
            self.progress.pop(peer, None)

    # ---- which answers count ----------------------------------------------------------------------------

    def present_replica(self, peer: int) -> Replica | None:
        """Return the replica that acknowledged last, or None if the broker runs another incarnation now."""
        replica = self.progress[peer].replica
        return replica if replica is not None and replica.incarnation == self._states.incarnation(peer) else None

    def counts(self, configs: Configs, peer: int) -> bool:
        """Do this follower's acknowledgements count for a commit? Its last answer identifies its replica."""
        return peer in self.progress and configs.counts(self.present_replica(peer))

    def present(self) -> list[Replica]:
        """Return the replicas of live members that have acknowledged in this term."""
        seen = (self.present_replica(peer) for peer in self.members if self._states.alive(peer))
        return [replica for replica in seen if replica is not None]

    def nothing_out(self) -> bool:
        """Has every member answered everything that was sent?"""
        return all((p := self.progress[m]).mode is Mode.REPLICATE and not p.inflight for m in self.members)

    def all_know(self, configs: Configs, commit: int) -> bool:
        """Does every live follower hold the whole log and know the commit? A member's replica must also be listed."""
        last = self._log.last_index
        return all(
            p.match == last and p.commit >= commit and (peer not in self.members or self.counts(configs, peer))
            for peer, p in self.progress.items()
            if self._states.alive(peer)
        )

    def sure(self, configs: Configs) -> set[int]:
        """Return the brokers of followers that have durably stored that CONFIG lists them.

        If all of them lost power, a majority of them could still elect a leader. A replica that an earlier CONFIG
        lists would not need to know the newest one. We wait for it all the same, because it soon does.
        """
        known = configs.applied.index
        return {peer for peer in self.members if self.progress[peer].commit >= known and self.counts(configs, peer)}

    # ---- successors -------------------------------------------------------------------------------------

    def holds_all(self, peer: int) -> bool:
        """Does the broker's present incarnation hold the whole log?"""
        return self.present_replica(peer) is not None and self.progress[peer].match == self._log.last_index

    def successors(self, configs: Configs) -> list[int]:
        """Return the live, listed followers by the length of their match, longest first, then by preference."""
        able = [
            (-self.progress[peer].match, configs.membership.rank(peer), peer)
            for peer in self.members
            if self._states.alive(peer) and self.counts(configs, peer)
        ]
        return [peer for _, _, peer in sorted(able)]

    def missing(self, peer: int) -> int | None:
        """Count the entries that this follower has not acknowledged; None while the matching index is unknown."""
        progress = self.progress.get(peer)
        if progress is None or progress.mode is not Mode.REPLICATE:
            return None
        return self._log.last_index - progress.match
