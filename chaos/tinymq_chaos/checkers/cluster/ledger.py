"""Judge what replicas do and claim as it happens: one sequence per group, for all time, on disks that hold it.

It finds more than a look at the end: by then replicas may have repaired a divergence, and others may have replaced a
loss. Only a simulator can report everything that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.history import Log

Identity = tuple[bytes | None, int]  # of a replica: the incarnation of its data directory, and its count
HardState = tuple[int, int | None]  # term, voted for


class Ledger:
    """Receives every applied entry, leader, vote and commit, and every opened replica."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.anomalies: list[Anomaly] = []
        self._now = now
        self._chosen: dict[Log, dict[int, tuple[int, int, int]]] = {}  # index: (term, header crc, first broker)
        self._ends: dict[Log, int] = {}  # the last index of each log in `_chosen`
        self._leaders: dict[tuple[Log, int], int] = {}
        # (index, term) for which a replica vouched
        self._vouched: dict[tuple[Log, int, Identity], tuple[int, int]] = {}
        self._hard_states: dict[tuple[Log, int, Identity], HardState] = {}  # votes on which sent messages rest
        self._sequences: dict[tuple[Log, int], tuple[int, int, int]] = {}  # (index, epoch, the next sequence)
        self._again: set[Log] = set()  # groups that recovered with part of their log
        self._states: dict[tuple[Log, int], tuple[int, int]] = {}  # (digest, first broker)

    def applied(self, log: Log, broker: int, index: int, term: int, header_crc: int) -> None:
        """A replica applied an entry."""
        first = self._chosen.setdefault(log, {}).setdefault(index, (term, header_crc, broker))
        if first[:2] != (term, header_crc):
            what = f"broker {broker} applies an entry of term {term} as entry {index}, which was one of term {first[0]}"
            self._note(AnomalyKind.TWO_ENTRIES, what, log, (first[2], broker))
        self._ends[log] = max(self._ends.get(log, 0), index)

    def led(self, log: Log, broker: int, term: int) -> None:
        """A broker leads."""
        first = self._leaders.setdefault((log, term), broker)
        if first != broker:
            self._note(AnomalyKind.TWO_LEADERS, f"both lead term {term}", log, (first, broker))

    def begins_again(self, log: Log) -> None:
        """The group recovered with what was left of it, as new replicas: their log starts over, and their votes
        stay."""
        self._again.add(log)
        self._chosen.pop(log, None)
        self._ends.pop(log, None)
        self._vouched = {key: value for key, value in self._vouched.items() if key[0] != log}
        self._sequences = {key: value for key, value in self._sequences.items() if key[0] != log}
        self._states = {key: value for key, value in self._states.items() if key[0] != log}

    def end(self, log: Log) -> int:
        """Return the last index that any replica applied; 0: none."""
        return self._ends.get(log, 0)

    def numbered(self, log: Log, index: int, producer: int, epoch: int, first: int, count: int) -> None:
        """Entry `index` holds records of an idempotent producer, from sequence `first` on."""
        # the first sequence after a recovery is unknown
        goes_on = log in self._again and (log, producer) not in self._sequences
        last, before, due = self._sequences.get((log, producer), (0, epoch, first if goes_on else 0))
        if index <= last:
            return  # another replica has applied this entry already
        if first != (due if epoch == before else 0) and self._saw_all_between(log, last, index):
            what = f"entry {index} begins with {first} of producer {producer}, epoch {epoch}; {due} of {before} was due"
            self._note(AnomalyKind.BROKEN_SEQUENCE, what, log, ())
        self._sequences[log, producer] = index, epoch, first + count

    def _saw_all_between(self, log: Log, last: int, index: int) -> bool:
        """Return whether replicas applied every entry between `last` and `index`.

        In a recovered group, a replica may begin to apply behind the last entry that another one has applied. Then no
        replica has applied the entries in between.
        """
        chosen = self._chosen.get(log, {})
        return log not in self._again or all(between in chosen for between in range(last + 1, index))

    # ---- commits -------------------------------------------------------------------------------------------

    def counted(
        self, log: Log, leader: int, index: int, term: int, who: Mapping[int, Identity], listed: Mapping[int, Identity]
    ) -> None:
        """`leader` commits up to entry `index` of `term`, because the replicas `who` vouch for it; `listed` are those
        that may.
        """
        counted = {broker: identity for broker, identity in who.items() if listed.get(broker) == identity}
        if 2 * len(counted) <= len(listed):
            what = f"broker {leader} commits entry {index}, and of {len(listed)} listed replicas {len(counted)} vouch"
            self._note(AnomalyKind.NO_QUORUM, what, log, tuple(sorted(who)))
        for broker, identity in counted.items():
            self._vouched[log, broker, identity] = index, term

    def vouched(self, log: Log, broker: int, identity: Identity) -> int:
        """Return the entry up to which the replica counted; 0: none."""
        return self._vouched.get((log, broker, identity), (0, 0))[0]

    def lacks(self, log: Log, broker: int, index: int, by: int) -> None:
        """Entry `index` counted as stored by `broker`, and its disk does not hold it."""
        what = f"entry {index} is counted by broker {by} as durable on broker {broker}, whose disk does not hold it"
        self._note(AnomalyKind.NOT_SYNCED, what, log, (by, broker))

    # ---- votes ---------------------------------------------------------------------------------------------

    def rests_on(self, log: Log, broker: int, identity: Identity, hard_state: HardState, *, durable: bool) -> None:
        """A message left that rests on this term and vote."""
        term, vote = hard_state
        before = self._hard_states.get((log, broker, identity), (0, None))
        if not durable:
            self._note(AnomalyKind.TWO_VOTES, f"term {term}, vote {vote}: sent before their sync", log, (broker,))
        if term == before[0] and vote is not None and before[1] not in (None, vote):
            self._note(AnomalyKind.TWO_VOTES, f"votes for {before[1]} and for {vote} in term {term}", log, (broker,))
        if term > before[0] or (term == before[0] and before[1] is None):
            self._hard_states[log, broker, identity] = hard_state

    # ---- openings ------------------------------------------------------------------------------------------

    def opened(
        self, log: Log, broker: int, identity: Identity, hard_state: HardState, term_at: Callable[[int], int | None],
        last_index: int, unsynced: Collection[str],
    ) -> None:  # fmt: skip
        """A replica takes part (again). Its log ends at `last_index` and has terms `term_at` (None below its first
        entry).

        `hard_state` is its term and vote. Its disk does not hold all of the files `unsynced`.
        """
        index, term = self._vouched.get((log, broker, identity), (0, 0))
        if index > last_index or (index and term_at(index) not in (None, term)):
            what = f"its log ends at entry {last_index}, or forks before, and it was counted for entry {index}"
            self._note(AnomalyKind.FORGOTTEN, what, log, (broker,))
        promised = self._hard_states.get((log, broker, identity), (0, None))
        if hard_state[0] < promised[0] or (hard_state[0] == promised[0] and promised[1] not in (None, hard_state[1])):
            what = f"it is at term {hard_state[0]}, vote {hard_state[1]}, and was at {promised[0]}, vote {promised[1]}"
            self._note(AnomalyKind.FORGOTTEN, what, log, (broker,))
        if unsynced:
            what = f"opened with files that its disk may lose: {', '.join(sorted(unsynced))}"
            self._note(AnomalyKind.NOT_SYNCED, what, log, (broker,))

    def cuts(self, log: Log, broker: int, left: tuple[int, int], marked: tuple[int, int]) -> None:
        """A replica removes what is on its disk, except the entries `left` (first, last).

        `marked` is the end in its mark, as the disk holds it.
        """
        if marked[1] > left[1] or marked[0] < left[0]:
            what = f"cuts its log down to entries {left[0]} to {left[1]}, and the mark on its disk says {marked}"
            self._note(AnomalyKind.NOT_SYNCED, what, log, (broker,))

    # ---- states --------------------------------------------------------------------------------------------

    def state(self, log: Log, broker: int, index: int, digest: int) -> None:
        """The state of a replica's machine after entry `index`."""
        first = self._states.setdefault((log, index), (digest, broker))
        if first[0] != digest:
            self._note(AnomalyKind.STATES_DIFFER, f"after entry {index}", log, (first[1], broker))

    def read(self, log: Log, broker: int, due: int, got: int) -> None:
        """A linearizable read returned what was applied up to `got`; when it began, `due` was committed."""
        if got < due:
            what = f"broker {broker} answers from entry {got}, and {due} was committed before it was asked"
            self._note(AnomalyKind.STALE, what, log, (broker,))

    def _note(self, kind: AnomalyKind, what: str, log: Log, brokers: tuple[int, ...]) -> None:
        self.anomalies.append(Anomaly(kind, what, log, brokers=brokers, times_s=(self._now(),)))
