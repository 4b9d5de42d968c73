"""Numbers and names in sentences for people: `1 broker`, `2 brokers`. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def quantity(count: int, noun: str, plural: str = "") -> str:
    """`count` with its noun: "1 broker", "3 brokers". `plural` is for nouns whose plural is not formed with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def named(noun: str, names: Iterable[object]) -> str:
    """A noun with names: "broker 3", "brokers 1, 2"."""
    listed = [str(name) for name in names]
    return f"{noun if len(listed) == 1 else noun + 's'} {', '.join(listed)}"
