"""Terms and votes of all Raft groups of a broker, in two copies of one file, synced before any answer.

    offset size field
         0   16 topic id        bytes
        16    4 partition       u32
        20    4 voted_for       u32   broker id; 0: nobody
        24    8 term            u64   0: the group was deleted

Both copies have the same records (record_file.py), and one good copy of a record is enough. A record that neither copy
has is torn if nothing follows it: then no answer was sent. If later records follow, it is lost, and a vote may be lost
with it. That is amnesia, and raises every group's incarnation count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tinymq.base.types import GroupId, TopicId
from tinymq.log.files.files import File, Files
from tinymq.log.files.layout import VOTES
from tinymq.log.files.record_file import COMPLETE, FileRecord, RecordFile, parse_records, read_whole

MAGIC = int.from_bytes(b"tqbl", "little")
FILE_BYTES_MIN = 1 << 18

_RECORD = struct.Struct("<16sIIQ")
RECORD_SIZE = 32
assert _RECORD.size == RECORD_SIZE

HardState = tuple[int, int | None]  # (term, voted for), as in the Raft literature
NO_HARD_STATE: HardState = (0, None)


@dataclass(frozen=True, slots=True)
class LoadedVotes:
    """The content of both copies at opening."""

    hard_states: dict[GroupId, HardState]
    number: int  # of the last record
    amnesia: bool  # a term or vote on which an answer rested may be missing


def load_votes(files: Files) -> LoadedVotes:
    """Read both copies. Damage raises no error: it sets `amnesia`, and so do two missing files."""
    newest: FileRecord | None = None  # the newest complete record of either copy
    changes: dict[int, FileRecord] = {}
    for path in VOTES:
        for record in parse_records(read_whole(files, path) or b"", MAGIC, RECORD_SIZE):
            if record.kind != COMPLETE:
                changes[record.number] = record
            elif newest is None or record.number > newest.number:
                newest = record
    votes: dict[GroupId, HardState] = {}
    number = 0
    amnesia = newest is None
    if newest is not None:
        _apply(votes, newest)
        number = newest.number
    for later in sorted(n for n in changes if n > number):
        amnesia = amnesia or later != number + 1
        _apply(votes, changes[later])
        number = later
    return LoadedVotes(votes, number, amnesia)


def _apply(votes: dict[GroupId, HardState], record: FileRecord) -> None:
    for topic, partition, voted_for, term in _RECORD.iter_unpack(record.content):
        group = GroupId(TopicId(topic), partition)
        if term:
            votes[group] = (term, voted_for or None)
        else:
            votes.pop(group, None)


def _pack(group: GroupId, state: HardState) -> bytes:
    term, voted_for = state
    return _RECORD.pack(group.topic_id, group.partition, voted_for or 0, term)


class VoteFile:
    """Both copies on disk. Owned by opening, and then by the writer job."""

    def __init__(self, files: Files, loaded: LoadedVotes) -> None:
        """Replace both copies by fresh ones and sync them: the bytes read may exist only in the page cache."""
        self._files = files
        self._states = dict(loaded.hard_states)
        self._number = loaded.number
        self._copies: list[RecordFile] = []
        self._replace()

    def write(self, changes: dict[GroupId, HardState]) -> list[File]:
        """Append the changes to both copies. Returns the files whose sync makes them durable."""
        for group, state in changes.items():
            if state[0]:
                self._states[group] = state
            else:
                self._states.pop(group, None)
        content = b"".join(_pack(group, state) for group, state in changes.items())
        if not all(copy.has_room(len(content)) for copy in self._copies):
            self._replace()
            return []
        self._number += 1
        for copy in self._copies:
            copy.append(self._number, content)
        return [copy.file for copy in self._copies]

    def close(self) -> None:
        for copy in self._copies:
            copy.file.close()

    def _replace(self) -> None:
        old = self._copies
        content = b"".join(_pack(group, state) for group, state in self._states.items())
        self._copies = []
        # One copy after the other, each durable before the next: so there is a good one at any moment.
        for path in VOTES:
            self._copies.append(RecordFile.replace(self._files, path, MAGIC, self._number, content, FILE_BYTES_MIN))
            self._files.sync_directory("")
        for copy in old:
            copy.file.close()


@dataclass(slots=True)
class VoteStore:
    """Terms and votes in memory, on the loop. A replica answers only on a state that is `durable`."""

    _states: dict[GroupId, HardState]
    _wake: Callable[[], None]
    on_durable: list[Callable[[], None]] = field(default_factory=list)  # called after each sync that covered changes
    _dirty: dict[GroupId, HardState] = field(default_factory=dict)  # changed, for the next sync batch
    _writing: dict[GroupId, HardState] = field(default_factory=dict)  # in the sync batch that runs

    def get(self, group: GroupId) -> HardState:
        """(term, voted for) as last set, durable or not; (0, None) if nothing was set."""
        return self._states.get(group, NO_HARD_STATE)

    def set(self, group: GroupId, term: int, voted_for: int | None) -> None:
        """Set term and vote in memory; `durable(group)` is true after the next sync.

        Asserts that the term does not fall, and that no vote of a term is changed.
        """
        old_term, old_vote = self.get(group)
        assert term >= max(old_term, 1), (group, term, old_term)
        assert term > old_term or old_vote is None or voted_for == old_vote, (group, term, old_vote, voted_for)
        if (term, voted_for) != (old_term, old_vote):
            self._put(group, (term, voted_for))

    def forget(self, group: GroupId) -> None:
        """Drop term and vote of a group that is deleted."""
        if group in self._states:
            self._put(group, NO_HARD_STATE)
            del self._states[group]

    def durable(self, group: GroupId) -> bool:
        """Whether the state that `get` returns would survive a power cut now."""
        return group not in self._dirty and group not in self._writing

    def _put(self, group: GroupId, state: HardState) -> None:
        self._states[group] = state
        self._dirty[group] = state
        self._wake()

    # The writer's side, on the loop.

    def has_changes(self) -> bool:
        return bool(self._dirty)

    def take(self) -> dict[GroupId, HardState]:
        """Return the changes, for the sync batch that begins."""
        assert not self._writing
        self._writing, self._dirty = self._dirty, {}
        return self._writing

    def written(self) -> None:
        """The batch has synced the changes."""
        if self._writing:
            self._writing = {}
            for call in tuple(self.on_durable):
                call()
