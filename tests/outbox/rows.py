"""What the tests of the relay write, and find in the log."""

from __future__ import annotations

from sqlalchemy import Engine, MetaData, func, select

from tests.outbox.databases import Database
from tinymq import Client
from tinymq.outbox import Outbox

METADATA = MetaData()
OUTBOX = Outbox(METADATA)


def write(engine: Engine, topic: str, *values: bytes, partition: int | None = None) -> None:
    """Write each value in a transaction of its own."""
    for value in values:
        with engine.begin() as connection:
            OUTBOX.send(connection, topic, value, key=value, partition=partition)


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(select(func.count()).select_from(OUTBOX.rows)) or 0)


def read(mq: Client, topic: str) -> list[bytes]:
    """All values of the topic, in the order of each partition."""
    with mq.reader(topic, end="latest") as reader:
        return [message.value or b"" for message in reader]


def relay_arguments(database: Database, servers: str) -> list[str]:
    """The command of a relay that takes over soon."""
    return ["outbox", "relay", "--database", database.url, "-s", servers, "--lease-ms", "1000", "--poll-ms", "20"]
