"""What a program says no to, before it has done anything."""

from __future__ import annotations


class Refused(Exception):
    """What was asked for cannot be done as it stands; the text says why, and what would be accepted."""
