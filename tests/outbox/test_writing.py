"""The writing end of the outbox, and the inbox, on SQLite and PostgreSQL: part of the application's transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.outbox.databases import Database, PostgresServer
from tinymq import Message, Offset
from tinymq.base.errors import InvalidConfig, InvalidName, InvalidRequest
from tinymq.inbox import AsyncInbox, Inbox
from tinymq.outbox import AsyncOutbox, Outbox
from tinymq.outbox.record import headers_of

METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True))
OUTBOX, INBOX = Outbox(METADATA), Inbox(METADATA, "billing")
T_US = 1_700_000_000_000_000


def message(offset: int, *, topic: str = "orders", partition: int = 0, timestamp_us: int = T_US) -> Message:
    return Message(
        topic, partition, offset, key=b"k", value=b"v", headers=(), timestamp_us=timestamp_us, leader_epoch=1
    )


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    engine = create_engine(database.url)
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


def waiting(engine: Engine) -> list[bytes | None]:
    with engine.connect() as connection:
        return list(connection.scalars(select(OUTBOX.rows.c.value).order_by(OUTBOX.rows.c.id)))


def test_a_record_is_written_if_the_transaction_commits(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(insert(ORDERS).values(id=1))
        OUTBOX.send(
            connection, "orders", b"1", key=b"k", headers={"a": b"\xff", "b": None}, partition=2, timestamp=T_US
        )
    with Session(engine) as session, session.begin():
        OUTBOX.send(session, "orders", None)

    def failing() -> None:
        with engine.begin() as connection:
            OUTBOX.send(connection, "orders", b"lost")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert waiting(engine) == [b"1", None]
    with engine.connect() as connection:
        row = connection.execute(select(OUTBOX.rows)).first()
    assert row is not None
    assert (row.topic, row.partition, row.key, row.timestamp_us, row.number) == ("orders", 2, b"k", T_US, None)
    assert headers_of(row.headers) == [("a", b"\xff"), ("b", None)]


def test_what_can_never_be_sent_is_refused_at_once(engine: Engine) -> None:
    with engine.begin() as connection:
        for wrong in (
            {"key": "text"},
            {"headers": {"a": 1}},
            {"partition": -1},
            {"partition": True},
            {"timestamp": "now"},
        ):
            with pytest.raises(InvalidRequest):
                OUTBOX.send(connection, "orders", b"v", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidName):
            OUTBOX.send(connection, "a/b", b"v")
    assert waiting(engine) == []


@pytest.mark.parametrize("text", ["no json", "[1]", '[["a", "%"]]', "3"])
def test_headers_that_another_program_wrote_wrongly_are_told(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not readable"):
        headers_of(text)


def test_migrations_have_nothing_to_add(engine: Engine) -> None:
    """Alembic finds the tables in the application's own MetaData, and the database agrees with them."""
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    assert AsyncOutbox(METADATA).rows is OUTBOX.rows
    other = AsyncInbox(METADATA, "other")
    assert (other.records, other.offsets, other.versions) == (INBOX.records, INBOX.offsets, INBOX.versions)


def test_a_record_is_handled_once(engine: Engine) -> None:
    with engine.begin() as connection:
        assert INBOX.once(connection, message(7))
        assert not INBOX.once(connection, message(7))
        assert INBOX.once(connection, message(7, timestamp_us=T_US + 1)), "of a later topic of the same name"
        assert Inbox(METADATA, "mail").once(connection, message(7))
    with engine.begin() as connection:
        assert INBOX.once(connection, message(8))
        connection.rollback()
    with Session(engine) as session, session.begin():
        assert INBOX.once(session, message(8))
        assert not INBOX.once(session, message(7))
        assert INBOX.prune(session, 3600) == 0
        with pytest.raises(InvalidRequest):
            INBOX.prune(session, 0)
        INBOX.forget(session, "orders")
        assert INBOX.once(session, message(7))
        assert not Inbox(METADATA, "mail").once(session, message(7))


def test_two_workers_that_handle_the_same_record_at_once(database: Database, engine: Engine) -> None:
    """PostgreSQL makes the second one wait for the first, and SQLite for the whole database."""
    answers: list[bool] = []

    def second() -> None:
        with engine.begin() as connection:
            answers.append(INBOX.once(connection, message(1)))

    thread = threading.Thread(target=second)
    with engine.begin() as connection:
        assert INBOX.once(connection, message(1))
        thread.start()
        assert answers == []
    thread.join(60)
    assert answers == [False]


def test_a_version_of_an_entity_is_handled_once_and_none_below_it(engine: Engine) -> None:
    with engine.begin() as connection:
        handled = [INBOX.newest(connection, "order 17", version) for version in (3, 3, 2, 4, -1, 7, 5)]
        assert handled == [True, False, False, True, False, True, False]
        assert INBOX.newest(connection, "order 18", -(1 << 63)), "each entity has its own"
        assert INBOX.newest(connection, b"\xff\x00", (1 << 63) - 1)
        assert not INBOX.newest(connection, b"order 17", 7), "a text is its UTF-8"
        assert Inbox(METADATA, "mail").newest(connection, "order 17", 1)
    with engine.begin() as connection:
        assert INBOX.newest(connection, "order 17", 8)
        connection.rollback()
    with Session(engine) as session, session.begin():
        assert INBOX.newest(session, "order 17", 8)
        INBOX.forget(session, "orders")
        assert INBOX.prune(session, 1) == 0
        assert not INBOX.newest(session, "order 17", 8), "it belongs to no topic, and to no age"
        INBOX.forget_entity(session, "order 17")
        assert INBOX.newest(session, "order 17", 1)
        assert not Inbox(METADATA, "mail").newest(session, "order 17", 1)


# (the version that was handled before, the first, the second, whether the first commits, whether the second is new)
RACES = [
    (None, 3, 4, True, True),
    (None, 3, 3, True, False),
    (None, 4, 3, True, False),
    (None, 4, 3, False, True),
    (2, 4, 3, True, False),
    (2, 4, 3, False, True),
    (2, 4, 2, False, False),
]


def test_two_workers_that_handle_versions_of_an_entity_at_once(engine: Engine) -> None:
    """The second one waits for the end of the first, and is judged by what that leaves."""
    for race in RACES:
        known, first, second, commits, expected = race
        entity, answers = str(race), list[bool]()
        if known is not None:
            with engine.begin() as connection:
                assert INBOX.newest(connection, entity, known)

        def handle(entity: str = entity, version: int = second, answers: list[bool] = answers) -> None:
            with engine.begin() as connection:
                answers.append(INBOX.newest(connection, entity, version))

        thread = threading.Thread(target=handle)
        with engine.begin() as connection:
            assert INBOX.newest(connection, entity, first)
            thread.start()
            assert answers == []
            if not commits:
                connection.rollback()
        thread.join(60)
        assert answers == [expected], race


def test_a_stricter_isolation_raises_what_the_database_raises(server: PostgresServer) -> None:
    engine = create_engine(server.database().url, isolation_level="REPEATABLE READ")
    METADATA.create_all(engine)
    with engine.connect() as connection:
        assert connection.scalars(select(ORDERS.c.id)).all() == []  # the transaction has seen the tables
        with engine.begin() as other:
            assert INBOX.newest(other, "order 17", 5)
        with pytest.raises(OperationalError, match="could not serialize"):
            INBOX.newest(connection, "order 17", 6)
    engine.dispose()


def test_no_version_of_no_entity() -> None:
    for entity, version in (("", 1), ("x" * 1025, 1), (17, 1), ("a", 1.0), ("a", True), ("a", 1 << 63)):
        with pytest.raises(InvalidRequest):
            INBOX._newest("sqlite", entity, version)  # type: ignore[arg-type]


def test_an_offset_moves_forward_only(engine: Engine) -> None:
    with engine.begin() as connection:
        assert INBOX.positions(connection, "orders") == {}
        assert [INBOX.advance(connection, message(n)) for n in (0, 1, 1, 0, 5)] == [True, True, False, False, True]
        assert INBOX.advance(connection, message(9, partition=3))
        assert INBOX.positions(connection, "orders") == {0: Offset(6), 3: Offset(10)}
        assert Inbox(METADATA, "mail").positions(connection, "orders") == {}
        INBOX.forget(connection, "orders")
        assert INBOX.positions(connection, "orders") == {}


def test_asyncio_has_the_same_calls(database: Database, engine: Engine) -> None:
    outbox, inbox = AsyncOutbox(METADATA), AsyncInbox(METADATA, "billing")

    async def test() -> None:
        asynchronous = create_async_engine(database.async_url)
        async with asynchronous.begin() as connection:
            await outbox.send(connection, "orders", b"1")
            assert await inbox.once(connection, message(1))
            assert not await inbox.once(connection, message(1))
            assert await inbox.newest(connection, "order 17", 2)
            assert not await inbox.newest(connection, "order 17", 1)
            await inbox.forget_entity(connection, "order 17")
            assert await inbox.newest(connection, "order 17", 1)
        async with AsyncSession(asynchronous) as session, session.begin():
            await outbox.send(session, "orders", b"2")
            assert await inbox.advance(session, message(4))
            assert not await inbox.advance(session, message(4))
            assert await inbox.positions(session, "orders") == {0: Offset(5)}
            assert await inbox.prune(session, 60) == 0
            await inbox.forget(session, "orders")
            assert await inbox.once(session, message(1))
        await asynchronous.dispose()

    asyncio.run(test())
    assert waiting(engine) == [b"1", b"2"]


def test_other_databases_and_names_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        Inbox(METADATA, "")
    with pytest.raises(InvalidConfig, match="an inbox in oracle"):
        INBOX._once("oracle", message(1))
