"""Real processes of relays, killed right after each step; a database and brokers that are killed under load."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Engine, Integer, Table, create_engine, insert, select
from sqlalchemy.exc import DBAPIError

from tests.outbox.databases import Database, PostgresServer
from tests.outbox.killed_relay import STEPS
from tests.outbox.relaying import relaying, wait_until
from tests.outbox.rows import METADATA, OUTBOX, read, relay_arguments, write
from tinymq import Client
from tinymq.testing import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
KILLED_S_MAX = 120.0
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    engine = create_engine(database.url, pool_pre_ping=True)
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


def wait_for_more(mq: Client) -> None:
    before = len(read(mq, "orders"))
    wait_until(lambda: len(read(mq, "orders")) > before + 20, KILLED_S_MAX)


@pytest.mark.parametrize("step", STEPS)
def test_a_relay_that_is_killed_after_a_step_leaves_each_row_to_be_sent_once(
    engine: Engine, database: Database, cluster: Cluster, mq: Client, step: str, request: pytest.FixtureRequest
) -> None:
    topic = "".join(c if c.isalnum() else "-" for c in request.node.name)
    mq.admin.create_topic(topic, partitions=1)
    values = [b"%d" % number for number in range(8)]
    write(engine, topic, *values)
    for _ in range(2):  # the second one recovers from the first, and is killed as well
        command = [sys.executable, "-m", "tests.outbox.killed_relay", step, database.url, cluster.servers]
        assert subprocess.run(command, timeout=KILLED_S_MAX, check=False).returncode == -signal.SIGKILL
    with relaying(engine, cluster):
        pass
    assert read(mq, topic) == values


def test_each_row_is_sent_once_while_everything_is_killed(server: PostgresServer, cluster: Cluster, mq: Client) -> None:
    """What is in the table of orders is what was committed, whatever the writer was told."""
    database = server.database()
    engine = create_engine(database.url, pool_pre_ping=True)
    METADATA.create_all(engine)
    mq.admin.create_topic("orders", partitions=3)
    stop, rng = threading.Event(), random.Random(26)

    def applications(first: int) -> None:
        number = first
        while not stop.is_set():
            number += 2
            try:
                with engine.begin() as connection:
                    connection.execute(insert(ORDERS).values(id=number))
                    OUTBOX.send(connection, "orders", b"%d" % number, key=b"%d" % (number % 7))
                    if number % 5 == 0:
                        connection.rollback()
            except DBAPIError:
                stop.wait(0.05)  # the database is down

    writers = [threading.Thread(target=applications, args=(first,)) for first in (0, 1)]
    for writer in writers:
        writer.start()
    relays: list[subprocess.Popen[bytes]] = []
    try:
        for turn in range(12):
            while len(relays) < 2:
                command = [sys.executable, "-m", "tinymq", *relay_arguments(database, cluster.servers)]
                relays.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            wait_for_more(mq)
            kind = ("relay", "broker", "database", "relay")[turn % 4]
            if kind == "relay":
                victim = relays.pop(rng.randrange(len(relays)))
                victim.kill()
                victim.wait()
            elif kind == "broker":
                number = rng.choice([1, 2, 3])
                cluster.kill(number)
                cluster.start(number)
            else:
                server.kill()
                server.start()
    finally:
        stop.set()
        for relay in relays:
            relay.kill()
            relay.wait()
        for writer in writers:
            writer.join()
    with relaying(engine, cluster):
        pass
    with engine.connect() as connection:
        committed = {b"%d" % number for number in connection.scalars(select(ORDERS.c.id))}
    assert Counter(read(mq, "orders")) == Counter(committed)
    assert len(committed) > 200
    engine.dispose()
