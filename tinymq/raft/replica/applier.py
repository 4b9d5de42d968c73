"""Applies committed entries to the state machine, and takes the snapshots that fall due meanwhile."""

from __future__ import annotations

from tinymq.base.errors import BrokenInvariant, CorruptData
from tinymq.format.entry import Entry, Kind
from tinymq.raft.replica.checkpoint import pack_checkpoint
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.roles.following import check_known
from tinymq.raft.state.env import StateMachine
from tinymq.raft.state.replica_state import ReplicaState

APPLY_ENTRIES_MAX = 2_000  # per tick, so that a long replay does not delay the loop's heartbeats


class Applier:
    """The only code that moves the applied index and the high watermark."""

    def __init__(self, state: ReplicaState, machine: StateMachine, current: CurrentRole, high_watermark: int) -> None:
        self.high_watermark = high_watermark  # invariant: the next offset after the entry at the applied index
        self.state = state
        self.machine = machine
        self.current = current

    def apply_committed(self) -> None:
        """Apply the committed entries. Index 1 is applied like any other entry; stock PySyncObj skips it."""
        state, log = self.state, self.state.log
        applied = state.applied_index
        if log.wants_snapshot(applied):  # the entry was applied before its segment was closed
            log.save_snapshot(applied, pack_checkpoint(state.configs.applied, self.machine.dump()))
        stop = min(state.commit_index, applied + APPLY_ENTRIES_MAX)
        while applied < stop:
            entry = log.reader.entry(applied + 1)
            applied = entry.index
            # Hazard 9: the index moves before `apply`. If that raises, the replica ends, and nothing is applied twice.
            state.raft.applied_index = applied
            self.high_watermark = entry.header.next_offset
            self.apply(entry)
            if log.wants_snapshot(applied):
                log.save_snapshot(applied, pack_checkpoint(state.configs.applied, self.machine.dump()))
        log.note_applied(applied)
        if (leadership := self.current.leadership) is not None:
            leadership.answer_reads()
        if applied < state.commit_index:
            state.env.wake()

    def apply(self, entry: Entry) -> None:
        """Apply one committed entry. Hazard 10: the state machine's `apply` is total."""
        state = self.state
        check_known(entry)  # a newer build may have appended it on this disk
        if entry.header.kind == Kind.CONFIG:
            state.configs.apply(entry)
            if state.is_listed and not state.is_member:
                state.log.sync_commit(entry.index)
                state.configs.keep(state.log.commit.durable)  # the disk may have stored this commit already
            state.env.wake()  # the group may have waited for this CONFIG
        try:
            self.machine.apply(entry)
        except CorruptData as error:  # the checksums are right, so every replica fails at this entry
            raise BrokenInvariant(f"entry {entry.index} cannot be applied: {error.message}") from error
        leadership = self.current.leadership
        if leadership is None:
            return
        leadership.leader_log.applied(entry)
        if entry.index == leadership.first_of_term:
            self.machine.lead(leadership.term)
        if entry.header.kind in (Kind.NOOP, Kind.CONFIG):
            leadership.list_replacement()  # the next CONFIG may have waited for this entry
