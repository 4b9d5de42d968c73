"""tinymq: a replicated, partitioned message log in Python.

from tinymq import Client

with Client("localhost:7070") as mq:
    mq.send("orders", b"...")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinymq import client

if TYPE_CHECKING:
    from tinymq.client import *  # noqa: F403

__all__ = []
__all__ += client.__all__  # the public names, each loaded from tinymq.client when it is first used


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tinymq' has no attribute {name!r}")
    value = globals()[name] = getattr(client, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
