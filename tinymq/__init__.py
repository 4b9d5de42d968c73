"""tinymq: a replicated, partitioned message log in Python.

from tinymq import Client

with Client("localhost:7070") as mq:
    mq.send("orders", b"...")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tinymq.base.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from tinymq.client import *  # noqa: F403


def __getattr__(name: str) -> object:
    # tinymq.client declares the public names, `__all__` among them. It is loaded when the first of them is used, so
    # that a program that needs one module of `tinymq.base`, such as a Spark session, loads nothing of the client.
    client = importlib.import_module("tinymq.client")
    if name != "__all__" and name not in client.__all__:
        raise AttributeError(f"module 'tinymq' has no attribute {name!r}")
    value = globals()[name] = getattr(client, name)
    return value


def __dir__() -> list[str]:
    public_names: list[str] = importlib.import_module("tinymq.client").__all__
    return sorted({*public_names, *(name for name in globals() if name.startswith("__"))})
