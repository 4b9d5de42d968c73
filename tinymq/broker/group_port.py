"""What a partition asks of its Raft group and of its log; the real ones and the tests' fakes fit in."""

from __future__ import annotations

from typing import Protocol

from tinymq.entry import Entry, Kind
from tinymq.errors import TinymqError
from tinymq.types import GroupId, Position


class RecordLog(Protocol):
    """What a partition asks of its log (tinymq.log.Log)."""

    @property
    def log_start_offset(self) -> int: ...
    def tail_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | None: ...
    async def read_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes: ...
    async def entry_for_time(self, timestamp_us: int, end_offset: int, start_offset: int = 0) -> Entry | None: ...
    async def entry_of_max_timestamp(self, end_offset: int, start_offset: int = 0) -> Entry | None: ...
    def remove_before_offset(self, offset: int) -> None: ...


class RaftGroup(Protocol):
    """What a partition asks of its Raft group (tinymq.raft.Group)."""

    @property
    def id(self) -> GroupId: ...
    @property
    def term(self) -> int: ...
    @property
    def leader(self) -> int | None: ...
    @property
    def log(self) -> RecordLog: ...
    @property
    def failure(self) -> TinymqError | None: ...
    def propose(
        self,
        kind: Kind,
        payload: bytes,
        *,
        record_count: int = 0,
        max_timestamp_us: int | None = None,
        payload_crc: int | None = None,
    ) -> Position: ...
    def stamp_now_us(self) -> int: ...
    async def read_index(self, timeout_s: float) -> int: ...
