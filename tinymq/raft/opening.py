"""Opening one replica: checkpoint, replay of what is known to be committed, then PySyncObj around it."""

from __future__ import annotations

from tinymq.entry import Entry, Kind
from tinymq.errors import CorruptData
from tinymq.log.log import Log
from tinymq.log.store import OpenedLog, Store
from tinymq.raft.core import RaftCore
from tinymq.raft.group import Group
from tinymq.raft.membership import Membership, Replica, parse_membership
from tinymq.raft.state import StateMachine, Surroundings

REPLAY_BYTES = 4 << 20  # read at a time


async def open_replica(
    store: Store, opened: OpenedLog, first_entry: Entry, machine: StateMachine, around: Surroundings, broker_id: int
) -> Group:
    """The group around an opened log. Raises CorruptData when a checkpoint or an entry cannot be read."""
    log = opened.log
    membership = parse_membership(first_entry.payload)
    applied, high_watermark = opened.applied_index, log.log_start_offset
    if not opened.damage:
        if opened.state is not None:
            machine.load(opened.state)
        membership, applied, high_watermark = await _replay(log, machine, membership, applied)
    me = Replica(broker_id, store.identity.incarnation, opened.count)
    core = RaftCore(log.group, me, log, store.ballots, machine, around, membership, applied, high_watermark)
    return Group(log.group, log, core, machine)


async def _replay(log: Log, machine: StateMachine, membership: Membership, applied: int) -> tuple[Membership, int, int]:
    """Apply from the checkpoint up to the commit index of the last sync mark, without holding the loop."""
    high_watermark = log.log_start_offset
    if applied >= log.first_index:
        high_watermark = (await log.read(applied, 1))[0].header.next_offset
    commit = min(log.recovered_commit, log.last_index)
    while applied < commit:
        entries = await log.read(applied + 1, REPLAY_BYTES)
        if not entries:
            raise CorruptData(f"{log.group}: entry {applied + 1} is missing below the commit index {commit}")
        for entry in entries:
            if entry.index > commit:
                break
            if entry.header.kind == Kind.CONFIG:
                membership = parse_membership(entry.payload)
            machine.apply(entry)
            applied, high_watermark = entry.index, entry.header.next_offset
            if log.ends_segment(applied):
                log.put_state(applied, machine.dump())
    log.note_applied(applied)
    return membership, applied, high_watermark
