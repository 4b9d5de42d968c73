"""Records the promises of a log, and checks a reopened log against them."""

from __future__ import annotations

from tests.log.values import everything
from tinymq.format.entry import Entry
from tinymq.log import Log, OpenedLog


class Witness:
    """One group's history as its caller knows it."""

    def __init__(self) -> None:
        self.model: list[Entry] = []  # what the log holds, in memory's view; its first is entry `first_index`
        self.first_index = 1
        self.acked: dict[int, int] = {}  # index → header_crc of what was durable and not truncated since
        self.ever: dict[int, set[int]] = {}  # index → header_crc of everything that was ever appended there
        self.removed_below = 1  # entries below may be gone
        self.state_floor = 0  # a state at this index or a later one must be found

    def begin(self, first: Entry) -> None:
        self.model = [first]
        self.ever[1] = {first.header.header_crc}

    def opened(self, log: Log) -> None:
        self.acked[1] = self.model[0].header.header_crc
        log.on_durable = lambda: self.durable(log.durable_index)

    def appended(self, entries: list[Entry]) -> None:
        self.model += entries
        for entry in entries:
            self.ever.setdefault(entry.index, set()).add(entry.header.header_crc)

    def durable(self, index: int) -> None:
        for entry in self.model:
            if entry.index <= index:
                self.acked[entry.index] = entry.header.header_crc

    def truncated(self, index: int) -> None:
        self.model = [e for e in self.model if e.index < index]
        self.acked = {i: crc for i, crc in self.acked.items() if i < index}

    def removed(self, log: Log) -> None:
        self.removed_below = max(self.removed_below, log.first_index)

    async def check(self, opened: OpenedLog) -> list[Entry]:
        """Check that no acknowledged entry is missing or changed, that every entry was appended once, and that the
        chain holds. Returns the entries.
        """
        assert opened.damage is None, opened.damage
        assert opened.count == 0
        log = opened.log
        assert log.first_index <= self.removed_below
        found = await everything(log)
        assert [e.index for e in found] == list(range(log.first_index, log.last_index + 1))
        assert log.durable_index == log.last_index
        offset, crc = log.log_start_offset, log.reader.crc_at(log.first_index - 1)
        for entry in found:
            assert entry.header.header_crc in self.ever[entry.index]
            assert (entry.header.base_offset, entry.header.prev_crc) == (offset, crc)
            assert log.term_at(entry.index) == entry.term
            offset, crc = entry.header.next_offset, entry.header.header_crc
        assert (log.next_offset, log.last_crc) == (offset, crc)
        at = {e.index: e.header.header_crc for e in found}
        for index, crc_acked in self.acked.items():
            if index >= self.removed_below:
                assert at.get(index) == crc_acked, f"entry {index} was acknowledged and is missing"
        assert log.first_index - 1 <= opened.applied_index <= log.last_index
        if opened.applied_index:
            assert opened.snapshot == b"state at %d" % opened.applied_index
        return found
