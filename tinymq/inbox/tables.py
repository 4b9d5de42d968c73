"""The tables of an inbox, in the MetaData of the application. Times are microseconds since 1970 UTC."""

from __future__ import annotations

from tinymq.base.extras import required

with required("tinymq.inbox"):
    from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table
    from sqlalchemy.schema import SchemaItem

RECORDS_TABLE = "tinymq_inbox"
OFFSETS_TABLE = "tinymq_inbox_offset"
VERSIONS_TABLE = "tinymq_inbox_version"
NAME_LENGTH_MAX = 249
ENTITY_BYTES_MAX = 1024  # PostgreSQL has 2,700 bytes for an entry of an index


def records_table(metadata: MetaData, name: str = RECORDS_TABLE) -> Table:
    """The records that are handled. The timestamp tells a record from one of an earlier topic of the same name."""
    if name in metadata.tables:
        return metadata.tables[name]
    columns: list[SchemaItem] = [
        Column("consumer", String(NAME_LENGTH_MAX), primary_key=True),
        Column("topic", String(NAME_LENGTH_MAX), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("offset", BigInteger, primary_key=True, autoincrement=False),
        Column("timestamp_us", BigInteger, primary_key=True, autoincrement=False),
        Column("handled_us", BigInteger, nullable=False),
        Index("tinymq_inbox_handled", "consumer", "handled_us"),  # for pruning
    ]
    return Table(name, metadata, *columns)


def offsets_table(metadata: MetaData, name: str = OFFSETS_TABLE) -> Table:
    """The next offset of each partition. All records below it are handled."""
    if name in metadata.tables:
        return metadata.tables[name]
    columns: list[SchemaItem] = [
        Column("consumer", String(NAME_LENGTH_MAX), primary_key=True),
        Column("topic", String(NAME_LENGTH_MAX), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("next_offset", BigInteger, nullable=False),
    ]
    return Table(name, metadata, *columns)


def versions_table(metadata: MetaData, name: str = VERSIONS_TABLE) -> Table:
    """The newest version of each entity that is handled. The primary key is what concurrent transactions wait for."""
    if name in metadata.tables:
        return metadata.tables[name]
    columns: list[SchemaItem] = [
        Column("consumer", String(NAME_LENGTH_MAX), primary_key=True),
        Column("entity", LargeBinary(ENTITY_BYTES_MAX), primary_key=True),  # a text as UTF-8
        Column("version", BigInteger, nullable=False),
    ]
    return Table(name, metadata, *columns)
