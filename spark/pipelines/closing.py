"""A closing record: one that says that a topic goes on no earlier than now.

A window is complete once the watermark has passed its end, and only newer records move the watermark: of a topic that
ends, the last windows would stay open for ever. A closing record has a time, and neither key nor value.

It belongs after everything: what a query reads later than it, with an older time, comes too late. So it is written by
who has just read the topic to its end.
"""

from __future__ import annotations

import time

from tinymq.client import Client

HEADER = ("closing", b"1")  # for whoever else reads the topic


def close(servers: str, topic: str) -> None:
    """Write one, with the time now. Doing it twice changes nothing. Raises TinymqError."""
    with Client(servers) as client:
        client.send(topic, None, headers=[HEADER], timestamp=time.time_ns() // 1000)
