"""Records: small opaque values by kind and name, which the registry stores for other parts of a broker.

Groups, users and access rules are records, so that a new kind needs no new command. A writer names the version that it
has seen. Of two writers that saw the same version, only the first succeeds. Records are part of the state: `apply`
changes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tinymq.base.errors import InvalidName, InvalidRequest, QuotaExceeded, VersionConflict
from tinymq.registry.state import bounds
from tinymq.registry.state.values import MetadataRecord

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:@=+-]{1,249}")
_KINDS = "kinds of records: 1 to 63 of a-z 0-9 _ -, a letter first"
_NAMES = "names of records: 1 to 249 of A-Z a-z 0-9 . _ : @ = + -"


def check_record(kind: str, name: str, value: bytes = b"") -> None:
    """Raises InvalidName, and InvalidRequest for a value over its bound."""
    if not _KIND.fullmatch(kind):
        raise InvalidName(f"{kind[:60]!r} is not a kind of record", hint=_KINDS)
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{name[:60]!r} cannot be the name of a record", hint=_NAMES)
    if len(value) > bounds.RECORD_VALUE_BYTES_MAX:
        most = f"a record's value has at most {bounds.RECORD_VALUE_BYTES_MAX} bytes"
        raise InvalidRequest(f"record {kind}/{name} has a value of {len(value)} bytes", hint=most)


class Records:
    """All records of a registry."""

    def __init__(self, records: Iterable[MetadataRecord] = ()) -> None:
        self._records = {(record.kind, record.name): record for record in records}
        self._bytes = sum(map(_size, self._records.values()))

    def __iter__(self) -> Iterator[MetadataRecord]:
        """By kind and name."""
        return (self._records[key] for key in sorted(self._records))

    def get(self, kind: str, name: str) -> MetadataRecord | None:
        return self._records.get((kind, name))

    def put(self, kind: str, name: str, value: bytes | None, expected: int, version: int) -> bool:
        """Write the record with the new `version` if it is at `expected` (0: if there is no record). A `value` of None
        removes it. Returns whether anything changed. Raises VersionConflict and QuotaExceeded, and then changes
        nothing."""
        before = self._records.get((kind, name))
        if expected != (before.version if before is not None else 0):
            now = f"is at version {before.version}" if before is not None else "does not exist"
            raise VersionConflict(f"record {kind}/{name} {now}, and the change expects version {expected}")
        if value is None:
            if before is None:
                return False
            del self._records[kind, name]
            self._bytes -= _size(before)
            return True
        record = MetadataRecord(kind, name, value, version)
        size = self._bytes + _size(record) - (_size(before) if before is not None else 0)
        if (before is None and len(self._records) >= bounds.RECORDS_MAX) or size > bounds.RECORDS_BYTES_MAX:
            most = f"at most {bounds.RECORDS_MAX} records of {bounds.RECORDS_BYTES_MAX} bytes in all"
            raise QuotaExceeded("the registry holds too many records", hint=most)
        self._records[kind, name] = record
        self._bytes = size
        return True

    def fork(self) -> Records:
        """Return an equal copy. Changes of the copy do not change this one."""
        fork = Records()
        fork._records, fork._bytes = self._records.copy(), self._bytes
        return fork


def _size(record: MetadataRecord) -> int:
    return len(record.kind) + len(record.name) + len(record.value)
