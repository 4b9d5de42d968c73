"""Opens one replica: loads the checkpoint, then replays the entries that are known to be committed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry, Kind
from tinymq.log.engine.store import OpenedLog, Store
from tinymq.log.replica_log.log import Log
from tinymq.raft.replica.checkpoint import pack_checkpoint, parse_checkpoint
from tinymq.raft.replica.group import Group
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.roles.following import check_known
from tinymq.raft.rules.configs import Configs, parse_config
from tinymq.raft.rules.membership import Replica
from tinymq.raft.state.env import ReplicaEnv, StateMachine
from tinymq.raft.state.replica_state import ReplicaState

REPLAY_BYTES = 4 << 20  # per read


async def open_replica(
    store: Store, opened: OpenedLog, first_entry: Entry, machine: StateMachine, env: ReplicaEnv, broker_id: int
) -> Group:
    """Return the group of an opened log. Raises CorruptData if the checkpoint or an entry cannot be read."""
    log = opened.log
    configs = Configs(parse_config(first_entry))
    applied, high_watermark = opened.applied_index, log.log_start_offset
    if not opened.damage:
        if opened.snapshot is not None:
            configs.applied, machine_state = parse_checkpoint(opened.snapshot)
            machine.load(machine_state)
        applied, high_watermark = await _replay(log, machine, configs, applied)
        configs.keep(applied)
        async for entry in _entries(log, applied):
            configs.above = configs.after(None, [entry])
    if log.last_term > store.votes.get(log.group)[0]:
        # A power cut has kept entries of a term, but lost the term in the vote store. PySyncObj takes the term from the
        # log, and would mistake the vote of an earlier term for a vote in this one. So we store the term without a
        # vote, and no message of this term leaves before that is synced.
        store.votes.set(log.group, log.last_term, None)
    me = Replica(broker_id, store.identity.incarnation, opened.count)
    state = ReplicaState(
        group=log.group,
        me=me,
        log=log,
        vote_store=store.votes,
        env=env,
        configs=configs,
        applied_index=applied,
    )
    return Group(log.group, log, RaftReplica(state, machine, high_watermark), machine)


async def _replay(log: Log, machine: StateMachine, configs: Configs, applied: int) -> tuple[int, int]:
    """Apply the entries from the checkpoint up to the commit index of the last sync mark. It yields to the loop."""
    high_watermark = log.log_start_offset
    if applied >= log.first_index:
        high_watermark = (await log.reader.read(applied, 1))[0].header.next_offset
    commit = min(log.recovered_commit, log.last_index)
    if applied < commit:
        async for entry in _entries(log, applied):
            if entry.index > commit:
                break
            check_known(entry)
            if entry.header.kind == Kind.CONFIG:
                configs.apply(entry)
            machine.apply(entry)
            applied, high_watermark = entry.index, entry.header.next_offset
            if log.wants_snapshot(applied):
                log.save_snapshot(applied, pack_checkpoint(configs.applied, machine.dump()))
    log.note_applied(applied)
    return applied, high_watermark


async def _entries(log: Log, after: int) -> AsyncIterator[Entry]:
    """Iterate over the entries above `after`. Raises CorruptData if one is missing."""
    while after < log.last_index:
        entries = await log.reader.read(after + 1, REPLAY_BYTES)
        if not entries:
            raise CorruptData(f"{log.group}: entry {after + 1} is missing")
        for entry in entries:
            after = entry.index
            yield entry
