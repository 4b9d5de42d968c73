"""The reading end: what a program has handled is noted in the transaction that handles it, in its own database.

`once` remembers each record, for groups whose records arrive in any order. `advance` remembers one offset for each
partition, for records that are handled in order. `newest` remembers one version for each entity, for records that say
what an entity is now.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.base.extras import required
from tinymq.base.types import Offset
from tinymq.client.consume.records import Message
from tinymq.client.work.job import Job
from tinymq.inbox.tables import ENTITY_BYTES_MAX, NAME_LENGTH_MAX, offsets_table, records_table, versions_table

with required("tinymq.inbox"):
    from sqlalchemy import Connection, Delete, MetaData, Select, Table, delete, select
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

KEEP_S_MIN = 1.0
VERSIONS = range(-(1 << 63), 1 << 63)  # of BIGINT


class InboxTables:
    """The tables of one consumer, and its statements. Use an Inbox or an AsyncInbox."""

    def __init__(self, metadata: MetaData, consumer: str) -> None:
        if not isinstance(consumer, str) or not 1 <= len(consumer) <= NAME_LENGTH_MAX:
            raise InvalidRequest(f"consumer={consumer!r:.300}", hint=f"a name of 1 to {NAME_LENGTH_MAX} characters")
        self.consumer = consumer
        self.records: Table = records_table(metadata)
        self.offsets: Table = offsets_table(metadata)
        self.versions: Table = versions_table(metadata)

    def _once(self, dialect: str, message: Message | Job) -> Any:
        record = message.message if isinstance(message, Job) else message
        values = {
            "consumer": self.consumer,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_us": record.timestamp_us,
            "handled_us": time.time_ns() // 1000,
        }
        statement = _insert(dialect, self.records).values(values).on_conflict_do_nothing()
        return statement.returning(self.records.c.partition)  # drivers do not tell how many rows an INSERT skipped

    def _advance(self, dialect: str, message: Message | Job) -> Any:
        values = {
            "consumer": self.consumer,
            "topic": message.topic,
            "partition": message.partition,
            "next_offset": message.offset + 1,
        }
        statement = _insert(dialect, self.offsets).values(values)
        moved = statement.on_conflict_do_update(
            index_elements=["consumer", "topic", "partition"],
            set_={"next_offset": statement.excluded.next_offset},
            where=self.offsets.c.next_offset < statement.excluded.next_offset,
        )
        return moved.returning(self.offsets.c.partition)

    def _newest(self, dialect: str, entity: str | bytes, version: int) -> Any:
        if not isinstance(version, int) or isinstance(version, bool) or version not in VERSIONS:
            raise InvalidRequest(f"version={version!r:.100}", hint="an integer of 64 bits")
        values = {"consumer": self.consumer, "entity": _key_of(entity), "version": version}
        statement = _insert(dialect, self.versions).values(values)
        moved = statement.on_conflict_do_update(
            index_elements=["consumer", "entity"],
            set_={"version": statement.excluded.version},
            where=self.versions.c.version < statement.excluded.version,
        )
        return moved.returning(self.versions.c.version)

    def _forget_entity(self, entity: str | bytes) -> Delete:
        table = self.versions
        return delete(table).where((table.c.consumer == self.consumer) & (table.c.entity == _key_of(entity)))

    def _positions(self, topic: str) -> Select[Any]:
        table = self.offsets
        mine = (table.c.consumer == self.consumer) & (table.c.topic == topic)
        return select(table.c.partition, table.c.next_offset).where(mine)

    def _prune(self, older_than_s: float) -> Delete:
        if not older_than_s >= KEEP_S_MIN:
            raise InvalidRequest(f"older_than_s={older_than_s!r}", hint=f"seconds, at least {KEEP_S_MIN:g}")
        table = self.records
        before_us = time.time_ns() // 1000 - int(older_than_s * 1e6)
        return delete(table).where((table.c.consumer == self.consumer) & (table.c.handled_us < before_us))

    def _forget(self, topic: str) -> list[Delete]:
        return [
            delete(table).where((table.c.consumer == self.consumer) & (table.c.topic == topic))
            for table in (self.records, self.offsets)
        ]


class Inbox(InboxTables):
    """Makes a record that arrives again a no-op.

        inbox = Inbox(metadata, "billing")
        with engine.begin() as connection:
            if inbox.once(connection, message):
                connection.execute(...)  # your own writes, in the same transaction

    `consumer` names who has handled a record: two programs that share a database have two names. It adds three tables
    to your MetaData, unless they are there, and keeps no state. SQLite and PostgreSQL.
    """

    def once(self, to: Connection | Session, message: Message | Job) -> bool:
        """Note in the transaction of `to` that a record is handled. Returns False if it was handled before: then do
        nothing.

        While another transaction handles the same record, PostgreSQL makes this call wait for its end. A record is
        known by topic, partition, offset and timestamp. Raises InvalidConfig for another kind of database.
        """
        return to.execute(self._once(_dialect(to), message)).first() is not None

    def advance(self, to: Connection | Session, message: Message | Job) -> bool:
        """Note in the transaction of `to` that everything up to this record is handled. False: it was before.

        For records that are handled in the order of their offsets: those of a reader, or of a stream group. One row
        for each partition, however many records. Raises as `once`.
        """
        return to.execute(self._advance(_dialect(to), message)).first() is not None

    def newest(self, to: Connection | Session, entity: str | bytes, version: int) -> bool:
        """Note in the transaction of `to` that this version of an entity is handled. False for a version at or below
        the newest one that was handled: then do nothing.

            order = json.loads(message.value)
            if inbox.newest(connection, message.key, order["version"]):
                ...  # write what the order is now

        For records that say what an entity is now, in any order, and from any number of workers: a version that comes
        late is left out. `entity` is a key or a name, of up to 1,024 bytes as UTF-8; versions are integers of 64 bits.
        Any two topics of the consumer share the entities, so put the topic into the name where they must not.

        While another transaction handles the same entity, PostgreSQL makes this call wait for its end, and then
        compares with what that has left: with the version before it if it rolled back. Under REPEATABLE READ or
        SERIALIZABLE the database raises its error instead: run the whole transaction again. Raises InvalidRequest, and
        as `once`.
        """
        return to.execute(self._newest(_dialect(to), entity, version)).first() is not None

    def forget_entity(self, to: Connection | Session, entity: str | bytes) -> None:
        """Forget the version of an entity: any version of it is new again. Raises InvalidRequest."""
        to.execute(self._forget_entity(entity))

    def positions(self, to: Connection | Session, topic: str) -> dict[int, Offset]:
        """The next offset of each partition that `advance` has noted, as `start=` of a reader takes it."""
        return _offsets({row.partition: row.next_offset for row in to.execute(self._positions(topic))})

    def prune(self, to: Connection | Session, older_than_s: float) -> int:
        """Forget what `once` noted longer ago. Returns how many records. Keep them for longer than a record may be
        redelivered: as long as the topic keeps it, to be certain."""
        return _count(to.execute(self._prune(older_than_s)))

    def forget(self, to: Connection | Session, topic: str) -> None:
        """Forget a deleted topic, because a new one of the same name begins at offset 0."""
        for statement in self._forget(topic):
            to.execute(statement)


class AsyncInbox(InboxTables):
    """An Inbox for SQLAlchemy's asyncio. It shares the tables of an Inbox on the same MetaData.

    async with engine.begin() as connection:
        if await inbox.once(connection, message):
            await connection.execute(...)
    """

    async def once(self, to: AsyncConnection | AsyncSession, message: Message | Job) -> bool:
        """See Inbox.once."""
        return (await to.execute(self._once(_dialect(to), message))).first() is not None

    async def advance(self, to: AsyncConnection | AsyncSession, message: Message | Job) -> bool:
        """See Inbox.advance."""
        return (await to.execute(self._advance(_dialect(to), message))).first() is not None

    async def newest(self, to: AsyncConnection | AsyncSession, entity: str | bytes, version: int) -> bool:
        """See Inbox.newest."""
        return (await to.execute(self._newest(_dialect(to), entity, version))).first() is not None

    async def forget_entity(self, to: AsyncConnection | AsyncSession, entity: str | bytes) -> None:
        """See Inbox.forget_entity."""
        await to.execute(self._forget_entity(entity))

    async def positions(self, to: AsyncConnection | AsyncSession, topic: str) -> dict[int, Offset]:
        """See Inbox.positions."""
        return _offsets({row.partition: row.next_offset for row in await to.execute(self._positions(topic))})

    async def prune(self, to: AsyncConnection | AsyncSession, older_than_s: float) -> int:
        """See Inbox.prune."""
        return _count(await to.execute(self._prune(older_than_s)))

    async def forget(self, to: AsyncConnection | AsyncSession, topic: str) -> None:
        """See Inbox.forget."""
        for statement in self._forget(topic):
            await to.execute(statement)


def _key_of(entity: str | bytes) -> bytes:
    """The bytes under which the version of an entity is kept. Raises InvalidRequest."""
    key = entity.encode(errors="surrogatepass") if isinstance(entity, str) else entity
    if not isinstance(key, bytes) or not 1 <= len(key) <= ENTITY_BYTES_MAX:
        raise InvalidRequest(f"entity={entity!r:.100}", hint=f"a text or bytes, of 1 to {ENTITY_BYTES_MAX} bytes")
    return key


def _count(result: Any) -> int:
    """The rows that a statement has changed."""
    return int(result.rowcount)


def _offsets(found: Mapping[int, int]) -> dict[int, Offset]:
    return {partition: Offset(next_offset) for partition, next_offset in found.items()}


def _dialect(to: Connection | Session | AsyncConnection | AsyncSession) -> str:
    bind = to.get_bind() if isinstance(to, Session | AsyncSession) else to
    return bind.dialect.name


def _insert(dialect: str, table: Table) -> Any:
    """An INSERT with a clause for conflicts. Each database has its own syntax for it."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    if dialect == "sqlite":
        return sqlite.insert(table)
    raise InvalidConfig(f"an inbox in {dialect}", hint="SQLite or PostgreSQL")
