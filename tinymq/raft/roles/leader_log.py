"""The entries that the leader of one term appends: their append times, and the bound on uncommitted bytes."""

from __future__ import annotations

from tinymq.base.errors import QuotaExceeded
from tinymq.base.types import Position
from tinymq.format.entry import HEADER_SIZE, Entry, Kind, NewEntry, make_entry
from tinymq.format.feature_level import FIRST_LEVEL, check, entry_level
from tinymq.raft.rules.append_clock import AppendClock
from tinymq.raft.rules.noop import NoopNote, pack_noop
from tinymq.raft.state.replica_state import ReplicaState


class LeaderLog:
    """The only code of a leader that makes entries and appends them to its log."""

    def __init__(self, state: ReplicaState) -> None:
        log, env = state.log, state.env
        self.state = state
        self.term = state.term
        self._clock = AppendClock(log.last_append_time_us, env.cluster_us(), env.now())
        self._time_known_at: int | None = None  # index of the NOOP that makes append times trusted, if any
        self.first_index = log.last_index + 1  # of this term: its NOOP. Commits count from here (paper, 5.4.2)
        self.uncommitted_bytes = 0  # invariant: bytes of this term's entries above the applied index

    def check_quota(self, new: NewEntry) -> None:
        """Raise QuotaExceeded if the entry exceeds the bound on uncommitted bytes, or the disk is full."""
        size = len(new.payload)
        if self.uncommitted_bytes + size > self.state.env.limits.uncommitted_bytes_max:
            raise QuotaExceeded("too much is waiting for a majority of replicas", retry_after_ms=50)
        # A full disk still takes commands: they free space, or store a reader's cursor.
        if new.kind in (Kind.DATA, Kind.STAGED):
            self.state.log.check_quota(size + HEADER_SIZE)

    def append(self, new: NewEntry, *, raises_level: bool = False) -> Position:
        """Append one entry, in memory. Raises UnsupportedVersion if a member may not know such an entry.

        `raises_level`: the entry raises the cluster's feature level, and its proposer has checked that every member
        knows the new level.
        """
        state = self.state
        log, env = state.log, state.env
        needed = entry_level(new.kind, new.version)
        if needed > FIRST_LEVEL and not raises_level:
            check(f"entry version {new.version} of {Kind(new.kind).name}", needed, env.feature_level)
        append_time_us = self._clock.stamp(env.cluster_us(), env.now())
        entry = make_entry(
            new,
            index=log.last_index + 1,
            term=self.term,
            prev_crc=log.last_crc,
            base_offset=log.next_offset,
            append_time_us=append_time_us,
        )
        state.change_log(None, [entry])
        self.uncommitted_bytes += entry.size
        return Position(entry.index, entry.term, entry.header.base_offset, append_time_us)

    def append_noop(self) -> Position:
        """Append a NOOP. It tells every replica whether append times are trusted, and by how much they jumped."""
        clock = self._clock
        position = self.append(NewEntry(Kind.NOOP, pack_noop(NoopNote(clock.known, clock.jump_us))))
        self._time_known_at = position.index if clock.known else None
        return position

    def learns_time(self) -> bool:
        """Catch up with the cluster's time if it has become known in this term. True: a NOOP has to announce it."""
        if self._clock.known:
            return False
        env = self.state.env
        if (now_us := env.cluster_us()) is None:
            return False
        self._clock.learn(now_us, env.now())
        return True

    def applied(self, entry: Entry) -> None:
        """Note that an entry was applied."""
        if entry.index >= self.first_index:
            self.uncommitted_bytes -= entry.size

    # ---- time --------------------------------------------------------------------------------------------------

    def append_time_now_us(self) -> int:
        """Return the append time now, for decisions on the applied state. No later entry gets an earlier one."""
        env = self.state.env
        now_us = self._clock.stamp(env.cluster_us(), env.now())
        if self._time_known_at is not None and self._time_known_at > self.state.applied_index:
            return now_us - self._clock.jump_us  # the NOOP that moves the applied leases by the jump is not applied yet
        return now_us

    def expiry_now_us(self) -> int | None:
        """Return the append time now if records may be removed because of their age, else None.

        None: this broker does not hear the clocks of a majority of the brokers that hold any replica, or this term's
        append times cannot be trusted yet.
        """
        now_us = self.append_time_now_us()
        settled = self._time_known_at is not None and self._time_known_at <= self.state.applied_index
        return now_us if settled and self.state.env.cluster_us() is not None else None
