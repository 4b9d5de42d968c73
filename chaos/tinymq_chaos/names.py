"""Lists of names on a command line, with commas between them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def names_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a type for argparse: every name has to be among `known`. "none" and an empty text mean no names."""

    def names(text: str) -> tuple[str, ...]:
        found = tuple(name for name in text.split(",") if name not in ("", "none"))
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return found

    return names
