"""Reports of elections, commits and messages: every violation is noted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.checkers.cluster.elections import (
    CONFLICTS_MAX,
    LOST_S,
    TERMS_MAX,
    UNLED_S,
    Elections,
    HealthyReplica,
    Identity,
    ListedMembers,
)
from tinymq_chaos.checkers.common.anomaly import Anomaly
from tinymq_chaos.history import Log

LOG: Log = ("t#00", 0)
A, B, C = members = tuple((broker, b"%016d" % broker, 0) for broker in (1, 2, 3))
B_WIPED: Identity = (2, b"another folder..", 0)


FIRST = ListedMembers(1, frozenset(members))
WIPED = ListedMembers(2, frozenset([A, B_WIPED, C]))


class Told:
    """Three replicas; `entries` is the log of the next candidate: its terms, from index 1 on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.anomalies: list[Anomaly] = []
        self.elections = Elections(self.anomalies, lambda: self.now_s)
        self.elections.listed(LOG, FIRST)
        self.entries = [0, 1, 1]

    def elect(self, term: int, leader: Identity, *voters: Identity) -> None:
        for voter in voters:
            self.elections.voted(LOG, term, leader[0], voter)
        entries = self.entries

        def term_at(index: int) -> int | None:
            return entries[index - 1] if 0 < index <= len(entries) else None

        self.elections.elected(LOG, term, leader, members, len(entries), term_at)

    def commit(self, index: int, term: int, *, leads: int | None, broker: int = 1) -> None:
        self.elections.committed(LOG, broker, (index, term), leads)

    def look(
        self,
        seconds: float,
        *well: Identity,
        led: bool = False,
        newest: ListedMembers = FIRST,
        apart: tuple[int, ...] = (),
    ) -> None:
        """Look at the healthy replicas, with `newest` as the last CONFIG of their logs; those of `apart` reach no
        other.
        """
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            held = [HealthyReplica(me, newest) for me in well]
            self.elections.looked(LOG, held, lambda a, b: a not in apart and b not in apart, led=led)
            self.now_s += 0.1

    def says(self, term: int, durable: int, received: int | None = None, *, log: Sequence[int]) -> None:
        """Broker 2, whose log has these terms, acknowledges so much; its first entry is gone."""

        def term_at(index: int) -> int | None:
            return log[index - 1] if 1 < index <= len(log) else None

        places = durable, durable if received is None else received
        self.elections.acknowledges(LOG, term, B, places, len(log), term_at)

    def kinds(self) -> list[AnomalyKind]:
        assert all(str(anomaly).startswith(anomaly.kind) for anomaly in self.anomalies)
        return [anomaly.kind for anomaly in self.anomalies]


def test_correct_reports_are_not_noted() -> None:
    reported = Told()
    elections = reported.elections
    reported.elect(1, A, B)
    reported.commit(3, 1, leads=1)
    reported.commit(2, 1, leads=None, broker=2)
    reported.commit(3, 1, leads=None, broker=2)
    elections.serves(LOG, 1, 1, 3)
    reported.look(UNLED_S - 1, B, C)
    reported.look(1, B, C, led=True)
    reported.look(UNLED_S - 1, B, C)
    reported.look(UNLED_S - 1, A, B)
    reported.look(2 * UNLED_S)
    reported.look(2 * UNLED_S, A)
    reported.look(2 * UNLED_S, A, B, C, apart=(1, 3))
    reported.elect(TERMS_MAX, C, B)
    elections.listed(LOG, WIPED)
    elections.voted(LOG, 20, 3, B_WIPED)
    for _ in range(2):
        for index in range(CONFLICTS_MAX):
            elections.answered(LOG, 2, A, (index, 1))
        elections.answered(LOG, 2, A, None)
    for _ in range(2 * CONFLICTS_MAX):
        elections.answered(LOG, 2, A, (7, 1))  # to copies of one message, which a cut link had held back
    reported.elect(TERMS_MAX + 1, A, B)
    reported.says(TERMS_MAX + 1, 0, log=[0, 1, 1])  # an answer without a comparison of logs
    reported.says(TERMS_MAX + 1, 1, 3, log=[0, 1, 1, 2])
    reported.says(TERMS_MAX + 1, 3, log=[0, 1, 1, 2])
    reported.says(TERMS_MAX + 1, 4, 5, log=[0, 1, 1, TERMS_MAX + 1, TERMS_MAX + 1])
    reported.says(TERMS_MAX + 2, 9, log=[0])  # no leader of that term was observed, so it is not judged
    elections.counts(LOG, TERMS_MAX + 1, 1, B, 4)
    elections.counts(LOG, TERMS_MAX + 1, 1, C, 0)
    elections.sent(LOG, 2, [90, 90], 100)
    elections.waits(LOG, 2, 100, 100)
    assert reported.kinds() == []


def its_own_vote_alone(t: Told) -> None:
    t.elect(1, A)


def one_voter_twice(t: Told) -> None:
    t.elections.listed(LOG, WIPED)
    t.elect(1, A, B_WIPED, B_WIPED)


def votes_of_another_term(t: Told) -> None:
    t.elections.voted(LOG, 1, 1, B)
    t.elect(2, A)


def votes_for_another(t: Told) -> None:
    t.elections.voted(LOG, 1, 3, B)
    t.elect(1, A)


def a_shorter_log(t: Told) -> None:
    t.commit(4, 1, leads=1)
    t.elect(2, C, B)


def another_entry(t: Told) -> None:
    t.commit(3, 2, leads=2)
    t.elect(3, C, B)


def a_leader_that_lags(t: Told) -> None:
    t.commit(3, 1, leads=1)
    t.elections.serves(LOG, 3, 2, 2)


def a_stranger(t: Told) -> None:
    t.elections.voted(LOG, 1, 1, B_WIPED)


def terms_that_run_away(t: Told) -> None:
    t.elect(1, A, B)
    t.elect(2 + TERMS_MAX, C, B)


def by_a_follower(t: Told) -> None:
    t.commit(3, 1, leads=1)
    t.commit(4, 1, leads=None, broker=2)


def an_earlier_term_by_counting(t: Told) -> None:
    t.commit(3, 1, leads=2)


def one_conflict_after_another(t: Told) -> None:
    for index in range(2 * CONFLICTS_MAX):
        t.elections.answered(LOG, 1, B, (index, 1))


def nobody_stands(t: Told) -> None:
    t.look(3 * UNLED_S, B, C)


def nobody_stands_of_those_who_are_listed_anew(t: Told) -> None:
    t.elections.listed(LOG, WIPED)
    t.elections.listed(LOG, FIRST)  # again, by a replica that starts
    t.look(2 * UNLED_S, A, B_WIPED, newest=WIPED)


def nobody_stands_of_those_whom_both_list(t: Told) -> None:
    t.look(2 * UNLED_S, A, B, C, newest=WIPED, apart=(2,))


def a_long_message(t: Told) -> None:
    t.elections.sent(LOG, 2, [50, 60, 60], 100)
    t.elections.sent(LOG, 2, [50, 60, 60], 100)


def a_long_queue(t: Told) -> None:
    t.elections.waits(LOG, 2, 101, 100)


def an_entry_of_another_leader(t: Told) -> None:
    t.elect(2, A, B)
    t.says(2, 4, log=[0, 1, 1, 1])


def an_entry_that_its_leader_began_without(t: Told) -> None:
    t.elect(3, A, B)
    t.says(3, 3, log=[0, 1, 2])


def more_than_its_log(t: Told) -> None:
    t.elect(2, A, B)
    t.says(2, 4, log=[0, 1, 1])


def received_from_another_leader(t: Told) -> None:
    t.elect(2, A, B)
    t.says(2, 3, 4, log=[0, 1, 1, 1])


def an_ack_of_an_earlier_term(t: Told) -> None:
    t.elect(1, A, B)
    t.says(1, 5, log=[0, 1, 1, 1, 1])
    t.elect(3, A, B)
    t.elections.counts(LOG, 3, 1, B, 5)


def an_ack_of_another_identity(t: Told) -> None:
    t.elect(1, A, B)
    t.says(1, 3, log=[0, 1, 1])
    t.elections.counts(LOG, 1, 1, B_WIPED, 3)


def what_was_received_counts(t: Told) -> None:
    t.elect(2, A, B)
    t.says(2, 3, 4, log=[0, 1, 1, 2])
    t.elections.counts(LOG, 2, 1, B, 4)


BAD: list[tuple[Callable[[Told], None], AnomalyKind]] = [
    (its_own_vote_alone, AnomalyKind.NOT_ELECTED),
    (one_voter_twice, AnomalyKind.NOT_ELECTED),
    (votes_of_another_term, AnomalyKind.NOT_ELECTED),
    (votes_for_another, AnomalyKind.NOT_ELECTED),
    (a_shorter_log, AnomalyKind.INCOMPLETE_LEADER),
    (another_entry, AnomalyKind.INCOMPLETE_LEADER),
    (a_leader_that_lags, AnomalyKind.INCOMPLETE_LEADER),
    (a_stranger, AnomalyKind.UNLISTED_VOTE),
    (terms_that_run_away, AnomalyKind.RESTLESS),
    (by_a_follower, AnomalyKind.NOT_COMMITTED),
    (an_earlier_term_by_counting, AnomalyKind.NOT_COMMITTED),
    (one_conflict_after_another, AnomalyKind.SLOW),
    (nobody_stands, AnomalyKind.NO_PROGRESS),
    (nobody_stands_of_those_who_are_listed_anew, AnomalyKind.NO_PROGRESS),
    (nobody_stands_of_those_whom_both_list, AnomalyKind.NO_PROGRESS),
    (an_entry_of_another_leader, AnomalyKind.FALSE_ACK),
    (an_entry_that_its_leader_began_without, AnomalyKind.FALSE_ACK),
    (more_than_its_log, AnomalyKind.FALSE_ACK),
    (received_from_another_leader, AnomalyKind.FALSE_ACK),
    (an_ack_of_an_earlier_term, AnomalyKind.FALSE_ACK),
    (an_ack_of_another_identity, AnomalyKind.FALSE_ACK),
    (what_was_received_counts, AnomalyKind.FALSE_ACK),
    (a_long_message, AnomalyKind.TOO_MUCH),
    (a_long_queue, AnomalyKind.TOO_MUCH),
]


@pytest.mark.parametrize(("tell", "kind"), BAD)
def test_each_violation_is_noted_once(tell: Callable[[Told], None], kind: AnomalyKind) -> None:
    reported = Told()
    tell(reported)
    assert reported.kinds() == [kind]


def test_an_old_disk_makes_no_majority() -> None:
    """Seed 100323: broker 2 was wiped and listed again, then its old disk came back, and all brokers that knew were cut
    off.
    """
    reported = Told()
    reported.elections.listed(LOG, WIPED)
    reported.look(3 * UNLED_S, A, B)
    reported.look(3 * UNLED_S, A, B, C, apart=(3,))
    assert reported.kinds() == []
    reported.look(2 * UNLED_S, A, B, C)  # but the two listed ones are one broker
    assert reported.kinds() == [AnomalyKind.NO_PROGRESS]


def test_a_replica_that_an_uncommitted_config_replaces_counts_for_no_majority() -> None:
    """Broker 1 has the entry that lists broker 2 again, and the brokers that know whether it is committed are away."""
    reported = Told()
    reported.look(3 * UNLED_S, A, B, newest=WIPED)
    reported.look(3 * UNLED_S, A, B_WIPED, newest=WIPED)
    assert reported.kinds() == []
    reported.look(3 * UNLED_S, A, B)
    assert reported.kinds() == [AnomalyKind.NO_PROGRESS]


def test_a_replica_without_its_leader_is_noted_once() -> None:
    reported = Told()

    def look(seconds: float, *lost: int) -> None:
        until_s = reported.now_s + seconds
        while reported.now_s < until_s:
            reported.elections.lost(LOG, lost)
            reported.now_s += 0.1

    look(LOST_S - 0.2, 4)
    look(0.1)
    look(LOST_S - 0.2, 4, 5)
    assert reported.kinds() == []
    look(3 * LOST_S, 4)
    assert reported.kinds() == [AnomalyKind.NO_PROGRESS]
