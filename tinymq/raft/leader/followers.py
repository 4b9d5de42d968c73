"""Who follows in one term, as they have answered: the members' brokers, whose word may count, and observers, whose
never does.

An observer is a broker that no CONFIG lists and that is given the log all the same: brokers beyond the voters of the
metadata group (docs/adr/0014). It has no vote, it is no successor, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.progress import Mode, Progress

OBSERVERS_MAX = 64  # of one group; who comes after that many is sent nothing
BEHIND_ENTRIES_MAX = 200  # a hand-over to who lacks more keeps writers waiting


class PeerStates(Protocol):
    """What is known of the brokers."""

    def alive(self, peer: int) -> bool: ...
    def incarnation(self, peer: int) -> bytes | None: ...


class LogEnd(Protocol):
    """What is asked of the log."""

    @property
    def last_index(self) -> int: ...


class Followers:
    """Progress of all who follow, in one term."""

    def __init__(self, first_of_term: int, peers: Iterable[int], log: LogEnd, seen: PeerStates) -> None:
        self.members = tuple(peers)  # brokers that CONFIG lists, but for this one
        self.progress = {peer: Progress(next=first_of_term) for peer in self.members}
        self._first_of_term = first_of_term
        self._end = log
        self._seen = seen

    # ---- observers --------------------------------------------------------------------------------------

    def observe(self, peer: int) -> bool:
        """Replicate to a broker that no CONFIG lists. False: there are too many of them."""
        if peer not in self.progress:
            if len(self.progress) >= len(self.members) + OBSERVERS_MAX:
                return False
            self.progress[peer] = Progress(next=self._first_of_term)
        return True

    def forget(self, peer: int) -> None:
        """An observer is gone. Members stay: they are waited for."""
        if peer not in self.members:
            self.progress.pop(peer, None)

    # ---- whose word counts ------------------------------------------------------------------------------

    def _replica(self, peer: int) -> Replica | None:
        """Who acknowledged last, unless another one has taken its place since."""
        replica = self.progress[peer].replica
        return replica if replica is not None and replica.incarnation == self._seen.incarnation(peer) else None

    def counts(self, configs: Configs, peer: int) -> bool:
        """Is this follower, as it acknowledged last, one of those whose word counts?"""
        return peer in self.progress and configs.counts(self._replica(peer))

    def present(self) -> list[Replica]:
        """Who of the members' brokers is there, as it acknowledged in this term."""
        seen = (self._replica(peer) for peer in self.members if self._seen.alive(peer))
        return [replica for replica in seen if replica is not None]

    def nothing_out(self) -> bool:
        """Every member has answered everything that was sent."""
        return all((p := self.progress[m]).mode is Mode.REPLICATE and not p.inflight for m in self.members)

    def all_know(self, configs: Configs, commit: int) -> bool:
        """Every live follower has everything, has said that it knows the commit, and is listed if its broker is."""
        last = self._end.last_index
        return all(
            p.match == last and p.commit >= commit and (peer not in self.members or self.counts(configs, peer))
            for peer, p in self.progress.items()
            if self._seen.alive(peer)
        )

    def sure(self, configs: Configs) -> set[int]:
        """Brokers of followers that know for good that they are listed: could they elect somebody after all of them
        lost power? One that was listed before the newest CONFIG does not need to know of that, and soon does."""
        known = configs.applied.index
        return {peer for peer in self.members if self.progress[peer].commit >= known and self.counts(configs, peer)}

    # ---- who may take over ------------------------------------------------------------------------------

    def holds_all(self, peer: int) -> bool:
        """Does the replica that is there now, not one before it?"""
        return self._replica(peer) is not None and self.progress[peer].match == self._end.last_index

    def successors(self, configs: Configs) -> list[int]:
        """The live, listed followers, the one that holds most first; the preferred one among equals."""
        able = [
            (-self.progress[peer].match, configs.membership.rank(peer), peer)
            for peer in self.members
            if self._seen.alive(peer) and self.counts(configs, peer)
        ]
        return [peer for _, _, peer in sorted(able)]

    def missing(self, peer: int) -> int | None:
        """Entries that this follower has not acknowledged; None while it is not known where the logs meet."""
        progress = self.progress.get(peer)
        if progress is None or progress.mode is not Mode.REPLICATE:
            return None
        return self._end.last_index - progress.match
