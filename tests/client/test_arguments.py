"""Wrong arguments are refused at once, with an InvalidRequest that names the argument."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tests.fakes.batches import payload
from tinymq.base.errors import DeadlineExceeded, InvalidName, InvalidRequest, OffsetOutOfRange, TinymqError
from tinymq.client import Offset
from tinymq.client.common.argument_checks import check_channel, check_consumer, check_topic
from tinymq.client.facade.core.client_core import ClientCore

Call = Callable[[Any], Awaitable[Any]]


async def made(make: Callable[[], Any]) -> Any:
    """For objects whose constructor refuses the argument."""
    return make()


async def flushed(mq: ClientCore, timeout: float) -> None:
    await mq.producer().flush(timeout)


async def waited(mq: ClientCore, timeout: Any) -> None:
    (await mq.producer().send("t", b"x")).result(timeout)


SOONER, LATER = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC)

BAD: dict[str, tuple[str, Call]] = {
    "no partitions": ("partitions=", lambda mq: made(lambda: mq.reader("t", partitions=[]))),
    "one partition": ("partitions=1", lambda mq: made(lambda: mq.reader("t", partitions=1))),
    "text as partitions": ("partitions=", lambda mq: made(lambda: mq.reader("t", partitions="01"))),
    "texts as partitions": ("partitions: '0'", lambda mq: made(lambda: mq.reader("t", partitions=["0"]))),
    "bools as partitions": ("partitions: True", lambda mq: made(lambda: mq.reader("t", partitions=[True]))),
    "bytes as topic to read": ("topic=b'c'", lambda mq: made(lambda: mq.reader(b"c"))),
    "a large offset": ("Offset=18446744073709551616", lambda mq: made(lambda: mq.reader("t", start=Offset(2**64)))),
    "a text offset": ("Offset='1'", lambda mq: made(lambda: mq.reader("t", start=Offset("1")))),  # type: ignore[arg-type]
    "ends before it starts": ("behind end", lambda mq: made(lambda: mq.reader("t", start=Offset(3), end=Offset(1)))),
    "contradictory by partition": (
        "partition 0: start", lambda mq: made(lambda: mq.reader("t", None, {0: Offset(3)}, Offset(1)))
    ),
    "times the wrong way round": (
        "start=.*behind end",
        lambda mq: made(lambda: mq.reader("t", None, LATER, SOONER)),
    ),
    "poll(nan)": ("timeout=nan", lambda mq: mq.reader("t").poll(math.nan)),
    "poll(-1)": ("timeout=-1", lambda mq: mq.reader("t").poll(-1)),
    "poll(inf)": ("timeout=inf", lambda mq: mq.reader("t").poll(math.inf)),
    "poll('1')": ("timeout='1'", lambda mq: mq.reader("t").poll("1")),
    "max_records": ("max_records=0", lambda mq: mq.reader("t").poll(1, max_records=0)),
    "a negative limit": ("limit=-1", lambda mq: mq.reader("t").to_arrow(-1)),
    "flush(nan)": ("timeout=nan", lambda mq: flushed(mq, math.nan)),
    "close(-1)": ("timeout=-1", lambda mq: mq.producer().close(-1)),
    "result(nan)": ("timeout=nan", lambda mq: waited(mq, math.nan)),
    "admin timeout 0": ("timeout=0", lambda mq: mq.admin.list_topics(timeout=0)),
    "admin timeout -1": ("timeout=-1", lambda mq: mq.admin.list_topics(timeout=-1)),
    "admin timeout 1e-9": ("timeout=1e-09", lambda mq: mq.admin.list_topics(timeout=1e-9)),
    "admin timeout inf": ("timeout=inf", lambda mq: mq.admin.delete_topic("t", timeout=math.inf)),
    "partition as text": ("partition='1'", lambda mq: mq.send("t", b"", partition="1")),
    "partition as bool": ("partition=True", lambda mq: mq.send("t", b"", partition=True)),
    "partition of a table": ("partition='1'", lambda mq: mq.producer().send_batch("t", None, partition="1")),
    "topic as bytes": ("topic=b'c'", lambda mq: mq.send(b"c", b"")),
    "topic as list": ("topic=.'c'.", lambda mq: mq.send(["c"], b"")),
    "described topic as bytes": ("topic=b'c'", lambda mq: mq.admin.describe_topic(b"c")),
    "deleted topic as bytes": ("topic=b'c'", lambda mq: mq.admin.delete_topic(b"c")),
    "partitions as text": ("partitions='3'", lambda mq: mq.admin.create_topic("x", "3")),
    "a list as table": ("data is list", lambda mq: mq.producer().send_batch("t", [b"a"])),
    "a header's value": ("headers: the value of 'a' is int", lambda mq: mq.send("t", b"", headers={"a": 5})),
    "a header's name": ("headers: name 5", lambda mq: mq.send("t", b"", headers={5: b"a"})),
    "a float as time": ("not float", lambda mq: mq.send("t", b"", timestamp=1.5)),
    "get(True)": ("offset=True", lambda mq: mq.queue("t").get(True)),
    "get('1')": ("offset='1'", lambda mq: mq.queue("t").get("1")),
    "get(1.0)": ("offset=1.0", lambda mq: mq.queue("t").get(1.0)),
    "get of a large offset": ("Offset=18446744073709551616", lambda mq: mq.queue("t").get(2**64)),
    "commit(True)": ("upto=True", lambda mq: mq.queue("t").commit(True)),
    "commit('earliest')": ("upto='earliest'", lambda mq: mq.queue("t").commit("earliest")),
    "hold(True)": ("offset=True", lambda mq: made(lambda: mq.admin.hold("t", 0, True))),
    "make_hold of a time": ("offset=datetime", lambda mq: mq.admin.make_hold("t", 0, LATER)),
    "an int where a time may stand": ("5 is not a place", lambda mq: mq.queue("t").seek(5)),
    "a time without zone": ("zone", lambda mq: made(lambda: mq.reader("t", start=datetime(2024, 1, 1)))),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_an_error_names_the_wrong_argument_and_hints_at_a_right_one(what: str) -> None:
    async def scenario() -> None:
        says, call = BAD[what]
        cluster = FakeCluster()
        cluster.add_topic("t", 2)
        async with client_of(cluster) as mq:
            await mq.send(
                "t", b"", partition=0
            )  # the topic is known from now on, so the next send stays in this thread
            with pytest.raises(InvalidRequest, match=says) as raised:
                await call(mq)
            assert raised.value.code == "InvalidRequest"
            assert "pass" in raised.value.hint or "encode" in raised.value.hint

    run(scenario())


def test_zero_timeouts_and_limits_are_accepted() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster) as mq:
            assert await mq.reader("t").poll(0) == []
            await mq.producer().flush(0)
            await mq.producer().close(0)
            assert (await mq.reader("t").to_arrow(0)).num_rows == 0

    run(scenario())


@pytest.mark.parametrize("end", ["latest", None, Offset(200)])
@pytest.mark.parametrize("replica", ["leader", "follower"])
def test_a_start_beyond_the_end_raises_with_the_end(end: Any, replica: str) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        (at,) = cluster.add_topic("t")
        at.append(payload(10))
        async with client_of(cluster) as mq:
            with pytest.raises(OffsetOutOfRange, match="beyond the end") as raised:
                await mq.reader("t", start=Offset(99), end=end, replica=replica).poll(5)
            assert raised.value.detail["high_watermark"] == "10"
            assert await mq.reader("t", start=Offset(10), end="latest", replica=replica).poll(5) == []

    run(scenario())


def test_a_start_beyond_a_lagging_replica_is_accepted() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        (at,) = cluster.add_topic("t")
        at.append(payload(10))
        at.shown = {2: 3, 3: 3}
        cluster.kill(1, elect=False)
        async with client_of(cluster, request_timeout_ms=500) as mq:
            with pytest.raises(DeadlineExceeded) as raised:
                await mq.reader("t", start=Offset(7), replica="any").poll(5)
            assert isinstance(raised.value, TinymqError)
            assert raised.value.retriable

    run(scenario())


@pytest.mark.parametrize("name", ["", ".", "a/b", "n" * 250])
@pytest.mark.parametrize(
    ("what", "check"), [("topic", check_topic), ("channel", check_channel), ("consumer", check_consumer)]
)
def test_the_error_of_a_wrong_name_says_which_names_are_valid(
    what: str, check: Callable[[str], str], name: str
) -> None:
    with pytest.raises(InvalidName) as raised:
        check(name)
    assert what in raised.value.message
    assert raised.value.hint.startswith(f"{what} names: ")
