"""Errors that a disk gives on request: which operations fail, on which paths, and with which error.

They become tinymq's own errors in the same place as the errors of real files.
"""

from __future__ import annotations

import errno
import fnmatch
import os
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from tinymq.log.files.files import storage_errors

Operation = Literal["open", "create", "list", "make", "read", "write", "truncate", "rename", "remove"]
"""`create`: open a file that does not exist yet; `make`: a directory."""


@dataclass(frozen=True, slots=True)
class _Order:
    """An order to fail."""

    operation: Operation
    pattern: str  # of paths, as in fnmatch; "*" matches "/", too
    error: int


class DiskErrors:
    """The errors of one disk. They stay when a process ends, until `mend`."""

    def __init__(self) -> None:
        self.counts: Counter[Operation] = Counter()  # how often each operation has failed
        self._orders: list[_Order] = []

    def fail(self, operation: Operation, pattern: str, error: int = errno.EIO) -> None:
        """From now on let this operation fail on paths that match `pattern`."""
        self._orders.append(_Order(operation, pattern, error))

    def mend(self) -> None:
        """Let every operation succeed again."""
        self._orders.clear()

    def check(self, operation: Operation, path: str) -> None:
        """Raise DiskFull, OutOfDescriptors or StorageError if the operation has to fail."""
        for order in self._orders:
            if order.operation == operation and fnmatch.fnmatchcase(path, order.pattern):
                self.counts[operation] += 1
                with storage_errors(operation, path):
                    raise OSError(order.error, os.strerror(order.error), path)
