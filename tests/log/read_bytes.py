"""Counts the bytes that a log reads from its files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tinymq.simulation.faulty_files import FaultyFile


def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count from now on. Returns the count so far when it is called."""
    read, real = 0, FaultyFile.read

    def reads(self: FaultyFile, position: int, length: int) -> bytes:
        nonlocal read
        data = real(self, position, length)
        read += len(data)
        return data

    monkeypatch.setattr(FaultyFile, "read", reads)
    return lambda: read
