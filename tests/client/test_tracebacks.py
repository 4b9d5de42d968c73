"""What a program prints when it ends by an error of tinymq: its own line, the error, and little of the client."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tinymq import (
    AsyncClient,
    Client,
    Message,
    Offset,
    OffsetOutOfRange,
    TinymqError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    WrongKind,
)
from tinymq.client.admin.admin import AsyncAdmin
from tinymq.client.common.traces import trim, untraced
from tinymq.testing import Cluster

OURS_MAX = 2  # lines of tinymq in a traceback: of the method that was called, and of one below it
ADMIN_MAX = 5  # the same for the asynchronous `mq.admin`, which has no core
OURS = re.compile(r'^  File ".*/tinymq/', re.MULTILINE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as running, running.client() as mq:
        mq.admin.create_topic("t", partitions=1)
        mq.admin.create_group("stream", "t", kind="stream")
        mq.admin.create_group("queue", "t", kind="queue")
        yield running


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def run_handlers(mq: Client, topic: str, **settings: Any) -> None:
    mq.subscribe(topic, **settings)(print)
    mq.run()


async def serve_handlers(mq: AsyncClient, topic: str, **settings: Any) -> None:
    mq.subscribe(topic, **settings)(within)
    await mq.serve()


async def within(block: Any) -> None:
    async with block:
        pass


async def next_of(iterator: Any) -> None:
    async for _ in iterator:
        return


TABLE = pa.table({"value": [b"x"]})
CALLS: dict[str, tuple[type[TinymqError], Callable[[Client], object]]] = {
    "send": (UnknownTopic, lambda mq: mq.send("nope", b"")),
    "send later": (UnknownTopic, lambda mq: mq.send("nope", b"", delay=5)),
    "cancel": (UnknownTopic, lambda mq: mq.cancel("nope", 0, 1)),
    "producer": (UnknownTopic, lambda mq: mq.producer().send("nope", b"")),
    "send_batch": (UnknownTopic, lambda mq: mq.producer().send_batch("nope", TABLE)),
    "transaction": (UnknownTopic, lambda mq: mq.transaction("a").__enter__().send("nope", b"")),
    "reader": (UnknownTopic, lambda mq: next(mq.reader("nope"))),
    "reader, an offset": (OffsetOutOfRange, lambda mq: next(mq.reader("t", [0], start=Offset(50)))),
    "to_arrow": (UnknownTopic, lambda mq: mq.reader("nope").to_arrow()),
    "batches": (UnknownTopic, lambda mq: next(mq.reader("nope").batches())),
    "frame": (UnknownTopic, lambda mq: mq.frame("nope").count()),
    "scan": (UnknownTopic, lambda mq: next(mq.scan("nope", 0, 0, 2))),
    "consumer": (WrongKind, lambda mq: mq.consumer("t", group="queue").poll(20.0)),
    "consumer, iterated": (WrongKind, lambda mq: next(mq.consumer("t", group="queue"))),
    "worker": (WrongKind, lambda mq: next(mq.worker("t", group="stream"))),
    "queue": (UnknownTopic, lambda mq: next(mq.queue("nope", channel="a"))),
    "run": (WrongKind, lambda mq: run_handlers(mq, "t", group="queue", kind="stream")),
    "run, the other kind": (WrongKind, lambda mq: run_handlers(mq, "t", group="stream", kind="queue")),
    "run, no topic": (UnknownTopic, lambda mq: run_handlers(mq, "nope", group="new")),
    "admin": (TopicExists, lambda mq: mq.admin.create_topic("t")),
    "admin, a group": (UnknownGroup, lambda mq: mq.admin.describe_group("nope")),
    "hold": (UnknownTopic, lambda mq: mq.admin.hold("nope", 0, 0).__enter__()),
    "schedule": (UnknownTopic, lambda mq: next(iter(mq.admin.scheduled("nope")))),
}
ASYNC_CALLS: dict[str, tuple[type[TinymqError], Callable[[AsyncClient], Awaitable[object]]]] = {
    "send": (UnknownTopic, lambda mq: mq.send("nope", b"")),
    "producer": (UnknownTopic, lambda mq: mq.producer().send("nope", b"")),
    "reader": (UnknownTopic, lambda mq: next_of(mq.reader("nope"))),
    "batches": (UnknownTopic, lambda mq: next_of(mq.reader("nope").batches())),
    "to_arrow": (UnknownTopic, lambda mq: mq.reader("nope").to_arrow()),
    "frame": (UnknownTopic, lambda mq: mq.frame("nope").count()),
    "consumer": (WrongKind, lambda mq: mq.consumer("t", group="queue").poll(20.0)),
    "consumer, iterated": (WrongKind, lambda mq: next_of(mq.consumer("t", group="queue"))),
    "worker": (WrongKind, lambda mq: next_of(mq.worker("t", group="stream"))),
    "queue": (UnknownTopic, lambda mq: next_of(mq.queue("nope", channel="a"))),
    "serve": (WrongKind, lambda mq: serve_handlers(mq, "t", group="queue", kind="stream")),
    "hold": (UnknownTopic, lambda mq: within(mq.admin.hold("nope", 0, 0))),
}
ASYNC_ADMIN: dict[str, tuple[type[TinymqError], Callable[[AsyncClient], Awaitable[object]]]] = {
    "create_topic": (TopicExists, lambda mq: mq.admin.create_topic("t")),
    "describe_group": (UnknownGroup, lambda mq: mq.admin.describe_group("nope")),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_program_that_ends_by_an_error_shows_its_own_line(cluster: Cluster, call: str) -> None:
    kind, make = CALLS[call]
    with cluster.client() as mq, pytest.raises(kind) as raised:
        make(mq)
    text = text_of(raised.value)
    assert len(OURS.findall(text)) <= OURS_MAX, text
    assert "another exception" not in text
    assert text.splitlines()[-1].startswith(f"tinymq.{kind.__name__}: ")


def test_run_for_a_group_of_the_other_kind_ends_in_the_callers_line(cluster: Cluster) -> None:
    with cluster.client() as mq, pytest.raises(WrongKind) as raised:
        run_handlers(mq, "t", group="queue", kind="stream")
    *_, line, error = (each for each in text_of(raised.value).splitlines() if each.strip(" ^"))
    assert line.strip() == "mq.run()"
    assert error == "tinymq.WrongKind: 'queue' is a queue group (subscribe without kind=\"stream\")"


@pytest.mark.parametrize("call", ASYNC_CALLS | ASYNC_ADMIN)
def test_so_does_an_asynchronous_program(cluster: Cluster, call: str) -> None:
    kind, make = (ASYNC_CALLS | ASYNC_ADMIN)[call]

    async def program() -> str:
        async with AsyncClient(cluster.servers) as mq:
            with pytest.raises(kind) as raised:
                await make(mq)
            return text_of(raised.value)

    text = asyncio.run(program())
    assert len(OURS.findall(text)) <= (ADMIN_MAX if call in ASYNC_ADMIN else OURS_MAX), text
    assert "another exception" not in text


def test_what_the_application_handles_meanwhile_stays_in_the_traceback(cluster: Cluster) -> None:
    def describe(mq: Client) -> None:
        try:
            raise ValueError("of the application")
        except ValueError:
            mq.admin.describe_topic("nope")

    with cluster.client() as mq, pytest.raises(UnknownTopic) as raised:
        describe(mq)
    assert "ValueError: of the application" in text_of(raised.value)


def test_a_handler_that_raises_is_in_the_traceback(cluster: Cluster) -> None:
    """Not the line that called `run` is to blame, but one of the handler."""
    with cluster.client() as mq:
        mq.send("t", b"x")

        @mq.subscribe("t", group="raising", on_error="stop")
        def handle(message: Message) -> None:
            mq.send("nope", message.value)

        with pytest.raises(UnknownTopic) as raised:
            mq.run()
    text = text_of(raised.value)
    assert 'mq.send("nope", message.value)' in text
    assert len(OURS.findall(text)) == 0, text


def test_the_whole_traceback_is_logged_at_debug(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "tinymq.client"), cluster.client() as mq, pytest.raises(UnknownTopic):
        mq.admin.describe_topic("nope")
    assert "UnknownTopic, as it was raised inside of the client" in caplog.text
    assert "tinymq/client/admin/topics.py" in caplog.text


def test_an_error_that_is_raised_again_and_again_does_not_grow(cluster: Cluster) -> None:
    """A producer's records share the error of their batch, and a reader keeps the one that ended it."""
    with cluster.client() as mq:
        mq.admin.create_topic("gone", partitions=1)
        reader, producer = mq.reader("gone"), mq.producer(linger_ms=0)
        producer.send("gone", b"x").result(20.0)
        assert len(reader.poll(20.0)) == 1
        mq.admin.delete_topic("gone")
        delivery = producer.send("gone", b"y")
        for call in (lambda: reader.poll(20.0), lambda: delivery.result(20.0)):
            lengths = set()
            for _ in range(3):
                with pytest.raises(TinymqError) as raised:
                    call()
                lengths.add(len(text_of(raised.value).splitlines()))
            assert len(lengths) == 1


def test_a_bug_keeps_its_traceback(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with cluster.client() as mq:
        monkeypatch.setattr(AsyncAdmin, "describe_topic", broken)
        with pytest.raises(ZeroDivisionError) as raised:
            mq.admin.describe_topic("t")
    assert {", in run\n", ", in broken\n"} <= set(re.findall(r", in \w+\n", text_of(raised.value)))


def test_what_the_client_handled_itself_is_not_shown() -> None:
    """A kept error may have been made while the client handled one of its own, of a socket for example."""
    source = "def made(error):\n    try:\n        {}['nothing']\n    except KeyError:\n        raise error\n"
    names: dict[str, Any] = {"__name__": "tinymq.client.made"}
    exec(source, names)
    for leaving in (untraced, trim):
        error = TinymqError("kept")
        with pytest.raises(TinymqError):
            names["made"](error)
        assert isinstance(error.__context__, KeyError)
        leaving(error)
        assert error.__context__ is None
