"""A small model of logs over the real rules of `Configs`: can the group elect a leader after disks were replaced?

The test tries every order of disk replacements, each after the previous replica became a member. Then all processes
end, and any minority is lost. The model represents a log by its newest CONFIG. After a restart a replica knows the
CONFIG that it has applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, product

import pytest

from tests.raft.values import membership
from tinymq.raft.roles.candidacy import Candidacy
from tinymq.raft.rules.configs import Config, Configs
from tinymq.raft.rules.membership import Replica

Indexes = tuple[int, ...]  # by broker - 1: of a CONFIG


class Group:
    """Brokers 1 to `count`, where `replaced` got new disks, in that order."""

    def __init__(self, count: int, replaced: Sequence[int]) -> None:
        members = membership(count)
        self.replaced = replaced
        self.configs = [Config(1, 0, members)]
        self.replicas = list(members.replicas)
        for broker in replaced:
            self.replicas[broker - 1] = new = Replica(broker, bytes([100 + len(self.configs)]) * 16)
            members = members.replacing([new])
            self.configs.append(Config(len(self.configs) + 1, 1, members))

    def lists(self, config: int, broker: int) -> bool:
        return self.configs[config].membership.has(self.replicas[broker])

    def logs(self) -> Iterator[Indexes]:
        """Yield the logs in which every CONFIG is committed, by replicas that both it and the previous CONFIG list.

        A replaced broker counts with its previous disk for the CONFIGs before its replacement.
        """
        brokers, quorum = range(len(self.replicas)), self.configs[0].membership.quorum
        for logs in product(range(len(self.configs)), repeat=len(self.replicas)):
            held = [
                sum(logs[b] >= c and self.lists(c - 1, b) and self.lists(c, b) for b in brokers)
                for c in range(1, len(self.configs))
            ]
            if all(n + len(self.replaced[c:]) >= quorum for c, n in enumerate(held, 1)):
                yield logs

    def known(self, logs: Indexes, kept: bool) -> Iterator[Indexes]:
        """Yield the CONFIGs that the replicas may know to be committed after a restart, by broker.

        `kept`: every replica that was listed again is a member, so its disk has stored the CONFIG that lists it.
        """
        least = [
            next((c for c in range(len(self.configs)) if self.lists(c, b)), 0) if kept else 0 for b in range(len(logs))
        ]
        if all(low <= log for low, log in zip(least, logs, strict=True)):
            yield from product(*(range(low, log + 1) for low, log in zip(least, logs, strict=True)))

    def replica(self, log: int, known: int) -> Configs:
        return Configs(self.configs[known], self.configs[known + 1 : log + 1])

    def elects(self, candidate: int, there: Sequence[int], logs: Indexes, known: Indexes) -> bool:
        """Can `candidate` win? A voter believes the candidate's applied CONFIG, and refuses a shorter log."""
        me, candidacy = self.replica(logs[candidate], known[candidate]), Candidacy(2, False)
        if not me.counts(self.replicas[candidate]):
            return False
        for b in there:
            told = known[candidate] if logs[b] >= known[candidate] else 0
            voter = self.replica(logs[b], max(known[b], told))
            if voter.lists(self.replicas[b]) and logs[b] <= logs[candidate] and me.newest.has(self.replicas[b]):
                candidacy.voters.add(b + 1)
        return candidacy.won(me.newest)


def stuck(group: Group, kept: bool) -> tuple[int, int]:
    """Return the number of states in which no leader can be elected, and of all states."""
    found = total = 0
    brokers = range(len(group.replicas))
    minorities = list(chain.from_iterable(combinations(brokers, n) for n in range(len(brokers) // 2 + 1)))
    for logs in group.logs():
        for known in group.known(logs, kept):
            for lost in minorities:
                there = [b for b in brokers if b not in lost]
                total += 1
                found += not any(group.elects(b, there, logs, known) for b in there)
    return found, total


@pytest.mark.parametrize(("count", "replaced"), [(3, [3]), (3, [3, 2]), (3, [3, 2, 3]), (5, [5]), (5, [5, 4])])
def test_the_remaining_replicas_elect_a_leader(count: int, replaced: list[int]) -> None:
    found, total = stuck(Group(count, replaced), kept=True)
    assert found == 0
    assert total > 10


@pytest.mark.parametrize(("count", "replaced"), [(3, [3]), (3, [3, 2]), (5, [5])])
def test_without_stored_membership_no_leader_may_be_electable(count: int, replaced: list[int]) -> None:
    found, total = stuck(Group(count, replaced), kept=False)
    assert total // 10 < found < total
