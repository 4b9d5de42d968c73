"""The tables of an outbox, in the MetaData of the application. Any program may write rows, by these columns.

Column types are those that every database has. Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from tinymq.base.extras import required

with required("tinymq.outbox"):
    from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, String, Table, Text
    from sqlalchemy.schema import SchemaItem

ROWS_TABLE = "tinymq_outbox"
RELAY_TABLE = "tinymq_outbox_relay"
NAME_LENGTH_MAX = 249  # of a topic, and of a transactional id

# SQLite numbers the rows of a primary key by itself only if its type is INTEGER.
ROW_ID = BigInteger().with_variant(Integer, "sqlite")


def rows_table(metadata: MetaData, name: str = ROWS_TABLE) -> Table:
    """The records that wait for the relay. It removes a row once the transaction that sent it is committed.

    `producer_id`, `epoch` and `number` are the relay's: the id of the transaction in which it sends the row.
    """
    if name in metadata.tables:
        return metadata.tables[name]
    columns: list[SchemaItem] = [
        Column("id", ROW_ID, primary_key=True, autoincrement=True),
        Column("topic", String(NAME_LENGTH_MAX), nullable=False),
        Column("partition", Integer),  # NULL: by the key
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", Text),  # JSON: [["name", "dmFsdWU="], ...], values in base64 or null. NULL: none
        Column("timestamp_us", BigInteger),  # of the record. NULL: when it is sent
        Column("producer_id", BigInteger),
        Column("epoch", BigInteger),
        Column("number", BigInteger),
        Column("written_us", BigInteger),  # when the row was written, for metrics. NULL: nobody said
    ]
    return Table(name, metadata, *columns, sqlite_autoincrement=True)  # an id is never used twice


def relay_table(metadata: MetaData, name: str = RELAY_TABLE) -> Table:
    """One row: the transactional id of this database, and the relay that works now."""
    if name in metadata.tables:
        return metadata.tables[name]
    columns: list[SchemaItem] = [
        Column("id", Integer, primary_key=True, autoincrement=False),  # 1
        Column("transactional_id", String(NAME_LENGTH_MAX), nullable=False),
        Column("producer_id", BigInteger),  # of the relay that works, as its epoch
        Column("epoch", BigInteger),
        Column("beat", BigInteger, nullable=False),  # rises while a relay works, and with each that takes over
        Column("released", Boolean, nullable=False),  # the relay has stopped: another need not wait
        Column("marked_producer_id", BigInteger),  # of the newest transaction with which rows were marked
        Column("marked_epoch", BigInteger),
        Column("marked_number", BigInteger),
    ]
    return Table(name, metadata, *columns)
