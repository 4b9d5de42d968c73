"""Terms and votes of all Raft groups of a broker, in one file kept twice, synced before any answer.

    offset size field
         0   16 topic id        bytes
        16    4 partition       u32
        20    4 voted_for       u32   broker id; 0 nobody
        24    8 term            u64   0: the group was deleted

Both copies hold the same rounds (record_file.py). Either good one counts: a round that one of them has was meant.
A round that neither has is torn when nothing follows it, and then nobody was answered; with later ones behind
it, it is lost, and so may be the vote it held: that is amnesia, and raises every group's incarnation count.
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

HardState = tuple[int, int | None]  # term, voted for
NO_HARD_STATE: HardState = (0, None)


@dataclass(frozen=True, slots=True)
class LoadedVotes:
    """What the copies said at opening, put together."""

    hard_states: dict[GroupId, HardState]
    number: int
    amnesia: bool  # a term or vote that was answered with may be missing


def load_votes(files: Files) -> LoadedVotes:
    """Read both copies. Damage is not an error here, but `amnesia`; two missing files are that, too."""
    snapshot: FileRecord | None = None
    changes: dict[int, FileRecord] = {}
    for path in VOTES:
        for found in parse_records(read_whole(files, path) or b"", MAGIC, RECORD_SIZE):
            if found.kind != COMPLETE:
                changes[found.number] = found
            elif snapshot is None or found.number > snapshot.number:
                snapshot = found
    ballots: dict[GroupId, HardState] = {}
    number = 0
    amnesia = snapshot is None
    if snapshot is not None:
        _apply(ballots, snapshot)
        number = snapshot.number
    for later in sorted(n for n in changes if n > number):
        amnesia = amnesia or later != number + 1
        _apply(ballots, changes[later])
        number = later
    return LoadedVotes(ballots, number, amnesia)


def _apply(ballots: dict[GroupId, HardState], found: FileRecord) -> None:
    for topic, partition, voted_for, term in _RECORD.iter_unpack(found.content):
        group = GroupId(TopicId(topic), partition)
        if term:
            ballots[group] = (term, voted_for or None)
        else:
            ballots.pop(group, None)


def _pack(group: GroupId, ballot: HardState) -> bytes:
    return _RECORD.pack(group.topic_id, group.partition, ballot[1] or 0, ballot[0])


class VoteFile:
    """Both copies on disk. Owned by whoever runs disk work: opening, then the writer job."""

    def __init__(self, files: Files, loaded: LoadedVotes) -> None:
        """Replaces both copies by fresh ones and syncs them: what was read may have been in memory alone."""
        self._files = files
        self._ballots = dict(loaded.hard_states)
        self._number = loaded.number
        self._copies: list[RecordFile] = []
        self._replace()

    def write(self, changes: dict[GroupId, HardState]) -> list[File]:
        """Append to both copies; returns the files whose sync makes it durable."""
        for group, ballot in changes.items():
            if ballot[0]:
                self._ballots[group] = ballot
            else:
                self._ballots.pop(group, None)
        content = b"".join(_pack(group, ballot) for group, ballot in changes.items())
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
        content = b"".join(_pack(group, ballot) for group, ballot in self._ballots.items())
        self._copies = []
        for path in VOTES:  # one after the other, each durable before the next: one good copy at any moment
            self._copies.append(RecordFile.replace(self._files, path, MAGIC, self._number, content, FILE_BYTES_MIN))
            self._files.sync_directory("")
        for copy in old:
            copy.file.close()


@dataclass(slots=True)
class VoteStore:
    """Terms and votes in memory, on the loop. What is `durable` may be answered with."""

    _ballots: dict[GroupId, HardState]
    _wake: Callable[[], None]
    on_durable: list[Callable[[], None]] = field(default_factory=list)  # called after each sync that covered changes
    _dirty: dict[GroupId, HardState] = field(default_factory=dict)
    _writing: dict[GroupId, HardState] = field(default_factory=dict)

    def get(self, group: GroupId) -> HardState:
        """(term, voted for), the newest set, durable or not; (0, None) when nothing was."""
        return self._ballots.get(group, NO_HARD_STATE)

    def set(self, group: GroupId, term: int, voted_for: int | None) -> None:
        """Takes effect in memory; `durable(group)` turns true after the next sync. Asserts that the term does not
        go back, and that no vote of a term is changed."""
        old_term, old_vote = self.get(group)
        assert term >= max(old_term, 1), (group, term, old_term)
        assert term > old_term or old_vote is None or voted_for == old_vote, (group, term, old_vote, voted_for)
        if (term, voted_for) != (old_term, old_vote):
            self._put(group, (term, voted_for))

    def forget(self, group: GroupId) -> None:
        """The group was deleted: drop its ballot."""
        if group in self._ballots:
            self._put(group, NO_HARD_STATE)
            del self._ballots[group]

    def durable(self, group: GroupId) -> bool:
        """Whether what `get` returns would survive a power cut now."""
        return group not in self._dirty and group not in self._writing

    def _put(self, group: GroupId, ballot: HardState) -> None:
        self._ballots[group] = ballot
        self._dirty[group] = ballot
        self._wake()

    # The writer's side, on the loop.

    def has_changes(self) -> bool:
        return bool(self._dirty)

    def take(self) -> dict[GroupId, HardState]:
        """What to write in the round that begins."""
        assert not self._writing
        self._writing, self._dirty = self._dirty, {}
        return self._writing

    def written(self) -> None:
        """The round's sync is done."""
        if self._writing:
            self._writing = {}
            for call in tuple(self.on_durable):
                call()
