"""Judge elections and commits as they happen: who elected a leader, and which entries count as committed.

A simulator reports them, because it can watch every replica at once. The checker works from the identities that CONFIG
entries list and from nothing that a replica concludes: a mutant may conclude anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.history import Log

Identity = tuple[int, bytes, int]
"""(broker, incarnation of its data directory, count)."""

Place = tuple[int, int]
"""(index, term) of an entry."""

TERMS_MAX = 12  # failed candidacies between two leaders
TOGETHER_S = 0.05  # by which answers to copies of one message may differ in time
CONFLICTS_MAX = 12  # answers of one follower in one term, in a row, that report a conflict of the logs
LOST_S = 3.0  # how long a replica may know no leader while its broker and the leader's reach each other
UNLED_S = 4.0  # for which a majority that no fault strikes may be without a leader


@dataclass(frozen=True, slots=True)
class ListedMembers:
    """A CONFIG entry: its epoch, and the replicas that it lists."""

    epoch: int
    members: frozenset[Identity]


@dataclass(frozen=True, slots=True)
class HealthyReplica:
    """A replica that no fault strikes: its identity, and the newest CONFIG in its log, committed or not."""

    me: Identity
    newest: ListedMembers


class Elections:
    """Adds what is wrong to `anomalies`."""

    def __init__(self, anomalies: list[Anomaly], now: Callable[[], float]) -> None:
        self._anomalies = anomalies
        self._now = now
        self._members: dict[Log, set[Identity]] = {}  # the replicas that any committed CONFIG has listed
        self._newest: dict[Log, ListedMembers] = {}  # the newest committed CONFIG
        self._votes: dict[tuple[Log, int, int], set[Identity]] = {}  # by (log, term, candidate)
        self._terms: dict[Log, int] = {}  # term of the newest leader
        self._committed: dict[Log, dict[int, Place]] = {}  # the last entry that each term's leader committed
        # terms of the entries with which each leader began
        self._logs: dict[tuple[Log, int], Sequence[int | None]] = {}
        # the highest entry that a follower acknowledged in a term
        self._acknowledged: dict[tuple[Log, int, Identity], int] = {}
        # (conflicts in a row, the last one, its time)
        self._conflicts: dict[tuple[Log, int, Identity], tuple[int, Place, float]] = {}
        self._lost_s: dict[tuple[Log, int], float] = {}  # the time since which a broker's replica has known no leader
        # the replicas that could elect a leader, and since when there is none
        self._led_s: dict[Log, tuple[frozenset[Identity], float]] = {}

    def listed(self, log: Log, listing: ListedMembers) -> None:
        """A replica applied a CONFIG entry, for the first time or again."""
        self._members.setdefault(log, set()).update(listing.members)
        if log not in self._newest or self._newest[log].epoch < listing.epoch:
            self._newest[log] = listing

    def voted(self, log: Log, term: int, candidate: int, voter: Identity) -> None:
        """A replica sends a granted vote (not a pre-vote)."""
        if voter not in self._members.get(log, {voter}):
            what = f"broker {voter[0]} votes in term {term}, and no committed CONFIG lists it with count {voter[2]}"
            self._note(AnomalyKind.UNLISTED_VOTE, what, log, voter[0], candidate)
        self._votes.setdefault((log, term, candidate), set()).add(voter)

    def elected(
        self, log: Log, term: int, leader: Identity, listed: Collection[Identity],
        last_index: int, term_at: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        """A replica begins to lead.

        `listed` is from the newest CONFIG in its log; `term_at` returns None where it cannot tell.
        """
        broker = leader[0]
        voters = {*self._votes.get((log, term, broker), ()), leader} & set(listed)
        if 2 * len(voters) <= len(listed):
            who = sorted(voter[0] for voter in voters)
            self._note(
                AnomalyKind.NOT_ELECTED, f"leads term {term} with votes of {who} of {len(listed)} listed", log, broker
            )
        for earlier, (index, entry_term) in self._committed.get(log, {}).items():
            if earlier < term and (index > last_index or term_at(index) not in (None, entry_term)):
                what = f"leads term {term} without entry {index} of term {entry_term}, which term {earlier} committed"
                self._note(AnomalyKind.INCOMPLETE_LEADER, what, log, broker)
                break
        self._logs[log, term] = [term_at(index) for index in range(1, last_index + 1)]
        before = self._terms.get(log, term)
        if term - before > TERMS_MAX:
            self._note(
                AnomalyKind.RESTLESS, f"{term - before - 1} terms without a leader after term {before}", log, broker
            )
        self._terms[log] = max(term, before)

    def committed(self, log: Log, broker: int, place: Place, leads: int | None) -> None:
        """A replica's commit index rose to `place`. `leads` is the term in which it leads, if it does."""
        index, entry_term = place
        known = self._committed.setdefault(log, {})
        if index <= max((last for last, _ in known.values()), default=1):  # entry 1 exists from the beginning
            return  # the ledger finds a replica that applies another entry there
        if leads is None:
            what = f"takes entry {index} of term {entry_term} for committed, which no leader has committed"
            self._note(AnomalyKind.NOT_COMMITTED, what, log, broker)
        elif entry_term != leads:
            what = f"commits entry {index} of term {entry_term} by counting, and leads term {leads} (paper, 5.4.2)"
            self._note(AnomalyKind.NOT_COMMITTED, what, log, broker)
        if leads is not None:
            known[leads] = place

    def serves(self, log: Log, broker: int, term: int, applied: int) -> None:
        """A leader accepts requests from now on."""
        known = max((place[0] for earlier, place in self._committed.get(log, {}).items() if earlier < term), default=0)
        if applied < known:
            what = f"accepts in term {term} when it has applied {applied}, and {known} was committed before"
            self._note(AnomalyKind.INCOMPLETE_LEADER, what, log, broker)

    def acknowledges(
        self, log: Log, term: int, follower: Identity, places: tuple[int, int],
        last_index: int, term_at: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        """A follower, whose log this is, tells the leader of `term` how far it holds the leader's log: `places` are
        (durable, received).

        Two logs with equal terms at one entry are equal up to that entry.
        """
        begun = self._logs.get((log, term), ())
        for index in places if begun else ():
            theirs = term if index > len(begun) else begun[index - 1] if index else None
            ours = term_at(index)
            if index > last_index or (None not in (ours, theirs) and ours != theirs):
                has = f"one of term {ours}" if index <= last_index else f"{last_index} entries"
                what = f"acknowledges entry {index} in term {term}, whose leader has one of {theirs}, and holds {has}"
                self._note(AnomalyKind.FALSE_ACK, what, log, follower[0])
                break
        at = (log, term, follower)
        self._acknowledged[at] = max(self._acknowledged.get(at, 0), places[0])

    def counts(self, log: Log, term: int, leader: int, follower: Identity, match: int) -> None:
        """A leader counts a follower as holding every entry up to `match`."""
        acked = self._acknowledged.get((log, term, follower), 0)
        if match > acked:
            what = (
                f"counts entry {match} as held by broker {follower[0]}, which has acknowledged {acked} in term {term}"
            )
            self._note(AnomalyKind.FALSE_ACK, what, log, leader)

    def answered(self, log: Log, term: int, follower: Identity, conflict: Place | None) -> None:
        """A follower tells the leader where the logs meet, or may meet (`conflict`).

        Two equal answers at one time belong to copies of one message.
        """
        at, now_s = (log, term, follower), self._now()
        count, place, last_s = self._conflicts.get(at, (0, None, now_s))
        if conflict is None:
            self._conflicts.pop(at, None)
        elif conflict != place or now_s - last_s > TOGETHER_S:
            self._conflicts[at] = count + 1, conflict, now_s
            if count == CONFLICTS_MAX:
                what = f"answers in term {term} for the {CONFLICTS_MAX + 1}th time in a row that the logs do not meet"
                self._note(AnomalyKind.SLOW, what, log, follower[0])

    def sent(self, log: Log, peer: int, sizes: Sequence[int], bound: int) -> None:
        """A leader sends entries of these sizes in one message: about `bound` bytes, or a single entry."""
        if sum(sizes) > bound + max(sizes):
            what = f"sends {len(sizes)} entries of {sum(sizes)} bytes in one message; {bound} are enough"
            self._note_once(AnomalyKind.TOO_MUCH, what, log, peer)

    def waits(self, log: Log, peer: int, waiting: int, bound: int) -> None:
        """Entries of so many bytes are in flight to one follower; `bound` is the limit."""
        if waiting > bound:
            self._note_once(AnomalyKind.TOO_MUCH, f"{waiting} bytes are on their way, and {bound} may be", log, peer)

    def looked(
        self, log: Log, well: Collection[HealthyReplica], reach: Callable[[int, int], bool], *, led: bool
    ) -> None:
        """Called periodically.

        `reach` tells whether two brokers reach each other in time; `led`, whether a leader reaches a majority.
        """
        now_s, able = self._now(), frozenset() if led else self._able(log, well, reach)
        before, led_s = self._led_s.get(log, (able, now_s))
        if not able or able != before:
            led_s = now_s
        elif now_s - led_s > UNLED_S:
            what = f"a majority that is well has had no leader for {UNLED_S:g} s"
            self._note(AnomalyKind.NO_PROGRESS, what, log, *sorted(one[0] for one in able))
            led_s = float("inf")
        self._led_s[log] = able, led_s

    def lost(self, log: Log, brokers: Collection[int]) -> None:
        """Called periodically.

        `brokers` have replicas that know no leader although these brokers and the leader's reach each other.
        """
        now_s = self._now()
        for key in [key for key in self._lost_s if key[0] == log and key[1] not in brokers]:
            del self._lost_s[key]
        for broker in brokers:
            if now_s - self._lost_s.setdefault((log, broker), now_s) > LOST_S:
                what = f"a replica has known no leader for {LOST_S:g} s, though its broker reaches the leader's"
                self._note(AnomalyKind.NO_PROGRESS, what, log, broker)
                self._lost_s[log, broker] = float("inf")

    def _able(
        self, log: Log, well: Collection[HealthyReplica], reach: Callable[[int, int], bool]
    ) -> frozenset[Identity]:
        """Return a majority that could elect one of its own, or an empty set.

        Its replicas reach one another, and the newest committed CONFIG lists them. Replicas that are down may count as
        listed, too. A replica on an old disk is healthy but no member.
        """
        if (newest := self._newest.get(log)) is None:
            return frozenset()
        configs = [newest, *(one.newest for one in well if one.newest.epoch > newest.epoch)]
        free = [one.me for one in well if all(one.me in config.members for config in configs)]
        for first in free:
            some = [first]
            for other in free:
                if other != first and all(reach(other[0], one[0]) for one in some):
                    some.append(other)
            if 2 * len(some) > len(newest.members):
                return frozenset(some)
        return frozenset()

    def _note_once(self, kind: AnomalyKind, what: str, log: Log, *brokers: int) -> None:
        if not any((a.kind, a.log) == (kind, log) for a in self._anomalies):
            self._note(kind, what, log, *brokers)

    def _note(self, kind: AnomalyKind, what: str, log: Log, *brokers: int) -> None:
        self._anomalies.append(Anomaly(kind, what, log, brokers=brokers, times_s=(self._now(),)))
