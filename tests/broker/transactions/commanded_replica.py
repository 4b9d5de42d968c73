"""A replica of a partition of `__coordinator`, to which a test applies commands and bytes."""

from __future__ import annotations

from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.transactions.transactional_ids import TransactionalIds
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry


class CommandedReplica:
    """The replica, and the number of entries that were applied."""

    def __init__(self) -> None:
        self.replica = CoordinatorReplica("__coordinator/0", lambda broker: None)
        self.index = 0

    def apply_bytes(self, payload: bytes) -> None:
        self.index += 1
        self.replica.apply(entry(self.index, payload))

    @property
    def ids(self) -> TransactionalIds:
        return self.replica.transactional_ids


def entry(index: int, payload: bytes) -> Entry:
    new = NewEntry(Kind.COMMAND, payload, version=3)
    return make_entry(new, index=index, term=1, prev_crc=0, base_offset=0, append_time_us=100)
