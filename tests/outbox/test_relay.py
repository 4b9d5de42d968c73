"""The relay against a real broker: everything once and in order, one relay of several, and what stops it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import time_ns

import pytest
from sqlalchemy import Engine, create_engine, text, update

from tests.outbox.databases import sqlite
from tests.outbox.relaying import relaying
from tests.outbox.rows import METADATA, OUTBOX, left, read, write
from tinymq import Client
from tinymq.base.errors import Fenced, InvalidConfig, NotFound
from tinymq.outbox.errors import OutboxUnresolved
from tinymq.outbox.relay import Relay, RelayConfig, resolve
from tinymq.outbox.rules import Decision, TransactionMark
from tinymq.outbox.store import Backlog, RelayStore, within
from tinymq.testing import Cluster


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(sqlite(tmp_path).url)
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def topic(mq: Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")[:100]
    mq.admin.create_topic(name, partitions=1, replication_factor=1)
    return name


def test_rows_arrive_once_in_the_order_of_their_ids_with_all_they_have(
    engine: Engine, cluster: Cluster, mq: Client, topic: str
) -> None:
    values = [b"%d" % number for number in range(10)]
    write(engine, topic, *values)
    with engine.begin() as connection:
        OUTBOX.send(connection, topic, None, headers={"a": b"\xff", "b": None}, timestamp=7, partition=0)
    with relaying(engine, cluster) as relay:
        pass
    assert (relay.status.state, relay.status.sent, relay.status.transactions) == ("stopped", 11, 3)
    with mq.reader(topic, end="latest") as reader:
        found = list(reader)
    assert [message.value for message in found] == [*values, None]
    assert [message.key for message in found] == [*values, None]
    assert (found[-1].headers, found[-1].timestamp_us) == ((("a", b"\xff"), ("b", None)), 7)
    with relaying(engine, cluster):
        write(engine, topic, b"later")
    assert read(mq, topic)[-1] == b"later"


def test_a_relay_counts_what_waits_and_what_fails(engine: Engine, cluster: Cluster, mq: Client, topic: str) -> None:
    before_us = time_ns() // 1000
    write(engine, f"{topic}-missing", b"1", b"2", b"3")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO tinymq_outbox (topic, value) VALUES (:topic, x'34')"), {"topic": topic})

    def counted(relay: Relay) -> bool:
        return relay.status.failures >= 2 and relay.status.backlog.rows == 4

    with relaying(engine, cluster, counted) as relay:
        pass
    oldest_us = relay.status.backlog.oldest_us
    assert oldest_us is not None
    assert before_us <= oldest_us <= time_ns() // 1000
    assert relay.status.sent == 0
    with relaying(engine, cluster, lambda relay: relay.status.backlog == Backlog() and relay.status.sent == 4) as relay:
        mq.admin.create_topic(f"{topic}-missing", partitions=1, replication_factor=1)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO tinymq_outbox (topic, value) VALUES (:topic, x'34')"), {"topic": topic})
    assert RelayStore(engine).backlog() == Backlog(1, None), "its writer has not said when"


def test_a_row_that_commits_late_under_a_low_id_is_not_passed_over(
    engine: Engine, cluster: Cluster, mq: Client, topic: str
) -> None:
    write(engine, topic, b"second", b"third")
    with engine.begin() as connection:
        connection.execute(update(OUTBOX.rows).values(id=OUTBOX.rows.c.id + 100))
    with relaying(engine, cluster):
        pass
    with engine.begin() as connection:
        plain = "INSERT INTO tinymq_outbox (id, topic, value) VALUES (1, :topic, x'6669727374')"
        connection.execute(text(plain), {"topic": topic})
    with relaying(engine, cluster):
        pass
    assert read(mq, topic) == [b"second", b"third", b"first"]


def test_one_of_several_relays_works_and_another_takes_over(
    engine: Engine, cluster: Cluster, mq: Client, topic: str
) -> None:
    with (
        relaying(engine, cluster, lambda _: True) as first,
        relaying(engine, cluster, lambda second: "standby" in (first.status.state, second.status.state)),
    ):
        write(engine, topic, *(b"%d" % number for number in range(6)))
    with relaying(engine, cluster):
        write(engine, topic, b"6")
    assert read(mq, topic) == [b"%d" % number for number in range(7)]
    assert first.status.state == "stopped"


def test_a_replaced_relay_changes_nothing_in_the_database(engine: Engine, topic: str) -> None:
    write(engine, topic, b"v")
    zombie, newer = RelayStore(engine), RelayStore(engine)
    seen = zombie.standing()
    assert zombie.take(seen, (7, 0), None) == (0, 0)
    mark = TransactionMark(7, 0, 1)
    rows = zombie.mark(mark, 10, 1000)
    with pytest.raises(Fenced):
        newer.take(seen, (7, 1), None)
    assert newer.take(newer.standing(), (7, 1), Decision(7, 1, False)) == (0, 1)
    for late in (lambda: zombie.mark(mark, 10, 1000), lambda: zombie.remove(mark, rows), zombie.beat, zombie.release):
        with pytest.raises(Fenced):
            late()
    assert newer.counts() == (1, 0)


def test_what_the_brokers_have_forgotten_stops_the_relay_until_it_is_resolved(
    engine: Engine, cluster: Cluster, mq: Client, topic: str
) -> None:
    write(engine, topic, b"lost", b"found")
    store = RelayStore(engine)
    store.take(store.standing(), (7, 0), None)
    store.mark(TransactionMark(7, 0, 9), 2, 1000)
    with pytest.raises(OutboxUnresolved, match="transaction 9"), relaying(engine, cluster):
        pass
    assert store.counts() == (2, 2)
    assert resolve(engine, mq, sent=False) == 2
    with relaying(engine, cluster):
        pass
    assert read(mq, topic) == [b"lost", b"found"]


def test_a_database_from_a_backup_stops_the_relay(
    engine: Engine, cluster: Cluster, mq: Client, topic: str, tmp_path: Path
) -> None:
    write(engine, topic, b"1")
    RelayStore(engine).standing()
    backup = tmp_path / "backup.db"
    with engine.connect() as connection:
        connection.exec_driver_sql("VACUUM INTO ?", (str(backup),))
    with relaying(engine, cluster):
        pass
    restored = create_engine(f"sqlite:///{backup}")
    with pytest.raises(OutboxUnresolved, match="older than the log"), relaying(restored, cluster):
        pass
    assert left(restored) == 1
    assert resolve(restored, mq, sent=True) == 0, "the row was not marked in the backup"
    with relaying(restored, cluster):
        pass
    assert read(mq, topic) == [b"1", b"1"], "as the operator has decided"
    restored.dispose()


def test_a_refused_row_is_named_and_nothing_overtakes_it(
    engine: Engine, cluster: Cluster, mq: Client, topic: str
) -> None:
    write(engine, topic, b"0", b"1")
    write(engine, f"{topic}-missing", b"2")
    write(engine, topic, b"3")

    def named(relay: Relay) -> bool:
        return f"row 3 of the outbox, for topic '{topic}-missing'" in relay.status.error

    with relaying(engine, cluster, named):
        pass
    assert read(mq, topic) == [b"0", b"1"]
    with relaying(engine, cluster):
        mq.admin.create_topic(f"{topic}-missing", partitions=1, replication_factor=1)
    assert read(mq, topic) == [b"0", b"1", b"3"]


def test_a_database_without_the_tables_is_told(tmp_path: Path) -> None:
    empty = create_engine(sqlite(tmp_path).url)
    with pytest.raises(NotFound, match="no table tinymq_outbox and no table tinymq_outbox_relay"):
        Relay(empty, Client).run(threading.Event())
    RelayStore(empty).create()
    RelayStore(empty).check()
    empty.dispose()


def test_a_transaction_is_bounded_in_bytes_and_a_large_row_goes_alone() -> None:
    assert within(10, [(1, 4), (2, 6), (3, 1)]) == [1, 2]
    assert within(10, [(1, 40), (2, 1)]) == [1]
    assert within(10, []) == []
    with pytest.raises(InvalidConfig, match="rows_max=0"):
        RelayConfig(rows_max=0)
