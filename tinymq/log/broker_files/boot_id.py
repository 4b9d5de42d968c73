"""The file `boot`: the id of the machine's start that wrote here last, in 16 bytes, and their crc32c.

Only groups that are synced at intervals (sync=<ms>) need it. The flag LAZY in their mark says that acknowledged entries
may be in the page cache alone. If the same start of the machine opens the log again, they still are. After another
start they may be lost, so the replica gets another incarnation count (hazard 22).
"""

from __future__ import annotations

from dataclasses import replace

from tinymq.format.entry import crc32c
from tinymq.log.broker_files.durability_marks import LAZY, DurabilityMark
from tinymq.log.files.files import Files
from tinymq.log.files.layout import BOOT
from tinymq.log.files.record_file import read_whole

ID_BYTES = 16


def read_boot(files: Files) -> bytes:
    """The id that was written last; b"" if the file is missing or damaged."""
    data = read_whole(files, BOOT) or b""
    boot, crc = data[:ID_BYTES], data[ID_BYTES:]
    return boot if len(data) == ID_BYTES + 4 and crc32c(boot).to_bytes(4, "little") == crc else b""


def write_boot(files: Files, boot: bytes) -> None:
    """Write the id; it is durable when this returns. Raises StorageError."""
    assert len(boot) == ID_BYTES
    new = BOOT + ".new"
    files.remove(new)
    file = files.open(new, create=True)
    try:
        file.write(0, [boot, crc32c(boot).to_bytes(4, "little")])
        files.sync([file])
    finally:
        file.close()
    files.rename(new, BOOT)
    files.sync_directory("")


def after_boot(mark: DurabilityMark) -> DurabilityMark:
    """The mark of a log that another start of the machine wrote."""
    return forgetful(mark) if mark.flags & LAZY else mark


def forgetful(mark: DurabilityMark) -> DurabilityMark:
    """Give the replica a new identity, because entries acknowledged under this one may be lost, as its topic allows."""
    return replace(mark, count=mark.count + 1, flags=mark.flags & ~LAZY)
