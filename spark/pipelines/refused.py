"""The error with which a program refuses a request before it has done anything."""

from __future__ import annotations


class Refused(Exception):
    """The request cannot be carried out. The text says why, and which request would be accepted."""
