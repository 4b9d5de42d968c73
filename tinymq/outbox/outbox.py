"""The writing end: a record becomes a row in the application's own transaction."""

from __future__ import annotations

from time import time_ns

from tinymq.base.extras import required
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.outbox.record import columns_of
from tinymq.outbox.tables import relay_table, rows_table

with required("tinymq.outbox"):
    from sqlalchemy import Connection, MetaData, Table, insert
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session


class Outbox:
    """Records that are sent if, and only if, your transaction commits. `tinymq outbox relay` sends them.

        metadata = MetaData()
        outbox = Outbox(metadata)
        metadata.create_all(engine)  # or by Alembic
        with engine.begin() as connection:
            connection.execute(...)
            outbox.send(connection, "orders", b"paid 17", key=b"17")

    It adds two tables to your MetaData, unless they are there, and keeps no state, so all threads may share it.
    """

    def __init__(self, metadata: MetaData) -> None:
        self.rows: Table = rows_table(metadata)
        self.relay: Table = relay_table(metadata)

    def send(
        self, to: Connection | Session, topic: str, value: bytes | None, *, key: bytes | None = None,
        headers: HeadersLike | None = None, timestamp: Timestamp | None = None, partition: int | None = None,
    ) -> None:  # fmt: skip
        """Write one record in the transaction of `to`. Once that commits, the relay sends the record exactly once.

        The arguments are those of `mq.send`. Only the relay finds out whether the topic exists. Raises InvalidName,
        InvalidRequest, and what the database raises.
        """
        row = columns_of(topic, value, key, headers, timestamp, partition)
        to.execute(insert(self.rows).values(row | {"written_us": time_ns() // 1000}))


class AsyncOutbox:
    """An Outbox for SQLAlchemy's asyncio.

        async with engine.begin() as connection:
            await outbox.send(connection, "orders", b"paid 17", key=b"17")

    It shares the tables of an Outbox on the same MetaData.
    """

    def __init__(self, metadata: MetaData) -> None:
        self.rows: Table = rows_table(metadata)
        self.relay: Table = relay_table(metadata)

    async def send(
        self, to: AsyncConnection | AsyncSession, topic: str, value: bytes | None, *, key: bytes | None = None,
        headers: HeadersLike | None = None, timestamp: Timestamp | None = None, partition: int | None = None,
    ) -> None:  # fmt: skip
        """See Outbox.send."""
        row = columns_of(topic, value, key, headers, timestamp, partition)
        await to.execute(insert(self.rows).values(row | {"written_us": time_ns() // 1000}))
