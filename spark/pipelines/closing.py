"""Writes a closing record, which tells the readers of a topic that no earlier record follows.

A window is complete once the watermark has passed its end, and only newer records move the watermark. The last windows
of a topic that ends would therefore stay open forever. A closing record has a time, and neither a key nor a value.

The closing record must be the last one. If a query reads an older record after it, that record is too late. A program
therefore writes it right after it has read the topic to its end.
"""

from __future__ import annotations

import time

from tinymq.client import Client

HEADER = ("closing", b"1")  # marks the record for other readers of the topic


def close(servers: str, topic: str) -> None:
    """Write a closing record with the current time. A second one changes nothing. Raises TinymqError."""
    with Client(servers) as client:
        client.send(topic, None, headers=[HEADER], timestamp=time.time_ns() // 1000)
