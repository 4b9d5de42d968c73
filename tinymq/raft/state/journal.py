"""PySyncObj's journal interface over tinymq's log and vote store.

PySyncObj reads the term, the vote and the commit index from it at construction, and the last entry's index and term.
Entries never pass through it: leaders and followers append to the `Log`, and read payloads there. So the command of
each item is empty, and every call with which stock code would change a log is refused.
"""

from __future__ import annotations

from pysyncobj.journal import Journal

from tinymq.base.types import GroupId
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.replica_log.log import Log

Item = tuple[bytes, int, int]


class GroupJournal(Journal):  # type: ignore[misc]
    """One group's log, term and vote, as PySyncObj sees them."""

    def __init__(self, group: GroupId, log: Log, vote_store: VoteStore) -> None:
        self._group = group
        self._log = log
        self._vote_store = vote_store

    def __len__(self) -> int:
        # A quarantined log may have lost everything. PySyncObj would add an entry to an empty journal.
        return max(1, self._log.last_index - self._log.first_index + 1)

    def __getitem__(self, item: int) -> Item:
        if self._log.last_index == 0:
            return (b"", 0, 0)
        index = self._log.last_index + 1 + item if item < 0 else self._log.first_index + item
        term = self._log.term_at(index)
        if term is None:
            raise IndexError(item)
        return (b"", index, term)

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        """Set both in memory, and wake the writer. Messages that rest on the term wait in the barrier (hazard 7)."""
        self._vote_store.set(self._group, term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        return self._vote_store.get(self._group)[0]

    def getVotedForNodeId(self) -> int | None:
        return self._vote_store.get(self._group)[1]

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Let the next sync mark carry the index to disk (hazard 11)."""
        self._log.note_commit(raftCommitIndex)

    def getRaftCommitIndex(self) -> int:
        return min(self._log.recovered_commit, self._log.last_index)

    def _destroy(self) -> None:
        """Do nothing: the store closes the log."""

    def add(self, command: bytes, idx: int, term: int) -> None:
        raise AssertionError("entries are proposed or appended on the log, never through PySyncObj")

    def clear(self) -> None:
        raise AssertionError("hazards 6 and 21: nothing clears a log")

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        raise AssertionError("hazard 2: only a conflict truncates, and it does so on the log")

    def deleteEntriesTo(self, entryTo: int) -> None:
        raise AssertionError("hazard 6: retention removes whole segments, nothing else trims")
